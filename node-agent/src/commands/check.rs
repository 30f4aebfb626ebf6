//! `flotilla-agent check`: loads models once, as `serve` would, and reports whether they work and
//! how much memory they take.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use inference_core::hardware::Kernel;
use inference_core::types::request::{EmbedInput, EmbedRequest, Event, Failure, Tenant};
use inference_core::types::units::bytes;
use inference_metrics::Process;
use tokio_util::sync::CancellationToken;

use crate::commands::model::{local_file, with_local_draft};
use crate::engine::client::{EngineClient, EngineState, Via};
use crate::engine::flags::EngineFlags;
use crate::engine::ipc::EngineFacts;
use crate::engine::launch::{Launch, LaunchError};
use crate::engine::supervisor::supervise;
use crate::types::error::Error;
use crate::types::exit::Failed;
use crate::types::print::print_line;

/// `check`
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Model files (GGUF), or models in the cache: hf:owner/repo:quantization
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// How the models are run
    #[command(flatten)]
    pub engine: EngineFlags,
    /// Maximum seconds to load one model
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub load_seconds: u64,
}

impl CheckArgs {
    /// Loads one model after the other, each in a separate process, and prints one line for each.
    /// The error says how many failed.
    pub(crate) async fn run(&self, kernel: Kernel) -> Result<(), Failed> {
        let mut broken = 0;
        for model in &self.models {
            let checked = self.check(model, kernel).await;
            broken += usize::from(checked.is_err());
            let line = match checked {
                Ok(works) => format!("model file {}: {works}", model.display()),
                Err(why) => why,
            };
            print_line(&line.replace(char::is_control, " "))?;
        }
        match broken {
            0 => Ok(()),
            _ => Err(Failed::data(format_args!(
                "{broken} of {} model files do not work",
                self.models.len()
            ))),
        }
    }

    async fn check(&self, model: &Path, kernel: Kernel) -> Result<Works, String> {
        let model = &local_file(model).map_err(|e| e.message)?;
        let named = |why| format!("model file {}: {why}", model.display());
        let flags = with_local_draft(&self.engine).map_err(|e| named(e.message))?;
        let launch = Launch::new(model, flags, kernel).map_err(|e| match e {
            // It already names the file.
            LaunchError::File(e) => e.to_string(),
            LaunchError::Settings(e) => named(e.to_string()),
        })?;
        match tokio::time::timeout(Duration::from_secs(self.load_seconds), load(launch)).await {
            Ok(loaded) => loaded,
            Err(_) => Err(named(format!("did not load within {} seconds", self.load_seconds))),
        }
    }
}

/// Measurements of a model that works.
struct Works {
    facts: EngineFacts,
    planned_bytes: Option<u64>,
    /// Resident memory of agent and engine in bytes.
    resident_bytes: u64,
}

impl std::fmt::Display for Works {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EngineFacts { slots, context_tokens, .. } = self.facts;
        let resident = bytes(self.resident_bytes);
        write!(f, "works, with {slots} slots of {context_tokens} tokens; {resident} in memory")?;
        match self.planned_bytes {
            Some(planned) => write!(f, ", {} planned", bytes(planned)),
            None => write!(f, ", no memory plan"),
        }
    }
}

/// Starts an engine and ends it as soon as it is ready. For an embedding model, it first embeds an
/// input of maximum length, which takes the most memory.
async fn load(launch: Launch) -> Result<Works, String> {
    let client = EngineClient::default();
    let mut state = client.watch_state();
    let planned_bytes = launch.options.planned_bytes;
    let model = launch.options.model.display().to_string();
    let supervised = supervise(launch, client.clone(), CancellationToken::new(), 0);
    let used = async {
        loop {
            if let EngineState::Ready(facts) = &*state.borrow_and_update() {
                break facts.clone();
            }
            if state.changed().await.is_err() {
                std::future::pending().await
            }
        }
    };
    let used = async {
        let facts = used.await;
        embed(&client, facts.context_tokens)
            .await
            .map_err(|e| format!("model file {model}: {e}"))?;
        // Counted as in a node's status: agent and engine.
        let engine = client.pid().map_or(0, |pid| Process::of(pid).resident_bytes);
        let resident_bytes = Process::this().resident_bytes.saturating_add(engine);
        Ok(Works { facts, planned_bytes, resident_bytes })
    };
    tokio::select! {
        ended = supervised => {
            Err(ended.err().map_or_else(|| "it was stopped".into(), |e| e.to_string()))
        }
        used = used => used,
    }
}

/// Embeds an input of `tokens` tokens; does nothing for a model without embeddings.
async fn embed(client: &EngineClient, tokens: u32) -> Result<(), String> {
    let inputs = vec![EmbedInput::Tokens(vec![0; tokens as usize])];
    let request = EmbedRequest { tenant: Tenant::default(), inputs, usage_max: None };
    let gone = || "the engine died on its first input".to_string();
    let mut generation =
        client.embed(request, Via { link: 0, digest: None }).map_err(|_| gone())?;
    loop {
        match generation.next().await.ok_or_else(gone)? {
            Event::Finished { .. } | Event::Failed(Failure::NoEmbeddings) => return Ok(()),
            Event::Failed(failure) => return Err(Error::from(failure).to_string()),
            _ => {}
        }
    }
}
