//! Tests of what the fleet remembers and picks.

use inference_protocol::fleet::NodeState;

use super::*;
use crate::access::spend::Prices;
use crate::scheduler::routing::Policy;

pub(super) const NOW: Duration = Duration::from_secs(100);

/// A model with this name and digest.
fn named(id: &str, digest: &str) -> ModelStatus {
    ModelStatus { id: id.into(), digest: digest.into(), ..ModelStatus::default() }
}

pub(super) fn status(node: &str, state: NodeState, elsewhere: u32) -> NodeStatus {
    let model = ModelStatus { context_tokens: 8, created: 5, ..named("m", "d") };
    NodeStatus {
        version: 2,
        node: node.into(),
        epoch: 1,
        state,
        models: if state == NodeState::Ready { vec![model] } else { Vec::new() },
        slots: if state == NodeState::Ready { 2 } else { 0 },
        slots_busy_elsewhere: elsewhere,
        queued: 0,
        engine_restarts: 0,
        prefill_tokens_per_second: None,
        decode_tokens_per_second: None,
        vitals: None,
        prefixes: None,
    }
}

fn claim<L>(fleet: &mut Fleet<L>, constraints: &RouteConstraints, seed: u64) -> Option<EndpointId> {
    let inputs = RoutingInputs { policy: Policy::default(), cached: &[], now: NOW, seed };
    let id = fleet.pick("m", constraints, inputs)?;
    fleet.claim(id);
    Some(id)
}

fn slots_of<L>(fleet: &Fleet<L>, model: &str) -> u32 {
    fleet.paces(model).map(|(slots, _)| slots).sum()
}

pub(super) fn ready(node: &str) -> NodeStatus {
    status(node, NodeState::Ready, 0)
}

#[test]
fn slots_are_claimed_up_to_the_capacity_and_spread() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    let (b, _) = fleet.add("b", ready("b"), NOW);
    let claims = (0..4).map(|i| claim(&mut fleet, &RouteConstraints::default(), i).unwrap());
    let mut claims: Vec<_> = claims.collect();
    claims.sort_unstable();
    assert_eq!(claims, [a, a, b, b]);
    assert_eq!(claim(&mut fleet, &RouteConstraints::default(), 0), None);
    assert!(!fleet.is_any_open());
    assert_eq!(slots_of(&fleet, "m"), 4);
    assert!(fleet.release(b, AttemptOutcome::Unknown, NOW));
    assert!(fleet.is_open("m") && fleet.is_any_open());
    assert_eq!(claim(&mut fleet, &RouteConstraints::default(), 0), Some(b));
}

fn has_tried(endpoint: EndpointId) -> RouteConstraints {
    RouteConstraints {
        tried: vec![EngineId { endpoint, engine_restarts: 0 }],
        ..RouteConstraints::default()
    }
}

#[test]
fn an_answer_goes_on_with_the_same_model_file_only() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    let origin = fleet.endpoint(a).unwrap().model("m").cloned();
    let constraints = RouteConstraints { origin, ..has_tried(a) };
    let mut other = ready("b");
    other.models[0].digest = "other".into();
    fleet.add("b", other, NOW);
    let mut smaller = ready("c");
    smaller.models[0].context_tokens = 7;
    fleet.add("c", smaller, NOW);
    assert_eq!(claim(&mut fleet, &constraints, 0), None);
    assert!(fleet.all_have_failed("m", &constraints));
    let (d, _) = fleet.add("d", ready("d"), NOW);
    assert_eq!(claim(&mut fleet, &constraints, 0), Some(d));
}

#[test]
fn requests_of_others_count_as_load() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", status("a", NodeState::Ready, 1), NOW);
    assert_eq!(claim(&mut fleet, &RouteConstraints::default(), 0), Some(a));
    assert_eq!(claim(&mut fleet, &RouteConstraints::default(), 0), None);
}

#[test]
fn a_tried_endpoint_is_never_chosen_again() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    let tried = has_tried(a);
    assert_eq!(claim(&mut fleet, &tried, 0), None);
    assert!(fleet.all_have_failed("m", &tried));
    let (b, _) = fleet.add("b", ready("b"), NOW);
    assert!(!fleet.all_have_failed("m", &tried));
    assert_eq!(claim(&mut fleet, &tried, 0), Some(b));
}

#[test]
fn a_tried_endpoint_with_a_new_engine_may_be_chosen() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    let tried = has_tried(a);
    fleet.update_status(a, status("a", NodeState::Restarting, 0), NOW);
    assert!(!fleet.all_have_failed("m", &tried), "it is on its way back");
    let restarted = NodeStatus { engine_restarts: 1, ..ready("a") };
    fleet.update_status(a, restarted, NOW);
    assert_eq!(claim(&mut fleet, &tried, 0), Some(a));
    fleet.remove(a, NOW);
    assert!(!fleet.all_have_failed("m", &tried), "the model is waited for");
}

#[test]
fn a_node_that_comes_back_starts_at_zero_and_old_leases_do_not_touch_it() {
    let mut fleet = Fleet::default();
    let (old, _) = fleet.add("old link", ready("a"), NOW);
    claim(&mut fleet, &RouteConstraints::default(), 0);
    let (new, replaced) = fleet.add("new link", ready("a"), NOW);
    assert_eq!(replaced, Some("old link"));
    assert_eq!(fleet.totals().leases, 0);
    assert!(!fleet.release(old, AttemptOutcome::Unknown, NOW));
    assert_eq!(fleet.endpoint(new).unwrap().leases, 0);
}

#[test]
fn only_ready_nodes_are_routable_and_their_models_are_remembered() {
    let mut fleet = Fleet::default();
    assert_eq!(fleet.availability("m", ExternalPolicy::Never, NOW), Availability::NoNode);
    let (a, _) = fleet.add("a", ready("a"), NOW);
    assert_eq!(fleet.availability("m", ExternalPolicy::Never, NOW), Availability::Served);
    assert_eq!(fleet.availability("x", ExternalPolicy::Never, NOW), Availability::UnknownModel);
    assert_eq!(fleet.update_status(a, status("a", NodeState::Restarting, 0), NOW), Some(true));
    assert_eq!(claim(&mut fleet, &RouteConstraints::default(), 0), None);
    assert_eq!(
        fleet.availability("m", ExternalPolicy::Never, NOW),
        Availability::Served,
        "its engine will be back"
    );
    assert_eq!(fleet.models().next(), None);
    fleet.remove(a, NOW);
    assert_eq!(
        fleet.availability("m", ExternalPolicy::Never, NOW + Duration::from_secs(29)),
        Availability::Served
    );
    assert_eq!(
        fleet.availability("m", ExternalPolicy::Never, NOW + Duration::from_secs(31)),
        Availability::NoNode
    );
}

/// Fails often enough to eject an endpoint.
fn fail(fleet: &mut Fleet<&str>, id: EndpointId) {
    for _ in 0..5 {
        fleet.claim(id);
        fleet.release(id, AttemptOutcome::Failed, NOW);
    }
}

#[test]
fn who_fails_again_and_again_is_sent_nothing_until_a_request_of_ours_is_answered() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    let (b, _) = fleet.add("b", ready("b"), NOW);
    fail(&mut fleet, a);
    assert_eq!(
        (0..2).filter_map(|i| claim(&mut fleet, &RouteConstraints::default(), i)).next(),
        Some(b)
    );
    assert_eq!(fleet.totals().ejected, 1);
    assert!(fleet.claim_probes(NOW + Duration::from_secs(4), None).is_empty());
    let later = NOW + Duration::from_secs(5);
    assert_eq!(fleet.claim_probes(later, None), [a]);
    assert!(fleet.claim_probes(later, None).is_empty(), "one at a time");
    assert!(fleet.release(a, AttemptOutcome::Answered, later));
    assert_eq!(fleet.totals().ejected, 0);
    assert_eq!(claim(&mut fleet, &RouteConstraints::default(), 0), Some(a));
}

#[test]
fn a_node_that_is_out_is_asked_however_busy_others_keep_it() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    fleet.add("b", ready("b"), NOW);
    fail(&mut fleet, a);
    // Another gateway holds all slots of this node, and more requests wait there.
    fleet.update_status(a, status("a", NodeState::Ready, 2), NOW);
    let later = NOW + Duration::from_secs(5);
    assert_eq!(fleet.claim_probes(later, None), [a]);
    fleet.release(a, AttemptOutcome::Unknown, later);
    assert_eq!(fleet.totals().ejected, 1, "a request that was given up says nothing");
    let again = later + Duration::from_secs(5);
    assert_eq!(fleet.claim_probes(again, None), [a]);
    fleet.release(a, AttemptOutcome::Alive, again);
    assert_eq!(fleet.totals().ejected, 0);
    // A node that is not ejected is checked only while it is idle.
    let interval = Some(Duration::from_secs(1));
    let names = |ids: Vec<EndpointId>| ids.contains(&a);
    assert!(!names(fleet.claim_probes(again * 2, interval)));
    fleet.update_status(a, ready("a"), again);
    assert!(names(fleet.claim_probes(again * 2, interval)));
}

#[test]
fn a_name_is_its_nodes_until_its_link_is_over() {
    let mut fleet = Fleet::default();
    assert!(!fleet.is_name_taken("a", 1, NodeOrigin::Joined));
    let (a, _) = fleet.add("a", ready("a"), NOW);
    assert!(!fleet.is_name_taken("a", 1, NodeOrigin::Joined), "it joins again");
    assert!(fleet.is_name_taken("a", 2, NodeOrigin::Joined), "another one");
    assert!(fleet.is_name_taken("a", 1, NodeOrigin::Configured), "the same by another address");
    fleet.remove(a, NOW);
    assert!(!fleet.is_name_taken("a", 2, NodeOrigin::Joined));
    assert!(!fleet.is_name_taken("a", 2, NodeOrigin::Configured));
}

#[test]
fn a_node_cannot_take_another_name_over_its_link() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    let (b, _) = fleet.add("b", ready("b"), NOW);
    assert_eq!(fleet.update_status(a, ready("b"), NOW), None);
    fleet.remove(a, NOW);
    assert!(fleet.is_name_taken("b", 9, NodeOrigin::Joined));
    assert_eq!(fleet.cordon("b"), Some(b));
}

#[test]
fn at_most_half_of_a_models_endpoints_are_out() {
    let mut fleet = Fleet::default();
    let ids: Vec<_> =
        ["a", "b", "c", "d", "e"].map(|name| fleet.add(name, ready(name), NOW).0).into();
    ids.iter().for_each(|id| fail(&mut fleet, *id));
    assert_eq!(fleet.totals().ejected, 2);
    let mut alone = Fleet::default();
    let (only, _) = alone.add("a", ready("a"), NOW);
    fail(&mut alone, only);
    assert_eq!(
        claim(&mut alone, &RouteConstraints::default(), 0),
        Some(only),
        "the last one stays"
    );
}

#[test]
fn a_slow_node_counts_as_busier() {
    let mut fleet = Fleet::default();
    let (a, _) = fleet.add("a", ready("a"), NOW);
    let (b, _) = fleet.add("b", ready("b"), NOW);
    (0..20).for_each(|_| assert!(!fleet.record_pace(a, 0.1, NOW)));
    (0..20).for_each(|_| assert!(!fleet.record_pace(a, 0.5, NOW)));
    // With equal shares, and even with one more, the other node is picked.
    assert_eq!(claim(&mut fleet, &RouteConstraints::default(), 0), Some(b));
    assert_eq!(fleet.endpoint(a).unwrap().health.penalty(), 0.5);
    let mut order: Vec<_> =
        (0..3).filter_map(|i| claim(&mut fleet, &RouteConstraints::default(), i)).collect();
    order.sort_unstable();
    assert_eq!(order, [a, a, b], "it is not kept idle");
}

/// What the index should contain.
fn open_by_hand(fleet: &Fleet<u8>, model: &str) -> Vec<EndpointId> {
    let is_open = |(_, e): &(&EndpointId, &Endpoint<u8>)| {
        e.is_ready()
            && e.busy() < e.status.slots
            && e.model(model).is_some()
            && !e.health.is_ejected()
    };
    fleet.endpoints.iter().filter(is_open).map(|(id, _)| *id).collect()
}

proptest::proptest! {
    #[test]
    fn the_index_is_what_the_endpoints_are(
        steps in proptest::collection::vec((0u8..9, 0u8..6, 0u8..4), 1..120)
    ) {
        let mut fleet: Fleet<u8> = Fleet::default();
        for (step, (what, which, how)) in steps.into_iter().enumerate() {
            let now = NOW + Duration::from_secs(step as u64);
            let ids: Vec<_> = fleet.endpoints.keys().copied().collect();
            let id = ids.get(which as usize % ids.len().max(1)).copied().unwrap_or(0);
            let name = format!("n{which}");
            let state = [NodeState::Ready, NodeState::Ready, NodeState::Restarting,
                NodeState::Draining][how as usize];
            let mut told = status(&name, state, u32::from(how) / 2);
            if which % 2 == 0 && let Some(model) = told.models.first_mut() {
                model.id = format!("m{how}");
            }
            match what {
                0 | 1 => {
                    fleet.add(which, told, now);
                }
                2 => {
                    told.node = fleet.endpoint(id).map_or(name, |e| e.status.node.clone());
                    fleet.update_status(id, told, now);
                }
                3 => {
                    fleet.remove(id, now);
                }
                4 | 5 => fleet.claim(id),
                6 => {
                    if fleet.endpoint(id).is_some_and(|e| e.leases > 0) {
                        fleet.release(id, [AttemptOutcome::Answered, AttemptOutcome::Failed][how as usize % 2], now);
                    }
                }
                7 => drop(fleet.claim_probes(now, None)),
                _ => {
                    fleet.record_pace(id, f64::from(how) + 0.1, now);
                }
            }
            for model in ["m", "m0", "m1", "m2", "m3"] {
                let mut open: Vec<_> = fleet.index.of(model).into_iter()
                    .flat_map(ModelEndpoints::open).map(|(_, id)| id).collect();
                open.sort_unstable();
                proptest::prop_assert_eq!(open, open_by_hand(&fleet, model));
                let slots: u32 = fleet.endpoints.values()
                    .filter(|e| e.is_ready() && e.model(model).is_some())
                    .map(|e| e.status.slots).sum();
                proptest::prop_assert_eq!(slots_of(&fleet, model), slots);
            }
        }
    }

    #[test]
    fn looking_at_a_few_finds_the_least_busy_of_all(
        loads in proptest::collection::vec((0u32..6, 0u64..20), 1..60),
        cached in proptest::collection::vec((0usize..60, 0.0f64..1.0), 0..4)
    ) {
        let mut fleet: Fleet<usize> = Fleet::default();
        for (i, (busy, age)) in loads.iter().enumerate() {
            let mut told = status(&format!("n{i}"), NodeState::Ready, *busy);
            told.slots = 6;
            fleet.add(i, told, NOW.saturating_sub(Duration::from_secs(*age)));
        }
        let cached: Vec<_> = cached.into_iter().map(|(i, part)| (i as u64 + 1, part)).collect();
        let inputs = RoutingInputs { policy: Policy::LeastConnections, cached: &cached, now: NOW, seed: 3 };
        let chosen = fleet.pick("m", &RouteConstraints::default(), inputs).unwrap();
        let load = |id: EndpointId| {
            fleet.endpoint(id).unwrap().candidate(id, inputs.cached_share(id), NOW).load()
        };
        let least = fleet.endpoints.keys().map(|id| load(*id)).min_by(f64::total_cmp).unwrap();
        // All new endpoints together may be too many to examine.
        let young = loads.iter().filter(|(_, age)| *age < 10).count();
        proptest::prop_assert!(load(chosen) <= least || young > super::pick::CONTENDERS_MAX);
    }
}

fn external(fleet: &mut Fleet<&'static str>, name: &'static str, slots: u32, weight: u32) {
    let status = NodeStatus { slots, ..ready(name) };
    fleet.add_external(name, status, Terms { weight, prices: Prices::default() }, NOW);
}

#[test]
fn external_endpoints_share_requests_by_slots_and_weight_and_nodes_do_not_count_them() {
    let mut fleet = Fleet::default();
    external(&mut fleet, "small", 2, 1);
    external(&mut fleet, "large", 2, 3);
    let constraints =
        RouteConstraints { external: ExternalPolicy::Overflow, ..RouteConstraints::default() };
    let mut names = Vec::new();
    while let Some(id) = fleet.pick_external("m", &constraints, |_, _| true) {
        fleet.claim(id);
        names.push(fleet.endpoint(id).unwrap().link);
    }
    assert_eq!(names, ["large", "large", "small", "small"], "3 to 1, as long as there are slots");
    assert_eq!(fleet.pick_external("m", &RouteConstraints::default(), |_, _| true), None);
    assert!(fleet.is_external_only("m") && !fleet.is_open("m"));
    assert_eq!(fleet.availability("m", ExternalPolicy::Overflow, NOW), Availability::Served);
    assert_eq!(fleet.availability("m", ExternalPolicy::Never, NOW), Availability::NoNode);
    assert_eq!((fleet.totals().nodes, fleet.totals().externals), (0, 2));
    fleet.add("a", ready("a"), NOW);
    assert!(!fleet.is_external_only("m") && slots_of(&fleet, "m") == 2);
    assert_eq!(fleet.claim_probes(NOW * 9, Some(Duration::from_secs(1))).len(), 1, "the node only");
}

#[test]
fn what_cannot_be_paid_is_not_picked() {
    let mut fleet = Fleet::default();
    external(&mut fleet, "dear", 1, 9);
    external(&mut fleet, "cheap", 1, 1);
    let constraints =
        RouteConstraints { external: ExternalPolicy::Prefer, ..RouteConstraints::default() };
    let id = fleet.pick_external("m", &constraints, |name, _| name != "dear").unwrap();
    assert_eq!(fleet.endpoint(id).unwrap().link, "cheap");
    assert_eq!(fleet.pick_external("m", &constraints, |_, _| false), None);
}

/// The totals, counted from scratch.
fn counted<L>(fleet: &Fleet<L>) -> (Totals, Vec<(String, ServedModel)>) {
    let mut totals = Totals::default();
    let mut models: BTreeMap<String, ServedModel> = BTreeMap::new();
    for endpoint in fleet.endpoints() {
        totals.leases += endpoint.leases();
        for model in endpoint.models.iter().filter(|_| endpoint.is_ready()) {
            let none = ServedModel { created: u64::MAX, context_tokens: u32::MAX };
            let served = models.entry(model.id.clone()).or_insert(none);
            served.created = model.created.min(served.created);
            served.context_tokens = model.context_tokens.min(served.context_tokens);
        }
        if endpoint.external.is_some() {
            totals.externals += usize::from(endpoint.is_ready());
            continue;
        }
        totals.nodes += 1;
        totals.ejected += usize::from(endpoint.health.is_ejected());
        if endpoint.is_ready() {
            totals.ready += 1;
            totals.slots += endpoint.status.slots;
            totals.busy += endpoint.busy();
        }
    }
    (totals, models.into_iter().collect())
}

/// Applies an event to a fleet with about three endpoints.
fn happens(fleet: &mut Fleet<u32>, what: u8, which: u8, more: u8) {
    let name = ["a", "b", "c", "gpu"][usize::from(which % 4)];
    let state = [NodeState::Ready, NodeState::Ready, NodeState::Draining][usize::from(more % 3)];
    let mut said = status(name, state, u32::from(more % 2));
    for model in &mut said.models {
        model.id = format!("m{}", more / 3 % 3);
        model.created = u64::from(more / 9 % 3);
    }
    said.engine_restarts = u64::from(more / 27);
    let id = fleet.names.get(name).copied();
    match (what % 8, id) {
        (0, _) if name == "gpu" => {
            let terms = Terms { weight: 1, prices: Prices::default() };
            fleet.add_external(0, said, terms, NOW);
        }
        (0, _) => {
            fleet.add(0, said, NOW);
        }
        (1, Some(id)) => {
            fleet.update_status(id, said, NOW);
        }
        (2, Some(id)) => {
            fleet.remove(id, NOW);
        }
        (3, Some(id)) => fleet.claim(id),
        (4, Some(id)) if fleet.endpoint(id).is_some_and(|e| e.leases() > 0) => {
            let failed =
                if more % 4 == 1 { AttemptOutcome::Answered } else { AttemptOutcome::Failed };
            fleet.release(id, failed, NOW);
        }
        (5, _) => {
            fleet.cordon(name);
        }
        (6, _) => {
            fleet.uncordon(name, |_| {});
        }
        (7, _) => {
            fleet.claim_probes(NOW + Duration::from_secs(9), None);
        }
        _ => {}
    }
}

proptest::proptest! {
    /// After any events, the running totals match a fresh count, and an endpoint that has not
    /// changed since no node suited a request still does not suit it.
    #[test]
    fn figures_are_kept_as_they_would_be_counted_and_no_change_is_missed(
        what in proptest::collection::vec((0u8..8, 0u8..4, 0u8..81), 1..120),
    ) {
        let mut fleet = Fleet::default();
        let inputs = RoutingInputs { policy: Policy::default(), cached: &[], now: NOW, seed: 0 };
        let origin = ModelStatus { context_tokens: 8, ..named("m1", "d") };
        let tried = vec![EngineId { endpoint: 1, engine_restarts: 0 }];
        let constraints = RouteConstraints { tried, origin: Some(Arc::new(origin)), ..RouteConstraints::default() };
        let mut skipped = None;
        for (what, which, more) in what {
            let (listed, version) = (counted(&fleet).1, fleet.models_version());
            happens(&mut fleet, what, which, more);
            let (totals, models) = counted(&fleet);
            proptest::prop_assert_eq!(fleet.totals(), totals);
            let kept: Vec<_> = fleet.models().map(|(id, t)| (id.to_string(), t)).collect();
            proptest::prop_assert!(models == listed || fleet.models_version() != version);
            proptest::prop_assert_eq!(kept, models);
            let found = fleet.pick("m1", &constraints, inputs);
            if let Some(change) = skipped {
                let since = fleet.pick_since("m1", &constraints, inputs, change);
                proptest::prop_assert_eq!(since.is_some(), found.is_some());
            }
            skipped = found.is_none().then(|| fleet.last_change());
        }
    }
}
