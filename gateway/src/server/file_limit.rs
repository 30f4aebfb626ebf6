//! Raises the limit of open files. Each connection needs one, and many systems allow a process only
//! 1,024 until it asks for more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files besides client connections: node links, logs, and the runtime's own.
const OTHERS: u64 = 128;

/// Raises the limit to the maximum, and warns if that is less than the configuration needs.
pub(crate) fn allow(connections_max: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let allowed = if raised.is_ok() { maximum } else { current };
    let wanted = connections_max as u64 + OTHERS;
    if allowed.is_some_and(|allowed| allowed < wanted) {
        tracing::warn!(allowed, wanted, "open file limit is too low for limits.connections_max");
    }
}
