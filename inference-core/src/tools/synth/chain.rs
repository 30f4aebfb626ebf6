//! Weights with which each token follows from the last one alone: a model and a draft model that
//! knows a part of the same chain then agree as often as they should.
//!
//! The layers compute what they always do, but add nothing: what leads back to the residual stream
//! is zero. So the last state is the embedding of the last token, and the row of the output matrix
//! that has this embedding is the token that follows. A text stays in the first half of the
//! vocabulary, where nearly all tokens of real ones are.

use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use super::normal;

/// The token that follows is this much further on: far enough for no text to be one that it is
/// tokenized to.
const STRIDE: u64 = 7919;
/// Standard deviation of an embedding: enough for the token that follows to be certain.
const DEVIATION: f32 = 0.06;

/// Embeddings that an MTP head has for itself, in its layer.
pub(super) const HEAD_TABLE: &str = "nextn.embed_tokens.weight";

/// Which tokens have a successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Percent of all tokens, always the same ones; the others are followed by any token.
    pub known_percent: u8,
    /// The same for the MTP head, if the model has one.
    pub head_percent: u8,
}

impl Chain {
    /// Rows of a matrix, if they are not drawn as those of other models.
    pub(super) fn rows(self, name: &str, columns: u64, rows: u64) -> Option<Rows> {
        let kind = match name {
            "token_embd.weight" => Kind::Embedding,
            "output.weight" => Kind::Output(self),
            _ if name.ends_with(HEAD_TABLE) => Kind::HeadEmbedding(self),
            _ if name.ends_with("nextn.eh_proj.weight") => Kind::FirstHalf,
            _ if ADDED.iter().any(|added| name.ends_with(added)) => Kind::Zero,
            _ => return None,
        };
        Some(Rows { kind, columns, rows })
    }

    fn knows(self, token: u64) -> bool {
        is_among(token, self.known_percent)
    }
}

/// True for a percentage of all tokens.
fn is_among(token: u64, percent: u8) -> bool {
    // A hash, so that neighbors in the chain are independent.
    let mixed = (token + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mixed % 100 < u64::from(percent)
}

/// Matrices whose results are added to the residual stream.
const ADDED: [&str; 5] = [
    "attn_output.weight",
    "ssm_out.weight",
    "ffn_down.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
];

/// The token that a token follows, of a vocabulary of `all`.
fn before(token: u64, all: u64) -> Option<u64> {
    let half = all / 2;
    (token < half).then(|| (token + half - STRIDE % half) % half)
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Embedding,
    Output(Chain),
    /// An MTP head looks its tokens up here.
    HeadEmbedding(Chain),
    /// Takes the first half of its input, which is the embedding, and nothing of the hidden state.
    FirstHalf,
    Zero,
}

/// The rows of a matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    kind: Kind,
    columns: u64,
    rows: u64,
}

impl Rows {
    /// Appends a row.
    pub(super) fn push(self, row: u64, out: &mut Vec<f32>) {
        let seed = match self.kind {
            Kind::Zero => return out.resize(out.len() + self.columns as usize, 0.0),
            Kind::FirstHalf => {
                return out.extend((0..self.columns).map(|column| f32::from(column == row)));
            }
            Kind::HeadEmbedding(chain) if !is_among(row, chain.head_percent) => 2 * self.rows + row,
            Kind::Embedding | Kind::HeadEmbedding(_) => row,
            Kind::Output(chain) => match before(row, self.rows) {
                Some(token) if chain.knows(token) => token,
                // Like no embedding.
                _ => self.rows + row,
            },
        };
        let mut rng = Pcg64::seed_from_u64(seed);
        out.extend((0..self.columns).map(|_| normal(&mut rng, DEVIATION)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rows: Rows, row: u64) -> Vec<f32> {
        let mut out = Vec::new();
        rows.push(row, &mut out);
        out
    }

    #[test]
    fn a_token_follows_where_the_chain_is_known_and_nothing_does_elsewhere() {
        let (columns, rows) = (256, 20_000);
        let chain = Chain { known_percent: 70, head_percent: 30 };
        let embedding = chain.rows("token_embd.weight", columns, rows).unwrap();
        let output = chain.rows("output.weight", columns, rows).unwrap();
        let mut known = 0;
        for token in 0..500 {
            let next = (token + STRIDE) % (rows / 2);
            let is_next = row(embedding, token) == row(output, next);
            assert_eq!(is_next, chain.knows(token));
            known += u32::from(is_next);
        }
        assert!((300..400).contains(&known), "{known}");
        assert_eq!((before(0, rows), before(9999, rows)), (Some(2081), Some(2080)));
        assert_eq!(before(10_000, rows), None, "no text gets there");
        let smaller = Chain { known_percent: 30, ..chain };
        assert!((0..500).all(|token| chain.knows(token) || !smaller.knows(token)));
    }

    #[test]
    fn layers_add_nothing_and_compute_as_always() {
        let chain = Chain { known_percent: 100, head_percent: 0 };
        let zero = chain.rows("blk.3.ffn_down.weight", 4, 9).unwrap();
        assert_eq!(row(zero, 1), [0.0; 4]);
        assert!(chain.rows("blk.3.ffn_up.weight", 4, 9).is_none());
    }
}
