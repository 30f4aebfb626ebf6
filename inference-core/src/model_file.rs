//! Model files before they are loaded: [`gguf`] reads and checks the header, [`memory_plan`] says
//! how much memory the model takes.

pub mod gguf;
pub mod memory_plan;
