//! How the agent starts its child processes.

use std::process::Command;

use crate::types::key_file::JOIN_KEY_VARIABLE;

/// This executable, by its inode: an upgrade on disk never mixes two versions.
const SELF: &str = "/proc/self/exe";

/// A child process that runs this executable. It does not get the join key: children parse model
/// files.
pub(crate) fn child() -> Command {
    let mut command = Command::new(SELF);
    command.env_remove(JOIN_KEY_VARIABLE);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_child_gets_the_join_key() {
        let command = child();
        assert!(command.get_envs().any(|change| change == (JOIN_KEY_VARIABLE.as_ref(), None)));
    }
}
