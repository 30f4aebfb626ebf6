//! PURE. Where a setting comes from: a flag wins, then what was tuned, then the default.

/// Who chose a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag,
    /// Measurements on this machine.
    Tuned,
    /// Nobody.
    Default,
}

impl Source {
    /// In logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Tuned => "tuned",
            Self::Default => "default",
        }
    }
}

/// A setting and who chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<T> {
    /// The setting.
    pub value: T,
    /// Who chose it.
    pub source: Source,
}

impl<T: Copy> Choice<T> {
    /// The first of these that there is.
    pub fn of(flag: Option<T>, tuned: Option<T>, default: T) -> Self {
        match (flag, tuned) {
            (Some(value), _) => Self { value, source: Source::Flag },
            (None, Some(value)) => Self { value, source: Source::Tuned },
            (None, None) => Self { value: default, source: Source::Default },
        }
    }
}

impl<T: std::fmt::Display> std::fmt::Display for Choice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.value, self.source.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_what_was_tuned_and_that_over_the_default() {
        assert_eq!(Choice::of(Some(1), Some(2), 3).to_string(), "1 (flag)");
        assert_eq!(Choice::of(None, Some(2), 3).to_string(), "2 (tuned)");
        assert_eq!(Choice::of(None, None, 3).to_string(), "3 (default)");
    }
}
