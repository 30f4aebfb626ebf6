//! Tests drafts of the fake model.

use std::ops::Range;

use super::*;
use crate::scheduler::fake::FakeModel;

fn owner(sequence: u64, tenant: u64) -> Owner {
    Owner { sequence, tenant: Tenant(tenant) }
}

fn draft_model(slots: u32, context: u32, cells: u32) -> DraftModel<FakeModel> {
    DraftModel::new(FakeModel::with_cells(slots, context, 16, cells), 257)
}

/// Tokens need not be sure.
const ANY: LeastChance = LeastChance { to_keep: 0.0, to_go_on: 0.0, is_joint: false };

/// What it drafts for the text of a sequence, after it has computed all that is missing, and
/// how many tokens these were.
fn draft(
    model: &mut DraftModel<FakeModel>,
    owner: Owner,
    text: &[Token],
    count: u32,
) -> (Vec<Token>, u32) {
    let lane = model.assign(&[(owner, text)])[0];
    let mut computed = 0;
    while model.behind(lane, text).expect("there is room") > 0 {
        let more = model.catch_up(lane, text);
        assert!(more > 0 && more <= CATCH_UP_ROWS);
        computed += more;
    }
    (model.draft(&[Wanted { lane, text, count, least: 0 }], ANY).0.remove(0).tokens, computed)
}

/// The fake model repeats its prompt, which ends with a zero.
const TEXT: [Token; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0];

#[test]
fn a_draft_is_what_the_model_would_say_and_what_is_rejected_is_taken_back() {
    let mut model = draft_model(2, 64, 128);
    let mut text = TEXT.to_vec();
    assert_eq!(draft(&mut model, owner(1, 0), &text, 3), (vec![1, 2, 3], 16));
    // All three were right, and a fourth followed.
    text.extend([1, 2, 3, 4]);
    assert_eq!(draft(&mut model, owner(1, 0), &text, 2), (vec![5, 6], 0));
    // The second one was wrong.
    text.extend([5, 99]);
    assert_eq!(draft(&mut model, owner(1, 0), &text, 2).0, [7, 8], "by its place alone");
    assert_eq!(model.lanes[1].tokens[..], [&text[..], &[7]].concat()[..]);
    assert_eq!(model.model.cells(), text.len() as u32 + 1);
}

#[test]
fn several_texts_get_drafts_of_their_own_lengths_side_by_side() {
    let mut model = draft_model(2, 64, 128);
    let texts = [&[1, 2, 0][..], &[7, 8, 9, 0, 7]];
    let lanes = model.assign(&[(owner(1, 0), texts[0]), (owner(2, 1), texts[1])]);
    let wanted = |i: usize, count| Wanted { lane: lanes[i], text: texts[i], count, least: 0 };
    let (drafts, steps) = model.draft(&[wanted(0, 1), wanted(1, 3)], ANY);
    assert_eq!(drafts[0].tokens, [1]);
    assert_eq!(drafts[1].tokens, [8, 9, 256]);
    assert_eq!(
        (steps, model.model.batches.len()),
        (3, 3),
        "as many steps as the longest has tokens"
    );
}

#[test]
fn drafts_of_sequences_that_need_the_same_number_of_rows_end_together() {
    let mut model = draft_model(2, 64, 128);
    let texts = [&[1, 2, 0][..], &[7, 8, 9, 0, 7]];
    let lanes = model.assign(&[(owner(1, 0), texts[0]), (owner(2, 1), texts[1])]);
    let wanted = |i: usize, least| Wanted { lane: lanes[i], text: texts[i], count: 5, least };
    // Nothing is known of either, so all tokens are as unsure.
    let chance = ACCEPTANCE_FIRST.powi(3) + 0.01;
    let joint = LeastChance { to_keep: chance, to_go_on: 0.0, is_joint: true };
    let lengths = |drafts: &[Modeled]| drafts.iter().map(|d| d.tokens.len()).collect::<Vec<_>>();
    let (drafts, _) = model.draft(&[wanted(0, 0), wanted(1, 0)], joint);
    assert_eq!(lengths(&drafts), [2, 2]);
    assert_eq!(drafts[0].dropped.zip(drafts[1].dropped), Some((256, 256)));
    let (drafts, _) = model.draft(&[wanted(0, 0), wanted(1, 4)], joint);
    assert_eq!(lengths(&drafts), [2, 4], "the other sequence computes four tokens again");
}

#[test]
fn a_draft_ends_where_it_has_not_been_right_often_enough() {
    let mut model = draft_model(1, 64, 64);
    let lane = model.assign(&[(owner(1, 0), &TEXT)])[0];
    let draft = |model: &mut DraftModel<FakeModel>, to_keep, to_go_on| {
        let least = LeastChance { to_keep, to_go_on, is_joint: false };
        let (mut drafts, steps) =
            model.draft(&[Wanted { lane, text: &TEXT, count: 9, least: 0 }], least);
        (drafts.remove(0), steps)
    };
    // Each token is right with a chance of 0.7 as far as it knows: 0.7, 0.49, 0.34.
    let (first, steps) = draft(&mut model, 0.4, 0.0);
    assert_eq!((&first.tokens[..], first.dropped, steps), (&[1, 2][..], Some(3), 3));
    assert_eq!(first.classes.len(), 3);
    let (first, steps) = draft(&mut model, 0.1, 0.4);
    assert_eq!((&first.tokens[..], first.dropped, steps), (&[1, 2][..], None, 2));
    let class = first.classes[0];
    let judged = |is_right, is_kept| Judged { class, is_right, is_kept };
    (0..100).for_each(|_| model.record(judged(false, true)));
    let (none, _) = draft(&mut model, 0.1, 0.1);
    assert_eq!((&none.tokens[..], none.dropped), (&[][..], Some(1)));
    assert!(model.acceptance() < 0.5 && model.kept() == 1.0);
    // What is dropped is judged as well, so that it comes back when it is right.
    (0..100).for_each(|_| model.record(judged(true, false)));
    assert!(model.kept() < 0.5);
    assert_eq!(draft(&mut model, 0.1, 0.1).0.dropped, None);
}

#[test]
fn a_lane_stays_with_its_sequence_and_then_serves_a_text_of_its_tenant_that_begins_alike() {
    let mut model = draft_model(2, 64, 128);
    let first = [&TEXT[..], &[1, 2]].concat();
    let other = [&[77][..], &TEXT].concat();
    draft(&mut model, owner(1, 5), &first, 1);
    let lanes = model.assign(&[(owner(2, 5), &other), (owner(1, 5), &first)]);
    assert_eq!(lanes.len(), 2);
    assert_ne!(lanes[0], lanes[1]);
    assert_eq!(model.behind(lanes[1], &first), Some(0));
    let (_, computed) = draft(&mut model, owner(3, 5), &[&first[..], &TEXT].concat(), 1);
    assert_eq!(computed, 16, "all but the common beginning");
    let (_, computed) = draft(&mut model, owner(4, 6), &first, 1);
    assert_eq!(computed, 16, "nothing that another tenant has computed is used");
}

#[test]
fn there_is_no_draft_without_room_or_for_unknown_tokens() {
    let mut model = draft_model(2, 64, 64);
    let long = [&[9; 40][..], &[0]].concat();
    let lanes = model.assign(&[(owner(1, 0), &long), (owner(2, 0), &TEXT)]);
    while model.catch_up(lanes[0], &long) > 0 && model.behind(lanes[0], &long) != Some(0) {}
    assert_eq!(model.behind(lanes[1], &TEXT), None, "the other one has the cells");
    assert_eq!(model.assign(&[(owner(2, 0), &TEXT)]).len(), 1);
    assert_eq!(draft(&mut model, owner(2, 0), &TEXT, 1).0, [1], "now it is gone");
    let lane = model.assign(&[(owner(3, 0), &TEXT)])[0];
    assert_eq!(model.behind(lane, &[257, 1]), None);
    assert_eq!(model.behind(lane, &[1; 64]), None, "its context is full");
    // A draft ends where the context does.
    let full = [&[9; 62][..], &[0]].concat();
    let mut model = draft_model(1, 64, 128);
    assert_eq!(draft(&mut model, owner(1, 0), &full, 5).0.len(), 2);
}

#[test]
fn a_model_with_a_state_returns_to_its_text_after_each_draft() {
    let model = FakeModel::with_cells(4, 64, 128, 128).without_sharing().returning();
    let mut model = DraftModel::new(model, 257);
    assert_eq!(model.lanes(), 1);
    let mut text = TEXT.to_vec();
    // The last one is computed with the draft.
    assert_eq!(draft(&mut model, owner(1, 0), &text, 3), (vec![1, 2, 3], 15));
    text.extend([1, 2, 99]);
    assert_eq!(draft(&mut model, owner(1, 0), &text, 3), (vec![4, 5, 6], 0));
    text.push(4);
    assert_eq!(draft(&mut model, owner(1, 0), &text, 1), (vec![5], 0));
    assert_eq!(model.model.cells(), text.len() as u32);
    // Its text is no beginning of this one, and of the same one, no token is missing.
    for other in [[&TEXT[..], &[5, 6]].concat(), text.clone()] {
        let missing = other.len() as u32;
        assert_eq!(model.behind(0, &other), Some(missing));
    }
    // A batch that fails costs all of it.
    text.push(5);
    model.model.fail_after(1);
    let (drafts, steps) = model.draft(&[Wanted { lane: 0, text: &text, count: 3, least: 0 }], ANY);
    assert_eq!((&drafts[0].tokens[..], steps), (&[6][..], 1));
    assert_eq!((model.model.cells(), model.lanes[0].tokens.len()), (0, 0));
    assert_eq!(draft(&mut model, owner(1, 0), &text, 2).0, [6, 7]);
}

#[test]
fn tokens_that_the_large_model_does_not_have_are_never_drafted() {
    let model = FakeModel::with_cells(1, 64, 16, 64);
    let mut model = DraftModel::new(model, 5);
    let drafted = draft(&mut model, owner(1, 0), &[4, 0, 4], 1).0;
    assert!(drafted[0] < 5, "the model would say 256");
}

#[test]
fn a_batch_that_fails_costs_the_draft_and_nothing_else() {
    let mut model = draft_model(1, 64, 64);
    draft(&mut model, owner(1, 0), &TEXT, 1);
    model.model.fail_after(0);
    let (drafts, steps) = model.draft(&[Wanted { lane: 0, text: &TEXT, count: 2, least: 0 }], ANY);
    assert_eq!((&drafts[0], steps), (&Modeled::default(), 0));
    assert_eq!((model.model.cells(), model.behind(0, &TEXT)), (0, Some(16)));
    model.model.fail_after(0);
    assert_eq!(model.catch_up(0, &TEXT), 0);
    assert_eq!(draft(&mut model, owner(1, 0), &TEXT, 2), (vec![1, 2], 16));
}

/// An MTP head with as many lanes.
fn head(lanes: u32) -> DraftModel<FakeModel> {
    DraftModel::new(FakeModel::with_cells(lanes, 64, 16, 64 * lanes).into_head(), 257)
}

/// Records that the large model has computed these tokens of a text.
fn follow(head: &mut DraftModel<FakeModel>, owner: Owner, text: &[Token], rows: Range<usize>) {
    follow_drafts(head, owner, (text, text), rows);
}

/// The same with a text that drafts continue.
fn follow_drafts(
    head: &mut DraftModel<FakeModel>,
    owner: Owner,
    (known, text): (&[Token], &[Token]),
    rows: Range<usize>,
) {
    let state = |position: usize| {
        let mut state = vec![-1.0; 64];
        state.iter_mut().zip(&text[..=position]).for_each(|(to, token)| *to = *token as f32);
        state
    };
    let states: Vec<Vec<f32>> = rows.clone().map(state).collect();
    let row = |at: usize| Row { seq: 9, position: at as u32, token: text[at], logits: false };
    let rows: Vec<Row> = rows.map(row).collect();
    let followed = Followed { owner, text: known, rows: &rows, first_row: 0 };
    head.follow(&[followed], |row| &states[row]);
}

fn drafted(head: &mut DraftModel<FakeModel>, owner: Owner, text: &[Token]) -> Option<Vec<Token>> {
    let lane = head.assign(&[(owner, text)])[0];
    head.behind(lane, text)?;
    Some(head.draft(&[Wanted { lane, text, count: 2, least: 0 }], ANY).0.remove(0).tokens)
}

#[test]
fn a_head_goes_on_with_the_text_of_its_tenant_and_begins_anew_for_another_one() {
    let turn = [&TEXT[..], &[1, 2, 3, 4]].concat();
    for (tenant, cached, first) in [(0, 20, 20), (0, 17, 17), (1, 17, 18)] {
        let mut head = head(1);
        follow(&mut head, owner(1, 0), &turn, 0..20);
        assert_eq!(drafted(&mut head, owner(1, 0), &[&turn[..], &[5]].concat()).unwrap(), [6, 7]);
        // The large model has the beginning in its cache.
        let next = [&turn[..cached], &[9; 20]].concat();
        let before = head.model.batches.len();
        follow(&mut head, owner(2, tenant), &next, cached..next.len() - 1);
        assert!(drafted(&mut head, owner(2, tenant), &next).is_some(), "tenant {tenant}");
        let rows = head.model.batches[before..].iter().flatten();
        let least = rows.map(|row| row.position).min();
        assert_eq!(least, Some(first), "tenant {tenant} with {cached} cached tokens");
    }
}

#[test]
fn a_head_uses_no_state_of_another_tenant() {
    let text = [&TEXT[..], &[1, 2, 3, 4]].concat();
    let mut head = head(1);
    follow(&mut head, owner(1, 0), &text, 0..19);
    // The large model shares no prefix of another tenant, but may have one of this one.
    follow(&mut head, owner(2, 1), &text, 18..19);
    assert_eq!(drafted(&mut head, owner(2, 1), &text), Some(vec![5, 6]));
    let last = head.model.batches.len() - 2;
    let rows: Vec<u32> = head.model.batches[last].iter().map(|row| row.position).collect();
    assert_eq!(rows, [19], "only the state before it was recorded");
}

#[test]
fn a_head_drafts_nothing_that_follows_a_state_it_lacks() {
    let text = [&TEXT[..], &[1, 2, 3, 4]].concat();
    let mut head = head(1);
    assert_eq!(drafted(&mut head, owner(1, 0), &text), None, "no state was recorded");
    follow(&mut head, owner(1, 0), &text, 0..18);
    assert_eq!(drafted(&mut head, owner(1, 0), &text), None, "one is missing");
    follow(&mut head, owner(1, 0), &text, 18..19);
    assert_eq!(drafted(&mut head, owner(1, 0), &text), Some(vec![5, 6]));
    // The first of the tokens that were drafted was right, and the state after it is known.
    let longer = [&text[..], &[5, 77]].concat();
    let drafts = [&text[..], &[5, 6]].concat();
    follow_drafts(&mut head, owner(1, 0), (&text, &drafts), 19..22);
    assert_eq!(drafted(&mut head, owner(1, 0), &longer), Some(vec![7, 8]), "by its place alone");
    // The same batch again, after a model with a recurrent state has undone it.
    follow(&mut head, owner(1, 0), &longer, 20..22);
    let more = [&longer[..], &[7]].concat();
    assert_eq!(drafted(&mut head, owner(1, 0), &more), Some(vec![8, 9]));
    assert_eq!(drafted(&mut head, owner(1, 0), &[&more[..], &[8]].concat()), None);
}

#[test]
fn a_head_without_room_drops_what_it_is_told_and_drafts_nothing() {
    let mut head = head(1);
    let text = [&[9; 62][..], &[0]].concat();
    follow(&mut head, owner(1, 0), &text, 0..40);
    assert!(drafted(&mut head, owner(1, 0), &text[..41]).is_some());
    follow(&mut head, owner(1, 0), &text, 40..62);
    assert_eq!(drafted(&mut head, owner(1, 0), &text), None, "a draft might not fit");
    assert!(head.model.cells() <= 64);
}
