//! Tests drafts: the same responses in fewer steps.

use super::*;

impl Bench {
    /// With drafts, on a machine whose steps take the same time whatever their rows.
    pub(super) fn drafting(mut self) -> Self {
        self.engine = self.engine.with_speculation(true);
        self.step_time = Duration::from_millis(10);
        self
    }
}

/// As in models with a recurrent state.
fn recurrent(model: FakeModel) -> FakeModel {
    model.without_sharing().returning()
}

/// A text that repeats itself with changes.
const TEXT: &str = "one two three, one two four, one two three, two four\0";

fn options(sampled: u32) -> Options {
    let stop = if sampled == 2 { vec!["four, one".into()] } else { Vec::new() };
    Options { stop, logprobs: (sampled == 1).then_some(2), ..Options::GREEDY }
}

/// The events of a response without the pieces in which text came, and the steps that it took.
fn response(bench: Bench, options: Options) -> (String, Vec<Token>, Vec<f32>, Event, EngineStats) {
    response_to(bench, TEXT, options)
}

fn response_to(
    mut bench: Bench,
    text: &str,
    options: Options,
) -> (String, Vec<Token>, Vec<f32>, Event, EngineStats) {
    bench.submit_with((Tenant(0), 1), text, options);
    bench.run();
    let mut chunks = bench.events[&1].iter().filter_map(|event| match event {
        Event::Text(chunk) => Some(chunk),
        _ => None,
    });
    let mut tokens: Vec<Token> = chunks.clone().flat_map(|c| c.tokens.clone()).collect();
    let logprobs = chunks.by_ref().flat_map(|c| &c.logprobs).map(|l| l.chosen.logprob).collect();
    let mut last = bench.last(1).clone();
    if let Event::Finished { tokens: held, times, .. } = &mut last {
        tokens.append(held);
        let stats = bench.engine.stats();
        let counted = (u64::from(times.drafted), u64::from(times.accepted));
        assert_eq!(counted, (stats.drafted_tokens, stats.accepted_tokens));
        *times = Default::default();
    }
    (bench.text(1), tokens, logprobs, last, bench.engine.stats())
}

#[test]
fn a_response_with_drafts_is_the_same_in_fewer_steps() {
    for (sampled, returns) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)]
    {
        let model = FakeModel::new(2, 64, 32);
        let model = if returns { recurrent(model) } else { model };
        let plain = response(Bench::new(2, 32), options(sampled));
        let drafted = response(Bench::on(model).drafting(), options(sampled));
        assert_eq!(
            (&plain.0, &plain.1, &plain.2, &plain.3),
            (&drafted.0, &drafted.1, &drafted.2, &drafted.3)
        );
        let (plain, drafted) = (plain.4, drafted.4);
        assert!(
            drafted.steps * 3 <= plain.steps * 2,
            "{} and {} steps",
            drafted.steps,
            plain.steps
        );
        assert!(drafted.accepted_tokens > 0 && drafted.drafted_tokens >= drafted.accepted_tokens);
        assert_eq!(drafted.generated_tokens, plain.generated_tokens);
    }
}

#[test]
fn a_response_with_a_prediction_is_the_same_in_fewer_steps_whatever_it_predicts() {
    // It differs from its prompt in so many places that the prompt tells little.
    let bench = || Bench::on(FakeModel::new(2, 64, 32).with_mistakes(3)).drafting();
    let response_to = |prediction: Option<&str>| {
        let prediction = prediction.map(Into::into);
        response_to(bench(), NEW, Options { prediction, max_tokens: Some(26), ..options(1) })
    };
    let plain = response_to(None);
    let right = plain.0.clone();
    let edited = format!("{}???{}", &right[..10], &right[10..]);
    let steps = [&right, &edited, "9876543210"].map(|prediction| {
        let said = response_to(Some(prediction));
        let expected = (&plain.0, &plain.1, &plain.2, &plain.3);
        assert_eq!((&said.0, &said.1, &said.2, &said.3), expected, "{prediction}");
        said.4.steps
    });
    let ([right, edited, wrong], none) = (steps, plain.4.steps);
    assert!(right * 2 < none, "{right} and {none} steps");
    assert!(right < edited && edited < none, "{right}, {edited} and {none} steps");
    assert!(wrong <= none + 2, "{wrong} and {none} steps");
}

#[test]
fn drafts_never_go_beyond_the_context_or_the_wanted_tokens() {
    for max_tokens in [None, Some(1), Some(2), Some(7), Some(20)] {
        let mut bench = Bench::new(1, 32).drafting();
        // Without an end, it repeats its first token.
        bench.submit_with((Tenant(0), 1), "aaaaaa", Options { max_tokens, ..Options::GREEDY });
        bench.run();
        let expected = max_tokens.unwrap_or(58).min(58) as usize;
        assert_eq!(bench.text(1), "a".repeat(expected));
        let rows = bench.engine.model.batches.iter().map(Vec::len).max();
        assert!(max_tokens.is_some_and(|n| n < 7) || rows > Some(3), "{rows:?} rows");
    }
}

#[test]
fn there_are_no_drafts_beside_a_prompt_or_on_a_model_that_cannot_take_them_back() {
    let mut bench = Bench::on(FakeModel::new(2, 64, 8).without_sharing()).drafting();
    bench.submit(1, "aaaaaa");
    bench.run();
    assert_eq!(bench.engine.stats().drafted_tokens, 0);
    let mut bench = Bench::new(2, 8).drafting();
    bench.submit(1, "aaaaaa");
    (0..6).for_each(|_| bench.step());
    bench.submit(2, &"a long prompt ".repeat(4));
    let before = bench.engine.stats();
    assert!(before.drafted_tokens > 0);
    bench.step();
    let after = bench.engine.stats();
    assert_eq!(after.generated_tokens, before.generated_tokens + 1);
}

#[test]
fn a_response_that_is_canceled_in_the_middle_of_its_drafts_keeps_what_it_had() {
    let mut bench = Bench::new(1, 32).drafting();
    let cancel = bench.submit(1, "aaaaaa");
    (0..4).for_each(|_| bench.step());
    let before = bench.engine.stats();
    bench.step_while(|| cancel.set());
    bench.run();
    assert_eq!(bench.last(1), &Event::Cancelled);
    assert_eq!(bench.engine.stats().generated_tokens, before.generated_tokens);
    let other = "aaaaaa".repeat(2) + "\0";
    bench.submit(2, &other);
    bench.run();
    assert_eq!(bench.text(2), other.trim_end_matches('\0'));
}

/// A recurrent model with drafts, and a response that has begun.
fn begun(text: &str) -> (Bench, CancelFlag) {
    let mut bench = Bench::on(recurrent(FakeModel::new(2, 64, 32))).drafting();
    let cancel = bench.submit(1, text);
    (0..4).for_each(|_| bench.step());
    (bench, cancel)
}

#[test]
fn what_was_accepted_of_a_batch_that_is_undone_is_part_of_the_next_one() {
    // Where it says something else, the draft is wrong.
    let model = recurrent(FakeModel::new(1, 64, 32)).with_mistakes(11);
    let mut bench = Bench::on(model).drafting();
    bench.submit_with(
        (Tenant(0), 1),
        "aaaaaa",
        Options { max_tokens: Some(40), ..Options::GREEDY },
    );
    bench.run();
    let expected: String = (6..46).map(|n| if n % 11 == 0 { '\u{1}' } else { 'a' }).collect();
    let said: String = bench.text(1).chars().map(|c| if c == 'a' { c } else { '\u{1}' }).collect();
    assert_eq!(said, expected);
    let batches = &bench.engine.model.batches;
    let again = batches.windows(2).filter(|two| two[0][0].position == two[1][0].position).count();
    let rows = batches.iter().map(Vec::len).max();
    assert!(again > 0 && rows <= Some(16), "{again} batches were undone, of up to {rows:?} rows");
    assert!(batches.len() < 30, "{} batches", batches.len());
    assert_eq!((bench.engine.model.cells(), bench.engine.pool.cells().free), (0, 64));
}

/// Two responses of a recurrent model at a time. Returns the rows of each in every batch of both.
fn two_recurrent(bench: &mut Bench) -> Vec<(usize, usize)> {
    bench.submit(1, "aaaaaa");
    bench.submit(2, "bbbbbb");
    bench.run();
    let rows = |batch: &Vec<Row>, seq| batch.iter().filter(|row| row.seq == seq).count();
    let batches = bench.engine.model.batches.iter();
    let decoding = batches.filter(|batch| batch.iter().all(|row| row.position >= 6));
    let rows = decoding.map(|batch| (rows(batch, 0), rows(batch, 1)));
    rows.filter(|(first, second)| *first > 0 && *second > 0).collect()
}

#[test]
fn drafts_of_two_recurrent_sequences_have_the_same_number_of_rows() {
    let mut bench = Bench::on(recurrent(FakeModel::new(4, 64, 32))).drafting();
    let rows = two_recurrent(&mut bench);
    assert_eq!((bench.text(1), bench.text(2)), ("a".repeat(58), "b".repeat(58)));
    assert!(rows.iter().all(|(first, second)| first == second), "{rows:?}");
    assert!(rows.len() < 30, "{rows:?}");
    let model = recurrent(FakeModel::new(4, 64, 32)).with_mistakes(11);
    let mut bench = Bench::on(model).drafting();
    let rows = two_recurrent(&mut bench);
    assert_eq!(bench.text(1), bench.text(2).replace('b', "a"));
    let uneven = rows.iter().filter(|(first, second)| first != second).count();
    assert!(rows.len() < 45 && uneven < rows.len() / 4, "{rows:?}");
    assert_eq!(bench.engine.model.cells(), 0);
}

#[test]
fn there_are_no_more_recurrent_drafts_than_ids_for_checkpoints() {
    // Two responses leave two ids and the spare one; three leave one and the spare one.
    let model = || recurrent(FakeModel::new(4, 64, 32));
    for (responses, expected) in [(2, true), (3, false)] {
        let mut bench = Bench::on(model()).drafting();
        (0..responses).for_each(|id| drop(bench.submit(id, "aaaaaa")));
        (0..20).for_each(|_| bench.step());
        let drafted = bench.engine.stats().drafted_tokens;
        assert_eq!(drafted > 0, expected, "{responses} responses");
        bench.run();
        (0..responses).for_each(|id| assert_eq!(bench.text(id), "a".repeat(58)));
    }
}

#[test]
fn a_recurrent_sequence_whose_drafts_are_not_computed_has_what_it_had_before() {
    let (mut bench, cancel) = begun("aaaaaa");
    let before = bench.engine.stats();
    bench.step_while(|| cancel.set());
    assert_eq!(bench.last(1), &Event::Cancelled);
    assert_eq!(bench.engine.stats().generated_tokens, before.generated_tokens);
    assert_eq!(bench.engine.model.cells(), 0);
    let (mut bench, _) = begun("aaaaaa");
    bench.engine.model.fail_after(0);
    bench.step();
    assert!(matches!(bench.last(1), Event::Failed(Failure::Decode(_))));
    assert_eq!(bench.engine.model.cells(), 0);
    bench.submit(2, "bbbbbb");
    bench.run();
    assert_eq!(bench.text(2), "b".repeat(58));
}

impl Bench {
    /// The same with a draft model that has a recurrent state.
    pub(super) fn with_recurrent_draft_model(mut self, mistakes: u32) -> Self {
        let model = recurrent(FakeModel::with_cells(4, 64, 16, 256)).with_mistakes(mistakes);
        self = self.drafting();
        self.engine = self.engine.with_draft_model(model);
        self
    }

    /// With an MTP head for as many sequences, that is wrong at every `mistakes`th place.
    pub(super) fn with_mtp_head(mut self, lanes: u32, mistakes: u32) -> Self {
        let head = FakeModel::with_cells(lanes, 64, 16, 64 * lanes).into_head();
        self = self.drafting();
        self.engine = self.engine.with_draft_model(head.with_mistakes(mistakes));
        self
    }

    /// With a draft model that is wrong at every `mistakes`th place, if that is not 0.
    pub(super) fn with_draft_model(mut self, mistakes: u32) -> Self {
        let model = FakeModel::with_cells(4, 64, 16, 256).with_mistakes(mistakes);
        self = self.drafting();
        self.engine = self.engine.with_draft_model(model);
        self
    }
}

/// A text in which nothing repeats.
const NEW: &str = "abcdefghijklmnopqrstuvwxyz\0";

impl Bench {
    /// Batches of the draft model.
    fn draft_batches(&self) -> usize {
        self.engine.draft_model.as_ref().map_or(0, |model| model.model().batches.len())
    }
}

#[test]
fn a_response_with_a_draft_model_is_the_same_in_fewer_steps() {
    let plain = response_to(Bench::new(2, 32), NEW, options(1));
    let large = |returns: bool| {
        let model = FakeModel::new(2, 64, 32);
        Bench::on(if returns { recurrent(model) } else { model })
    };
    let with_states = |returns: bool| {
        let model = FakeModel::new(2, 64, 32).outputting_states();
        Bench::on(if returns { recurrent(model) } else { model })
    };
    let cases = [
        (large(false).with_draft_model(0), 50),
        (large(false).with_draft_model(3), 75),
        (large(false).with_recurrent_draft_model(3), 75),
        (large(true).with_draft_model(3), 75),
        (large(true).with_recurrent_draft_model(0), 50),
        (with_states(false).with_mtp_head(2, 0), 50),
        (with_states(false).with_mtp_head(1, 3), 75),
        (with_states(true).with_mtp_head(1, 0), 50),
        (with_states(true).with_mtp_head(1, 3), 75),
    ];
    for (case, (bench, most)) in cases.into_iter().enumerate() {
        let drafted = response_to(bench, NEW, options(1));
        assert_eq!(
            (&plain.0, &plain.1, &plain.2, &plain.3),
            (&drafted.0, &drafted.1, &drafted.2, &drafted.3)
        );
        let (plain, drafted) = (plain.4, drafted.4);
        let steps = (drafted.steps, plain.steps);
        assert!(steps.0 * 100 < steps.1 * most, "{steps:?} in case {case}");
        assert!(drafted.accepted_tokens >= 10, "{} in case {case}", drafted.accepted_tokens);
    }
}

#[test]
fn a_draft_model_that_is_always_wrong_changes_nothing_and_is_given_up() {
    let mut bench = Bench::new(1, 32).with_draft_model(1);
    for id in 0..50 {
        bench.submit(id, NEW);
        bench.run();
        assert_eq!(bench.text(id), NEW.trim_end_matches('\0'));
    }
    let batches = bench.draft_batches() as u64;
    assert!((1..bench.engine.stats().steps / 2).contains(&batches), "{batches}");
    let model = bench.engine.draft_model.as_ref().unwrap();
    assert!(model.acceptance() < 0.7, "{}", model.acceptance());
}

#[test]
fn a_draft_model_drafts_for_four_sequences_and_not_for_more() {
    for (sequences, expected) in [(4, true), (5, false)] {
        let mut bench = Bench::new(5, 64).with_draft_model(0);
        let text = |id: u64| format!("{id}{NEW}");
        (0..sequences).for_each(|id| drop(bench.submit(id, &text(id))));
        // As long as all of them decode.
        (0..8).for_each(|_| bench.step());
        assert_eq!(bench.draft_batches() > 0, expected, "{sequences} sequences");
        bench.run();
        (0..sequences).for_each(|id| assert_eq!(bench.text(id), text(id).trim_end_matches('\0')));
    }
}

impl Bench {
    /// The MTP head.
    fn head(&self) -> &FakeModel {
        self.engine.draft_model.as_ref().unwrap().model()
    }
}

/// A model with an MTP head that has room for as many sequences.
fn with_head(slots: u32, lanes: u32) -> Bench {
    // No kept prefix is evicted for a draft.
    let model = FakeModel::with_cells(slots, 64, 64, 64 * (slots + 4));
    Bench::on(model.outputting_states()).with_mtp_head(lanes, 0)
}

#[test]
fn an_mtp_head_drafts_side_by_side_for_as_many_sequences_as_it_has_lanes() {
    for (lanes, expected) in [(2, true), (1, false)] {
        let mut bench = with_head(2, lanes);
        let text = |id: u64| format!("{id}{NEW}");
        (0..2).for_each(|id| drop(bench.submit(id, &text(id))));
        (0..8).for_each(|_| bench.step());
        let has_drafted = bench.head().batches.iter().flatten().any(|row| row.logits);
        assert_eq!(has_drafted, expected, "{lanes} lanes");
        bench.run();
        (0..2).for_each(|id| assert_eq!(bench.text(id), text(id).trim_end_matches('\0')));
    }
}

#[test]
fn an_mtp_head_goes_on_after_what_it_has_missed() {
    // The only lane is the first one's, until that ends; then the second one's, from there on.
    let mut bench = with_head(2, 1);
    bench.submit(1, "abc\0");
    bench.submit(2, &format!("0{NEW}"));
    bench.run();
    assert!(bench.engine.stats().accepted_tokens >= 10, "{:?}", bench.engine.stats());
    // The beginning comes from the cache, and the lane has seen another text.
    let before = bench.engine.stats().accepted_tokens;
    bench.submit(3, "123456789\0");
    bench.run();
    bench.submit(4, &format!("0{NEW}"));
    bench.run();
    assert_eq!((bench.cached(4), bench.text(4)), (27, bench.text(2)));
    assert!(bench.engine.stats().accepted_tokens >= before + 10, "{:?}", bench.engine.stats());
}

#[test]
fn a_batch_of_an_mtp_head_that_fails_costs_no_more_than_drafts() {
    for after in 0..6 {
        let mut bench = with_head(1, 1);
        bench.submit(1, NEW);
        bench.engine.draft_model.as_mut().unwrap().model_mut().fail_after(after);
        bench.run();
        assert_eq!(bench.text(1), NEW.trim_end_matches('\0'));
    }
}

#[test]
fn there_is_no_draft_model_without_speculation_or_if_it_cannot_take_back_a_draft() {
    let stuck = FakeModel::new(4, 64, 16).without_sharing();
    let engine = Bench::new(1, 32).drafting().engine.with_draft_model(stuck);
    assert!(engine.draft_model.is_none());
    let engine = Bench::new(1, 32).engine.with_draft_model(FakeModel::new(4, 64, 16));
    assert!(engine.draft_model.is_none());
}
