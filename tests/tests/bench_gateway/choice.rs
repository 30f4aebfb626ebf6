//! One routing decision over ten thousand nodes with four models, alone and beside requests that no
//! node can serve.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_gateway::scheduler::cost::Size;
use flotilla_gateway::scheduler::fleet::{
    AttemptOutcome, EndpointId, EngineId, Fleet, RouteConstraints, RoutingInputs,
};
use flotilla_gateway::scheduler::prefix_index::Prefix;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::{Binding, Scheduler, SlotRequest};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::limits::{QueueBounds, QueueShare};
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
    let (models, constraints) = (["m0", "m1", "m2", "m3"], RouteConstraints::default());
    let (mut taken, mut times): (Vec<EndpointId>, Vec<f64>) = (Vec::new(), Vec::new());
    for turn in 0..DECISIONS {
        let cached = [((turn * 7 % NODES) as EndpointId, 0.7)];
        let policy = Policy::LeastConnections;
        let begun = Instant::now();
        let inputs = RoutingInputs { policy, cached: &cached, now, seed: turn as u64 };
        let chosen = fleet.pick(models[turn % 4], &constraints, inputs).unwrap();
        fleet.claim(chosen);
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        taken.push(chosen);
        // About half of all slots are busy.
        if taken.len() > 40_000 / 4 {
            let ended = taken.swap_remove(turn * 31 % taken.len());
            fleet.release(ended, AttemptOutcome::Answered, now);
        }
    }
    let how = "a slot chosen and taken, 10,000 nodes with 4 models each";
    print("routing_decision_us", median(times), "<= 5", how);
    beside_unservable();
}

/// Requests that failed on a node and can go on at none.
const UNSERVABLE: usize = 50;

/// What the dispatcher does for a request that comes, and for one that ends, while others wait that
/// every node has room for and none suits.
fn beside_unservable() {
    let mut scheduler: Scheduler<usize> =
        Scheduler::new(QueueBounds::new(1 << 10, 1 << 20), Policy::default());
    for number in 0..NODES {
        scheduler.fleet.add(number, status(number), Duration::ZERO);
    }
    let now = Duration::from_secs(60);
    let origin = ModelStatus { digest: "gone".into(), ..status(0).models[0].clone() };
    let tried = vec![EngineId { endpoint: 1, engine_restarts: 0 }];
    let unservable =
        RouteConstraints { tried, origin: Some(Arc::new(origin)), ..RouteConstraints::default() };
    (0..UNSERVABLE).for_each(|_| ask(&mut scheduler, &unservable, now));
    let (mut taken, mut times): (Vec<Binding>, Vec<f64>) = (Vec::new(), Vec::new());
    let constraints = RouteConstraints::default();
    for turn in 0..DECISIONS {
        let begun = Instant::now();
        ask(&mut scheduler, &constraints, now);
        let binding = scheduler.bind(now).unwrap();
        assert!(scheduler.bind(now).is_none());
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        taken.push(binding);
        if taken.len() > 40_000 / 4 {
            let ended = taken.swap_remove(turn * 31 % taken.len());
            let begun = Instant::now();
            scheduler.release(&ended, AttemptOutcome::Answered, now);
            assert!(scheduler.bind(now).is_none());
            *times.last_mut().unwrap() += begun.elapsed().as_secs_f64() * 1e6;
        }
    }
    assert_eq!(scheduler.depth(), UNSERVABLE);
    let how = "a request queued, bound, and another one ended, 10,000 nodes with 4 models each, beside \
               50 requests to be retried that no node can serve";
    print("routing_decision_beside_unservable_us", median(times), "<= 20", how);
}

fn ask(scheduler: &mut Scheduler<usize>, constraints: &RouteConstraints, now: Duration) {
    let request = SlotRequest {
        model: "m0",
        tenant: "t",
        user: None,
        share: QueueShare::default(),
        class: Class::Standard,
        size: &Size::new(500, None, 1),
        bytes: 500,
        prefix: &Prefix::default(),
        constraints,
    };
    scheduler.enqueue(&request, Duration::MAX, now).unwrap();
}
