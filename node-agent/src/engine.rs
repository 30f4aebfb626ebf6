//! The engine: how the agent starts it, confines it, watches it, and talks to it, and the engine's
//! own process.

pub mod affinity;
pub mod kernel_trial;
pub mod options;
pub mod plan_facts;
