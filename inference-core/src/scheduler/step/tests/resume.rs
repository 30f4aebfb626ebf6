//! Tests responses that resume on another node.

use super::*;
use crate::scheduler::sequence::ResponseGrammar;
use crate::text::grammar::{Grammars, Piece};
use crate::types::constraint::Constraint;
use crate::types::request::{Dry, Sampling, TextChunk, Xtc};

/// What the engine emitted for one request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Transcript {
    /// In pieces, including those replayed.
    chunks: Vec<TextChunk>,
    replayed: usize,
    pub(super) reason: Option<FinishReason>,
    pub(super) completion_tokens: u32,
    /// The tokens of the last event.
    last: Vec<u32>,
}

impl Transcript {
    fn read(events: &[Event]) -> Self {
        let mut transcript = Self::default();
        for event in events {
            match event {
                Event::Started { .. } => assert!(transcript.chunks.is_empty()),
                Event::Replayed(chunks) => {
                    transcript.replayed = chunks.len();
                    transcript.chunks.extend(chunks.clone());
                }
                Event::Text(chunk) => transcript.chunks.push(chunk.clone()),
                Event::Finished { reason, completion_tokens, tokens, .. } => {
                    transcript.reason = Some(*reason);
                    transcript.completion_tokens = *completion_tokens;
                    transcript.last.clone_from(tokens);
                }
                other => panic!("{other:?}"),
            }
        }
        transcript
    }

    /// The tokens reported with the first `pieces` pieces, and with the end.
    fn tokens(&self, pieces: usize) -> Vec<u32> {
        let all = self.chunks.iter().take(pieces).flat_map(|chunk| &chunk.tokens);
        let last = self.last.iter().filter(|_| pieces > self.chunks.len());
        all.chain(last).copied().collect()
    }

    pub(super) fn texts(&self) -> Vec<&str> {
        self.chunks.iter().map(|chunk| chunk.text.as_str()).collect()
    }
}

pub(super) fn respond(
    prompt: &str,
    options: &Options,
    constrained: bool,
    resumed: &[u32],
) -> Transcript {
    let mut bench = Bench::on(FakeModel::new(1, 128, 16));
    let constraint = Constraint::Regex("[a-z, ]{5,40}".into());
    let mut tokens = FakeTokenizer.tokenize(prompt, false).unwrap();
    tokens.extend(resumed);
    let job = Job {
        id: 1,
        tenant: Tenant(0),
        tokens,
        resumed_len: resumed.len(),
        options: options.clone(),
        visible: Vec::new(),
        grammar: constrained.then(|| grammar(&constraint, options.sampling.seed % 2 == 1)),
        in_reasoning: false,
        resolved: Default::default(),
        cancel: CancelFlag::default(),
    };
    let events = &mut bench.events;
    bench.engine.submit(job, &mut |id, e| events.entry(id).or_default().push(e));
    bench.run();
    Transcript::read(&bench.events[&1])
}

fn grammar(constraint: &Constraint, is_optional: bool) -> ResponseGrammar {
    ResponseGrammar {
        is_optional,
        grammar: grammars().compile(constraint).unwrap(),
        to_failure: Failure::Grammar,
    }
}

fn grammars() -> Grammars {
    let piece = |token| {
        let mut bytes = Vec::new();
        FakeTokenizer.piece(token, true, &mut bytes);
        Piece { bytes, special: FakeTokenizer.is_control(token) }
    };
    Grammars::new((0..FakeTokenizer.vocabulary()).map(piece), FakeTokenizer.end_tokens()).unwrap()
}

fn options(pick: &mut impl FnMut(u32) -> u32) -> Options {
    let sampling = Sampling {
        temperature: [0.0, 0.2, 1.5][pick(3) as usize],
        frequency_penalty: [0.0, 0.4][pick(2) as usize],
        repeat_penalty: [1.0, 1.3][pick(2) as usize],
        top_p: [1.0, 0.7][pick(2) as usize],
        top_n_sigma: [0.0, 8.0][pick(2) as usize],
        xtc: Xtc { probability: [0.0, 0.6][pick(2) as usize], threshold: 0.004 },
        dry: Dry { multiplier: [0.0, 0.8][pick(2) as usize], ..Dry::OFF },
        min_tokens: [0, 12][pick(2) as usize],
        seed: u64::from(pick(1000)),
        ..Sampling::GREEDY
    };
    let stop: &[&str] = [&[][..], &["count, "], &["é", "zz"]][pick(3) as usize];
    Options {
        sampling,
        max_tokens: [None, Some(1 + pick(50))][pick(2) as usize],
        stop: stop.iter().map(|s| s.to_string()).collect(),
        logprobs: [None, Some(2)][pick(2) as usize],
        ..Options::GREEDY
    }
}

#[test]
fn a_response_that_resumes_elsewhere_is_the_unbroken_one() {
    let mut pieces = 0;
    for seed in 0..400 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut pick = move |n: u32| rng.next_u32() % n;
        let prompt = ["one, two, three\0", "déjà vu 🐱 é\0", "to count, or not\0"];
        let prompt = prompt[pick(3) as usize];
        let (options, constrained) = (options(&mut pick), pick(3) == 0);
        let whole = respond(prompt, &options, constrained, &[]);
        // One more than there are: broken off after its end was reported.
        let cut = pick(whole.chunks.len() as u32 + 2) as usize;
        let reported = whole.tokens(cut);
        let rest = respond(prompt, &options, constrained, &reported);
        assert_eq!(rest.texts(), whole.texts(), "seed {seed}");
        let end = |transcript: &Transcript| {
            (transcript.reason, transcript.completion_tokens, transcript.last.clone())
        };
        assert_eq!(end(&rest), end(&whole), "seed {seed}");
        assert_eq!(
            rest.chunks[cut.min(rest.chunks.len())..],
            whole.chunks[cut.min(whole.chunks.len())..]
        );
        assert_eq!(rest.replayed, cut.min(whole.chunks.len()), "seed {seed}");
        pieces += cut;
    }
    assert!(pieces > 2000, "only {pieces} pieces were replayed");
}

#[test]
fn tokens_of_another_model_are_refused_by_the_grammar() {
    let mut bench = Bench::new(1, 8);
    let constraint = Constraint::Regex("[a-z]+".into());
    let job = Job {
        id: 1,
        tenant: Tenant(0),
        tokens: FakeTokenizer.tokenize("a\0Z", false).unwrap(),
        resumed_len: 1,
        options: Options::GREEDY,
        visible: Vec::new(),
        grammar: Some(grammar(&constraint, false)),
        in_reasoning: false,
        resolved: Default::default(),
        cancel: CancelFlag::default(),
    };
    let events = &mut bench.events;
    bench.engine.submit(job, &mut |id, e| events.entry(id).or_default().push(e));
    bench.run();
    assert!(matches!(bench.last(1), Event::Failed(Failure::ResumeMismatch)));
    assert!(bench.engine.is_idle());
}
