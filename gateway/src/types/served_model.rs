//! A model of the fleet, as clients see it.

/// A model that ready endpoints serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedModel {
    /// When it was first loaded, Unix seconds.
    pub created: u64,
    /// Prompt and completion tokens that a request may hold together at every endpoint.
    pub context_tokens: u32,
}
