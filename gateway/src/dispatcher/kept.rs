//! What outlives a restart.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::access::spend::Ledger;

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// What was used and spent.
    pub ledger: Ledger,
    /// Names of nodes that operators want nothing new sent to.
    #[serde(default)]
    pub cordoned: BTreeSet<String>,
}
