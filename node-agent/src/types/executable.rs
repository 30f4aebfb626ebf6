//! The path under which the agent starts its own child processes.

/// This executable, by its inode: an upgrade on disk never mixes two versions.
pub const SELF: &str = "/proc/self/exe";
