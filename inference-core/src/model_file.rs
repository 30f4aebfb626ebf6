//! Model files before loading: [`gguf`] reads and checks the header, [`memory_plan`] computes how
//! much memory the model takes, and [`catalog`] knows some models without their files.

pub mod catalog;
pub mod gguf;
pub mod memory_plan;
pub mod mtp_head;
