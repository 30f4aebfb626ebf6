//! The command line: one file or folder for each command.

pub mod tune;
