//! The command line of `key`.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use flotilla_gateway::access::keys::ApiKey;
use flotilla_gateway::access::limiter::KeyLimits;
use flotilla_gateway::access::spend::Budget;
use flotilla_gateway::access::users::{UserPolicy, UserSource};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::external::ExternalPolicy;
use flotilla_gateway::types::secret::KeyDigest;

use super::{AdminArgs, GatewayArgs};

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print it, once. With a file or the store, add its digest there. Without
    /// one, print its entry for the configuration
    New {
        /// The tenant's name
        #[arg(long, default_value = "default")]
        name: String,
        #[command(flatten)]
        limits: KeyLimitArgs,
        #[command(flatten)]
        place: KeyPlaceArgs,
    },
    /// List keys
    List(KeyPlaceArgs),
    /// Add the keys of a file to the store; one with the name of a stored key replaces it
    Import {
        /// The file, in the format of a keys file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        gateway: GatewayArgs,
    },
    /// Print the keys of the store as a keys file, to change it and import it again
    Export(GatewayArgs),
    /// Revoke a key; running gateways reject it within two seconds
    Revoke {
        /// The tenant's name
        name: String,
        #[command(flatten)]
        place: KeyPlaceArgs,
    },
}

/// Where the API keys are: in a file, or in the store of a running gateway.
#[derive(Debug, Args)]
#[command(next_help_heading = "Place of the keys")]
pub struct KeyPlaceArgs {
    /// The gateway's configuration file, for its keys_file [default: as for 'run']
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The keys file [default: none]
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub keys_file: Option<PathBuf>,
    /// The store (store.keys), through a running gateway's admin API; the key then counts at all
    /// gateways of the store
    #[arg(long, conflicts_with = "keys_file")]
    pub store: bool,
    #[command(flatten)]
    pub admin: AdminArgs,
}

impl KeyPlaceArgs {
    /// The gateway, if the keys are in its store.
    pub fn gateway(&self) -> Option<GatewayArgs> {
        let Self { config, admin, .. } = self;
        let AdminArgs { url, key_file, ca_file } = admin;
        let names_gateway = url.is_some() || key_file.is_some() || ca_file.is_some();
        let gateway = || GatewayArgs { config: config.clone(), admin: admin.clone() };
        (self.store || names_gateway).then(gateway)
    }
}

/// Limits of a key.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits of the key")]
pub struct KeyLimitArgs {
    /// Most urgent class that the key may use
    #[arg(long, value_enum, default_value = "interactive")]
    pub class_max: ClassName,
    /// When its requests may go to external endpoints: never, overflow (if no node can begin them
    /// in time), or prefer (at once, if they are interactive)
    #[arg(long, value_enum, default_value = "overflow")]
    pub external: ExternalName,
    /// Longest time that its requests wait for a slot, in milliseconds
    /// [default: the queue timeout of their class]
    #[arg(long, value_name = "MS")]
    pub deadline_ms: Option<NonZeroU32>,
    /// Most tokens of a response, all choices together [default: unlimited]
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<NonZeroU32>,
    /// Requests per minute [default: unlimited]
    #[arg(long, value_name = "REQUESTS")]
    pub requests_per_minute: Option<NonZeroU32>,
    /// Prompt and completion tokens per minute [default: unlimited]
    #[arg(long, value_name = "TOKENS")]
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Prompt and completion tokens per month (UTC) [default: unlimited]
    #[arg(long, value_name = "TOKENS")]
    pub tokens_per_month: Option<NonZeroU64>,
    /// Cost of external endpoints per month (UTC), in the currency of their prices
    /// [default: unlimited]
    #[arg(long, value_name = "AMOUNT")]
    pub spend_per_month: Option<f64>,
    /// Concurrent requests [default: unlimited]
    #[arg(long, value_name = "REQUESTS")]
    pub concurrent_max: Option<NonZeroU32>,
    /// Models that the key may use, separated by commas [default: all]
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Where its requests name their users, who then share its turns fairly: header (such as
    /// x-openwebui-user-id) or field (safety_identifier, user or metadata.user_id)
    #[arg(long, value_enum, default_value = "none")]
    pub users: UsersName,
    /// Share cached prompt prefixes with the other keys of this group. Response times may then
    /// reveal which prompts the group has sent [default: none]
    #[arg(long, value_name = "NAME")]
    pub prefix_group: Option<String>,
    /// Trace a request exactly if its traceparent is sampled, regardless of traces.sample_ratio
    #[arg(long)]
    pub force_trace: bool,
    /// Let its clients read on all their streams after a connection broke; needs a store
    #[arg(long)]
    pub resumable_streams: bool,
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

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum UsersName {
    None,
    Header,
    Field,
}

impl From<UsersName> for UserSource {
    fn from(name: UsersName) -> Self {
        match name {
            UsersName::None => Self::None,
            UsersName::Header => Self::Header,
            UsersName::Field => Self::Field,
        }
    }
}

impl KeyLimitArgs {
    /// The key's entry for the keys file.
    pub fn entry(self, name: &str, digest: KeyDigest) -> ApiKey {
        let external = match self.external {
            ExternalName::Never => ExternalPolicy::Never,
            ExternalName::Overflow => ExternalPolicy::Overflow,
            ExternalName::Prefer => ExternalPolicy::Prefer,
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
            users: UserPolicy { source: self.users.into(), ..UserPolicy::default() },
            prefix_group: self.prefix_group,
            force_trace: self.force_trace,
            resumable_streams: self.resumable_streams,
        }
    }
}
