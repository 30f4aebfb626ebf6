//! Storms in simulated time: the gateway's real cores (scheduler, pursuit, progress) and real engine
//! schedulers on the fake model, with nodes that crash, freeze, drain, lie and lose their link,
//! operators who cordon them and configure the gateway anew, clients that leave, requests that kill
//! engines, and clocks that jump. What must hold is checked all the time. Everything is a function
//! of the seed.

mod bugs;
mod fairness;
mod gateway;
mod node;
mod operator;
mod requests;
mod turns;
mod world;

pub use bugs::Bug;
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
    pub resumes: u64,
    pub retries: u64,
    pub moved: u64,
}
