//! The error of parsing a name from a closed set, such as a value on the command line.

/// A name that is not in its set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    /// What the names of the set stand for.
    set: &'static str,
    name: String,
    /// The names of the set; empty if there are too many to list.
    known: Vec<&'static str>,
}

impl UnknownName {
    pub(crate) fn new(set: &'static str, name: &str, known: &[&'static str]) -> Self {
        Self { set, name: name.into(), known: known.to_vec() }
    }
}

impl std::fmt::Display for UnknownName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown {} '{}'", self.set, self.name)?;
        match self.known.is_empty() {
            true => Ok(()),
            false => write!(f, "; one of: {}", self.known.join(", ")),
        }
    }
}

impl std::error::Error for UnknownName {}
