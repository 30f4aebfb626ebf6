//! The path that the agent uses to start its child processes.

/// This executable, by its inode: an upgrade on disk never mixes two versions.
pub(crate) const SELF: &str = "/proc/self/exe";
