//! Storms in simulated time: the gateway's real cores (broker, pursuit, progress) and real engine
//! schedulers on the fake model, with nodes that crash, freeze, drain, lie and lose their link, clients that
//! leave, requests that kill engines, and clocks that jump. What must hold is checked all
//! the time. Everything is a function of the seed.

mod bugs;
mod gateway;
mod node;
mod requests;
mod world;

pub use bugs::Bug;
pub use world::{Report, storm};
