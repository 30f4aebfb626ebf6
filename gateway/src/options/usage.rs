//! The command line of `usage`.

use clap::{Args, ValueEnum};
use flotilla_gateway::commands::usage::UsageQuery;

use super::GatewayArgs;

/// Which usage to print, and how.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// First day (UTC) [default: the first of this month]
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub from: Option<String>,
    /// Day after the last (UTC) [default: the first of the month after --from]
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub to: Option<String>,
    /// Time of a row; minutes are kept for two days
    #[arg(long, value_enum, default_value_t = UsageTime::Hour)]
    pub by: UsageTime,
    /// Columns: those of Flotilla, or those of the FinOps Open Cost and Usage Specification
    #[arg(long, value_enum, default_value_t = UsageFormat::Csv)]
    pub format: UsageFormat,
    /// Currency of the configured prices, for --format focus
    #[arg(long, value_name = "CODE", default_value = "USD")]
    pub currency: String,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Time of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UsageTime {
    Minute,
    Hour,
}

/// Columns of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UsageFormat {
    Csv,
    Focus,
}

impl UsageArgs {
    /// What to ask the gateway for.
    pub fn query(&self) -> UsageQuery {
        let format = match self.format {
            UsageFormat::Csv => "csv",
            UsageFormat::Focus => "focus",
        };
        let by = match self.by {
            UsageTime::Minute => "minute",
            UsageTime::Hour => "hour",
        };
        UsageQuery {
            from: self.from.clone(),
            to: self.to.clone(),
            by: Some(by.into()),
            format: Some(format.into()),
            currency: Some(self.currency.clone()),
        }
    }
}
