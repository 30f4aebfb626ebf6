//! Tests of the queue: order, limits, and that no request is lost or bound twice.

use std::collections::BTreeSet;

use super::*;
use crate::types::limits::QueueShare;
use crate::types::secret::KeyDigest;
use proptest::prelude::*;

use Class::{Batch, Interactive, Standard};

fn ticket(id: TicketId, class: Class, tenant: &str, work: f64) -> Ticket<u32> {
    let (model, tenant) = ("m".into(), tenant.into());
    let (prefix, since) = (Prefix::default(), Duration::from_secs(id));
    let (bytes, predicted, constraints, is_retried) = (1, None, 0, false);
    Ticket {
        id,
        model,
        tenant,
        user: None,
        class,
        work,
        bytes,
        prefix,
        since,
        predicted,
        constraints,
        is_retried,
    }
}

fn queue(depth_max: usize) -> Queue<u32> {
    Queue::new(QueueBounds::new(depth_max, 100 * depth_max))
}

fn payer(class: Class, tenant: &str) -> Payer<'_> {
    Payer { class, tenant, user: None }
}

/// Queues a request if there is space.
fn offer(queue: &mut Queue<u32>, ticket: Ticket<u32>) -> Result<(), QueueLimit> {
    let tenant = (ticket.tenant.as_str(), QueueShare::default());
    let (class, bytes) = (ticket.class, ticket.bytes);
    let claim = SpaceClaim {
        class,
        tenant,
        user: ticket.user,
        model: None,
        has_models: false,
        depth: 1,
        bytes,
    };
    if !ticket.is_retried {
        queue.check_space(&claim)?;
    }
    queue.push(ticket);
    Ok(())
}

/// Binds all requests and returns their order.
fn order(queue: &mut Queue<u32>) -> Vec<TicketId> {
    std::iter::from_fn(|| {
        let id = queue.next(|_| true)?.id;
        queue.take(id).map(|t| t.id)
    })
    .collect()
}

#[test]
fn one_tenants_requests_of_a_class_are_served_in_order() {
    let mut queue = queue(10);
    for id in 1..=4 {
        offer(&mut queue, ticket(id, Standard, "a", 10.0 / id as f64)).unwrap();
    }
    assert_eq!(order(&mut queue), [1, 2, 3, 4]);
}

#[test]
fn a_tenant_with_many_requests_does_not_hold_up_one_with_few() {
    let mut queue = queue(100);
    for id in 1..=20 {
        offer(&mut queue, ticket(id, Standard, "many", 5.0)).unwrap();
    }
    offer(&mut queue, ticket(21, Standard, "few", 5.0)).unwrap();
    offer(&mut queue, ticket(22, Standard, "few", 5.0)).unwrap();
    assert_eq!(order(&mut queue)[..5], [1, 21, 2, 22, 3]);
}

#[test]
fn tenants_share_by_work_and_not_by_count() {
    let mut queue = queue(100);
    for id in 1..=10 {
        offer(&mut queue, ticket(id, Standard, "long", 30.0)).unwrap();
        offer(&mut queue, ticket(100 + id, Standard, "short", 10.0)).unwrap();
    }
    let served = order(&mut queue);
    let long = served[..8].iter().filter(|id| **id <= 10).count();
    assert_eq!(long, 2, "{served:?}");
}

#[test]
fn what_is_urgent_goes_first_and_what_is_not_is_not_starved() {
    let mut queue = queue(1000);
    for id in 1..=200 {
        offer(&mut queue, ticket(id, Batch, "a", 1.0)).unwrap();
    }
    for id in 201..=400 {
        offer(&mut queue, ticket(id, Interactive, "a", 1.0)).unwrap();
    }
    let served = order(&mut queue);
    assert!(served[0] > 200, "the urgent one, though it came last");
    let batch = served[..170].iter().filter(|id| **id <= 200).count();
    assert!((8..=12).contains(&batch), "{batch} of 170 were batch: a seventeenth");
}

#[test]
fn a_single_urgent_request_overtakes_everything() {
    let mut queue = queue(1000);
    for id in 1..=300 {
        offer(&mut queue, ticket(id, Batch, "a", 100.0)).unwrap();
    }
    // Some are bound before the urgent one arrives.
    for _ in 0..50 {
        let id = queue.next(|_| true).unwrap().id;
        queue.take(id).unwrap();
    }
    offer(&mut queue, ticket(1000, Interactive, "b", 100.0)).unwrap();
    assert_eq!(queue.next(|_| true).unwrap().id, 1000);
}

#[test]
fn a_model_without_a_slot_holds_up_nobody_else() {
    let mut queue = queue(10);
    offer(&mut queue, Ticket { model: "busy".into(), ..ticket(1, Interactive, "a", 1.0) }).unwrap();
    offer(&mut queue, ticket(2, Batch, "a", 1.0)).unwrap();
    assert_eq!(queue.next(|model| model == "m").unwrap().id, 2);
    assert_eq!(queue.next(|_| true).unwrap().id, 1);
    assert!(queue.next(|_| false).is_none());
}

#[test]
fn a_retried_request_waits_apart_and_is_never_turned_away() {
    let mut queue = queue(1);
    offer(&mut queue, ticket(1, Standard, "a", 1.0)).unwrap();
    offer(&mut queue, Ticket { is_retried: true, ..ticket(2, Standard, "a", 1.0) }).unwrap();
    assert_eq!(queue.retried().map(|t| t.id).collect::<Vec<_>>(), [2]);
    assert_eq!((queue.depth(), queue.depth_of(Standard)), (2, 1));
    assert!(queue.take(2).is_some() && queue.retried().next().is_none());
}

#[test]
fn the_first_of_a_class_has_waited_longest() {
    let mut queue = queue(9);
    offer(&mut queue, Ticket { is_retried: true, ..ticket(1, Standard, "a", 1.0) }).unwrap();
    (2..=4).for_each(|id| offer(&mut queue, ticket(id, Standard, "a", 1.0)).unwrap());
    assert_eq!(queue.oldest_of(Standard), Some(Duration::from_secs(2)));
    queue.remove(2);
    assert_eq!(queue.oldest_of(Standard), Some(Duration::from_secs(3)));
    assert_eq!(queue.oldest_of(Batch), None);
}

#[test]
fn the_queue_is_bounded_and_keeps_room_for_what_is_urgent() {
    let mut queue = queue(8);
    let one = |queue: &mut Queue<u32>, id, class| offer(queue, ticket(id, class, "a", 1.0));
    (1..=4).for_each(|id| one(&mut queue, id, Batch).unwrap());
    assert_eq!(one(&mut queue, 5, Batch), Err(QueueLimit::Queue));
    (5..=7).for_each(|id| one(&mut queue, id, Standard).unwrap());
    assert_eq!(one(&mut queue, 8, Standard), Err(QueueLimit::Queue));
    assert_eq!(one(&mut queue, 8, Interactive), Ok(()));
    assert_eq!(one(&mut queue, 9, Interactive), Err(QueueLimit::Queue));
    let large = Ticket { bytes: 801, ..ticket(10, Interactive, "a", 1.0) };
    (1..=8).for_each(|id| assert!(queue.remove(id).is_some()));
    assert_eq!(offer(&mut queue, large), Err(QueueLimit::Queue));
    assert!(queue.remove(1).is_none());
}

#[test]
fn the_work_ahead_is_what_fair_turns_put_before_it() {
    let mut queue = queue(100);
    for id in 0..10 {
        offer(&mut queue, ticket(id, Standard, "many", 10.0)).unwrap();
    }
    offer(&mut queue, ticket(20, Batch, "many", 1000.0)).unwrap();
    offer(&mut queue, ticket(21, Interactive, "other", 7.0)).unwrap();
    assert_eq!(queue.work_ahead(payer(Standard, "many"), "m", 10.0), 107.0);
    assert_eq!(queue.work_ahead(payer(Standard, "new"), "m", 10.0), 17.0);
    assert_eq!(queue.work_ahead(payer(Standard, "new"), "m", 900.0), 207.0, "who waits asks on");
    offer(&mut queue, Ticket { is_retried: true, ..ticket(30, Batch, "new", 5.0) }).unwrap();
    assert_eq!(queue.work_ahead(payer(Standard, "new"), "m", 10.0), 22.0, "what failed goes first");
    queue.remove(30);
    assert_eq!(queue.work_ahead(payer(Interactive, "new"), "m", 10.0), 10.0);
    assert_eq!(
        queue.work_ahead(payer(Standard, "many"), "other", 10.0),
        0.0,
        "others wait elsewhere"
    );
}

proptest! {
    /// After any arrivals and departures, each request is there exactly once, the bounds hold, and
    /// in the end nothing is left over.
    #[test]
    fn nobody_is_lost_and_nobody_is_bound_twice(
        actions in prop::collection::vec((0u8..4, 0u64..40, 0usize..3, 0u8..4, 0.0f64..100.0), 1..200),
    ) {
        let mut queue = queue(16);
        let mut inside = BTreeSet::new();
        for (action, id, class, tenant, work) in actions {
            let class = Class::ALL[class];
            match action {
                0 | 1 if !inside.contains(&id) => {
                    let mut new = ticket(id, class, &tenant.to_string(), work);
                    new.model = format!("m{}", id % 3);
                    new.user = if tenant % 2 == 0 { user(id as usize % 3) } else { None };
                    if id % 7 == 0 {
                        new.is_retried = true;
                    }
                    if offer(&mut queue, new).is_ok() {
                        inside.insert(id);
                    }
                }
                2 => {
                    let model = format!("m{}", id % 3);
                    let next = queue.next(|m| m == model).map(|t| (t.id, t.model.clone()));
                    if let Some((next, its_model)) = next {
                        prop_assert_eq!(its_model, model);
                        prop_assert!(inside.remove(&next) && queue.take(next).is_some());
                    }
                }
                _ => prop_assert_eq!(queue.remove(id).is_some(), inside.remove(&id)),
            }
            prop_assert_eq!(queue.depth(), inside.len());
            let lined: usize = Class::ALL.iter().map(|class| queue.depth_of(*class)).sum();
            prop_assert_eq!(lined + queue.retried().count(), inside.len());
        }
        for id in inside {
            queue.remove(id).unwrap();
        }
        prop_assert_eq!((queue.depth(), queue.space().total().bytes), (0, 0));
        prop_assert!(queue.classes.values().all(|lines| lines.is_empty()));
    }
}

fn user(number: usize) -> Option<UserId> {
    Some(UserId::new(&KeyDigest::of("key"), number.to_string().as_bytes()))
}

fn of_user(id: TicketId, tenant: &str, number: usize, work: f64) -> Ticket<u32> {
    Ticket { user: user(number), ..ticket(id, Standard, tenant, work) }
}

#[test]
fn a_user_with_many_requests_does_not_hold_up_another_of_the_same_tenant() {
    let mut queue = queue(100);
    for id in 1..=20 {
        offer(&mut queue, of_user(id, "t", 1, 5.0)).unwrap();
    }
    offer(&mut queue, of_user(21, "t", 2, 5.0)).unwrap();
    offer(&mut queue, of_user(22, "t", 2, 5.0)).unwrap();
    let served = order(&mut queue);
    assert_eq!(served[..5], [1, 21, 2, 22, 3]);
    assert_eq!(served.len(), 22);
}

#[test]
fn a_tenant_gains_no_share_by_inventing_users() {
    let mut queue = queue(1000);
    for id in 1..=200 {
        offer(&mut queue, of_user(id, "inventive", id as usize, 5.0)).unwrap();
        offer(&mut queue, ticket(1000 + id, Standard, "plain", 5.0)).unwrap();
    }
    let served = order(&mut queue);
    let plain = served[..200].iter().filter(|id| **id > 1000).count();
    assert!((99..=101).contains(&plain), "{plain} of 200");
}

#[test]
fn a_user_who_left_for_a_moment_has_not_shed_what_it_used() {
    let mut queue = queue(100);
    offer(&mut queue, of_user(1, "t", 1, 100.0)).unwrap();
    offer(&mut queue, of_user(2, "t", 2, 1.0)).unwrap();
    assert_eq!(order(&mut queue), [2, 1]);
    // The first user used more than was estimated, and the tenant's queue was empty meanwhile.
    let first = Payer { class: Standard, tenant: "t", user: user(1) };
    queue.correct(first, 50.0);
    for id in 3..=6 {
        offer(&mut queue, of_user(id, "t", 1, 10.0)).unwrap();
        offer(&mut queue, of_user(10 + id, "t", 2, 10.0)).unwrap();
    }
    assert_eq!(order(&mut queue)[..5], [13, 14, 15, 16, 3]);
}

#[test]
fn the_work_ahead_of_a_user_is_what_fair_turns_put_before_it() {
    let mut queue = queue(100);
    for id in 0..10 {
        offer(&mut queue, of_user(id, "t", 1, 10.0)).unwrap();
    }
    offer(&mut queue, ticket(20, Standard, "other", 7.0)).unwrap();
    let ahead = |number| {
        let payer = Payer { class: Standard, tenant: "t", user: user(number) };
        queue.work_ahead(payer, "m", 10.0)
    };
    assert_eq!(ahead(1), 114.0, "its own, and twice what the other tenant has queued");
    assert_eq!(ahead(2), 24.0, "of each, as much as it asks itself");
}

proptest! {
    /// Users who always wait get the same work, however many requests they queue, to within the
    /// largest piece of each; and so do tenants, however many users they have.
    #[test]
    fn users_share_what_their_tenant_gets_by_work(
        works in prop::collection::vec(prop::collection::vec(0.5f64..50.0, 40), 2..7),
        plain in prop::collection::vec(0.5f64..50.0, 200),
    ) {
        let mut queue = queue(2000);
        let mut owners: BTreeMap<TicketId, usize> = BTreeMap::new();
        for (number, works) in works.iter().enumerate() {
            for work in works {
                let id = owners.len() as TicketId + 1;
                offer(&mut queue, of_user(id, "users", number, *work)).unwrap();
                owners.insert(id, number);
            }
        }
        for (number, work) in plain.iter().enumerate() {
            offer(&mut queue, ticket(10_000 + number as u64, Standard, "plain", *work)).unwrap();
        }
        let mut waiting = vec![40; works.len()];
        let (mut done, mut of_tenants) = (vec![0.0; works.len()], [0.0; 2]);
        let mut left = plain.len();
        while waiting.iter().all(|count| *count > 1) && left > 1 {
            let id = queue.next(|_| true).unwrap().id;
            let work = queue.take(id).unwrap().work;
            match owners.get(&id) {
                Some(user) => {
                    (waiting[*user], done[*user]) = (waiting[*user] - 1, done[*user] + work);
                    of_tenants[0] += work;
                }
                None => (left, of_tenants[1]) = (left - 1, of_tenants[1] + work),
            }
            let least = done.iter().copied().fold(f64::MAX, f64::min);
            let most = done.iter().copied().fold(0.0, f64::max);
            prop_assert!(most - least <= 100.0, "{done:?}");
            prop_assert!((of_tenants[0] - of_tenants[1]).abs() <= 100.0, "{of_tenants:?}");
        }
    }
}

#[test]
fn a_million_users_of_one_tenant_leave_nothing_behind() {
    let mut queue = queue(100);
    for number in 0..1_000_000 {
        let payer = Payer { class: Standard, tenant: "t", user: user(number) };
        match number % 2 {
            0 => {
                offer(&mut queue, of_user(number as u64, "t", number, 1.0)).unwrap();
                queue.take(number as u64).unwrap();
            }
            _ => queue.charge_unqueued(payer, 1.0),
        }
        queue.correct(payer, 3.0);
    }
    let users = queue.classes[&Standard].remembered_users();
    assert!(users < 40_000, "{users}");
    assert_eq!((queue.depth(), queue.space().total().bytes), (0, 0));
}
