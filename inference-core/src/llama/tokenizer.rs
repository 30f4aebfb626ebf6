//! llama.cpp's tokenizer.

use std::ffi::c_char;

use llama_cpp_sys_2 as sys;

use super::{Weights, text_rules};
use crate::types::model::{Infill, TextRules, Tokenizer};
use crate::types::request::{Failure, Token};

/// Maximum tokens that a model adds around a text, with a margin.
const FRAME_TOKENS: usize = 8;
/// Maximum tokens per byte. Normalization may turn a character of three bytes into 18, and each of
/// these into three tokens.
const BYTE_TOKENS_MAX: usize = 18;

/// llama.cpp's tokenizer for a model file.
#[derive(Debug)]
pub struct LlamaTokenizer(pub Weights);

impl LlamaTokenizer {
    /// Tokenizes `text`; with `framed`, adds the tokens that the model expects around a text.
    fn run(&self, text: &str, framed: bool, special: bool) -> Result<Vec<Token>, Failure> {
        if framed && !self.can_frame() {
            return Err(Failure::Untokenizable);
        }
        // Most texts have fewer tokens than bytes. Exceptions: normalization expands a character,
        // or the model represents a space by several bytes.
        let mut tokens = vec![0i32; text.len() + FRAME_TOKENS];
        let mut count = self.fill(text, &mut tokens, framed, special)?;
        if let Err(needed) = count {
            if needed > text.len().saturating_mul(BYTE_TOKENS_MAX) + FRAME_TOKENS {
                return Err(Failure::TooLarge);
            }
            tokens = vec![0i32; needed];
            count = self.fill(text, &mut tokens, framed, special)?;
        }
        tokens.truncate(count.map_err(|_| Failure::Untokenizable)?);
        // A negative id marks text that the file has no token for.
        let known = |token: i32| Token::try_from(token).map_err(|_| Failure::Untokenizable);
        tokens.into_iter().map(known).collect()
    }

    /// Tokenizes into a buffer. Returns the number of tokens, or the number needed as the error if
    /// the buffer is too small.
    fn fill(
        &self,
        text: &str,
        tokens: &mut [i32],
        framed: bool,
        special: bool,
    ) -> Result<Result<usize, usize>, Failure> {
        let bytes = i32::try_from(text.len()).map_err(|_| Failure::TooLarge)?;
        let room = i32::try_from(tokens.len()).map_err(|_| Failure::TooLarge)?;
        // SAFETY: both buffers have the given length; our tokenizer lets no exception out.
        let count = unsafe {
            sys::llama_tokenize(
                self.0.vocab(),
                text.as_ptr().cast::<c_char>(),
                bytes,
                tokens.as_mut_ptr(),
                room,
                framed,
                special,
            )
        };
        match count {
            // The result of tokenizer/tokenize.cpp after an exception.
            i32::MIN => Err(Failure::Untokenizable),
            _ => Ok(usize::try_from(count).map_err(|_| count.unsigned_abs() as usize)),
        }
    }

    /// True if the file has the tokens that it wants around texts: llama.cpp aborts otherwise.
    fn can_frame(&self) -> bool {
        let vocab = self.0.vocab();
        // SAFETY: the vocabulary is valid.
        unsafe {
            let is_bert = sys::llama_vocab_type(vocab) == sys::LLAMA_VOCAB_TYPE_WPM;
            let wants_bos = is_bert || sys::llama_vocab_get_add_bos(vocab);
            let has_bos = sys::llama_vocab_bos(vocab) >= 0;
            let wants_eos = !is_bert && sys::llama_vocab_get_add_eos(vocab);
            let has_eos = sys::llama_vocab_eos(vocab) >= 0;
            let has_separator = sys::llama_vocab_sep(vocab) >= 0;
            (has_bos || !wants_bos) && (has_eos || !wants_eos) && (has_separator || !is_bert)
        }
    }
}

impl Tokenizer for LlamaTokenizer {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Failure> {
        self.run(text, false, special)
    }

    fn tokenize_framed(&self, text: &str) -> Result<Vec<Token>, Failure> {
        self.run(text, true, false)
    }

    fn separator(&self) -> Vec<Token> {
        let vocab = self.0.vocab();
        // SAFETY: the vocabulary is valid.
        let (wants_end, end, wants_separator, separator) = unsafe {
            (
                sys::llama_vocab_get_add_eos(vocab),
                sys::llama_vocab_eos(vocab),
                sys::llama_vocab_get_add_sep(vocab),
                sys::llama_vocab_sep(vocab),
            )
        };
        let wanted = [(wants_end, end), (wants_separator, separator)];
        let known = |(wanted, id): (bool, i32)| Token::try_from(id).ok().filter(|_| wanted);
        wanted.into_iter().filter_map(known).collect()
    }

    fn bos_token(&self) -> Option<(Token, String)> {
        // SAFETY: the vocabulary is valid.
        let (wanted, id) = unsafe {
            (sys::llama_vocab_get_add_bos(self.0.vocab()), sys::llama_vocab_bos(self.0.vocab()))
        };
        let token = u32::try_from(id).ok().filter(|_| wanted)?;
        Some((token, self.0.text(id)))
    }

    fn vocabulary(&self) -> u32 {
        self.0.vocabulary()
    }

    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>) {
        self.0.piece(token, control, out);
    }

    fn is_control(&self, token: Token) -> bool {
        // SAFETY: the vocabulary is valid and checks the id.
        i32::try_from(token)
            .is_ok_and(|id| unsafe { sys::llama_vocab_is_control(self.0.vocab(), id) })
    }

    fn end_tokens(&self) -> &[Token] {
        self.0.end_tokens()
    }

    fn infill(&self) -> Option<Infill> {
        let vocab = self.0.vocab();
        // SAFETY: the vocabulary is valid.
        let ids = unsafe {
            [
                sys::llama_vocab_fim_pre(vocab),
                sys::llama_vocab_fim_suf(vocab),
                sys::llama_vocab_fim_mid(vocab),
                sys::llama_vocab_fim_rep(vocab),
                sys::llama_vocab_fim_sep(vocab),
            ]
        };
        let [prefix, suffix, middle, repository, file] = ids.map(|id| Token::try_from(id).ok());
        Some(Infill { prefix: prefix?, suffix: suffix?, middle: middle?, repository, file })
    }

    fn text_rules(&self) -> TextRules {
        text_rules::read(&self.0)
    }
}
