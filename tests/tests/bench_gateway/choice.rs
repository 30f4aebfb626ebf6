//! One routing decision over ten thousand nodes with four models.

use std::time::{Duration, Instant};

use flotilla_gateway::fleet::{Choice, EndpointId, Fleet, Outcome, Seek};
use flotilla_gateway::routing::Policy;
use inference_protocol::fleet::{ModelStatus, NodeStatus};

use crate::{median, print};

const NODES: usize = 10_000;
const DECISIONS: usize = 20_000;

fn status(number: usize) -> NodeStatus {
    let mut status = fleet_tests::mock_node::healthy(&format!("n{number}"), 8);
    let model = |m: usize| ModelStatus { id: format!("m{m}"), ..status.models[0].clone() };
    status.models = (0..4).map(model).collect();
    status
}

/// Prints it.
pub fn figures() {
    let mut fleet: Fleet<usize> = Fleet::default();
    for number in 0..NODES {
        fleet.add(number, status(number), Duration::ZERO);
    }
    let now = Duration::from_secs(60);
    let (models, seek) = (["m0", "m1", "m2", "m3"], Seek::default());
    let (mut taken, mut times): (Vec<EndpointId>, Vec<f64>) = (Vec::new(), Vec::new());
    for turn in 0..DECISIONS {
        let held = [((turn * 7 % NODES) as EndpointId, 0.7)];
        let policy = Policy::LeastConnections;
        let begun = Instant::now();
        let choice = Choice { policy, held: &held, now, seed: turn as u64 };
        let chosen = fleet.pick(models[turn % 4], &seek, choice).unwrap();
        fleet.claim(chosen);
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        taken.push(chosen);
        // About half of all slots are busy.
        if taken.len() > 40_000 / 4 {
            let ended = taken.swap_remove(turn * 31 % taken.len());
            fleet.release(ended, Outcome::Answered, now);
        }
    }
    let how = "a slot chosen and taken, 10,000 nodes with 4 models each";
    print("routing_decision_us", median(times), "<= 5", how);
}
