//! What every layer shares. The lowest layer: nothing here imports another folder.

pub mod constraint;
pub mod embedder;
pub mod tool_choice;
