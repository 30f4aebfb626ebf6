//! Tests of the scheduler: requests and slots together.

use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use inference_protocol::fleet::{NodeState, NodeStatus, VERSION};

use super::charge::ActualWork;
use super::*;
use crate::scheduler::fleet::EngineId;

const NOW: Duration = Duration::from_secs(100);

fn one_node() -> Scheduler<()> {
    let (id, digest) = ("m".to_string(), "d".to_string());
    let status = NodeStatus {
        version: VERSION,
        node: "a".into(),
        epoch: 1,
        state: NodeState::Ready,
        models: vec![ModelStatus { id, digest, context_tokens: 8, ..ModelStatus::default() }],
        slots: 1,
        slots_busy_elsewhere: 0,
        queued: 0,
        engine_restarts: 0,
        prefill_tokens_per_second: None,
        decode_tokens_per_second: None,
        vitals: None,
        prefixes: None,
    };
    let mut scheduler = Scheduler::new(QueueBounds::new(9, 9), Policy::default());
    scheduler.fleet.add((), status, NOW);
    scheduler
}

fn request<'a>(
    size: &'a Size,
    prefix: &'a Prefix,
    constraints: &'a RouteConstraints,
) -> SlotRequest<'a> {
    let (model, tenant, class, share) = ("m", "t", Class::Standard, QueueShare::default());
    let (user, bytes) = (None, 1);
    SlotRequest { model, tenant, user, share, class, size, bytes, prefix, constraints }
}

#[test]
fn a_request_that_was_answered_says_how_long_others_wait() {
    let (mut scheduler, constraints, prefix) =
        (one_node(), RouteConstraints::default(), Prefix::default());
    let size = &Size::new(1, None, 1);
    let (prefix, constraints) = (&prefix, &constraints);
    let request = request(size, prefix, constraints);
    let usage = Usage { prompt: 10, completion: 50, cached: 0 };
    for _ in 0..9 {
        let binding = scheduler.bind_at_once(&request, NOW).unwrap();
        let (first, end) = (NOW + Duration::from_secs(1), NOW + Duration::from_secs(20));
        scheduler.learn(
            &binding,
            size,
            &ResponseUsage { usage, choices: 1, first_token: Some(first) },
            end,
        );
        scheduler.release(&binding, AttemptOutcome::Answered, end);
    }
    let _running = scheduler.bind_at_once(&request, NOW).unwrap();
    let wait = |scheduler: &mut Scheduler<()>| {
        scheduler.predicted_wait(&request, NOW).unwrap().as_secs_f64()
    };
    assert!((9.5..10.5).contains(&wait(&mut scheduler)), "half of the one that runs");
    scheduler.enqueue(&request, Duration::MAX, NOW).unwrap();
    assert!((28.0..31.0).contains(&wait(&mut scheduler)), "and all of the one that waits");
    let refused = scheduler.enqueue(&request, Duration::from_secs(20), NOW);
    assert_eq!(refused, Err(SlotRefusal::DeadlineUnmet));
}

/// A fleet of nodes with one slot each, and requests that have failed on one node and can continue
/// on none.
fn unservable(nodes: usize, requests: usize) -> (Scheduler<usize>, Vec<TicketId>) {
    let mut scheduler = Scheduler::new(QueueBounds::new(99, 99), Policy::default());
    let status = one_node().fleet.endpoints().next().map(|e| e.status.clone());
    let status = status.unwrap();
    for node in 0..nodes {
        scheduler.fleet.add(node, NodeStatus { node: format!("n{node}"), ..status.clone() }, NOW);
    }
    let origin = ModelStatus { digest: "gone".into(), ..status.models[0].clone() };
    let tried = vec![EngineId { endpoint: 1, engine_restarts: 0 }];
    let constraints =
        RouteConstraints { tried, origin: Some(Arc::new(origin)), ..RouteConstraints::default() };
    let tickets = (0..requests).map(|_| ask(&mut scheduler, &constraints)).collect();
    (scheduler, tickets)
}

fn ask(scheduler: &mut Scheduler<usize>, constraints: &RouteConstraints) -> TicketId {
    let (size, prefix) = (&Size::new(1, None, 1), &Prefix::default());
    let request = request(size, prefix, constraints);
    scheduler.enqueue(&request, Duration::MAX, NOW).unwrap()
}

#[test]
fn requests_that_no_node_can_serve_do_not_have_all_nodes_looked_at_again_and_again() {
    let (mut scheduler, _) = unservable(200, 50);
    assert!(scheduler.bind(NOW).is_none());
    assert_eq!(scheduler.fleet.looks.get(), 50 * 200, "each once");
    for _ in 0..100 {
        scheduler.fleet.looks.set(0);
        ask(&mut scheduler, &RouteConstraints::default());
        let binding = scheduler.bind(NOW).unwrap();
        scheduler.release(&binding, AttemptOutcome::Answered, NOW);
        assert!(scheduler.bind(NOW).is_none());
        assert!(scheduler.fleet.looks.get() <= 2 * 50, "{}", scheduler.fleet.looks.get());
    }
}

#[test]
fn a_request_that_was_skipped_is_served_by_the_first_node_that_can() {
    let (mut scheduler, tickets) = unservable(5, 2);
    assert!(scheduler.bind(NOW).is_none());
    let status = scheduler.fleet.endpoints().next().map(|e| e.status.clone());
    let mut status = NodeStatus { node: "new".into(), ..status.unwrap() };
    status.models[0].digest = "gone".into();
    let (id, _) = scheduler.fleet.add(9, status, NOW);
    let first = scheduler.bind(NOW).unwrap();
    assert_eq!(first.endpoint, id);
    assert!(scheduler.bind(NOW).is_none(), "it has one slot");
    scheduler.release(&first, AttemptOutcome::Answered, NOW);
    let second = scheduler.bind(NOW).unwrap();
    assert_eq!(second.endpoint, id);
    let mut served = [first.id, second.id];
    served.sort_unstable();
    assert_eq!(served.as_slice(), tickets);
    assert!(scheduler.skipped.is_empty(), "nothing is remembered of them");
}

#[test]
fn a_request_is_charged_once_and_corrected_by_what_it_used() {
    let mut scheduler = one_node();
    let (constraints, prefix, size) =
        (&RouteConstraints::default(), &Prefix::default(), &Size::new(1, None, 1));
    let request = request(size, prefix, constraints);
    let binding = scheduler.bind_at_once(&request, NOW).unwrap();
    let charge = binding.charge.clone().unwrap();
    let constraints = &RouteConstraints {
        tried: vec![EngineId { endpoint: 9, engine_restarts: 0 }],
        ..constraints.clone()
    };
    scheduler.release(&binding, AttemptOutcome::Failed, NOW);
    let again = scheduler.bind_at_once(&SlotRequest { constraints, ..request }, NOW).unwrap();
    assert_eq!(again.charge, None);
    let moved = scheduler.correct_charge(&charge, &binding.model, ActualWork::Nothing);
    assert_eq!(moved[1], -charge.work);
    let huge = Usage { prompt: u64::MAX, completion: u64::MAX, cached: 0 };
    let free = Charge { work: 0.0, ..charge.clone() };
    let moved = scheduler.correct_charge(&free, &binding.model, ActualWork::Tokens(huge));
    assert!(moved[1] > 0.0 && moved[1] < 2_000.0, "its context has 8 tokens: {moved:?}");
    let wrong = Charge { work: f64::NAN, ..charge };
    assert_eq!(scheduler.correct_charge(&wrong, &binding.model, ActualWork::Nothing), [0.0; 2]);
}
