//! Fields that name the client's own user. Values of other types count as absent: the node, which
//! ignores these fields, does not refuse them either.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A string.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Text {
    Text(String),
    Other(IgnoredAny),
}

impl Default for Text {
    fn default() -> Self {
        Self::Other(IgnoredAny)
    }
}

impl Text {
    pub(super) fn get(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Other(_) => None,
        }
    }
}

/// An object with `user_id`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Metadata {
    Object {
        #[serde(default)]
        user_id: Text,
    },
    Other(IgnoredAny),
}

impl Default for Metadata {
    fn default() -> Self {
        Self::Other(IgnoredAny)
    }
}

impl Metadata {
    pub(super) fn user_id(&self) -> Option<&str> {
        match self {
            Self::Object { user_id } => user_id.get(),
            Self::Other(_) => None,
        }
    }
}
