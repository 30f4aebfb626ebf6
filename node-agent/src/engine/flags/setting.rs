//! PURE. The source of a setting: a flag wins, then the tuned value, then the default.

/// Source of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Set on the command line.
    Flag,
    /// Measured on this machine.
    Tuned,
    /// Neither set nor tuned.
    Default,
}

impl Source {
    /// The name in logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Tuned => "tuned",
            Self::Default => "default",
        }
    }
}

/// A setting and its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    /// Chosen value.
    pub value: T,
    /// Who chose it.
    pub source: Source,
}

impl<T: Copy> Setting<T> {
    /// The first value that is present.
    pub(crate) fn of(flag: Option<T>, tuned: Option<T>, default: T) -> Self {
        match (flag, tuned) {
            (Some(value), _) => Self { value, source: Source::Flag },
            (None, Some(value)) => Self { value, source: Source::Tuned },
            (None, None) => Self { value: default, source: Source::Default },
        }
    }
}

impl<T: std::fmt::Display> std::fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.value, self.source.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_what_was_tuned_and_that_over_the_default() {
        assert_eq!(Setting::of(Some(1), Some(2), 3).to_string(), "1 (flag)");
        assert_eq!(Setting::of(None, Some(2), 3).to_string(), "2 (tuned)");
        assert_eq!(Setting::of(None, None, 3).to_string(), "3 (default)");
    }
}
