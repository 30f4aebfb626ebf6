//! External endpoints as keys, routing, and names refer to them.

/// When a request may go to an external endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExternalPolicy {
    /// Never.
    #[default]
    Never,
    /// When no node can start it in time.
    Overflow,
    /// Before any node, for interactive requests.
    Prefer,
}

impl ExternalPolicy {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Never, Self::Overflow, Self::Prefer];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Overflow => "overflow",
            Self::Prefer => "prefer",
        }
    }
}

/// Prefix of external endpoint names; node names cannot contain it.
pub const PREFIX: &str = "external:";
