//! `flotilla-gateway usage`: what tenants have used, as a running gateway's admin API exports it.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::nodes::AdminClient;
use crate::control::usage::USAGE_PATH;

/// Which usage to export, and how. The gateway has defaults for fields that are `None`.
#[derive(Debug, Clone, Default)]
pub struct UsageQuery {
    /// The first day, as `2026-01-31`.
    pub from: Option<String>,
    /// The day after the last.
    pub to: Option<String>,
    /// `hour` or `minute`.
    pub by: Option<String>,
    /// `csv` or `focus`.
    pub format: Option<String>,
    /// The currency of all amounts, for FOCUS.
    pub currency: Option<String>,
}

impl UsageQuery {
    fn path(&self) -> String {
        let Self { from, to, by, format, currency } = self;
        let fields =
            [("from", from), ("to", to), ("by", by), ("format", format), ("currency", currency)];
        let pairs = fields.into_iter().filter_map(|(name, value)| {
            let value = utf8_percent_encode(value.as_deref()?, NON_ALPHANUMERIC);
            Some(format!("{name}={value}"))
        });
        format!("{USAGE_PATH}?{}", pairs.collect::<Vec<_>>().join("&"))
    }
}

impl AdminClient {
    /// The usage as a table of comma-separated values.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn usage(&self, query: &UsageQuery) -> Result<String, String> {
        self.text(&query.path()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_change_the_path() {
        let query = UsageQuery { from: Some("2026-01-31&to=x".into()), ..UsageQuery::default() };
        assert_eq!(query.path(), "/admin/v1/usage?from=2026%2D01%2D31%26to%3Dx");
        assert_eq!(UsageQuery::default().path(), "/admin/v1/usage?");
    }
}
