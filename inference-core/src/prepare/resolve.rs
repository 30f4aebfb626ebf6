//! PURE. Turns options that are texts into tokens: words, DRY's sequence breakers, the delimiters
//! of reasoning, and what a response is likely to repeat.

use std::sync::Arc;

use super::Preparer;
use super::tokenizing::{IsWanted, PrepareError, TokenizeError};
use crate::scheduler::reasoning_budget::ReasoningBudget;
use crate::scheduler::sampler::ResolvedOptions;
use crate::scheduler::sampler::dry::{self, BREAKER_BYTES_MAX, SequenceBreakers, TAIL_TOKENS_MAX};
use crate::text::output::{CallFormat, ResponseStart};
use crate::types::request::{BREAKERS, Dry, Failure, Options, Token};

/// Tokens of the vocabulary between two looks at whether the request is canceled.
const TOKENS_PER_LOOK: Token = 4096;

impl Preparer {
    /// Resolves the options of a request, and checks its lists of tokens.
    pub(super) fn resolve(
        &self,
        options: &Options,
        response_start: ResponseStart,
        is_wanted: IsWanted<'_>,
    ) -> Result<ResolvedOptions, PrepareError> {
        let sampling = &options.sampling;
        let allowed = sampling.allowed.as_deref().unwrap_or_default();
        self.check_known("stop_token_ids", &options.stop_tokens)?;
        self.check_known("allowed_token_ids", allowed)?;
        let mut bad_words = Vec::new();
        for word in &sampling.bad_words {
            bad_words.extend(self.word_tokens(word)?);
        }
        let breakers = match dry::is_on(&sampling.dry) {
            true => self.breakers(&sampling.dry, is_wanted)?,
            false => Arc::default(),
        };
        let reasoning = options.reasoning_max.map(|max| self.reasoning(max, response_start));
        let reasoning = reasoning.transpose()?.flatten();
        let prediction = match options.prediction.as_deref() {
            Some(text) => self.prediction(text, is_wanted)?,
            None => Arc::default(),
        };
        Ok(ResolvedOptions { bad_words, breakers, reasoning, prediction })
    }

    /// The tokens of a predicted text; none if the context does not hold it.
    fn prediction(
        &self,
        text: &str,
        is_wanted: IsWanted<'_>,
    ) -> Result<Arc<[Token]>, PrepareError> {
        let tokens_max = self.context_tokens as usize;
        match self.tokenize_texts(std::iter::once(text), false, tokens_max, is_wanted) {
            Ok(tokens) if tokens.len() <= tokens_max => Ok(tokens.into()),
            Ok(_) | Err(TokenizeError::TooLong(_)) => Ok(Arc::default()),
            Err(TokenizeError::Cancelled) => Err(PrepareError::Cancelled),
            Err(TokenizeError::Failed(failure)) => Err(failure.into()),
        }
    }

    fn check_known(&self, param: &str, tokens: &[Token]) -> Result<(), Failure> {
        let vocabulary = self.tokenizer.vocabulary();
        let Some(unknown) = tokens.iter().find(|t| **t >= vocabulary) else { return Ok(()) };
        let message =
            format!("{param}: token {unknown} is not in this model's vocabulary of {vocabulary}");
        Err(Failure::Field { param: param.into(), message })
    }

    /// The tokens of a word at the start of a text and after a space, as vLLM bans it.
    fn word_tokens(&self, word: &str) -> Result<Vec<Vec<Token>>, Failure> {
        let word = word.trim_start();
        let mut all = Vec::new();
        for text in [word.to_string(), format!(" {word}")] {
            let tokens = self.tokenizer.tokenize(&text, false)?;
            // Some tokenizers write the space as a token, after which the word is the first one.
            if !tokens.is_empty() && !all.contains(&tokens) {
                all.push(tokens);
            }
        }
        Ok(all)
    }

    fn breakers(
        &self,
        dry: &Dry,
        is_wanted: IsWanted<'_>,
    ) -> Result<Arc<SequenceBreakers>, PrepareError> {
        let Some(texts) = &dry.breakers else {
            if let Some(known) = self.breakers.get() {
                return Ok(Arc::clone(known));
            }
            let found = Arc::new(self.find_breakers(&BREAKERS, is_wanted)?);
            return Ok(Arc::clone(self.breakers.get_or_init(|| found)));
        };
        let texts: Vec<&str> = texts.iter().map(|text| cut(text, BREAKER_BYTES_MAX)).collect();
        Ok(Arc::new(self.find_breakers(&texts, is_wanted)?))
    }

    /// Finds every token that contains one of the texts, or ends with its beginning.
    fn find_breakers(
        &self,
        texts: &[&str],
        is_wanted: IsWanted<'_>,
    ) -> Result<SequenceBreakers, PrepareError> {
        let mut breakers = SequenceBreakers::default();
        let mut piece = Vec::new();
        for token in 0..self.tokenizer.vocabulary() {
            if token % TOKENS_PER_LOOK == 0 && !is_wanted() {
                return Err(PrepareError::Cancelled);
            }
            piece.clear();
            self.tokenizer.piece(token, true, &mut piece);
            for text in texts {
                for rest in rests(&piece, text) {
                    let mut tail = self.tokenizer.tokenize(rest, false)?;
                    tail.truncate(TAIL_TOKENS_MAX);
                    breakers.insert(token, tail);
                }
            }
        }
        Ok(breakers)
    }

    /// `None` if the model does not reason.
    fn reasoning(
        &self,
        tokens_max: u32,
        response_start: ResponseStart,
    ) -> Result<Option<ReasoningBudget>, Failure> {
        let Some(delimiters) = self.format.reasoning else {
            let message = "reasoning_budget has no effect on this model, which has no delimiters \
                           of reasoning: use reasoning_effort, or max_tokens";
            let param = "reasoning_budget".into();
            // Switching it off is left to the template.
            return match self.format.calls == CallFormat::Harmony && tokens_max > 0 {
                true => Err(Failure::Field { param, message: message.into() }),
                false => Ok(None),
            };
        };
        let open = self.tokenizer.tokenize(delimiters.open, true)?;
        let close = self.tokenizer.tokenize(delimiters.close, true)?;
        let starts_inside = response_start == ResponseStart::Reasoning;
        Ok(Some(ReasoningBudget::new(tokens_max, open, close, starts_inside)))
    }
}

/// What is left of `text` after a token: nothing if its `piece` contains the text, and otherwise
/// what follows each beginning of the text at the end of the piece.
fn rests<'t>(piece: &[u8], text: &'t str) -> Vec<&'t str> {
    let bytes = text.as_bytes();
    if !bytes.is_empty() && piece.windows(bytes.len()).any(|part| part == bytes) {
        return vec![""];
    }
    let beginning = |length: &usize| piece.ends_with(&bytes[..*length]);
    let lengths = (1..bytes.len().min(piece.len() + 1)).filter(beginning);
    lengths.filter_map(|length| text.get(length..)).collect()
}

/// The longest beginning of at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_begin_at_the_end_of_a_token() {
        assert_eq!(rests(b"a\nb", "\n"), [""]);
        assert_eq!(rests(b"xab", "abc"), ["c"]);
        assert_eq!(rests(b"aa", "aab"), ["ab", "b"]);
        assert_eq!(rests(b"x", "abc"), Vec::<&str>::new());
        assert_eq!(rests("é".as_bytes(), "éa"), ["a"]);
        assert_eq!(cut("aé", 2), "a");
    }
}
