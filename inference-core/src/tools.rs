//! What operators measure and make with the engine: [`mod@bench`], [`tune`], and [`synth`].

pub mod bench;
pub mod synth;
pub mod tune;
