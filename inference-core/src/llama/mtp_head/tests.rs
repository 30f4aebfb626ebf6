//! Tests MTP heads of models with random weights, and of models in which each token follows from
//! the one before.

use super::*;
use crate::llama::Loading;
use crate::llama::context::tests::{load, options};
use crate::model_file::memory_plan::LoadMode;
use crate::scheduler::draft_model::{DraftModel, Followed, Owner, Wanted};
use crate::scheduler::speculation::LeastChance;
use crate::tools::synth::Chain;
use crate::types::model::{Decoded, Row};
use crate::types::request::{Tenant, Token};

/// Models with a head: with a recurrent state, without and with experts, with attention alone, and
/// with one latent for keys and values.
const SHAPES: [&str; 5] =
    ["tiny-delta-mtp", "tiny-delta-experts-mtp", "tiny-next-mtp", "tiny-glm-mtp", "tiny-mla-mtp"];
const ANY: LeastChance = LeastChance { to_keep: 0.0, to_go_on: 0.0, is_joint: false };
const OWNER: Owner = Owner { sequence: 1, tenant: Tenant(0) };

fn loading() -> Loading {
    Loading { mtp_head: true, ..LoadMode::Mmap.into() }
}

/// A model and its head.
struct Both {
    model: LlamaModel,
    head: DraftModel<LlamaModel>,
    /// Tokens that the model has computed.
    tokens: usize,
}

impl Both {
    fn new(weights: Weights) -> Self {
        let options = options(2, 128);
        let model = LlamaModel::new(weights, options).unwrap();
        let head = mtp_head(&model, options).unwrap().expect("the file has a head");
        let vocabulary = model.shape().vocabulary;
        Self { model, head: DraftModel::new(head, vocabulary), tokens: 0 }
    }

    /// Computes a text up to its last token but one, or as much of it as this, and passes its
    /// hidden states to the head.
    fn compute(&mut self, text: &[Token], end: usize) {
        let row = |(position, token): (usize, &Token)| Row {
            seq: 0,
            position: position as u32,
            token: *token,
            logits: position + 1 == end,
        };
        let rows: Vec<Row> = text.iter().enumerate().take(end).skip(self.tokens).map(row).collect();
        assert_eq!(self.model.decode(&rows, &|| false), Ok(Decoded::Whole));
        let followed = Followed { owner: OWNER, text, rows: &rows, first_row: 0 };
        self.head.follow(&[followed], |row| self.model.hidden_state(row));
        self.tokens = end;
    }

    fn draft(&mut self, text: &[Token], count: u32) -> Vec<Token> {
        let lane = self.head.assign(&[(OWNER, text)])[0];
        assert_eq!(self.head.behind(lane, text), Some(0), "it knows what it follows");
        self.head.draft(&[Wanted { lane, text, count, least: 0 }], ANY).0.remove(0).tokens
    }
}

fn text(tokens: usize) -> Vec<Token> {
    (0..tokens).map(|place| 33 + (place * place % 89) as Token).collect()
}

#[test]
fn a_head_drafts_what_its_model_says() {
    let chain = Chain { known_percent: 100, head_percent: 100 };
    for shape in SHAPES {
        let mut both = Both::new(load(shape, Some(chain), loading()));
        let text = text(300);
        for end in [100, 200, 299] {
            both.compute(&text, end);
        }
        // Each token of a chain is as far from the one before, in half of the vocabulary.
        let vocabulary = both.model.shape().vocabulary;
        let next = |token: Token| (token + 7919) % (vocabulary / 2);
        let first = next(text[299]);
        let expected = [first, next(first), next(next(first))];
        assert_eq!(both.draft(&text, 3), expected, "{shape}");
        let said = both.model.logits(98).to_vec();
        let likeliest =
            (0..vocabulary).max_by(|a, b| said[*a as usize].total_cmp(&said[*b as usize]));
        assert_eq!(likeliest, Some(next(text[298])), "{shape}: the model itself");
    }
}

#[test]
fn drafts_do_not_depend_on_where_batches_end_and_depend_on_all_of_the_text() {
    for shape in SHAPES {
        let weights = load(shape, None, loading());
        let text = text(120);
        let drafted = |text: &[Token], ends: &[usize]| {
            let mut both = Both::new(weights.clone());
            ends.iter().for_each(|end| both.compute(text, *end));
            both.draft(text, 6)
        };
        let one_by_one: Vec<usize> = (1..120).collect();
        let at_once = drafted(&text, &[119]);
        assert_eq!(at_once.len(), 6, "{shape}");
        for ends in [&[1, 40, 119][..], &[60, 118, 119], &one_by_one] {
            assert_eq!(drafted(&text, ends), at_once, "{shape}, batches that end at {ends:?}");
        }
        // The same last tokens after other beginnings. Not each of them changes the likeliest ones.
        let differs = (1..20).any(|number| {
            let mut other = text.clone();
            other[..100].iter_mut().for_each(|token| *token = 33 + (*token * 7 + number) % 89);
            drafted(&other, &[119]) != at_once
        });
        assert!(differs, "{shape}");
    }
}

#[test]
fn a_draft_leaves_nothing_behind() {
    for shape in SHAPES {
        let weights = load(shape, None, loading());
        let text = text(120);
        let mut both = Both::new(weights.clone());
        both.compute(&text, 60);
        let early = both.draft(&text[..61], 8);
        assert_eq!(early.len(), 8, "{shape}");
        both.compute(&text, 119);
        let mut fresh = Both::new(weights);
        fresh.compute(&text, 60);
        fresh.compute(&text, 119);
        assert_eq!(both.draft(&text, 6), fresh.draft(&text, 6), "{shape}");
    }
}

#[test]
fn the_first_logits_are_the_same_without_the_others() {
    for shape in SHAPES {
        let weights = load(shape, None, loading());
        let options = options(2, 128);
        let model = LlamaModel::new(weights.clone(), options).unwrap();
        let head = mtp_head(&model, options).unwrap().unwrap();
        let small = LlamaModel::beside(&model, weights, options).unwrap();
        for (mut drafter, is_head) in [(head, true), (small, false)] {
            // llama.cpp's graph of this model multiplies the whole matrix.
            let cuts = is_head || shape != "tiny-mla-mtp";
            let mut logits = |first| {
                drafter.compute_first_logits(first);
                let row = |seq| Row { seq, position: 0, token: 40 + seq, logits: true };
                let rows: Vec<Row> = (0..drafter.shape().slots).map(row).collect();
                assert_eq!(drafter.decode(&rows, &|| false), Ok(Decoded::Whole));
                let all = (0..rows.len()).map(|row| drafter.logits(row).to_vec());
                let all: Vec<Vec<f32>> = all.collect();
                rows.iter().for_each(|row| drafter.clear(row.seq));
                all
            };
            let whole = logits(1024);
            for first in [256, 512] {
                for (part, whole) in logits(first).iter().zip(&whole) {
                    let (computed, others) = part.split_at(first as usize);
                    assert_eq!(computed, &whole[..first as usize], "{shape}");
                    assert_eq!(others.iter().all(|logit| *logit == 0.0), cuts, "{shape}");
                    assert_eq!(part.len(), whole.len(), "{shape}");
                }
            }
            assert_eq!(logits(1024), whole, "{shape}");
        }
    }
}

#[test]
fn a_file_with_a_head_is_a_model_without_it_too() {
    for shape in SHAPES {
        let text = text(40);
        let logits = |weights: Weights| {
            let mut model = LlamaModel::new(weights, options(2, 128)).unwrap();
            let row = |(i, token): (usize, &Token)| Row {
                seq: 0,
                position: i as u32,
                token: *token,
                logits: i == 39,
            };
            let rows: Vec<Row> = text.iter().enumerate().map(row).collect();
            assert_eq!(model.decode(&rows, &|| false), Ok(Decoded::Whole));
            (model.logits(39).to_vec(), mtp_head(&model, options(2, 128)).unwrap().is_some())
        };
        let (with, has_head) = logits(load(shape, None, loading()));
        let (without, has_none) = logits(load(shape, None, LoadMode::Mmap.into()));
        assert_eq!((with, has_head, has_none), (without, true, false), "{shape}");
    }
}
