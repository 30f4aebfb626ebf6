//! The command line.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use flotilla_gateway::access::keys::ApiKey;
use flotilla_gateway::access::limiter::KeyLimits;
use flotilla_gateway::access::spend::Budget;
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::external::External;
use flotilla_gateway::types::secret::KeyDigest;
use flotilla_manual::{CompletionsArgs, Example, ManArgs};

/// Shown after the help of each command, and in its man page.
pub const EXAMPLES: &[Example] = &[
    ("", "flotilla-gateway run --config gateway.yaml"),
    ("run", "flotilla-gateway run --config gateway.yaml"),
    ("run", "RUST_LOG=debug flotilla-gateway run --config gateway.yaml"),
    ("check", "flotilla-gateway check --config gateway.yaml"),
    ("config schema", "flotilla-gateway config schema > gateway.schema.json"),
    ("config reference", "flotilla-gateway config reference > config.md"),
    ("config print", "flotilla-gateway config print --config gateway.yaml"),
    ("key new", "flotilla-gateway key new --config gateway.yaml --name team-a"),
    (
        "key new",
        "flotilla-gateway key new --keys-file keys.yaml --name batch --class-max batch \\\n      \
         --tokens-per-minute 100000",
    ),
    ("key list", "flotilla-gateway key list --config gateway.yaml"),
    ("key revoke", "flotilla-gateway key revoke team-a --config gateway.yaml"),
    ("nodes", "flotilla-gateway nodes --config gateway.yaml"),
    ("nodes", "flotilla-gateway nodes --json --url http://10.0.0.1:8081 --key-file admin.key"),
    ("top", "flotilla-gateway top --config gateway.yaml"),
    ("top", "flotilla-gateway top --once --url http://10.0.0.1:8081 --key-file admin.key"),
    ("cordon", "flotilla-gateway cordon node-1 --config gateway.yaml"),
    ("drain", "flotilla-gateway drain node-1 --wait-s 60 --config gateway.yaml"),
    ("uncordon", "flotilla-gateway uncordon node-1 --config gateway.yaml"),
    ("health", "flotilla-gateway health --live --config gateway.yaml"),
    ("completions", "flotilla-gateway completions bash > /etc/bash_completion.d/flotilla-gateway"),
    ("completions", "flotilla-gateway completions zsh > ~/.zfunc/_flotilla-gateway"),
    (
        "completions",
        "flotilla-gateway completions fish > ~/.config/fish/completions/flotilla-gateway.fish",
    ),
    ("man", "flotilla-gateway man | man -l -"),
    ("man", "flotilla-gateway man --to /usr/local/share/man/man1"),
];

/// One OpenAI-compatible endpoint in front of many CPU inference nodes
///
/// Clients ask it as they would ask OpenAI; it sends each request to a node with a free slot, and
/// lets another node go on where one is lost. The configuration file says everything else:
/// 'flotilla-gateway config reference' explains its keys.
#[derive(Debug, Parser)]
#[command(name = "flotilla-gateway", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve; SIGHUP, or a change of its files, loads the configuration anew
    Run(ConfigFile),
    /// Check a configuration file and list every problem
    Check(ConfigFile),
    /// What a configuration may hold, and what holds with one
    #[command(subcommand)]
    Config(ConfigCommand),
    /// API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// List the nodes of a running gateway
    Nodes {
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        gateway: RemoteGateway,
    },
    /// Show nodes, queue and tenants of a running gateway, live
    ///
    /// Keys: q ends it, left and right choose the order of the nodes, r reverses it, up and down
    /// scroll. NO_COLOR turns colours off.
    Top {
        /// Print the table once, and exit
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        gateway: RemoteGateway,
    },
    /// Send a node nothing new; what runs there goes on
    Cordon(NodeOf),
    /// Send a node nothing new, let what runs there go on elsewhere, and wait until nothing is left
    Drain {
        /// How many seconds to wait; 0 is not at all
        #[arg(long, value_name = "SECONDS", default_value_t = 300)]
        wait_s: u64,
        #[command(flatten)]
        node: NodeOf,
    },
    /// Send a node requests again
    Uncordon(NodeOf),
    /// Ask a running gateway whether a request could be answered now: exit code 0 if so, else 1
    Health(HealthOf),
    /// Print a script that completes commands and flags in a shell
    Completions(CompletionsArgs),
    /// Print the man page, or write one for each command
    Man(ManArgs),
}

/// About configurations.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the JSON Schema of a configuration, for editors
    Schema,
    /// Print what each key means, with its unit, its limits and its default, as Markdown
    Reference,
    /// Print what holds with a configuration: defaults filled in, secrets masked
    Print(ConfigFile),
}

#[derive(Debug, Args)]
pub struct ConfigFile {
    /// Configuration file (YAML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

#[derive(Debug, Args)]
pub struct HealthOf {
    /// The gateway's configuration file: tells where it listens [default: none; --url tells]
    #[arg(long, value_name = "FILE", required_unless_present = "url")]
    pub config: Option<PathBuf>,
    /// One of its listeners, such as http://127.0.0.1:8080. Certificates are not looked at: nothing
    /// is told there that others may not know [default: what the configuration says]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Ask only whether it runs, with or without nodes
    #[arg(long)]
    pub live: bool,
    /// Milliseconds that it may take
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub timeout_ms: u64,
}

#[derive(Debug, Args)]
pub struct NodeOf {
    /// The node's name
    #[arg(value_name = "NODE")]
    pub node: String,
    #[command(flatten)]
    pub gateway: RemoteGateway,
}

/// Which gateway, and the key of its operators.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which gateway")]
pub struct RemoteGateway {
    /// The gateway's configuration file: tells address (admin.listen) and key (admin.key_file)
    /// [default: none, where --url tells]
    #[arg(long, value_name = "FILE", required_unless_present = "url")]
    pub config: Option<PathBuf>,
    /// Address of its listener for operators, such as http://10.0.0.1:8081
    /// [default: as in the configuration]
    #[arg(long, value_name = "URL", requires = "key_file")]
    pub url: Option<String>,
    /// File that holds the operators' key [default: as in the configuration]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Certificates (PEM) to trust beside the operating system's
    /// [default: as in the configuration]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and print it, once. With a file its digest is kept there, without one its
    /// entry for the configuration is printed
    New {
        /// The tenant's name
        #[arg(long, default_value = "default")]
        name: String,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        file: KeysIn,
    },
    /// List keys
    List(KeysIn),
    /// Revoke a key: a running gateway refuses it within two seconds
    Revoke {
        /// The tenant's name
        name: String,
        #[command(flatten)]
        file: KeysIn,
    },
}

/// Where keys are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where keys are kept")]
pub struct KeysIn {
    /// The gateway's configuration file: tells where keys are (keys_file) [default: none]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The keys file itself [default: none]
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub keys_file: Option<PathBuf>,
}

/// What a key may use.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the key may use")]
pub struct Limits {
    /// The most urgent class that it may ask for
    #[arg(long, value_enum, default_value = "interactive")]
    pub class_max: ClassName,
    /// When its requests may go to external endpoints: never, when no node can begin them in time,
    /// or rather than to nodes if they are interactive
    #[arg(long, value_enum, default_value = "overflow")]
    pub external: ExternalName,
    /// How many milliseconds its requests may wait for a slot, where they do not say
    /// [default: the queue timeout of their class]
    #[arg(long, value_name = "MS")]
    pub deadline_ms: Option<NonZeroU32>,
    /// Most tokens of an answer [default: unlimited]
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<NonZeroU32>,
    /// Requests a minute [default: unlimited]
    #[arg(long, value_name = "REQUESTS")]
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tokens of prompts and answers a minute [default: unlimited]
    #[arg(long, value_name = "TOKENS")]
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Tokens of prompts and answers a month (UTC) [default: unlimited]
    #[arg(long, value_name = "TOKENS")]
    pub tokens_per_month: Option<NonZeroU64>,
    /// What external endpoints may be paid for its tokens in a month (UTC), in the currency of
    /// their prices [default: unlimited]
    #[arg(long, value_name = "AMOUNT")]
    pub spend_per_month: Option<f64>,
    /// Requests side by side [default: unlimited]
    #[arg(long, value_name = "REQUESTS")]
    pub concurrent_max: Option<NonZeroU32>,
    /// The models that it may ask for, separated by commas [default: all]
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Trace its requests whenever their traceparent is sampled, whatever traces.sample_ratio says
    #[arg(long)]
    pub force_trace: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ClassName {
    Interactive,
    Standard,
    Batch,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ExternalName {
    Never,
    Overflow,
    Prefer,
}

impl Limits {
    /// The entry of a key that may use so much.
    pub fn entry(self, name: &str, digest: KeyDigest) -> ApiKey {
        let external = match self.external {
            ExternalName::Never => External::Never,
            ExternalName::Overflow => External::Overflow,
            ExternalName::Prefer => External::Prefer,
        };
        let class_max = match self.class_max {
            ClassName::Interactive => Class::Interactive,
            ClassName::Standard => Class::Standard,
            ClassName::Batch => Class::Batch,
        };
        let limits = KeyLimits {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            concurrent_max: self.concurrent_max,
            models: self.models,
            ..KeyLimits::default()
        };
        ApiKey {
            name: name.into(),
            digest,
            class_max,
            external,
            deadline: self.deadline_ms.map(|ms| Duration::from_millis(ms.get().into())),
            tokens_max: self.max_tokens,
            aliases: BTreeMap::new(),
            limits,
            budget: Budget { tokens: self.tokens_per_month, spend: self.spend_per_month },
            force_trace: self.force_trace,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn program() -> clap::Command {
        flotilla_manual::with_help_sections(Cli::command(), EXAMPLES)
    }

    #[test]
    fn the_help_says_everything() {
        program().debug_assert();
        assert_eq!(flotilla_manual::find_help_gaps(&program()), Vec::<String>::new());
    }

    #[test]
    fn every_example_is_a_command_line_that_is_understood() {
        assert_eq!(flotilla_manual::find_invalid_examples::<Cli>(EXAMPLES), Vec::<String>::new());
    }
}
