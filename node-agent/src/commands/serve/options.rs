//! The flags of `serve`, and their checked values with all defaults resolved.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use inference_core::hardware::Kernel;
use inference_protocol::ids::MODEL_NAME_BYTES_MAX;
use inference_protocol::ids::is_plain_id;
use sha2::{Digest, Sha256};

use crate::commands::model;
use crate::commands::serve::remote::{Files, RemoteModels};
use crate::engine::flags::EngineFlags;
use crate::engine::launch::Launch;
use crate::engine::prefix_disk;
use crate::engine::slot_files;
use crate::engine::template::{TemplateChoice, TemplateFlags};
use crate::serve::join::Gateway;
use crate::serve::join::flags::JoinFlags;
use crate::serve::metrics::compat::Names;
use crate::types::exit::Failed;
use crate::types::key_file::read_key;

/// Maximum disk space for saved prefixes in MiB.
const PREFIX_DISK_MIB_MAX: u64 = 1 << 24;

/// `serve`
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Model file (GGUF), hf:owner/repo:quantization, hf:owner/repo/file.gguf, or a URL; the last
    /// three are downloaded once [default: that of --model]
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    pub file: Option<PathBuf>,
    /// The same; MODEL goes first [default: none]
    #[arg(long, env = "FLOTILLA_MODEL", value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Name that clients use for the model [default: the file's name without .gguf; for hf:, the
    /// repository's without -GGUF]
    #[arg(long, env = "FLOTILLA_MODEL_NAME", value_name = "NAME")]
    pub model_name: Option<String>,
    /// Address of the agent's own port [default: 127.0.0.1:8080, or none with --join]
    #[arg(
        long,
        env = "FLOTILLA_LISTEN",
        value_name = "ADDRESS",
        help_heading = "The agent's own port"
    )]
    pub listen: Option<SocketAddr>,
    /// File with the API key that clients of the agent's own port must send [default: no
    /// authentication]
    #[arg(
        long,
        env = "FLOTILLA_KEY_FILE",
        value_name = "FILE",
        help_heading = "The agent's own port"
    )]
    pub key_file: Option<PathBuf>,
    /// Maximum connections per client address to the agent's own port; others are refused. All
    /// clients of a reverse proxy share its address
    #[arg(
        long,
        env = "FLOTILLA_CONNECTIONS_PER_ADDRESS",
        value_name = "CONNECTIONS",
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..=1024),
        help_heading = "The agent's own port"
    )]
    pub connections_per_address: u32,
    /// Gateways to join
    #[command(flatten)]
    pub gateways: JoinFlags,
    /// The node's name in the fleet [default: the hostname]
    #[arg(long, env = "FLOTILLA_NAME", value_name = "NAME", help_heading = "Gateways to join")]
    pub name: Option<String>,
    /// Which chat template applies
    #[command(flatten)]
    pub template: TemplateFlags,
    /// How the model is run
    #[command(flatten)]
    pub engine: EngineFlags,
    /// Tune the model first, unless results are stored; takes about half a minute at the first
    /// start
    #[arg(long, env = "FLOTILLA_TUNE", help_heading = "How the model is run", value_parser = FalseyValueParser::new())]
    pub tune: bool,
    /// Disk space for saved prefixes in MiB: conversations and system prompts that are not computed
    /// again after a restart, or when there is no memory for them. The files are in the cache
    /// folder and hold prompts; 0 saves none, and deletes them
    #[arg(long, env = "FLOTILLA_PREFIX_DISK_MIB", value_name = "MIB", default_value_t = 0, help_heading = "How the model is run", value_parser = clap::value_parser!(u64).range(..=PREFIX_DISK_MIB_MAX))]
    pub prefix_disk_mib: u64,
    /// Folder in which clients of the agent's own port may save what slots hold, and restore it:
    /// POST /slots/{id}?action=save, as in llama-server. The files hold prompts and responses
    /// [default: none, which allows neither]
    #[arg(
        long,
        env = "FLOTILLA_SLOT_SAVE_PATH",
        value_name = "FOLDER",
        help_heading = "How the model is run"
    )]
    pub slot_save_path: Option<PathBuf>,
    /// Disk space for all files in that folder in MiB; more is refused
    #[arg(long, env = "FLOTILLA_SLOT_SAVE_MIB", value_name = "MIB", default_value_t = 16384, help_heading = "How the model is run", value_parser = clap::value_parser!(u64).range(1..=PREFIX_DISK_MIB_MAX))]
    pub slot_save_mib: u64,
    /// Also serve the metrics under another server's names, at /metrics/llama-server or
    /// /metrics/vllm; comma-separated, or repeated [default: none]
    #[arg(long, env = "FLOTILLA_METRICS_COMPAT", value_name = "SERVER", value_delimiter = ',')]
    pub metrics_compat: Vec<Names>,
    /// Seconds after SIGTERM in which requests may finish
    #[arg(long, env = "FLOTILLA_SHUTDOWN_SECONDS", value_name = "SECONDS", default_value_t = 30)]
    pub shutdown_seconds: u64,
}

impl ServeArgs {
    /// The models that are not just files of this machine.
    pub(crate) fn remote_models(&self) -> Result<RemoteModels, Failed> {
        let model = match self.model() {
            Ok(model) => model::remote(model)?,
            // Reported when everything is checked.
            Err(_) => None,
        };
        let draft = self.engine.draft_model().map(model::remote).transpose();
        Ok(RemoteModels { model, draft: draft.map_err(model::of_draft)?.flatten() })
    }

    fn model(&self) -> Result<&PathBuf, Failed> {
        let model = self.file.as_ref().or(self.model.as_ref());
        model.ok_or_else(|| Failed::data("no model: name a GGUF file"))
    }

    /// Checks everything but the model. Does not block.
    pub(crate) fn check(self) -> Result<CheckedArgs, Failed> {
        let joins = !self.gateways.join.is_empty();
        let model = self.model()?.clone();
        let default_listen = (!joins).then(|| SocketAddr::from(([127, 0, 0, 1], 8080)));
        let model_name = match (&self.model_name, self.remote_models()?.model) {
            (Some(name), _) => name.clone(),
            (None, Some(reference)) => reference.model_name(),
            (None, None) => file_stem(&model),
        };
        let is_right = (1..=MODEL_NAME_BYTES_MAX).contains(&model_name.len());
        if !is_right || model_name.contains(char::is_control) {
            let most = MODEL_NAME_BYTES_MAX;
            let why = format_args!("--model-name must have 1 to {most} printable characters");
            return Err(Failed::data(why));
        }
        let name = self.node_name();
        let key = self.key_file.as_deref().map(read_key).transpose();
        Ok(CheckedArgs {
            template: self.template.choice().map_err(Failed::data)?,
            gateways: self.gateways.gateways().map_err(Failed::data)?,
            key: key.map_err(Failed::data)?.map(|k| digest_of(&k)),
            name: name.map_err(Failed::data)?,
            listen: self.listen.or(default_listen),
            model_name,
            model,
            args: self,
        })
    }

    fn node_name(&self) -> Result<String, String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        };
        if is_plain_id(&name) {
            return Ok(name);
        }
        Err(format!(
            "invalid node name '{name}': use 1 to 64 letters, digits, '.', '_' or '-' (--name)"
        ))
    }
}

/// Flags that are right, as far as that can be known without the model.
#[derive(Debug)]
pub(crate) struct CheckedArgs {
    args: ServeArgs,
    model: PathBuf,
    model_name: String,
    listen: Option<SocketAddr>,
    key: Option<[u8; 32]>,
    gateways: Vec<Gateway>,
    name: String,
    template: TemplateChoice,
}

impl CheckedArgs {
    /// The CPU kernels that were asked for.
    pub(crate) fn kernel(&self) -> Option<Kernel> {
        self.args.engine.kernel
    }

    /// Plans for the models, for kernels that were tested. `files`: where they were downloaded to.
    /// Blocks.
    pub(crate) fn plan(self, kernel: Kernel, files: Files) -> Result<ServeOptions, Failed> {
        let Self { mut args, model, model_name, listen, key, gateways, name, template } = self;
        let file = files.model.unwrap_or(model);
        args.engine.draft_model = files.draft.or(args.engine.draft_model);
        let disk = prefix_disk::options(args.prefix_disk_mib).map_err(Failed::data)?;
        let slots = slot_files::options(args.slot_save_path.as_deref(), args.slot_save_mib);
        let slots = slots.map_err(Failed::data)?;
        let launch = Launch::tuned(&file, args.engine, kernel, args.tune).map_err(Failed::data)?;
        let launch = launch.with_prefix_disk(disk).with_slot_files(slots);
        if launch.options.prefix_disk.is_some() && launch.options.saved_prefix_bytes == 0 {
            tracing::warn!(
                "--prefix-disk-mib has no effect: there is no memory for saved prefixes"
            );
        }
        if launch.options.slot_files.is_some() && launch.options.saved_prefix_bytes == 0 {
            tracing::warn!("--slot-save-path has no effect: there is no memory for saved prefixes");
        }
        Ok(ServeOptions {
            launch: launch.with_template(template),
            allows_chat_template: args.template.allow_chat_template,
            gateways,
            key,
            name,
            listen,
            model_name,
            connections_per_address: args.connections_per_address as usize,
            compat: args.metrics_compat,
            shutdown: Duration::from_secs(args.shutdown_seconds),
        })
    }
}

/// Checked options of `serve`.
#[derive(Debug)]
pub(crate) struct ServeOptions {
    /// Name that clients use for the model.
    pub model_name: String,
    /// Address of the agent's own port, if any.
    pub listen: Option<SocketAddr>,
    /// Maximum connections of one address to it.
    pub connections_per_address: usize,
    /// Digest of the key that clients of the own port must send.
    pub key: Option<[u8; 32]>,
    /// Gateways to join.
    pub gateways: Vec<Gateway>,
    /// The node's name in the fleet.
    pub name: String,
    /// How to start the engine.
    pub launch: Launch,
    /// True if requests may replace the chat template.
    pub allows_chat_template: bool,
    /// Other servers' names under which metrics are served as well.
    pub compat: Vec<Names>,
    /// Time that requests may take to finish after SIGTERM.
    pub shutdown: Duration,
}

fn file_stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

fn digest_of(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}
