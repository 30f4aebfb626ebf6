//! One batch, from its input to its output.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use inference_protocol::time::unix_seconds;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::gate::{self, Starting};
use super::input::{Input, InputError, Rules};
use super::line::{self, Outcome};
use super::{Limits, end};
use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::proxy::deferral::{CHECKPOINT_INTERVAL, Checkpoint, LatestCheckpoint};
use crate::store::{Batch, BatchApi, BatchStatus, Claim, LineError, Store, StoreError};
use crate::tasks::asking::Asking;
use crate::tasks::room::Permits;
use crate::types::api::RequestedApi;
use crate::types::random::random;

/// Pause between attempts to store a result.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// A running batch.
pub(super) struct Run {
    gateway: Gateway,
    store: Store,
    limits: Arc<Limits>,
    batch: Batch,
    /// Room for its results.
    claim: Claim,
}

/// Why lines are no longer run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    Done,
    Cancelled,
    Expired,
    /// The gateway stops.
    Interrupted,
}

/// A line with its number and what became of it.
type Done = (u64, Outcome);

/// Lines that run, and how far each is. Dropping it stops them.
#[derive(Default)]
struct Running {
    lines: JoinSet<Done>,
    latest: HashMap<u64, Arc<LatestCheckpoint>>,
}

impl Run {
    pub(super) fn new(gateway: Gateway, store: Store, limits: Arc<Limits>, batch: Batch) -> Self {
        let claim = store.claim(&batch.tenant);
        Self { gateway, store, limits, batch, claim }
    }

    /// Runs it to its end. `None` if the gateway stops.
    pub(super) async fn run(mut self) -> Result<Option<Batch>, StoreError> {
        let input = match self.check().await? {
            Ok(input) => Arc::new(input),
            Err(errors) => return self.fail(errors).await.map(Some),
        };
        let total = input.len() as u64;
        self.update(move |batch, now| {
            if batch.status == BatchStatus::Validating {
                (batch.status, batch.total) = (BatchStatus::InProgress, total);
                batch.times.in_progress_at = Some(now);
            }
        })
        .await?;
        let stopped = self.lines(&input).await?;
        let status = match stopped {
            Stopped::Done => BatchStatus::Completed,
            Stopped::Cancelled => BatchStatus::Cancelled,
            Stopped::Expired => BatchStatus::Expired,
            Stopped::Interrupted => return Ok(None),
        };
        // The results of a message batch have what was not run without it.
        if stopped == Stopped::Expired && BatchApi::of(&self.batch.id) == BatchApi::OpenAi {
            self.expire_rest(&input).await?;
        }
        self.update(move |batch, now| {
            batch.times.finalizing_at = Some(now);
            if batch.status == BatchStatus::InProgress {
                batch.status = BatchStatus::Finalizing;
            }
        })
        .await?;
        end::finish(&self.gateway, &self.store, &self.batch, &input, status).await.map(Some)
    }

    /// Changes the batch in the store.
    async fn update(
        &mut self,
        change: impl FnOnce(&mut Batch, u64) + Send + 'static,
    ) -> Result<(), StoreError> {
        let now = unix_seconds(SystemTime::now());
        let gateway = self.gateway.clone();
        let change = move |batch: &mut Batch| {
            change(batch, now);
            end::messages_of(&gateway, batch)
        };
        self.batch = self.store.update_batch(&self.batch, change).await?;
        Ok(())
    }

    fn rules(&self) -> Rules {
        let endpoint = self.batch.endpoint.clone();
        let line_bytes_max = self.gateway.settings.now().config.limits.body_bytes_max;
        match BatchApi::of(&self.batch.id) {
            BatchApi::OpenAi => {
                Rules { endpoint, lines_max: self.limits.lines_max, line_bytes_max }
            }
            // The gateway has written the input, by the limits of that time.
            BatchApi::Anthropic => {
                let lines_max = usize::try_from(self.batch.total).unwrap_or(usize::MAX);
                Rules { endpoint, lines_max, line_bytes_max: isize::MAX as usize }
            }
        }
    }

    /// Reads the input, or what is wrong with it.
    async fn check(&self) -> Result<Result<Input, Vec<LineError>>, StoreError> {
        let rules = self.rules();
        let file = match self.store.open(&self.batch.tenant, &self.batch.input_file_id).await {
            Ok(file) => file,
            Err(StoreError::Unknown) => {
                let message = "the input file is gone".into();
                let (code, param) = ("file_not_found".into(), None);
                return Ok(Err(vec![LineError { code, message, param, line: None }]));
            }
            Err(error) => return Err(error),
        };
        let checked = spawn_blocking(move || Input::check(file, &rules)).await;
        match checked {
            Ok(Ok(input)) => Ok(Ok(input)),
            Ok(Err(InputError::Invalid(errors))) => Ok(Err(errors)),
            Ok(Err(InputError::Unreadable(error))) => {
                tracing::error!(batch = self.batch.id, %error, "input of a batch cannot be read");
                Err(StoreError::Unavailable)
            }
            Err(_) => Err(StoreError::Unavailable),
        }
    }

    async fn fail(mut self, errors: Vec<LineError>) -> Result<Batch, StoreError> {
        self.update(move |batch, now| match batch.status {
            BatchStatus::Cancelling => {
                (batch.status, batch.times.cancelled_at) = (BatchStatus::Cancelled, Some(now));
            }
            _ => {
                (batch.status, batch.errors) = (BatchStatus::Failed, errors);
                batch.times.failed_at = Some(now);
            }
        })
        .await?;
        Ok(self.batch)
    }

    /// Runs the lines that are not done, until they are or the batch must end.
    async fn lines(&mut self, input: &Arc<Input>) -> Result<Stopped, StoreError> {
        let (done, bytes) = self.store.lines_done(&self.batch.id).await?;
        let mut begun = self.store.unfinished_lines(&self.batch).await?;
        self.claim.force(bytes);
        let done: HashSet<u64> = done.into_iter().collect();
        let in_order = input.order().iter().copied();
        let mut left = in_order.filter(|line| !done.contains(&(*line as u64)));
        let tenant = self.limits.room.of(&self.batch.tenant);
        let mut changes = self.store.changes();
        let (expires, since) = (self.expires(), Instant::now());
        let api = RequestedApi::at(&self.batch.endpoint);
        let are_preemptible = api.is_some_and(|api| api.served_by().generates());
        let (mut running, mut next) = (Running::default(), left.next());
        let mut saves = interval(CHECKPOINT_INTERVAL);
        saves.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while next.is_some() || !running.lines.is_empty() {
            if self.batch.status == BatchStatus::Cancelling {
                return Ok(Stopped::Cancelled);
            }
            let bytes = next.map_or(0, |line| input.bytes(line));
            let model = next.and_then(|line| input.model(line)).unwrap_or_default();
            let caller = self.caller();
            tokio::select! {
                // First what has ended, so that few results wait.
                biased;
                Some(ended) = running.lines.join_next() => {
                    let (line, outcome) = ended.map_err(|_| StoreError::Unavailable)?;
                    running.latest.remove(&line);
                    self.record(line, outcome).await?;
                }
                () = self.gateway.stop.cancelled() => {
                    running.lines.shutdown().await;
                    self.save(&running).await;
                    return Ok(Stopped::Interrupted);
                }
                () = sleep_until(expires) => return Ok(Stopped::Expired),
                _ = saves.tick() => self.save(&running).await,
                _ = changes.changed() => {
                    self.batch = self.store.batch(&self.batch.tenant, &self.batch.id).await?;
                }
                (permits, starting) = async {
                    let permits = self.limits.room.enter(&tenant, bytes).await;
                    let starting = &self.limits.starting;
                    let line = (model, are_preemptible);
                    let gate = gate::wait(&self.gateway, caller.as_ref(), line, starting, since);
                    (permits, gate.await)
                }, if next.is_some() => {
                    if let Some(line) = next {
                        let latest = latest(begun.remove(&(line as u64)));
                        running.latest.insert(line as u64, latest.clone());
                        let asking = self.asking(latest);
                        let run = run_line(input.clone(), line, asking, (permits, starting));
                        running.lines.spawn(run);
                    }
                    next = left.next();
                }
            }
        }
        match self.batch.status {
            BatchStatus::Cancelling => Ok(Stopped::Cancelled),
            _ => Ok(Stopped::Done),
        }
    }

    fn expires(&self) -> Instant {
        let now = unix_seconds(SystemTime::now());
        Instant::now() + Duration::from_secs(self.batch.times.expires_at.saturating_sub(now))
    }

    /// Stores how far the lines are. If that fails, more is made again.
    async fn save(&self, running: &Running) {
        let taken =
            running.latest.iter().filter_map(|(line, latest)| Some((*line, latest.take()?)));
        let lines: Vec<_> = taken.collect();
        if !lines.is_empty() {
            let _ = self.store.record_lines(&self.batch, lines).await;
        }
    }

    /// `None` if the tenant's key is gone.
    fn caller(&self) -> Option<Caller> {
        let settings = self.gateway.settings.now();
        let caller = settings.keys.tenants().find(|caller| *caller.tenant == self.batch.tenant);
        caller.cloned()
    }

    /// `None` if the tenant's key is gone.
    fn asking(&self, latest: Arc<LatestCheckpoint>) -> Option<Asking> {
        let settings = self.gateway.settings.now();
        Some(Asking {
            gateway: self.gateway.clone(),
            caller: self.caller()?.without_rate_limits(),
            api: RequestedApi::at(&self.batch.endpoint)?,
            path: self.batch.endpoint.clone(),
            headers: line::headers(),
            latest,
            expires: self.expires(),
            bytes_max: settings.config.limits.response_bytes_max,
        })
    }

    async fn record(&mut self, line: u64, outcome: Outcome) -> Result<(), StoreError> {
        let outcome = match self.claim.grow(outcome.text.len() as u64) {
            Ok(()) => outcome,
            Err(_) => {
                let id = custom_id(&outcome.text);
                let why = "there is no room for the response; delete files that you no longer need";
                let full = Outcome::without_response(&id, "storage_limit_exceeded", why);
                self.claim.force(full.text.len() as u64);
                full
            }
        };
        self.gateway.metrics.record_batch_line(outcome.is_error);
        let Outcome { is_error, text } = outcome;
        loop {
            match self.store.record_line(&self.batch, line, is_error, text.clone()).await {
                // A full disk must not cost what was computed: it waits here, and no more is begun.
                Err(StoreError::Unavailable) => sleep(STORE_PAUSE).await,
                recorded => return recorded,
            }
        }
    }

    /// Gives the lines that were not done their error.
    async fn expire_rest(&mut self, input: &Arc<Input>) -> Result<(), StoreError> {
        let (done, _) = self.store.lines_done(&self.batch.id).await?;
        let done: HashSet<u64> = done.into_iter().collect();
        for line in (0..input.len()).filter(|line| !done.contains(&(*line as u64))) {
            let input = input.clone();
            let read = spawn_blocking(move || input.read(line)).await;
            let id = read.ok().and_then(Result::ok).map(|read| read.custom_id).unwrap_or_default();
            let why = "this request was not run before the end of the completion window";
            self.record(line as u64, Outcome::without_response(&id, "batch_expired", why)).await?;
        }
        Ok(())
    }
}

/// Where a line begins, or continues.
fn latest(progress: Option<Vec<u8>>) -> Arc<LatestCheckpoint> {
    let known = progress.and_then(|progress| serde_json::from_slice(&progress).ok());
    let first = || Checkpoint::first(random(), unix_seconds(SystemTime::now()));
    Arc::new(LatestCheckpoint::new(known.unwrap_or_else(first), false))
}

async fn run_line(
    input: Arc<Input>,
    line: usize,
    asking: Option<Asking>,
    (permits, starting): (Permits, Starting),
) -> Done {
    let _permits = permits;
    let read = spawn_blocking(move || input.read(line)).await;
    let outcome = match (read, asking) {
        (Ok(Ok(read)), Some(asking)) => line::run(asking, read, starting).await,
        (Ok(Ok(read)), None) => Outcome::without_response(
            &read.custom_id,
            "invalid_api_key",
            "the API key of the batch was revoked",
        ),
        _ => Outcome::without_response("", "line_unreadable", "the line cannot be read"),
    };
    (line as u64, outcome)
}

fn custom_id(text: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Named {
        custom_id: String,
    }
    serde_json::from_slice(text).map(|Named { custom_id }| custom_id).unwrap_or_default()
}
