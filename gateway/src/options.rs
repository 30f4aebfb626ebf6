//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::ArgPredicate;
use clap::{Args, FromArgMatches, Parser, Subcommand};
use flotilla_gateway::commands::init::Choices;
use flotilla_manual::{CompletionsArgs, Example, ManArgs};
pub use key::{KeyCommand, KeyPlaceArgs};
pub use usage::UsageArgs;
pub use work::{WorkArgs, WorkCommand};

mod key;
mod usage;
mod work;

/// Shown after the help of each command, and in its man page.
pub const EXAMPLES: &[Example] = &[
    ("", "flotilla-gateway run"),
    ("run", "flotilla-gateway run"),
    ("run", "flotilla-gateway run --config gateway.yaml"),
    ("run", "RUST_LOG=debug flotilla-gateway run --config gateway.yaml"),
    ("init", "flotilla-gateway init"),
    ("init", "flotilla-gateway init --dir /etc/flotilla"),
    ("init", "flotilla-gateway init --listen 0.0.0.0:8443 --tls-name gateway.example.com"),
    ("init", "flotilla-gateway init --domain llm.example.com --acme-email ops@example.com"),
    ("join-command", "flotilla-gateway join-command --url https://gateway.example.com"),
    ("join-command", "flotilla-gateway join-command --key-file"),
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
    ("key new", "flotilla-gateway key new --store --name team-a --tokens-per-month 5000000"),
    ("key list", "flotilla-gateway key list --store --config gateway.yaml"),
    ("key revoke", "flotilla-gateway key revoke team-a --config gateway.yaml"),
    ("key revoke", "flotilla-gateway key revoke team-a --store --config gateway.yaml"),
    ("key import", "flotilla-gateway key import keys.yaml --config gateway.yaml"),
    ("key export", "flotilla-gateway key export --config gateway.yaml > keys.yaml"),
    ("nodes", "flotilla-gateway nodes --config gateway.yaml"),
    ("nodes", "flotilla-gateway nodes --json --url http://10.0.0.1:8081 --key-file admin.key"),
    ("top", "flotilla-gateway top --config gateway.yaml"),
    ("top", "flotilla-gateway top --once --url http://10.0.0.1:8081 --key-file admin.key"),
    ("cordon", "flotilla-gateway cordon node-1 --config gateway.yaml"),
    ("drain", "flotilla-gateway drain node-1 --wait-s 60 --config gateway.yaml"),
    ("uncordon", "flotilla-gateway uncordon node-1 --config gateway.yaml"),
    ("batches", "flotilla-gateway batches --config gateway.yaml"),
    ("batches", "flotilla-gateway batches --tenant team-a --limit 20 --json"),
    ("batches cancel", "flotilla-gateway batches cancel batch_1a2b --config gateway.yaml"),
    ("jobs", "flotilla-gateway jobs --config gateway.yaml"),
    ("jobs cancel", "flotilla-gateway jobs cancel resp_1a2b --config gateway.yaml"),
    ("usage", "flotilla-gateway usage --from 2026-11-01 --to 2026-12-01 > november.csv"),
    ("usage", "flotilla-gateway usage --by minute --config gateway.yaml"),
    ("usage", "flotilla-gateway usage --format focus --currency EUR --config gateway.yaml"),
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
/// Clients use it like the OpenAI API. The gateway sends each request to a node with a free slot.
/// If a node is lost, another node continues its responses. 'flotilla-gateway config reference'
/// describes the keys of the configuration file.
#[derive(Debug, Parser)]
#[command(name = "flotilla-gateway", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway; it reloads its configuration on SIGHUP and when the files change
    ///
    /// Without a configuration, it creates one as 'init' does, and prints an API key, once, and the
    /// command that joins a node.
    Run(ConfigArgs),
    /// Create a configuration for this machine, its keys, and the first API key
    Init(InitArgs),
    /// Print the command that starts a node and joins it to this gateway
    ///
    /// Keep the line secret: it contains the join key, which lets a machine join as a node and read
    /// the requests that it gets.
    #[command(name = "join-command")]
    Join(JoinArgs),
    /// Check a configuration file and list every problem
    Check(ConfigArgs),
    /// Describe the configuration format, or print the configuration in effect
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// List the nodes of a running gateway
    Nodes {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        gateway: GatewayArgs,
    },
    /// Show the nodes, queue and tenants of a running gateway, live
    ///
    /// Keys: q quits, left and right choose the sort column, r reverses the order, up and down
    /// scroll. NO_COLOR turns colors off.
    Top {
        /// Print the table once and exit
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        gateway: GatewayArgs,
    },
    /// Send no new requests to a node; its running requests continue
    Cordon(NodeArgs),
    /// Cordon a node, move its running requests to other nodes, and wait until it has none
    Drain {
        /// Seconds to wait; 0 does not wait
        #[arg(long, value_name = "SECONDS", default_value_t = 300)]
        wait_s: u64,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Send requests to a cordoned node again
    Uncordon(NodeArgs),
    /// List the batches of all tenants: those that have not ended, and the latest that have
    Batches(WorkArgs),
    /// List the responses and jobs in the background of all tenants: those that have not ended, and
    /// the latest that have
    Jobs(WorkArgs),
    /// Print what tenants have used, by hour, class, model and external endpoint, as CSV
    Usage(UsageArgs),
    /// Check the health of a running gateway: exit code 0 if it can serve requests, otherwise 1
    Health(HealthArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the man page, or write a page for each command
    Man(ManArgs),
}

/// Subcommands of `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the JSON Schema of the configuration, for editors
    Schema,
    /// Print the reference of all keys, with units, bounds and defaults, as Markdown
    Reference,
    /// Print the effective configuration: with defaults, and with secrets masked
    Print(ConfigArgs),
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// URL by which nodes reach the gateway [default: its first domain (tls.acme), or the address
    /// that it listens on]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Name the file with the join key instead, for nodes that have it
    #[arg(long)]
    pub key_file: bool,
    /// Print environment variables instead of a command, one on each line, as the agent's packaged
    /// service reads them from /etc/flotilla/agent.env
    #[arg(long)]
    pub env: bool,
    #[command(flatten)]
    pub config: ConfigArgs,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Folder to create it in [default: $FLOTILLA_HOME, $XDG_STATE_HOME/flotilla,
    /// ~/.local/state/flotilla, or /var/lib/flotilla: the first that is defined]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Address for clients and nodes; with --domain, the default is 0.0.0.0:443
    #[arg(
        long,
        env = "FLOTILLA_GATEWAY_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        default_value_if("domain", ArgPredicate::IsPresent, "0.0.0.0:443")
    )]
    pub listen: SocketAddr,
    /// Domains of this gateway, for a certificate from Let's Encrypt that the gateway gets and
    /// renews by itself; comma-separated, or repeated. Port 443 of each must lead to the address.
    /// You agree to Let's Encrypt's terms of service [default: none]
    #[arg(long, env = "FLOTILLA_GATEWAY_DOMAIN", value_name = "DOMAIN", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Contact for Let's Encrypt [default: none]
    #[arg(long, env = "FLOTILLA_GATEWAY_ACME_EMAIL", value_name = "EMAIL", requires = "domain")]
    pub acme_email: Option<String>,
    /// Names and addresses in the self-signed certificate that is created if an address is not
    /// loopback and has no --domain;
    /// comma-separated, or repeated [default: the host's name, localhost, and the addresses]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub tls_name: Vec<String>,
    /// Address for operators
    #[arg(
        long,
        env = "FLOTILLA_GATEWAY_ADMIN_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081"
    )]
    pub admin_listen: SocketAddr,
    /// Create only the join key, the admin key and the certificate, each unless it exists; no
    /// configuration and no API key. For packages, which bring their own configuration
    #[arg(long)]
    pub keys_only: bool,
}

impl InitArgs {
    /// The defaults, as the environment changes them.
    pub fn of_environment() -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("run").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(std::iter::empty::<OsString>())?)
    }

    /// What the self-signed certificate is for.
    fn names(&self) -> Vec<String> {
        if !self.tls_name.is_empty() {
            return self.tls_name.clone();
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let addresses = [self.listen.ip(), self.admin_listen.ip()];
        let addresses = addresses.iter().filter(|ip| !ip.is_unspecified()).map(ToString::to_string);
        [host, "localhost".into()].into_iter().chain(addresses).collect()
    }

    /// What the configuration says.
    pub fn choices(&self) -> Choices {
        Choices {
            public: self.listen,
            admin: self.admin_listen,
            names: self.names(),
            domains: self.domain.clone(),
            email: self.acme_email.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file (YAML) [default: $FLOTILLA_CONFIG, gateway.yaml here or in /etc/flotilla,
    /// or what 'init' has created: the first that exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The gateway's configuration file, for its address [default: as for 'run']
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// URL of one of its listeners, such as http://127.0.0.1:8080. Certificates are not verified,
    /// because the health check sends no secret [default: from the configuration]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Check only that the gateway runs, even without nodes
    #[arg(long)]
    pub live: bool,
    /// Timeout in milliseconds
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub timeout_ms: u64,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// The gateway to connect to, and its admin key.
#[derive(Debug, Args)]
#[command(next_help_heading = "Gateway")]
pub struct GatewayArgs {
    /// The gateway's configuration file, for address (admin.listen) and key (admin.key_file)
    /// [default: as for 'run', unless --url is set]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// The admin API of a running gateway, where the configuration does not say it.
#[derive(Debug, Clone, Default, Args)]
pub struct AdminArgs {
    /// URL of its admin listener, such as http://10.0.0.1:8081
    /// [default: from the configuration]
    #[arg(long, value_name = "URL", requires = "key_file")]
    pub url: Option<String>,
    /// File with the admin key [default: from the configuration]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// CA certificates (PEM) to trust in addition to the system's
    /// [default: from the configuration]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
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
