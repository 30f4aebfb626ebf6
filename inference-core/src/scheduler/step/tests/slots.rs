//! Tests what slots hold: copied, filled into an engine that starts anew, and erased.

use std::sync::Arc;

use super::evicted::{about, said};
use super::*;
use crate::scheduler::slots::{SlotAct, SlotContent, SlotOrder};
use crate::types::request::{SlotFailure, SlotName, Token};

const BYTES: usize = 1_000_000;
const ADA: Tenant = Tenant(1);
const BOB: Tenant = Tenant(2);

/// Both kinds of models: sequences that share KV cells, and such that cannot.
fn models(cells: u32) -> [FakeModel; 2] {
    let model = || FakeModel::with_cells(2, 512, 128, cells).saving(BYTES);
    [model(), model().without_sharing()]
}

fn answer(bench: &mut Bench, who: Tenant, id: RequestId, prompt: &str, slot: Option<SlotName>) {
    bench.submit_with((who, id), prompt, Options { slot, ..Options::GREEDY });
    bench.run();
}

fn order(
    bench: &mut Bench,
    (owner, slot): (Tenant, u32),
    act: SlotAct,
) -> Result<SlotContent, SlotFailure> {
    let done = bench.engine.order_slot(SlotOrder { owner, slot, act });
    bench.check_cells();
    done
}

fn copy(bench: &mut Bench, owner: Tenant, slot: u32) -> (Arc<[Token]>, Box<[u8]>) {
    let content = order(bench, (owner, slot), SlotAct::Copy).unwrap();
    (content.tokens, Box::clone(&content.state.unwrap()))
}

fn is_empty(bench: &mut Bench, owner: Tenant, slot: u32) -> bool {
    let done = order(bench, (owner, slot), SlotAct::Copy);
    done.is_err_and(|why| why == SlotFailure::Empty(slot))
}

/// Prompt and response, as the next turn sends it.
fn next_turn(prompt: &str) -> String {
    format!("{prompt}{}and now this\0", prompt.trim_end_matches('\0'))
}

#[test]
fn what_a_slot_held_goes_on_in_another_engine() {
    for (model, other) in models(4096).into_iter().zip(models(4096)) {
        let (mut bench, first) = (Bench::on(model), about(1, 100));
        answer(&mut bench, ADA, 1, &first, Some(SlotName::Own));
        let (tokens, state) = copy(&mut bench, ADA, 0);
        assert_eq!(tokens.len(), 199, "the prompt, and all of the response but its end");
        let mut anew = Bench::on(other);
        order(&mut anew, (ADA, 1), SlotAct::Fill(tokens.clone(), state)).unwrap();
        assert_eq!(copy(&mut anew, ADA, 1).0, tokens, "it is the slot's now");
        let turn = next_turn(&first);
        answer(&mut anew, ADA, 2, &turn, None);
        answer(&mut bench, ADA, 2, &turn, None);
        assert_eq!(anew.cached(2), 199);
        assert_eq!(anew.text(2), bench.text(2));
    }
}

#[test]
fn a_slot_is_found_by_the_number_of_the_request_and_only_by_its_owner() {
    for model in models(4096) {
        let mut bench = Bench::on(model);
        answer(&mut bench, ADA, 1, &about(1, 100), Some(SlotName::Number(1)));
        answer(&mut bench, ADA, 2, &about(2, 90), Some(SlotName::Own));
        answer(&mut bench, ADA, 3, &about(3, 80), None);
        assert_eq!(copy(&mut bench, ADA, 1).0.len(), 199);
        assert_eq!(copy(&mut bench, ADA, 0).0.len(), 179, "the third is remembered for none");
        assert!(is_empty(&mut bench, BOB, 1) && is_empty(&mut bench, BOB, 0));
        answer(&mut bench, BOB, 4, &about(4, 70), Some(SlotName::Number(1)));
        assert_eq!(copy(&mut bench, BOB, 1).0.len(), 139);
        assert_eq!(copy(&mut bench, ADA, 1).0.len(), 199, "others' slots are others'");
    }
}

#[test]
fn what_a_slot_holds_is_copied_after_its_conversation_went_on_and_was_evicted() {
    let model = FakeModel::with_cells(2, 512, 128, 700).saving(BYTES);
    let (mut bench, first) = (Bench::on(model), about(1, 100));
    answer(&mut bench, ADA, 1, &first, Some(SlotName::Number(1)));
    answer(&mut bench, ADA, 2, &next_turn(&first), None);
    let (tokens, state) = copy(&mut bench, ADA, 1);
    assert_eq!((tokens.len(), state.len()), (199, 4 * 199), "without what came later");
    for topic in 2..9 {
        answer(&mut bench, ADA, 10 + topic, &about(topic, 150), None);
    }
    let (longer, state) = copy(&mut bench, ADA, 1);
    assert!(longer.starts_with(&tokens) && state.len() == 4 * longer.len());
}

#[test]
fn what_gave_way_is_no_longer_held() {
    for model in models(700) {
        let mut bench = Bench::on(model.saving(1500));
        answer(&mut bench, ADA, 1, &about(1, 100), Some(SlotName::Number(1)));
        for topic in 2..9 {
            answer(&mut bench, ADA, topic, &about(topic, 150), None);
        }
        assert!(is_empty(&mut bench, ADA, 1));
    }
}

#[test]
fn an_erased_slot_is_computed_again() {
    for model in models(4096) {
        let (mut bench, first) = (Bench::on(model), about(1, 100));
        answer(&mut bench, ADA, 1, &first, Some(SlotName::Own));
        let erased = order(&mut bench, (ADA, 0), SlotAct::Erase).unwrap();
        assert_eq!(erased.tokens.len(), 199);
        assert!(is_empty(&mut bench, ADA, 0));
        assert!(order(&mut bench, (ADA, 0), SlotAct::Erase).is_err());
        answer(&mut bench, ADA, 2, &first, None);
        assert_eq!(bench.cached(2), 0);
    }
}

#[test]
fn a_slot_is_copied_and_erased_while_all_are_busy() {
    for model in models(4096) {
        let mut bench = Bench::on(model);
        answer(&mut bench, ADA, 1, &about(1, 100), Some(SlotName::Own));
        bench.submit_for(BOB, 2, &about(2, 200));
        bench.submit_for(BOB, 3, &about(3, 200));
        (0..20).for_each(|_| bench.step());
        assert_eq!(copy(&mut bench, ADA, 0).0.len(), 199);
        order(&mut bench, (ADA, 0), SlotAct::Erase).unwrap();
        bench.run();
        said(&bench, 2, &about(2, 200));
        said(&bench, 3, &about(3, 200));
    }
}

#[test]
fn what_has_no_room_fills_no_slot() {
    let tokens = |count: u32| -> Arc<[Token]> { (1..=count).collect() };
    let state = |count: u32| -> Box<[u8]> { vec![1; 4 * count as usize].into() };
    for model in models(4096) {
        let mut bench = Bench::on(model.saving(1000));
        for count in [300, 512] {
            let act = SlotAct::Fill(tokens(count), state(count));
            assert_eq!(order(&mut bench, (ADA, 0), act).unwrap_err(), SlotFailure::TooLarge);
        }
        assert!(is_empty(&mut bench, ADA, 0));
    }
}

/// Random requests, and slots that are copied, filled with what was copied before, and erased
/// meanwhile. Every response is right, and so is every state. Returns how many were copied and
/// filled.
fn day(seed: u64) -> (usize, usize) {
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut pick = move |n: u32| rng.next_u32() % n;
    let (slots, cells) = (1 + pick(3), 300 + pick(600));
    let model = FakeModel::with_cells(slots, 256, 32, cells).saving(pick(4000) as usize);
    let mut bench = Bench::on(if pick(2) == 0 { model } else { model.without_sharing() });
    let (mut asked, mut copied, mut filled) = (Vec::new(), Vec::new(), 0);
    for id in 0..80 {
        let (owner, slot) = (Tenant(u64::from(pick(2))), pick(slots));
        let prompt = about(u64::from(pick(4)), 70 + pick(40) as usize);
        let name = [None, Some(SlotName::Own), Some(SlotName::Number(slot))][pick(3) as usize];
        let options = Options { slot: name, ..Options::GREEDY };
        let leaver = bench.submit_with((owner, id), &prompt, options);
        asked.push(prompt);
        (0..pick(40)).for_each(|_| bench.step());
        let one = copied.get(pick(copied.len().max(1) as u32) as usize);
        let (act, tokens) = match (pick(5), one) {
            (0, Some((tokens, state))) => {
                (SlotAct::Fill(Arc::clone(tokens), Box::clone(state)), Some(Arc::clone(tokens)))
            }
            (1, _) => (SlotAct::Erase, None),
            (2, _) => {
                leaver.set();
                continue;
            }
            _ => (SlotAct::Copy, None),
        };
        let Ok(content) = order(&mut bench, (owner, slot), act) else { continue };
        filled += usize::from(tokens.is_some());
        if let Some(state) = content.state {
            let told: Vec<u8> = content.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
            assert_eq!(told, **state, "seed {seed}: the state is that of these tokens");
            copied.push((content.tokens, Box::clone(&state)));
        }
    }
    bench.run();
    for (id, prompt) in (0..).zip(asked) {
        match bench.last(id) {
            Event::Finished { .. } => said(&bench, id, &prompt),
            Event::Cancelled => assert!(prompt.starts_with(&bench.text(id)), "seed {seed}"),
            Event::Failed(Failure::QueueFull) => {}
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    (copied.len(), filled)
}

#[test]
fn days_with_slots_that_are_copied_and_filled_end_well() {
    let days = (0..300).map(day).fold((0, 0), |all, day| (all.0 + day.0, all.1 + day.1));
    assert!(days.0 > 1000 && days.1 > 300, "{days:?} were copied and filled");
}
