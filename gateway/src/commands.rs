//! Subcommands of `flotilla-gateway` besides `run` and `check`.

pub mod error;
pub mod health;
pub mod init;
pub mod join_command;
pub mod key;
pub mod nodes;
mod stored_keys;
pub mod top;
pub mod usage;
pub mod work;
