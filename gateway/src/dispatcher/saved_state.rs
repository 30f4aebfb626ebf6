//! State that survives a restart.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::access::spend::Ledger;

/// The saved state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedState {
    /// Usage and spend.
    pub ledger: Ledger,
    /// Names of cordoned nodes.
    #[serde(default)]
    pub cordoned: BTreeSet<String>,
}
