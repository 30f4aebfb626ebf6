//! PURE. The drafts of a sequence: from texts ([`PromptLookup`]), or from a draft model
//! ([`crate::scheduler::draft_model`]).

use std::sync::Arc;

use crate::scheduler::confidence::Class;
use crate::scheduler::prompt_lookup::PromptLookup;
use crate::types::request::Token;

/// Weight of the newest token in the moving average of a sequence.
const SMOOTHING: f32 = 0.05;
/// After as many tokens without one of the draft model, its acceptance rate is unknown again: other
/// text may be easier.
const TOKENS_REMEMBERED: u32 = 64;

/// The drafts of a sequence. See the module.
#[derive(Debug)]
pub(crate) struct Drafts {
    lookup: PromptLookup,
    /// What the draft model says of the next tokens, if the draft comes from it.
    modeled: Option<Modeled>,
    /// How many tokens of the draft model were kept and accepted, if the sequence has had some.
    acceptance: Option<f32>,
    /// Tokens since the last one of the draft model.
    tokens_without: u32,
}

/// A draft of the draft model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Modeled {
    /// Its tokens.
    pub(crate) tokens: Vec<Token>,
    /// How sure each of them is, and the one that was dropped.
    pub(crate) classes: Vec<Class>,
    /// The token after them, which was not sure enough to be worth a row.
    pub(crate) dropped: Option<Token>,
}

/// How a token turned out that the draft model said would come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) class: Class,
    pub(crate) is_right: bool,
    /// False if it was dropped.
    pub(crate) is_kept: bool,
}

/// How a draft token turned out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) is_accepted: bool,
    /// Set if the draft model has said something.
    pub(crate) judged: Option<Judged>,
}

impl Drafts {
    /// Starts without a draft. The response is likely to repeat `prediction`.
    pub(crate) fn new(prediction: Arc<[Token]>) -> Self {
        let lookup = PromptLookup::new(prediction);
        Self { lookup, modeled: None, acceptance: None, tokens_without: 0 }
    }

    /// Drafts up to `count` tokens after `known`, of which `prompt` are the prompt's, from texts.
    pub(crate) fn update(&mut self, known: &[Token], prompt: usize, count: usize) {
        self.modeled = None;
        self.lookup.update(known, prompt, count);
    }

    /// The draft from texts.
    pub(crate) fn lookup(&self) -> &PromptLookup {
        &self.lookup
    }

    /// Takes the draft model's tokens instead of those from the text. `usual` is how likely they
    /// are accepted in any sequence.
    pub(crate) fn set_modeled(&mut self, draft: Modeled, usual: f32) {
        self.acceptance.get_or_insert(usual);
        self.modeled = Some(draft);
    }

    /// The draft tokens.
    pub(crate) fn tokens(&self) -> &[Token] {
        match &self.modeled {
            Some(modeled) => &modeled.tokens,
            None => self.lookup.draft(),
        }
    }

    /// Probability that a token of the draft model is kept and accepted if the ones before it are,
    /// if this sequence tells.
    pub(crate) fn modeled_acceptance(&self) -> Option<f32> {
        self.acceptance
    }

    /// Compares the draft token at `index`, which follows accepted ones, with the sampled one.
    pub(crate) fn record(&mut self, index: usize, sampled: Token) -> Outcome {
        let Some(modeled) = &self.modeled else {
            self.forget();
            let is_accepted = self.lookup.record(index, sampled);
            return Outcome { is_accepted, judged: None };
        };
        let is_kept = index < modeled.tokens.len();
        let dropped = modeled.dropped.filter(|_| index == modeled.tokens.len());
        let drafted = modeled.tokens.get(index).copied().or(dropped);
        let class = modeled.classes.get(index).copied();
        if index == 0 {
            // The text told something, too. Its later tokens follow from this one.
            self.lookup.record(index, sampled);
        }
        let is_right = drafted == Some(sampled);
        let is_accepted = is_right && is_kept;
        if let (Some(_), Some(rate)) = (drafted, &mut self.acceptance) {
            self.tokens_without = 0;
            *rate += SMOOTHING * (f32::from(u8::from(is_accepted)) - *rate);
        }
        let judged = class.filter(|_| drafted.is_some());
        Outcome { is_accepted, judged: judged.map(|class| Judged { class, is_right, is_kept }) }
    }

    fn forget(&mut self) {
        self.tokens_without += 1;
        if self.tokens_without >= TOKENS_REMEMBERED {
            self.acceptance = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::confidence::likeliest;

    fn new() -> Drafts {
        Drafts::new(Arc::default())
    }

    fn modeled(tokens: &[Token], dropped: Option<Token>) -> Modeled {
        let classes = vec![likeliest(&[0.0, 1.0]).1; tokens.len() + usize::from(dropped.is_some())];
        Modeled { tokens: tokens.to_vec(), classes, dropped }
    }

    /// The text promises 9 and 2.
    const KNOWN: [Token; 9] = [1, 2, 3, 9, 2, 7, 1, 2, 3];

    #[test]
    fn the_model_takes_the_place_of_the_text_until_the_next_draft() {
        let mut drafts = new();
        drafts.update(&KNOWN, 0, 2);
        assert_eq!(drafts.tokens(), [9, 2]);
        drafts.set_modeled(modeled(&[5, 6], None), 0.5);
        assert_eq!(drafts.tokens(), [5, 6]);
        let judged = |outcome: Outcome| {
            let judged = outcome.judged.map(|judged| (judged.is_right, judged.is_kept));
            (outcome.is_accepted, judged)
        };
        assert_eq!(judged(drafts.record(0, 5)), (true, Some((true, true))));
        assert_eq!(judged(drafts.record(1, 7)), (false, Some((false, true))));
        assert_eq!(judged(drafts.record(2, 7)), (false, None));
        drafts.update(&KNOWN, 0, 1);
        assert_eq!(judged(drafts.record(0, 9)), (true, None));
    }

    #[test]
    fn what_was_dropped_is_judged_but_never_accepted() {
        let mut drafts = new();
        drafts.update(&KNOWN, 0, 2);
        for (sampled, is_right) in [(6, true), (7, false)] {
            drafts.set_modeled(modeled(&[5], Some(6)), 0.5);
            assert_eq!(drafts.tokens(), [5]);
            assert!(drafts.record(0, 5).is_accepted);
            let last = drafts.record(1, sampled);
            let judged = last.judged.unwrap();
            assert!(!last.is_accepted && !judged.is_kept && judged.is_right == is_right);
        }
        drafts.set_modeled(modeled(&[], None), 0.5);
        assert_eq!(drafts.record(0, 5), Outcome { is_accepted: false, judged: None });
    }

    #[test]
    fn both_rates_follow_what_each_has_promised() {
        let mut drafts = new();
        let before = {
            drafts.update(&KNOWN, 0, 2);
            drafts.lookup().acceptance()
        };
        assert_eq!(drafts.modeled_acceptance(), None);
        drafts.set_modeled(modeled(&[5, 6], None), 0.5);
        drafts.record(0, 5);
        assert!(drafts.lookup().acceptance() < before, "the text said 9");
        let after = drafts.lookup().acceptance();
        drafts.record(1, 2);
        assert_eq!(drafts.lookup().acceptance(), after, "its second token followed another one");
        assert!((drafts.modeled_acceptance().unwrap() - 0.5).abs() < 0.01);
        drafts.update(&KNOWN, 0, 0);
        (0..TOKENS_REMEMBERED).for_each(|_| assert!(!drafts.record(0, 9).is_accepted));
        assert_eq!(drafts.modeled_acceptance(), None, "other text may be easier");
    }
}
