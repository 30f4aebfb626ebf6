//! External endpoints as keys, routing, and names know them.

/// When a request may go to an external endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum External {
    /// Never.
    #[default]
    Never,
    /// When no node can begin it in time.
    Overflow,
    /// Rather than to a node, where it is interactive.
    Prefer,
}

impl External {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Never, Self::Overflow, Self::Prefer];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Overflow => "overflow",
            Self::Prefer => "prefer",
        }
    }
}

/// Before the names of external endpoints: no node can have such a name.
pub const PREFIX: &str = "external:";
