//! The engine's role: a process with the model and without a network.
//!
//! Its main thread reads commands from standard input, which is one end of a socketpair. A second
//! thread loads the model and then prepares large prompts, a third prepares small ones, the engine
//! thread steps, and others write reports and watch the model file. When the agent is gone, the
//! process exits at once. It confines itself ([`sandbox`](crate::engine::sandbox)) before it starts
//! a second thread.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use inference_core::llama::{
    ContextOptions, EmbedOptions, LlamaEmbedder, LlamaModel, LlamaTokenizer, LoadError, Loading,
    MappedFiles, Pooling, Weights, draft_model, mtp_head, register,
};
use inference_core::model_file::memory_plan::LoadMode;
use inference_core::prepare::{IsWanted, Lane, PrepareError, Prepared, Preparer, RerankTemplate};
use inference_core::scheduler::embed::{EmbedEngine, EmbedJob};
use inference_core::scheduler::engine_thread::{self, EngineHandle};
use inference_core::scheduler::prefix_disk::Key;
use inference_core::scheduler::sequence::{CancelFlag, Job};
use inference_core::scheduler::step::Engine;
use inference_core::text::chat_template::{ChatTemplate, SpecialTokens};
use inference_core::types::model::ModelSizes;
use inference_core::types::request::{
    EmbedInput, EmbedRequest, Event, Failure, GenerateRequest, RequestId, Work,
};

use crate::engine::affinity::stay_on;
use crate::engine::ipc::{Command, EngineFacts, ModelFacts, Report, TemplateFacts, read_frame};
use crate::engine::model_files::ModelFiles;
use crate::engine::model_files::digest::Fingerprint;
use crate::engine::options::EngineOptions;
use crate::engine::sandbox::escape;

mod controls;
mod inbox;
mod opened;
mod prefixes;
mod reports;
mod slots;
mod watch;

use controls::Controls;
use inbox::{Inbox, Submit};
use opened::{Confined, Files};
use reports::{Reporter, write_reports};
use watch::{CHANGED, watch};

/// Maximum requests waiting for a slot. A gateway sends requests only to free slots, so these come
/// from clients of the standalone server.
const QUEUE_MAX: usize = 256;
/// Maximum embedding inputs waiting: some requests of the largest kind.
const INPUTS_MAX: usize = 16 * 1024;
/// Reports buffered for writing. The agent always reads.
const REPORTS_MAX: usize = 4096;

/// Cancellation flags of the requests in flight.
type Flags = Arc<Mutex<HashMap<RequestId, CancelFlag>>>;

/// Runs the engine until the agent is gone.
pub(crate) fn run(options: EngineOptions) -> io::Result<()> {
    // A stopped process does not read the end of file, but the kernel still kills it together with
    // its agent.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if let Some(cpus) = &options.cpus {
        stay_on(cpus)?;
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let opened = opened::open(&options);
    let controls = Arc::default();
    let (reports, outbox) = sync_channel(REPORTS_MAX);
    let inbox = Arc::new(Inbox::default());
    let flags = Flags::default();
    let writer = socket.try_clone()?;
    std::thread::Builder::new()
        .name("reports".into())
        .spawn(move || write_reports(writer, &outbox))?;
    match opened {
        Ok((files, confined)) => {
            let (reports, flags, submits) = (reports.clone(), flags.clone(), inbox.clone());
            let controls = Arc::clone(&controls);
            let prompts = Prompts { options, confined, reports, flags, controls };
            std::thread::Builder::new()
                .name("prompts".into())
                .spawn(move || prompts.run(files, &submits))?;
        }
        // The agent kills this process as soon as it receives this.
        Err(why) => drop(reports.send(Report::LoadFailed(why))),
    }
    let read = read_commands(socket, &inbox, &reports, &flags, &controls);
    end_process();
    read
}

fn read_commands(
    socket: UnixStream,
    inbox: &Inbox,
    reports: &SyncSender<Report>,
    flags: &Flags,
    controls: &OnceLock<Controls>,
) -> io::Result<()> {
    let mut reader = BufReader::new(socket);
    while let Some(command) = read_frame(&mut reader)? {
        match command {
            Command::Submit(id, work) => {
                let cancels = (0..work.requests()).map(|_| CancelFlag::default()).collect();
                let submit = Submit { id, work, cancels };
                lock(flags).extend(submit.ids().zip(submit.cancels.iter().cloned()));
                for id in inbox.push(submit).err().into_iter().flatten() {
                    finish(reports, flags, id, Event::Failed(Failure::QueueFull));
                }
            }
            Command::Stop(limit) => {
                controls.get().into_iter().for_each(|controls| controls.finish_writing(limit));
                return Ok(());
            }
            Command::TakePrefix(number) => {
                controls.get().into_iter().for_each(|controls| controls.take_prefix(number));
            }
            Command::WritePrefixes => controls.get().into_iter().for_each(Controls::write_soon),
            Command::Slot(id, request) => {
                let controls = controls.get().ok_or(Failure::NotGenerative);
                if let Err(failure) = controls.and_then(|controls| controls.slot(id, request)) {
                    finish(reports, flags, id, Event::Failed(failure));
                }
            }
            Command::Cancel(id) => {
                if let Some(flag) = lock(flags).get(&id) {
                    flag.set();
                }
                for id in inbox.drop_unwanted() {
                    finish(reports, flags, id, Event::Cancelled);
                }
            }
        }
    }
    Ok(())
}

fn lock(flags: &Flags) -> std::sync::MutexGuard<'_, HashMap<RequestId, CancelFlag>> {
    flags.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets a request and reports its last event.
fn finish(reports: &SyncSender<Report>, flags: &Flags, id: RequestId, last: Event) {
    lock(flags).remove(&id);
    // The writer ends only with the process.
    let _ = reports.send(Report::Event(id, last));
}

/// Ends the process when a thread panics: an engine without one of its threads serves no one, while
/// one that is gone is restarted.
struct ExitOnPanic;

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            end_process();
        }
    }
}

/// llama.cpp's threads may be computing: returning from main would run its static destructors under
/// them.
fn end_process() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

/// Threads that prepare requests of one lane, beside `computing` ones that they take time from.
fn lane_threads(computing: u32) -> usize {
    (computing / 8).clamp(1, 4) as usize
}

/// The threads that load the model and turn requests into jobs.
struct Prompts {
    options: EngineOptions,
    confined: Confined,
    /// Set when a model that generates text is loaded.
    controls: Arc<OnceLock<Controls>>,
    reports: SyncSender<Report>,
    flags: Flags,
}

impl Prompts {
    fn run(mut self, mut files: Files, inbox: &Inbox) {
        let _exit = ExitOnPanic;
        let (preparer, running) = match self.load(&mut files) {
            Ok(loaded) => loaded,
            Err(why) => {
                let _ = self.reports.send(Report::LoadFailed(why));
                return;
            }
        };
        escape::attempt();
        let _watched = watch(files, self.reports.clone());
        let mapped = self.confined.mapped.take().filter(|_| self.options.huge_pages);
        // Without them, the models compute a little slower.
        let use_huge_pages = || mapped.map(MappedFiles::use_huge_pages);
        let lanes = [(Lane::Small, "small prompts"), (Lane::Large, "large prompts")];
        let (this, preparer, running) = (&self, &preparer, &running);
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("huge pages".into());
            let _ = builder.spawn_scoped(scope, use_huge_pages);
            for (lane, name) in lanes.repeat(lane_threads(self.options.threads)) {
                let builder = std::thread::Builder::new().name(name.into());
                let spawned = builder.spawn_scoped(scope, move || {
                    let _exit = ExitOnPanic;
                    this.prepare_all(inbox, lane, preparer, running);
                });
                if spawned.is_err() {
                    end_process();
                }
            }
        });
    }

    /// Prepares requests of one lane until the process ends.
    fn prepare_all(&self, inbox: &Inbox, lane: Lane, preparer: &Preparer, running: &Running) {
        loop {
            let submit = inbox.next(lane);
            let wanted = || submit.is_wanted();
            let last = match self.prepare(&submit, preparer, running, &wanted) {
                Ok(last) => last,
                Err(PrepareError::Cancelled) => Some(Event::Cancelled),
                Err(PrepareError::Failed(failure)) => Some(Event::Failed(failure)),
            };
            if let Some(last) = last {
                submit.ids().for_each(|id| self.finish(id, last.clone()));
            }
        }
    }

    /// Turns a request into jobs, or reports its last event if it fails or needs no engine.
    fn prepare(
        &self,
        submit: &Submit,
        preparer: &Preparer,
        running: &Running,
        wanted: IsWanted<'_>,
    ) -> Result<Option<Event>, PrepareError> {
        if !wanted() {
            return Err(PrepareError::Cancelled);
        }
        match &submit.work {
            Work::Generate(request) => {
                for (id, job) in running.jobs(preparer, submit, request, wanted)? {
                    if let Err(failure) = running.generate(job) {
                        self.finish(id, Event::Failed(failure));
                    }
                }
                Ok(None)
            }
            Work::Embed(request) => running.embed(preparer, submit, request, wanted).map(|()| None),
            Work::Query(_, question) => preparer
                .run_query(question, now(), wanted)
                .map(|result| Some(Event::QueryResult(result))),
        }
    }

    fn finish(&self, id: RequestId, last: Event) {
        finish(&self.reports, &self.flags, id, last);
    }

    /// Loads the model and reports that, unless its files were changed meanwhile.
    fn load(&mut self, files: &mut Files) -> Result<(Preparer, Running), String> {
        let loaded = self.load_weights(files).map_err(|e| e.to_string())?;
        let Loaded { preparer, running, sizes, digest, speculates, prefix_key } = loaded;
        let embeds = matches!(running, Running::Embeds { .. });
        if files.detect_change().map_err(|e| e.to_string())? {
            return Err(CHANGED.into());
        }
        let files = &files.model;
        let EngineOptions { slots, context_tokens, threads, kernel, .. } = self.options;
        let _ = self.reports.send(Report::MemoryNodes(self.confined.memory_nodes.clone()));
        let _ = self.reports.send(Report::Ready(EngineFacts {
            slots,
            context_tokens,
            threads,
            kernel: kernel.name().into(),
            format: preparer.format,
            template: Box::new(TemplateFacts {
                lacks_tools: preparer.lacks_tools(),
                dropped_parts: preparer.dropped_parts(),
                error: preparer.template_error(),
            }),
            digest,
            sandbox: self.confined.sandbox.clone(),
            sampling: Box::new(files.header().sampling),
            sizes: Box::new(sizes),
            speculates,
            model: Box::new(ModelFacts {
                family: files.header().architecture.clone(),
                embeds,
                fills: !embeds && preparer.fills(),
            }),
            prefix_key: prefix_key.map(Box::new),
        }));
        Ok((preparer, running))
    }

    fn load_weights(&mut self, files: &Files) -> Result<Loaded, LoadError> {
        register(self.options.kernel);
        let Files { model: files, draft } = files;
        let load = |files: &ModelFiles, mtp_head| {
            Weights::load(&files.open_paths(), self.loading(files, mtp_head))
        };
        let weights = load(files, self.options.mtp_head)?;
        let draft = draft.as_ref().map(|files| load(files, false));
        let draft = draft.transpose().map_err(|error| LoadError::Draft(Box::new(error)))?;
        if self.options.load == LoadMode::Mmap {
            let loaded: Vec<&Weights> = [&weights].into_iter().chain(&draft).collect();
            self.confined.release_pages(&loaded);
        }
        let pooling = self.options.pooling.or_else(|| weights.pooling());
        let (running, speculates, prefix_key) = match pooling {
            Some(Pooling::Rank) if !files.has_classifier() => return Err(LoadError::NoClassifier),
            Some(_) if draft.is_some() => return Err(LoadError::DraftWithoutText),
            Some(pooling) => (self.start_embedder(&weights, pooling)?, false, None),
            None => self.start_generator(&weights, draft)?,
        };
        let (bos, eos) = weights.bos_eos();
        let control = weights.control_texts();
        let rerank = weights.rerank_template().filter(|_| pooling == Some(Pooling::Rank));
        let rerank = rerank.map(|template| RerankTemplate::new(&template, &control)).transpose();
        let rerank = rerank.map_err(LoadError::RerankTemplate)?;
        let tokens = SpecialTokens { bos, eos, control };
        let own = weights.chat_templates();
        let digest = files.digest().with_template(self.options.template.replacement(own.is_some()));
        let template = self.options.template.choose(own);
        let template = template.map(|t| ChatTemplate::new(t, tokens.clone()));
        let (context, sizes) = (self.options.context_tokens, weights.sizes());
        let preparer = Preparer::new(Box::new(LlamaTokenizer(weights)), template, context)
            .with_rerank_template(rerank)
            .with_special_tokens(tokens);
        Ok(Loaded { preparer, running, sizes, digest, speculates, prefix_key })
    }

    fn loading(&self, files: &ModelFiles, mtp_head: bool) -> Loading {
        let EngineOptions { load, threads, kernel, huge_pages, .. } = self.options;
        let repacked_bytes = files.repacked_bytes(kernel, mtp_head);
        Loading { mode: load, threads, repacked_bytes, huge_pages, mtp_head }
    }

    /// Returns as well whether it may compute several tokens of a response at once, and the key of
    /// its files of saved prefixes.
    fn start_generator(
        &mut self,
        weights: &Weights,
        draft: Option<Weights>,
    ) -> Result<(Running, bool, Option<Key>), LoadError> {
        let prefixes = std::mem::replace(&mut self.confined.prefixes, Ok(None));
        let key = prefixes.as_ref().ok().and_then(|found| found.as_ref().map(|(_, key)| *key));
        let disk = prefixes::start(prefixes, &self.options, &self.reports);
        let context = ContextOptions {
            slots: self.options.slots,
            context_tokens: self.options.context_tokens,
            kv_cells: self.options.kv_cells,
            prefix_cache: self.options.prefix_cache,
            saved_prefix_bytes: self.options.saved_prefix_bytes,
            threads: self.options.threads,
            kv_type: self.options.kv_type,
            flash_attention: self.options.flash_attention,
            batch_rows: self.options.batch_rows,
            poll: self.options.poll,
            whole_windows: false,
        };
        let model = LlamaModel::new(weights.clone(), context)?;
        let draft = match draft {
            Some(weights) => Some(draft_model(&model, weights, context)?),
            None => mtp_head(&model, context)?,
        };
        let mut engine = Engine::new(model, QUEUE_MAX).with_speculation(self.options.speculation);
        let speculates = engine.speculates();
        if let Some(draft) = draft {
            engine = engine.with_draft_model(draft);
        }
        let has_files = disk.is_some();
        if let Some(disk) = disk {
            engine = prefixes::add(engine, disk);
        }
        let engine = engine_thread::start(engine, self.reporter()).map_err(no_thread)?;
        let slots = self.confined.slots.take();
        let controls = Controls::start(&engine, has_files, slots, &self.reports);
        // It is set once.
        let _ = self.controls.set(controls.map_err(no_thread)?);
        Ok((Running::Generates(engine), speculates, key.filter(|_| has_files)))
    }

    fn start_embedder(&self, weights: &Weights, pooling: Pooling) -> Result<Running, LoadError> {
        let EngineOptions { slots, context_tokens, threads, .. } = self.options;
        let options = EmbedOptions { slots, context_tokens, pooling, threads };
        let model = LlamaEmbedder::new(weights.clone(), options)?;
        let engine = engine_thread::start(EmbedEngine::new(model, INPUTS_MAX), self.reporter());
        let engine = engine.map_err(no_thread)?;
        Ok(Running::Embeds { engine, ranks: pooling == Pooling::Rank })
    }

    fn reporter(&self) -> Reporter {
        let (reports, flags) = (self.reports.clone(), self.flags.clone());
        Reporter::new(reports, flags)
    }
}

/// A loaded model.
struct Loaded {
    preparer: Preparer,
    running: Running,
    sizes: ModelSizes,
    /// Fingerprint of the weights and of a replaced chat template.
    digest: Fingerprint,
    /// True if it may compute several tokens of a response at once.
    speculates: bool,
    prefix_key: Option<Key>,
}

fn no_thread(error: io::Error) -> LoadError {
    LoadError::Context(error.to_string())
}

/// A model either generates or computes embeddings.
enum Running {
    Generates(EngineHandle<Job>),
    Embeds { engine: EngineHandle<EmbedJob>, ranks: bool },
}

impl Running {
    /// Creates a job for each requested choice.
    fn jobs(
        &self,
        preparer: &Preparer,
        submit: &Submit,
        request: &GenerateRequest,
        wanted: IsWanted<'_>,
    ) -> Result<Vec<(RequestId, Job)>, PrepareError> {
        if !matches!(self, Self::Generates(_)) {
            return Err(Failure::NotGenerative.into());
        }
        let prepared = preparer.prepare(request, wanted)?;
        let seeds = request.siblings.iter().map(|one| one.seed);
        let seeds = std::iter::once(request.options.sampling.seed).chain(seeds);
        let places = submit.ids().zip(&submit.cancels);
        let job =
            |((prepared, seed), (id, cancel)): ((Prepared, u64), (RequestId, &CancelFlag))| {
                let mut options = request.options.clone();
                options.sampling.seed = seed;
                options.max_tokens = prepared.max_tokens;
                let job = Job {
                    id,
                    tenant: request.tenant,
                    tokens: prepared.tokens,
                    resumed_len: prepared.resumed_len,
                    options,
                    visible: prepared.visible,
                    resolved: prepared.resolved,
                    in_reasoning: prepared.in_reasoning,
                    grammar: prepared.grammar,
                    cancel: cancel.clone(),
                };
                (id, job)
            };
        Ok(prepared.into_iter().zip(seeds).zip(places).map(job).collect())
    }

    fn generate(&self, job: Job) -> Result<(), Failure> {
        let Self::Generates(engine) = self else { return Err(Failure::NotGenerative) };
        engine.submit(job)
    }

    fn embed(
        &self,
        preparer: &Preparer,
        submit: &Submit,
        request: &EmbedRequest,
        wanted: IsWanted<'_>,
    ) -> Result<(), PrepareError> {
        let wants_ranking = matches!(request.inputs.first(), Some(EmbedInput::Pair { .. }));
        let engine = match (self, wants_ranking) {
            (Self::Embeds { engine, ranks }, wants) if *ranks == wants => engine,
            (_, true) => return Err(Failure::NoRanking.into()),
            (_, false) => return Err(Failure::NoEmbeddings.into()),
        };
        let inputs = preparer.embed_inputs(request, wanted)?;
        let cancel = submit.cancels.first().cloned().unwrap_or_default();
        Ok(engine.submit(EmbedJob { id: submit.id, tenant: request.tenant, inputs, cancel })?)
    }
}

/// Current time, for templates that print a date.
fn now() -> chrono::NaiveDateTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since.map_or(0, |d| d.as_secs() as i64);
    chrono::DateTime::from_timestamp(seconds, 0).unwrap_or_default().naive_utc()
}
