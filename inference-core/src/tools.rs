//! Tools for operators: [`mod@bench`] and [`tune`] measure the engine, [`synth`] creates model
//! files.

pub mod bench;
pub mod synth;
pub mod tune;
