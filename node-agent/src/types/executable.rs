//! How the agent starts its child processes.

use std::process::Command;

use crate::types::key_file::JOIN_KEY_VARIABLE;

/// This executable, by its inode: an upgrade on disk never mixes two versions.
const SELF: &str = "/proc/self/exe";

/// Variables with secrets that children do not get, because they parse model files: the join key,
/// and the key for the hub.
const SECRETS: [&str; 2] = [JOIN_KEY_VARIABLE, "HF_TOKEN"];

/// A child process that runs this executable, without our secrets.
pub(crate) fn child() -> Command {
    let mut command = Command::new(SELF);
    for secret in SECRETS {
        command.env_remove(secret);
    }
    command
}

/// A [`child`] that computes: with huge pages, glibc requests them (`MADV_HUGEPAGE`) for all large
/// allocations, unless the environment configures it otherwise.
pub(crate) fn computing_child(huge_pages: bool) -> Command {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    let mut command = child();
    if huge_pages && std::env::var_os(TUNABLES).is_none() {
        command.env(TUNABLES, "glibc.malloc.hugetlb=1");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_child_gets_a_secret() {
        let command = child();
        for secret in ["FLOTILLA_JOIN_KEY", "HF_TOKEN"] {
            assert!(command.get_envs().any(|change| change == (secret.as_ref(), None)));
        }
    }
}
