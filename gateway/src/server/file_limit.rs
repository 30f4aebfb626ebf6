//! How many files this process may have open: each connection is one, and systems allow a
//! process 1,024 unless it asks for what it may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files beside connections of clients: nodes, logs, the runtime's own.
const OTHERS: u64 = 128;

/// Asks for all that is allowed, and says so where that is less than the configuration promises.
pub fn allow(connections_max: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let allowed = if raised.is_ok() { maximum } else { current };
    let wanted = connections_max as u64 + OTHERS;
    if allowed.is_some_and(|allowed| allowed < wanted) {
        tracing::warn!(
            allowed,
            wanted,
            "fewer open files are allowed than limits.connections_max may need"
        );
    }
}
