//! The commands of `flotilla-agent`, one file or folder for each. [`cli`] defines the command line.

pub mod bench;
pub mod check;
pub mod cli;
pub mod doctor;
pub mod hardware;
pub mod health;
pub mod plan;
pub mod pull;
pub mod serve;
pub mod synth;
pub mod tune;
