//! PURE. A model's vocabulary as the grammar engine needs it: a trie of all tokens.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, panic_utils};

use super::{Grammar, GrammarError, compile, limits, pattern};
use crate::types::constraint::Constraint;
use crate::types::request::Token;

/// Text of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The bytes that it adds to a response, or its name if it is special.
    pub bytes: Vec<u8>,
    /// True for a control token, which no grammar over text allows.
    pub special: bool,
}

/// A model's vocabulary, ready to compile constraints for it. Shared by all requests.
pub struct Grammars {
    factory: ParserFactory,
    ends: Arc<[Token]>,
    /// Control tokens that do not end a response.
    controls: Arc<[Token]>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Builds the trie, which takes a fraction of a second for 150,000 tokens. `pieces` are the
    /// tokens in order of their ids; `ends` are the ids of the tokens that end a response, each
    /// within the vocabulary.
    pub fn new(
        pieces: impl IntoIterator<Item = Piece>,
        ends: &[Token],
    ) -> Result<Self, GrammarError> {
        let mut words: Vec<Vec<u8>> = pieces.into_iter().map(word).collect();
        let Some(first) = ends.first() else {
            return Err(GrammarError::Internal("the model has no token that ends".into()));
        };
        for end in ends {
            let Some(word) = words.get_mut(*end as usize) else {
                let why = format!("the ending token {end} is not in the vocabulary");
                return Err(GrammarError::Internal(why));
            };
            if word.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                *word = special(format!("<end-{end}>").as_bytes());
            }
        }
        // The trie is built from a model file and panics on extreme values.
        let built = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            ParserFactory::new(
                &environment(&words, *first, ends),
                InferenceCapabilities::default(),
                &slices(),
            )
        }));
        let mut factory = built.map_err(|e| GrammarError::running(&e.to_string()))?;
        *factory.limits_mut() = limits::of_parser();
        factory.quiet();
        let is_control = |word: &[u8]| word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let controls =
            (0..).zip(&words).filter(|(id, word)| is_control(word) && !ends.contains(id));
        let controls = controls.map(|(id, _)| id).collect();
        Ok(Self { factory, ends: ends.into(), controls })
    }

    /// Compiles `constraint` to a grammar in its initial state. Takes a few milliseconds, and far
    /// more for a hostile constraint, so do not call it on the engine thread.
    pub fn compile(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        let excluded = match constraint {
            Constraint::Lark(text) if pattern::only_negates(text) => Arc::clone(&self.controls),
            _ => Arc::default(),
        };
        self.build(excluded, || compile::prepare(constraint))
    }

    /// Like [`Grammars::compile`], but embeds the constraint in `lark` as the rule `answer`.
    pub(crate) fn compile_within(
        &self,
        lark: &str,
        constraint: &Constraint,
    ) -> Result<Grammar, GrammarError> {
        self.build(Arc::default(), || compile::prepare_within(lark, constraint))
    }

    fn build(
        &self,
        excluded: Arc<[Token]>,
        prepare: impl FnOnce() -> Result<TopLevelGrammar, GrammarError> + Send,
    ) -> Result<Grammar, GrammarError> {
        let parser = compile::deep(|| {
            let parser = self.factory.create_parser(prepare()?);
            parser.map_err(|e| GrammarError::compiling(&e.to_string()))
        })??;
        let mut grammar = Grammar::new(Matcher::new(Ok(parser)), Arc::clone(&self.ends), excluded);
        grammar.begin()?;
        Ok(grammar)
    }
}

fn environment(words: &[Vec<u8>], end: Token, ends: &[Token]) -> TokEnv {
    let size = u32::try_from(words.len()).unwrap_or(u32::MAX);
    let trie = TokTrie::from(&TokRxInfo::new(size, end), words).with_eos_tokens(ends);
    // Not a canonical tokenizer: llguidance then never forces tokens, and the state depends only on
    // the accepted tokens.
    Arc::new(ApproximateTokEnv::new(trie))
}

/// Sets of tokens that are allowed or disallowed together: those that continue within a JSON
/// string.
fn slices() -> Vec<String> {
    ["{1,10}", "{1,30}", "+"].map(|times| format!(r#"[^"\\\x00-\x1F\x7F]{times}"#)).to_vec()
}

/// A token as the trie holds it. A token without bytes is never allowed.
fn word(piece: Piece) -> Vec<u8> {
    match piece {
        Piece { bytes, .. } if bytes.len() > limits::TOKEN_BYTES_MAX => Vec::new(),
        Piece { bytes, special: true } => special(&bytes),
        // This byte occurs in no UTF-8 text, and the trie has another use for it.
        Piece { bytes, .. } if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
        Piece { bytes, .. } => bytes,
    }
}

fn special(name: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
}
