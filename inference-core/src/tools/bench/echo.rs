//! A model that computes as another one does, and responds with its prompt, with changes.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::types::model::{DecodeError, Decoded, Model, Row, SeqId, Shape, Stop};
use crate::types::request::Token;

/// Repeats prompts at the speed of another model: its steps cost what they cost there, and its text
/// is known. See the module.
#[derive(Debug)]
pub struct EchoModel<M> {
    inner: M,
    prompt_tokens: usize,
    /// How many of a thousand tokens are those of the prompt.
    copied: u64,
    /// How many of a thousand tokens it says as they are, because it is the draft model of another.
    agreed: u64,
    /// The tokens of each sequence id, and of one that only has checkpoints.
    seqs: Vec<Vec<Token>>,
    /// What follows each row of the last batch.
    next: Vec<Token>,
    /// Zero but for the next token of a row.
    logits: Vec<Vec<f32>>,
}

impl<M: Model> EchoModel<M> {
    /// Wraps a model. All prompts have `prompt_tokens` tokens. `copied` of a thousand tokens are
    /// those of the prompt, and the others are arbitrary.
    pub fn new(inner: M, prompt_tokens: u32, copied: u64) -> Self {
        let seqs = vec![Vec::new(); inner.shape().seq_ids as usize + 1];
        let prompt_tokens = prompt_tokens as usize;
        let (next, logits) = (Vec::new(), Vec::new());
        Self { inner, prompt_tokens, copied, agreed: 1000, seqs, next, logits }
    }

    /// Makes it the draft model of one with the same prompts that copies as much: it says as many
    /// of a thousand tokens as that does.
    pub fn with_agreed(mut self, agreed: u64) -> Self {
        self.agreed = agreed;
        self
    }

    fn next_token(&self, tokens: &[Token]) -> Token {
        let mut hasher = DefaultHasher::new();
        // An MTP head does not have the first one.
        (tokens.len(), tokens.get(1)).hash(&mut hasher);
        let random = hasher.finish();
        let vocabulary = u64::from(self.inner.shape().vocabulary);
        if random / 1_000_000 % 1000 >= self.agreed {
            return (random / 2000 % vocabulary) as Token;
        }
        match tokens.len().checked_sub(self.prompt_tokens) {
            Some(place) if random % 1000 < self.copied => tokens[place % self.prompt_tokens],
            _ => (random / 1000 % vocabulary) as Token,
        }
    }
}

impl<M: Model> Model for EchoModel<M> {
    fn shape(&self) -> Shape {
        self.inner.shape()
    }

    fn decode(&mut self, rows: &[Row], stop: Stop<'_>) -> Result<Decoded, DecodeError> {
        for row in rows {
            let tokens = &mut self.seqs[row.seq as usize];
            tokens.resize(row.position as usize, 0);
            tokens.push(row.token);
            let next = self.next_token(&self.seqs[row.seq as usize]);
            self.next.push(next);
        }
        let next = self.next.split_off(self.next.len() - rows.len());
        let vocabulary = self.inner.shape().vocabulary as usize;
        for (logits, old) in self.logits.iter_mut().zip(&self.next) {
            logits[*old as usize] = 0.0;
        }
        self.logits.resize_with(rows.len().max(self.logits.len()), || vec![0.0; vocabulary]);
        for (logits, token) in self.logits.iter_mut().zip(&next) {
            logits[*token as usize] = 1.0;
        }
        self.next = next;
        self.inner.decode(rows, stop)
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn hidden_state(&self, row: usize) -> &[f32] {
        self.inner.hidden_state(row)
    }

    fn set_hidden_states(&mut self, states: &[f32]) {
        self.inner.set_hidden_states(states);
    }

    fn compute_first_logits(&mut self, tokens: u32) {
        self.inner.compute_first_logits(tokens);
    }

    fn run_on_threads(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        self.inner.run_on_threads(pieces, work);
    }

    fn share(&mut self, from: SeqId, to: SeqId, tokens: u32) {
        self.seqs[to as usize] = self.seqs[from as usize][..tokens as usize].to_vec();
        self.inner.share(from, to, tokens);
    }

    fn truncate(&mut self, seq: SeqId, tokens: u32) {
        self.seqs[seq as usize].truncate(tokens as usize);
        self.inner.truncate(seq, tokens);
    }

    fn checkpoint(&mut self, seq: SeqId, spare: SeqId) {
        self.seqs[spare as usize] = self.seqs[seq as usize].clone();
        self.inner.checkpoint(seq, spare);
    }

    fn roll_back(&mut self, seq: SeqId, spare: SeqId) {
        self.seqs[seq as usize] = std::mem::take(&mut self.seqs[spare as usize]);
        self.inner.roll_back(seq, spare);
    }

    fn drop_checkpoint(&mut self, spare: SeqId) {
        self.seqs[spare as usize].clear();
        self.inner.drop_checkpoint(spare);
    }

    fn clear(&mut self, seq: SeqId) {
        self.seqs[seq as usize].clear();
        self.inner.clear(seq);
    }

    /// Never: its tokens would have to be saved, too, and no measurement needs that.
    fn save(&mut self, _: SeqId, _: u32, _: usize) -> Option<Box<[u8]>> {
        None
    }

    fn restore(&mut self, _: SeqId, _: &[u8]) -> bool {
        false
    }

    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>) {
        self.inner.piece(token, control, out);
    }

    fn end_tokens(&self) -> &[Token] {
        self.inner.end_tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::fake::FakeModel;
    use crate::tools::bench::{Bench, prompt};
    use crate::types::request::Sampling;

    #[test]
    fn it_copies_as_much_of_its_prompt_as_it_is_told_to() {
        for (copied, expected) in [(1000, 200..201), (0, 0..10), (900, 160..199)] {
            let mut model = EchoModel::new(FakeModel::new(1, 512, 64), 60, copied);
            let tokens = prompt(3, 60);
            let mut known = tokens.clone();
            for place in 0..200 {
                let next = model.next_token(&known);
                known.push(next);
                assert!(place > 0 || known.len() == 61);
            }
            let same = (0..200).filter(|i| known[60 + i] == known[i % 60]).count();
            assert!(expected.contains(&same), "{same} of 200 where {copied} of 1000 are copied");
            let rows: Vec<Row> = (0..60)
                .map(|i| Row { seq: 0, position: i, token: tokens[i as usize], logits: i == 59 })
                .collect();
            model.decode(&rows, &|| false).unwrap();
            assert_eq!(model.logits(59)[known[60] as usize], 1.0);
            assert_eq!(model.logits(59).iter().sum::<f32>(), 1.0);
        }
    }

    #[test]
    fn a_draft_model_says_as_much_of_a_new_text_as_it_is_told_to() {
        let model = |agreed| {
            let model = FakeModel::new(1, 512, 64);
            EchoModel::new(model, 60, 0).with_agreed(agreed)
        };
        let large = model(1000);
        let mut known = prompt(3, 60);
        for (agreed, expected) in [(1000, 200..201), (800, 140..180), (0, 0..10)] {
            known.truncate(60);
            let mut same = 0;
            for _ in 0..200 {
                let next = large.next_token(&known);
                same += u32::from(model(agreed).next_token(&known) == next);
                known.push(next);
            }
            assert!(expected.contains(&same), "{same} of 200 where {agreed} of 1000 are agreed");
        }
    }

    #[test]
    fn a_text_that_repeats_its_prompt_takes_fewer_steps_with_speculation() {
        let steps = |speculation| {
            let model = EchoModel::new(FakeModel::new(1, 512, 64), 60, 1000);
            let mut bench = Bench::new(model).with_speculation(speculation);
            let id = bench.submit(prompt(0, 60), 100, Sampling::GREEDY);
            bench.finish(&[id]);
            assert_eq!(bench.timing(id).tokens.len(), 100);
            bench.stats().steps
        };
        assert!(steps(true) < steps(false));
    }
}
