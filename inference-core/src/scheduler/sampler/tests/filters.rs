//! Tests all filters against their definitions, one after the other in llama.cpp's order: its
//! default chain in `common/common.h`, and the `llama_sampler_*_apply` of `src/llama-sampler.cpp`.

use proptest::prelude::*;

use super::*;

/// A token with its logit.
type Entry = (Token, f64);

/// Which filters are on, and the fraction of the tokens reaching it that each one drops.
#[derive(Debug, Clone)]
struct Cuts {
    top_k: Option<f64>,
    typical_p: Option<f64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
}

/// The filters in the simplest way. Each derives its parameter from how many tokens it has to keep,
/// halfway between the values for one token fewer and one more, so that it always takes effect and
/// rounding never decides.
struct Reference {
    params: Sampling,
    left: Vec<Entry>,
}

fn weights(entries: &[Entry]) -> Vec<f64> {
    let weights: Vec<f64> = entries.iter().map(|(_, logit)| logit.exp()).collect();
    let all: f64 = weights.iter().sum();
    weights.iter().map(|w| w / all).collect()
}

/// How many of `len` tokens stay: at least one is kept, and at least one dropped.
fn kept(len: usize, dropped: f64) -> usize {
    let dropped = (dropped * len as f64) as usize;
    len.saturating_sub(dropped.max(1)).max(1)
}

/// A probability that the last of `count` tokens reaches, and none before it.
fn share_of(weights: &[f64], count: usize) -> f32 {
    let before: f64 = weights[..count - 1].iter().sum();
    (before + weights[count - 1] / 2.0) as f32
}

impl Reference {
    fn new(logits: &[f32], params: Sampling) -> Self {
        let left = logits.iter().enumerate().map(|(i, l)| (i as Token, f64::from(*l))).collect();
        Self { params, left }
    }

    fn sort(&mut self) {
        self.left.sort_by(|a, b| b.1.total_cmp(&a.1));
    }

    fn top_k(&mut self, dropped: f64) {
        self.sort();
        let count = kept(self.left.len(), dropped);
        self.params.top_k = count as u32;
        self.left.truncate(count);
    }

    fn typical_p(&mut self, dropped: f64) {
        let weights_now = weights(&self.left);
        let entropy: f64 = weights_now.iter().map(|p| -p * p.ln()).sum();
        let distance = |p: &f64| (-p.ln() - entropy).abs();
        let mut order: Vec<usize> = (0..self.left.len()).collect();
        order.sort_by(|a, b| distance(&weights_now[*a]).total_cmp(&distance(&weights_now[*b])));
        self.left = order.iter().map(|i| self.left[*i]).collect();
        let count = kept(self.left.len(), dropped);
        self.params.typical_p = share_of(&weights(&self.left), count);
        self.left.truncate(count);
    }

    fn top_p(&mut self, dropped: f64) {
        self.sort();
        let count = kept(self.left.len(), dropped);
        self.params.top_p = share_of(&weights(&self.left), count);
        self.left.truncate(count);
    }

    fn min_p(&mut self, dropped: f64) {
        self.sort();
        let count = kept(self.left.len(), dropped);
        let relative = |i: usize| self.left[i].1 - self.left[0].1;
        let next =
            if count < self.left.len() { relative(count) } else { relative(count - 1) - 1.0 };
        self.params.min_p = f64::midpoint(relative(count - 1), next).exp() as f32;
        self.left.truncate(count);
    }

    fn run(mut self, cuts: &Cuts) -> (Sampling, Vec<Token>) {
        cuts.top_k.iter().for_each(|dropped| self.top_k(*dropped));
        cuts.typical_p.iter().for_each(|dropped| self.typical_p(*dropped));
        cuts.top_p.iter().for_each(|dropped| self.top_p(*dropped));
        cuts.min_p.iter().for_each(|dropped| self.min_p(*dropped));
        self.sort();
        (self.params, self.left.into_iter().map(|(token, _)| token).collect())
    }
}

/// Logits that are all different, in any order, and none negligible.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let gaps = prop::collection::vec(0.01f32..0.15, 24..80);
    let sums = gaps.prop_map(|gaps| {
        let add = |sum: &mut f32, gap| {
            *sum += gap;
            Some(*sum)
        };
        gaps.into_iter().scan(-3.0, add).collect::<Vec<f32>>()
    });
    sums.prop_shuffle()
}

fn cuts() -> impl Strategy<Value = Cuts> {
    let cut = || prop::option::weighted(0.7, 0.0..0.4f64);
    (cut(), cut(), cut(), cut()).prop_map(|(top_k, typical_p, top_p, min_p)| Cuts {
        top_k,
        typical_p,
        top_p,
        min_p,
    })
}

/// True if two tokens are so nearly equally typical that rounding may swap them.
fn is_close(logits: &[f32], cuts: &Cuts) -> bool {
    if cuts.typical_p.is_none() {
        return false;
    }
    let mut reference = Reference::new(logits, Sampling::GREEDY);
    cuts.top_k.iter().for_each(|dropped| reference.top_k(*dropped));
    let weights = weights(&reference.left);
    let entropy: f64 = weights.iter().map(|p| -p * p.ln()).sum();
    let mut distances: Vec<f64> = weights.iter().map(|p| (-p.ln() - entropy).abs()).collect();
    distances.sort_by(f64::total_cmp);
    distances.windows(2).any(|pair| pair[1] - pair[0] < 1e-5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_combination_of_filters_keeps_what_llama_cpps_chain_keeps(
        logits in logits(), cuts in cuts(), temperature in 0.1f32..2.0, seed: u64,
    ) {
        prop_assume!(!is_close(&logits, &cuts));
        let base = Sampling { temperature, seed, ..Sampling::GREEDY };
        let (params, expected) = Reference::new(&logits, base).run(&cuts);
        let mut scratch = Scratch::default();
        let token = sampler(params.clone()).sample(&logits, NOTHING, None, &mut scratch);
        prop_assert!(expected.contains(&token));
        if candidates::has_filters(&params) && params.top_k != 1 {
            prop_assert_eq!(scratch.candidates.sorted(), expected, "{:?}", params);
        }
    }
}

/// Vocabularies of several blocks whose logits are often equal, with some that are no numbers.
fn many_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => (-40i8..40).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(f32::NAN),
    ];
    proptest::collection::vec(logit, 100..3000)
}

proptest! {
    #[test]
    fn top_k_of_many_tokens_are_the_likeliest_and_the_first_of_equal_ones(
        logits in many_logits(),
        k in 1usize..60,
    ) {
        let max = maximum(&logits);
        prop_assume!(max.is_finite());
        let mut expected: Vec<usize> =
            (0..logits.len()).filter(|i| logits[*i] >= max - candidates::NEGLIGIBLE).collect();
        expected.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        expected.truncate(k);
        let params = Sampling { top_k: k as u32, ..hot() };
        let mut candidates = Candidates::default();
        candidates.keep(&params, &logits, max, &mut BlockWeights::default());
        let found: Vec<usize> = candidates.sorted().iter().map(|token| *token as usize).collect();
        prop_assert_eq!(found, expected);
    }
}
