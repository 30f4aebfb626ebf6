//! The command line of `batches` and `jobs`.

use clap::{Args, Subcommand};
use flotilla_gateway::commands::work::Listing;
use flotilla_gateway::control::work::{LIMIT_DEFAULT, LIMIT_MAX};

use super::GatewayArgs;

/// A list of stored work, or what to do with one entry.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct WorkArgs {
    #[command(subcommand)]
    pub action: Option<WorkCommand>,
    /// Most entries, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = LIMIT_DEFAULT as u16,
          value_parser = clap::value_parser!(u16).range(1..=LIMIT_MAX as i64))]
    pub limit: u16,
    /// List only the work of this tenant [default: all]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

impl WorkArgs {
    /// Which entries to list.
    pub fn listing(&self) -> Listing {
        Listing { limit: self.limit, tenant: self.tenant.clone() }
    }
}

#[derive(Debug, Subcommand)]
pub enum WorkCommand {
    /// Cancel one
    Cancel {
        /// Its id
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        gateway: GatewayArgs,
    },
}
