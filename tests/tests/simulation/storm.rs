//! Storms in simulated time: the gateway's production scheduler and attempts, and real engine
//! schedulers on the fake model. Nodes crash, freeze, drain, lie, turn requests away, and lose
//! their link; external endpoints refuse and break off; operators cordon nodes and configure the
//! gateway anew; clients leave; requests kill engines; clocks jump. Invariants are checked all the
//! time. Everything is a function of the seed.

mod bugs;
mod fairness;
mod faults;
mod gateway;
mod node;
mod operator;
mod outside;
mod perform;
mod requests;
mod turns;
mod world;

pub use bugs::Bug;
pub use gateway::Counts;
pub use world::storm;

/// What became of a storm.
#[derive(Debug, Default)]
pub struct Report {
    pub violations: Vec<String>,
    pub complete: usize,
    pub failed: usize,
    pub refused: usize,
    pub left: usize,
    pub quarantined: usize,
    pub counts: Counts,
}
