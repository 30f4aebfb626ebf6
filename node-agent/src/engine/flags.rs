//! The flags that configure the engine, and their values on this machine.
//!
//! Before loading, the agent makes a memory plan ([`inference_core::model_file::memory_plan`]):
//! sizes that were not set shrink until they fit, and sizes that were set are rejected if they do
//! not fit.

mod drafting;
pub(crate) mod setting;
mod settings_error;
pub(crate) mod tuned;

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::FalseyValueParser;
use inference_core::hardware::Kernel;
use inference_core::hardware::files::{Root, parse_list};
use inference_core::hardware::report::Machine;
use inference_core::llama::{BATCH_ROWS, FlashAttention, KvType, POLL, Pooling};
use inference_core::model_file::gguf::Header;
use inference_core::model_file::memory_plan::layout::{EmbeddingBatching, Layout};
use inference_core::model_file::memory_plan::{
    LoadMode, MachineFacts, PlanFailure, RequestedSettings, plan,
};

use crate::engine::flags::tuned::{Fixed, Tuned};
use crate::engine::model_files::ModelFiles;
use crate::engine::options::EngineOptions;
use crate::engine::plan_facts::facts;
use crate::engine::sandbox;
use crate::engine::template::TemplateChoice;
use setting::{Setting, Source};
pub(crate) use settings_error::SettingsError;

/// Context of one request in tokens if the model does not tell its own, and at most without a
/// memory plan. More than this is chosen only if memory stays free.
const CONTEXT_USUAL: u32 = 4096;
const CONTEXT_MIN: u32 = 64;
const SLOTS_DEFAULT: u32 = 4;
/// Maximum KV cells of a pool.
const KV_CELLS_MAX: u32 = 4 * 1024 * 1024;
/// Maximum memory for saved prefixes in MiB.
pub(crate) const SAVED_PREFIX_MIB_MAX: u64 = 1 << 20;
/// Memory for saved prefixes without a memory plan.
const SAVED_PREFIX_UNPLANNED: u64 = 256 << 20;
/// Sizes to try if none were set and the defaults do not fit.
const SMALLER: [(u32, u32); 6] =
    [(4, 2048), (2, 2048), (2, 1024), (1, 1024), (1, 512), (1, CONTEXT_MIN)];

/// How the model is run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How the model is run")]
pub(crate) struct EngineFlags {
    /// Requests that decode in parallel [default: tuned, or 4; fewer if memory is short]
    #[arg(long, env = "FLOTILLA_SLOTS", value_name = "SLOTS", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub slots: Option<u32>,
    /// Maximum context tokens per request, prompt and completion together [default: the model's
    /// trained context, or what fits while a quarter of the memory stays free]
    #[arg(long, env = "FLOTILLA_CONTEXT_TOKENS", value_name = "TOKENS")]
    pub context_tokens: Option<u32>,
    /// KV cells (tokens) of all requests and cached prefixes together
    /// [default: slots x context tokens]
    #[arg(long, env = "FLOTILLA_KV_CELLS", value_name = "TOKENS")]
    pub kv_cells: Option<u32>,
    /// KV cache type: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, or one for keys and one for
    /// values such as q8_0/f16 [default: f16, or q8_0 if memory is short]
    #[arg(long, env = "FLOTILLA_KV_TYPE", value_name = "TYPE")]
    pub kv_type: Option<KvType>,
    /// Flash attention: auto, on, off [default: tuned, or auto]
    #[arg(long, env = "FLOTILLA_FLASH_ATTENTION", value_name = "CHOICE")]
    pub flash_attention: Option<FlashAttention>,
    /// Maximum tokens per batch, which bounds the length of a step [default: tuned, or 512]
    #[arg(long, env = "FLOTILLA_BATCH_ROWS", value_name = "ROWS", value_parser = clap::value_parser!(u32).range(128..=2048))]
    pub batch_rows: Option<u32>,
    /// How long idle threads poll for work before they sleep, 0 to 100 [default: tuned, or 50]
    #[arg(long, env = "FLOTILLA_POLL", value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub poll: Option<u32>,
    /// Disable the prefix cache: prefill every prompt from its first token
    #[arg(long, env = "FLOTILLA_NO_PREFIX_CACHE", value_parser = FalseyValueParser::new())]
    pub no_prefix_cache: bool,
    /// Memory for prefixes saved outside the KV cache in MiB: those that it evicts, and all of
    /// models whose prompts cannot share KV cells because of sliding windows or a recurrent state
    /// (Gemma 3, gpt-oss, LFM2, Qwen3.5). 0 saves none [default: a quarter of what the memory plan
    /// leaves free, at most 1024; for such models half, at most 4096]
    #[arg(long, env = "FLOTILLA_SAVED_PREFIX_MIB", value_name = "MIB", value_parser = clap::value_parser!(u64).range(..=SAVED_PREFIX_MIB_MAX))]
    pub saved_prefix_mib: Option<u64>,
    /// Disable speculative decoding: compute each response one token at a time, even where it
    /// repeats its prompt or itself, or a draft model knows it
    #[arg(long, env = "FLOTILLA_NO_SPECULATION", value_parser = FalseyValueParser::new())]
    pub no_speculation: bool,
    /// Draft model (GGUF, or hf:owner/repo:quantization): a small model of the same family, a tenth
    /// of the size or less, that drafts what the large one may say, where that is faster. Responses
    /// stay the same [default: none]
    #[arg(long, env = "FLOTILLA_DRAFT_MODEL", value_name = "MODEL")]
    pub draft_model: Option<PathBuf>,
    /// Do not use the MTP head (multi-token prediction) of a model file that has one. It drafts
    /// what the model may say, where that is faster; responses stay the same. A draft model
    /// replaces it
    #[arg(long, env = "FLOTILLA_NO_MTP", value_parser = FalseyValueParser::new())]
    pub no_mtp: bool,
    /// Pooling of an embedding model: mean, cls, last, or rank for a reranking model
    /// [default: as in the model file; without either, the model generates text]
    #[arg(long, env = "FLOTILLA_POOLING")]
    pub pooling: Option<Pooling>,
    /// Compute threads [default: tuned, or the physical cores this process may use]
    #[arg(long, env = "FLOTILLA_THREADS", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub threads: Option<u32>,
    /// CPUs for the compute threads, such as 0-3,8; one thread per CPU unless --threads is set
    /// [default: all that this process may use]
    #[arg(long, env = "FLOTILLA_CPUS", value_name = "LIST")]
    pub cpus: Option<String>,
    /// CPU kernels: amx, avx512, baseline; on aarch64 sve, i8mm, dotprod, baseline
    /// [default: the first that works here]
    #[arg(long, env = "FLOTILLA_KERNEL")]
    pub kernel: Option<Kernel>,
    /// How to load the weights: mmap (shared between processes, cached across restarts), mlock
    /// (mapped, and locked in memory), none (read into private memory)
    #[arg(long, env = "FLOTILLA_LOAD", value_name = "MODE", default_value = "mmap")]
    pub load: LoadMode,
    /// Do not request huge pages from the operating system. They hold weights that are interleaved
    /// for this CPU (Q4_0, IQ4_NL, Q4_K) or loaded with --load none
    #[arg(long, env = "FLOTILLA_NO_HUGE_PAGES", value_parser = FalseyValueParser::new())]
    pub no_huge_pages: bool,
    /// Sandbox the engine, which parses the model file: it can open only that file, and make only
    /// the system calls that computing needs. auto (as far as the kernel supports it), on
    /// (required), off
    #[arg(long, env = "FLOTILLA_SANDBOX", value_name = "CHOICE", default_value_t)]
    pub sandbox: sandbox::SandboxMode,
    /// Load the model even if the memory plan says that it does not fit
    #[arg(long, env = "FLOTILLA_NO_MEMORY_PLAN", value_parser = FalseyValueParser::new())]
    pub no_memory_plan: bool,
}

impl EngineFlags {
    /// Resolves the engine's options, including those tuned for this machine, and logs where each
    /// setting comes from.
    pub(crate) fn check(
        &self,
        files: &ModelFiles,
        kernel: Kernel,
        tuned: Option<&Tuned>,
    ) -> Result<EngineOptions, SettingsError> {
        let (options, origins) = self.resolve(files, kernel, tuned)?;
        tracing::info!(settings = origins, "settings resolved");
        if options.mtp_head {
            tracing::info!("MTP head loaded: it drafts, and --no-mtp leaves it out");
        }
        let trained_tokens = trained_tokens(files.header());
        let EngineOptions { context_tokens, slots, .. } = options;
        if self.context_tokens.is_none() && context_tokens < trained_tokens {
            let reason = self.why_shorter(options.planned_bytes.is_some());
            tracing::info!(
                context_tokens,
                trained_tokens,
                slots,
                reason,
                "context is shorter than the model was trained for"
            );
        }
        Ok(options)
    }

    /// Like [`EngineFlags::check`]; returns the text about where each setting comes from.
    pub(crate) fn resolve(
        &self,
        files: &ModelFiles,
        kernel: Kernel,
        tuned: Option<&Tuned>,
    ) -> Result<(EngineOptions, String), SettingsError> {
        let header = files.header();
        let quantized = self.kv_type.is_some_and(KvType::needs_flash_attention);
        if quantized && self.flash_attention == Some(FlashAttention::Off) {
            return Err(SettingsError::QuantizedWithoutFlashAttention);
        }
        let cpus = self.cpus()?;
        let machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
        let asked = self.threads.or(cpus.as_ref().map(|list| list.len() as u32));
        let tried = tuned.map(|t| t.candidate);
        let threads = Setting::of(asked, tried.map(|c| c.threads), machine.threads as u32);
        let facts = facts(&machine);
        let draft_bytes = self.draft_bytes(&facts)?;
        let facts = MachineFacts {
            threads: u64::from(threads.value),
            available_bytes: facts.available_bytes.saturating_sub(draft_bytes),
            ..facts
        };
        let tried_attention = tried.map(|c| c.flash_attention);
        let attention = Setting::of(self.flash_attention, tried_attention, FlashAttention::Auto);
        let batch_rows = Setting::of(self.batch_rows, tried.map(|c| c.batch_rows), BATCH_ROWS);
        let poll = Setting::of(self.poll, tried.map(|c| c.poll), POLL);
        let vectors = match self.pooling {
            Some(Pooling::Last) => Some(EmbeddingBatching::Ubatches),
            Some(_) => Some(EmbeddingBatching::WholeText),
            None => Layout::read(header).ok().and_then(|layout| layout.embedding_batching),
        };
        let case = Case { header, facts: &facts, attention, batch_rows: batch_rows.value, vectors };
        let sizes = self.sizes(&case, tuned.map(|t| t.slots))?;
        let attention = attention_with(sizes.kv_type, attention);
        let kv_type = Setting::of(self.kv_type, None, sizes.kv_type);
        let name = attention.value.name();
        let origins = format!(
            "threads {threads}, flash attention {name} ({}), batch rows {batch_rows}, poll {poll}, \
             slots {} ({}), context {} ({}, trained {}), KV {} ({})",
            attention.source.name(),
            sizes.slots.value,
            sizes.slots.source.name(),
            sizes.context_tokens,
            Setting::of(self.context_tokens, None, 0).source.name(),
            trained_tokens(header),
            kv_type.value,
            kv_type.source.name(),
        );
        let options = EngineOptions {
            model: files.path().to_path_buf(),
            digest: files.digest(),
            sandbox: self.sandbox,
            kernel,
            slots: sizes.slots.value,
            context_tokens: sizes.context_tokens,
            kv_cells: sizes.kv_cells,
            kv_type: sizes.kv_type,
            flash_attention: attention.value,
            prefix_cache: !self.no_prefix_cache,
            saved_prefix_bytes: sizes.saved_prefix_bytes,
            prefix_disk: None,
            slot_files: None,
            speculation: !self.no_speculation,
            draft_model: self.draft_model().map(Path::to_path_buf),
            mtp_head: self.uses_mtp_head(header, vectors.is_some()),
            pooling: self.pooling,
            threads: threads.value,
            cpus,
            load: self.load,
            huge_pages: !self.no_huge_pages,
            batch_rows: batch_rows.value,
            poll: poll.value,
            planned_bytes: sizes.planned_bytes.map(|bytes| bytes + draft_bytes),
            template: TemplateChoice::default(),
        };
        Ok((options, origins))
    }

    /// Settings that tuning must not change.
    pub(crate) fn fixed(&self) -> Result<Fixed, SettingsError> {
        Ok(Fixed {
            threads: self.threads,
            flash_attention: self.flash_attention,
            batch_rows: self.batch_rows,
            poll: self.poll,
            slots: self.slots,
            kv_type: self.kv_type,
            context_tokens: self.context_tokens,
            cpus: self.cpus()?,
        })
    }

    fn cpus(&self) -> Result<Option<Vec<u32>>, SettingsError> {
        self.cpus.as_deref().map(read_cpus).transpose()
    }

    /// Why the chosen context is not the trained one.
    fn why_shorter(&self, is_planned: bool) -> &'static str {
        if self.kv_cells.is_some() {
            "--kv-cells"
        } else if self.no_memory_plan || !is_planned {
            "without a memory plan, at most 4096 tokens are chosen: set --context-tokens"
        } else {
            "a quarter of the available memory stays free: set --context-tokens, or fewer --slots"
        }
    }

    /// The context with this number of slots if the operator sets none: the trained one, as far as
    /// memory allows. Never less than the usual one, which the caller reduces if it does not fit.
    fn default_context(&self, case: &Case<'_>, slots: u32) -> u32 {
        let pool = self.kv_cells.unwrap_or(KV_CELLS_MAX / slots).max(CONTEXT_MIN);
        let most = trained_tokens(case.header).min(pool);
        let usual = most.min(CONTEXT_USUAL);
        if self.no_memory_plan {
            return usual;
        }
        let kv_type = self.kv_type.unwrap_or(KvType::F16);
        let requested = RequestedSettings {
            context_tokens: None,
            kv_cells: self.kv_cells.map(u64::from),
            ..self.requested(case, slots, usual, kv_type)
        };
        match plan(case.header, case.facts, &requested) {
            Ok(plan) => u32::try_from(plan.context_tokens).unwrap_or(most).clamp(usual, most),
            Err(_) => usual,
        }
    }

    /// The sizes that were set, if they fit; otherwise the largest usual ones that do, preferring
    /// unquantized keys and values for each.
    fn sizes(&self, case: &Case<'_>, tuned: Option<u32>) -> Result<Sizes, SettingsError> {
        let slots = Setting::of(self.slots, tuned, SLOTS_DEFAULT);
        let default = self.default_context(case, slots.value);
        let context = context_tokens(self.context_tokens, default, case.header)?;
        let mut all = vec![(slots, context)];
        if self.slots.is_none() && self.context_tokens.is_none() && self.kv_cells.is_none() {
            let default = |slots| Setting { value: slots, source: Source::Default };
            all.push((default(SLOTS_DEFAULT), context.min(CONTEXT_USUAL)));
            let smaller = SMALLER.iter().filter(|(_, tokens)| *tokens <= context);
            all.extend(smaller.map(|(slots, tokens)| (default(*slots), *tokens)));
        }
        let mut refused = None;
        for (slots, tokens) in all {
            for kv_type in self.kv_types(slots, case) {
                let mut sizes = self.sized(slots, tokens, kv_type)?;
                let Err(why) = self.fit(case, &mut sizes) else {
                    if let Some(why) = refused {
                        let slots = slots.value;
                        let why: String = why;
                        tracing::warn!(
                            slots,
                            context_tokens = tokens,
                            kv = %kv_type,
                            reason = why,
                            "sizes reduced to fit into memory"
                        );
                    }
                    return Ok(sizes);
                };
                refused.get_or_insert(why);
            }
        }
        Err(SettingsError::DoesNotFit(refused.unwrap_or_default()))
    }

    /// Storage types of keys and values to try, best first. A tuned number of slots is only a
    /// preference, and does not justify quantizing.
    fn kv_types(&self, slots: Setting<u32>, case: &Case<'_>) -> Vec<KvType> {
        let attention = case.attention;
        let bound = slots.source == Source::Tuned
            || attention.source == Source::Flag && attention.value == FlashAttention::Off
            // Contexts for embeddings store no KV cells.
            || case.vectors.is_some();
        match self.kv_type {
            Some(kind) => vec![kind],
            None if bound => vec![KvType::F16],
            None => vec![KvType::F16, KvType::Q8_0],
        }
    }

    fn sized(
        &self,
        slots: Setting<u32>,
        context_tokens: u32,
        kv_type: KvType,
    ) -> Result<Sizes, SettingsError> {
        let kv_cells = kv_cells(self.kv_cells, slots.value, context_tokens)?;
        let saved_prefix_bytes =
            self.saved_prefix_mib.map_or(SAVED_PREFIX_UNPLANNED, |mib| mib << 20);
        let planned_bytes = None;
        Ok(Sizes { slots, context_tokens, kv_cells, kv_type, saved_prefix_bytes, planned_bytes })
    }

    /// Settings to plan for, with a pool of slots x context.
    fn requested(
        &self,
        case: &Case<'_>,
        slots: u32,
        context_tokens: u32,
        kv_type: KvType,
    ) -> RequestedSettings {
        RequestedSettings {
            slots: Some(slots.into()),
            context_tokens: Some(context_tokens.into()),
            kv_cells: None,
            key_kind: kv_type.key_name().into(),
            value_kind: kv_type.value_name().into(),
            // Contexts for embeddings decide on flash attention themselves.
            flash_attention: case.vectors.is_some()
                || attention_with(kv_type, case.attention).value != FlashAttention::Off,
            load: self.load,
            batch_rows: case.batch_rows.into(),
            prefix_cache: !self.no_prefix_cache,
            saved_prefix_bytes: self.saved_prefix_mib.map(|mib| mib << 20),
            embedding_batching: case.vectors,
            whole_windows: false,
            mtp_head: self.uses_mtp_head(case.header, case.vectors.is_some()),
        }
    }

    /// Plans the sizes; the error says why they do not fit. A model that cannot be planned is
    /// loaded anyway: llama.cpp may support it.
    fn fit(&self, case: &Case<'_>, sizes: &mut Sizes) -> Result<(), String> {
        if self.no_memory_plan {
            return Ok(());
        }
        let wanted = RequestedSettings {
            kv_cells: Some(u64::from(sizes.kv_cells)),
            ..self.requested(case, sizes.slots.value, sizes.context_tokens, sizes.kv_type)
        };
        match plan(case.header, case.facts, &wanted) {
            Ok(plan) => {
                plan.notes.iter().for_each(|note| tracing::info!("memory plan: {note}"));
                sizes.planned_bytes = Some(plan.needed_bytes);
                sizes.saved_prefix_bytes = plan.saved_prefix_bytes;
                Ok(())
            }
            Err(PlanFailure::Refused(refusal)) => Err(refusal.to_string()),
            // A type that the operator did not choose must be possible.
            Err(PlanFailure::Error(error))
                if self.kv_type.is_none() && sizes.kv_type != KvType::F16 =>
            {
                Err(error.to_string())
            }
            Err(PlanFailure::Error(error)) => {
                tracing::info!("no memory plan: {error}");
                Ok(())
            }
        }
    }
}

/// What the sizes must fit.
struct Case<'a> {
    header: &'a Header,
    facts: &'a MachineFacts,
    attention: Setting<FlashAttention>,
    batch_rows: u32,
    /// How the model computes embeddings, if it does.
    vectors: Option<EmbeddingBatching>,
}

/// Sizes of an engine's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    slots: Setting<u32>,
    context_tokens: u32,
    kv_cells: u32,
    kv_type: KvType,
    /// Memory for saved prefixes.
    saved_prefix_bytes: u64,
    /// Memory according to the plan, if there is one.
    planned_bytes: Option<u64>,
}

/// Quantized values need flash attention, whatever was tuned with unquantized ones.
fn attention_with(kv_type: KvType, chosen: Setting<FlashAttention>) -> Setting<FlashAttention> {
    match chosen.value {
        FlashAttention::Off if kv_type.needs_flash_attention() => {
            Setting { value: FlashAttention::Auto, source: Source::Default }
        }
        _ => chosen,
    }
}

fn read_cpus(list: &str) -> Result<Vec<u32>, SettingsError> {
    let wrong = || SettingsError::Cpus(list.into());
    let mut cpus = parse_list(list).filter(|cpus| !cpus.is_empty()).ok_or_else(wrong)?;
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// The context that the model was trained for.
fn trained_tokens(header: &Header) -> u32 {
    if header.context_tokens == 0 { CONTEXT_USUAL } else { header.context_tokens }
}

fn context_tokens(
    wanted: Option<u32>,
    default: u32,
    header: &Header,
) -> Result<u32, SettingsError> {
    let trained = trained_tokens(header);
    let tokens = wanted.unwrap_or(default);
    if tokens < CONTEXT_MIN || tokens > trained {
        return Err(SettingsError::ContextTokens(trained));
    }
    Ok(tokens)
}

fn kv_cells(wanted: Option<u32>, slots: u32, context_tokens: u32) -> Result<u32, SettingsError> {
    let most = slots.saturating_mul(context_tokens);
    let cells = wanted.unwrap_or(most);
    if cells < context_tokens || cells > KV_CELLS_MAX {
        return Err(SettingsError::KvCells(context_tokens));
    }
    Ok(cells)
}

#[cfg(test)]
mod tests;
