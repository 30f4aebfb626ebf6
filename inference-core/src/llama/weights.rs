//! A loaded model file: weights and vocabulary, shared by the engine and the tokenizer.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;
use serde::{Deserialize, Serialize};

use super::{LoadError, Loading, log};
use crate::model_file::memory_plan::{LoadMode, layout};
use crate::text::chat_template::Sources;
use crate::types::model::ModelSizes;
use crate::types::request::Token;
use crate::types::unknown_name::UnknownName;

/// Maximum length of a token's piece in bytes.
pub(super) const PIECE_BYTES_MAX: usize = 4096;
/// Maximum length in bytes of a text value in a model file: that of a chat template.
const VALUE_BYTES_MAX: usize = 4 << 20;

/// How the token embeddings of a text are pooled into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// The mean of all tokens.
    Mean,
    /// The first token's embedding.
    Cls,
    /// The last token's embedding.
    Last,
    /// A score instead of an embedding.
    Rank,
}

impl Pooling {
    pub(super) fn raw(self) -> sys::llama_pooling_type {
        match self {
            Self::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
            Self::Cls => sys::LLAMA_POOLING_TYPE_CLS,
            Self::Last => sys::LLAMA_POOLING_TYPE_LAST,
            Self::Rank => sys::LLAMA_POOLING_TYPE_RANK,
        }
    }
}

impl std::str::FromStr for Pooling {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "mean" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            "last" => Ok(Self::Last),
            "rank" => Ok(Self::Rank),
            _ => Err(UnknownName::new("pooling", name, &["mean", "cls", "last", "rank"])),
        }
    }
}

/// Weights and vocabulary. The last clone frees them.
#[derive(Debug, Clone)]
pub struct Weights(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    model: *mut sys::llama_model,
    end_tokens: Vec<Token>,
    has_mtp_head: bool,
}

// SAFETY: after loading, the model is read-only; several threads may use llama.cpp's vocabulary
// functions and contexts on one model.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: contexts hold a `Weights`, so none exists when this runs.
        unsafe { sys::llama_model_free(self.model) };
    }
}

impl Weights {
    /// Loads a model from its file, or from all files of a split model, in order. A kernel must be
    /// registered. Blocks until the model is loaded.
    pub fn load(
        paths: &[impl AsRef<Path>],
        loading: impl Into<Loading>,
    ) -> Result<Self, LoadError> {
        let loading = loading.into();
        log::install();
        log::take_first_error();
        let text =
            |path: &_| CString::new(AsRef::<Path>::as_ref(path).as_os_str().as_encoded_bytes());
        let paths: Vec<CString> =
            paths.iter().map(text).collect::<Result<_, _>>().map_err(|_| LoadError::Path)?;
        let mut pointers: Vec<*const c_char> = paths.iter().map(|path| path.as_ptr()).collect();
        let _begun = loading.begin();
        // SAFETY: the number of paths is correct; they are NUL-terminated and outlive the call.
        // Null is checked, and llama.cpp rejects an empty list.
        let model = unsafe {
            let mut params = sys::llama_model_default_params();
            params.n_gpu_layers = 0;
            params.load_mtp = loading.mtp_head;
            params.load_mode = match loading.mode {
                // Shared between processes, and still in the page cache after a restart.
                LoadMode::Mmap => sys::LLAMA_LOAD_MODE_MMAP,
                LoadMode::Mlock => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
                LoadMode::None => sys::LLAMA_LOAD_MODE_NONE,
            };
            sys::llama_model_load_from_splits(pointers.as_mut_ptr(), pointers.len(), params)
        };
        if model.is_null() {
            return Err(LoadError::Refused(log::take_first_error()));
        }
        let end_tokens = end_tokens(model);
        let owned = Owned { model, end_tokens, has_mtp_head: loading.mtp_head };
        let weights = Self(Arc::new(owned));
        // SAFETY: the vocabulary is valid.
        let kind = unsafe { sys::llama_vocab_type(weights.vocab()) };
        // Without a tokenizer, llama.cpp may still report tokens that have no text.
        match weights.vocabulary() > 0 && kind != sys::LLAMA_VOCAB_TYPE_NONE {
            true => Ok(weights),
            false => Err(LoadError::NoVocabulary),
        }
    }

    /// True if the model has an encoder, with or without a decoder.
    pub(crate) fn is_encoder(&self) -> bool {
        // SAFETY: the model is valid.
        unsafe { sys::llama_model_has_encoder(self.as_ptr()) }
    }

    /// The pooling type of an embedding model; `None` for a model that generates.
    pub fn pooling(&self) -> Option<Pooling> {
        let architecture = self.metadata("general.architecture")?;
        let declared = self.metadata(&format!("{architecture}.pooling_type"));
        match declared.as_deref() {
            Some("1") => Some(Pooling::Mean),
            Some("2") => Some(Pooling::Cls),
            Some("3") => Some(Pooling::Last),
            Some("4") => Some(Pooling::Rank),
            // A model that cannot generate is an embedding model, whatever its file says.
            _ => self.is_embedding_only().then_some(Pooling::Mean),
        }
    }

    /// True if the model cannot generate text.
    fn is_embedding_only(&self) -> bool {
        let architecture = self.metadata("general.architecture");
        architecture.is_some_and(|name| name.contains("bert")) || self.is_encoder()
    }

    /// Checks that its scores are meaningful. BERT rerankers are trained on pairs. A reranker based
    /// on a generative model needs the prompt it was trained with, and outputs label probabilities.
    pub(super) fn check_ranking(&self) -> Result<(), LoadError> {
        if self.is_embedding_only() {
            return Ok(());
        }
        if self.rerank_template().is_none() {
            return Err(LoadError::NoRerankTemplate);
        }
        if self.labels() < 2 { Err(LoadError::NoLabels) } else { Ok(()) }
    }

    /// Index of the label that is the score of a pair: "yes", or the first one.
    pub(super) fn score_label(&self) -> usize {
        let is_yes = |label: &u32| {
            // SAFETY: the model is valid; the result is null or a string that lives as long as the
            // model.
            let text = unsafe { sys::llama_model_cls_label(self.as_ptr(), *label) };
            // SAFETY: as above; null is checked.
            !text.is_null()
                && unsafe { CStr::from_ptr(text) }.to_bytes().eq_ignore_ascii_case(b"yes")
        };
        (0..self.labels()).find(is_yes).unwrap_or(0) as usize
    }

    /// True if the model processes a text at once, because every token attends to all others.
    pub(super) fn is_bidirectional(&self) -> bool {
        let Some(architecture) = self.metadata("general.architecture") else { return true };
        let causal = self.metadata(&format!("{architecture}.attention.causal"));
        self.is_encoder() || layout::is_encoder(&architecture) || causal.as_deref() == Some("false")
    }

    pub(super) fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let read = |buffer: &mut [u8]| {
            // SAFETY: key and buffer are valid and have the given length.
            let written = unsafe {
                sys::llama_model_meta_val_str(
                    self.as_ptr(),
                    key.as_ptr(),
                    buffer.as_mut_ptr().cast::<c_char>(),
                    buffer.len(),
                )
            };
            usize::try_from(written).ok()
        };
        let mut buffer = vec![0u8; 128];
        let mut bytes = read(&mut buffer)?;
        if bytes >= buffer.len() {
            // One extra byte for the terminating NUL.
            buffer = vec![0u8; bytes.min(VALUE_BYTES_MAX) + 1];
            bytes = read(&mut buffer)?;
        }
        Some(String::from_utf8_lossy(buffer.get(..bytes)?).into_owned())
    }

    /// Number of elements of an embedding.
    pub(crate) fn embedding_width(&self) -> u32 {
        // SAFETY: the model is valid.
        u32::try_from(unsafe { sys::llama_model_n_embd_out(self.as_ptr()) }).unwrap_or(0)
    }

    /// Sizes of the model, for clients that want to know them.
    pub fn sizes(&self) -> ModelSizes {
        let model = self.as_ptr();
        // SAFETY: the model is valid; these functions only read it.
        let (train, width, parameters, bytes) = unsafe {
            (
                sys::llama_model_n_ctx_train(model),
                sys::llama_model_n_embd(model),
                sys::llama_model_n_params(model),
                sys::llama_model_size(model),
            )
        };
        ModelSizes {
            vocabulary: self.vocabulary(),
            context_trained: u32::try_from(train).unwrap_or(0),
            embedding_width: u32::try_from(width).unwrap_or(0),
            parameters,
            bytes,
        }
    }

    /// Number of outputs that a reranking model computes for a pair.
    pub(super) fn labels(&self) -> u32 {
        // SAFETY: the model is valid.
        unsafe { sys::llama_model_n_cls_out(self.as_ptr()) }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.0.model
    }

    pub(super) fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is valid; the vocabulary lives as long as it.
        unsafe { sys::llama_model_get_vocab(self.as_ptr()) }
    }

    /// Number of tokens in the vocabulary.
    pub(crate) fn vocabulary(&self) -> u32 {
        // SAFETY: the vocabulary is valid.
        u32::try_from(unsafe { sys::llama_vocab_n_tokens(self.vocab()) }).unwrap_or(0)
    }

    /// True if sequences can share the KV cells of a common prefix. False for sliding windows,
    /// which drop old cells, and for recurrent models, which keep a single state instead.
    pub fn can_share_prefixes(&self) -> bool {
        // SAFETY: the model is valid; this only reads it.
        let has_windows = unsafe { sys::llama_model_n_swa(self.as_ptr()) } != 0;
        !has_windows && !self.is_recurrent()
    }

    /// True if any layer has a recurrent state.
    pub(super) fn is_recurrent(&self) -> bool {
        // SAFETY: the model is valid; both only read it.
        unsafe {
            sys::llama_model_is_recurrent(self.as_ptr())
                || sys::llama_model_is_hybrid(self.as_ptr())
        }
    }

    /// True if the MTP head was loaded.
    pub(super) fn has_mtp_head(&self) -> bool {
        self.0.has_mtp_head
    }

    /// The chat templates in the file. This does not ask llama.cpp, which for some models without a
    /// template names a format that only it knows. A file may contain such a name as well; a
    /// template without expressions and statements renders the same for every chat, so it does not
    /// count.
    pub fn chat_templates(&self) -> Option<Sources> {
        let template = |key: &str| {
            let source = self.metadata(key);
            source.filter(|source| source.contains("{{") || source.contains("{%"))
        };
        let default = template("tokenizer.chat_template")?;
        Some(Sources { default, tool_use: template("tokenizer.chat_template.tool_use") })
    }

    /// The prompt template that a reranker was trained with, if its file has one: a text with
    /// `{query}` and `{document}`.
    pub fn rerank_template(&self) -> Option<String> {
        self.metadata("tokenizer.chat_template.rerank")
    }

    /// Texts of the BOS and EOS tokens; empty if the model has none.
    pub fn bos_eos(&self) -> (String, String) {
        // SAFETY: the vocabulary is valid.
        let (bos, eos) =
            unsafe { (sys::llama_vocab_bos(self.vocab()), sys::llama_vocab_eos(self.vocab())) };
        (self.text(bos), self.text(eos))
    }

    /// Texts of all control tokens.
    pub fn control_texts(&self) -> Vec<String> {
        let is_control =
            // SAFETY: the id is inside the vocabulary.
            |id: &i32| unsafe { sys::llama_vocab_is_control(self.vocab(), *id) };
        (0..self.vocabulary() as i32)
            .filter(is_control)
            .map(|id| self.text(id))
            .filter(|text| !text.is_empty())
            .collect()
    }

    /// Appends the bytes of a token's text; that of a control token only if `control`.
    pub(super) fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>) {
        let Ok(id) = i32::try_from(token) else { return };
        let mut buffer = [0u8; PIECE_BYTES_MAX];
        // SAFETY: the buffer has the given length; ids outside the vocabulary are never sampled and
        // are rejected before they get here.
        let written = unsafe {
            sys::llama_token_to_piece(
                self.vocab(),
                id,
                buffer.as_mut_ptr().cast::<c_char>(),
                PIECE_BYTES_MAX as i32,
                0,
                control,
            )
        };
        if let Ok(n) = usize::try_from(written) {
            out.extend_from_slice(&buffer[..n.min(PIECE_BYTES_MAX)]);
        }
    }

    /// The tokens that end a response (end of generation).
    pub(crate) fn end_tokens(&self) -> &[Token] {
        &self.0.end_tokens
    }

    /// The text of a token; empty if `id` is not in the vocabulary.
    pub(super) fn text(&self, id: sys::llama_token) -> String {
        if id < 0 || id as u32 >= self.vocabulary() {
            return String::new();
        }
        // SAFETY: the id is inside the vocabulary; the text lives as long as the model.
        unsafe {
            let text = sys::llama_vocab_get_text(self.vocab(), id);
            if text.is_null() {
                return String::new();
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// The end-of-generation tokens of a valid model.
fn end_tokens(model: *const sys::llama_model) -> Vec<Token> {
    // SAFETY: the model is valid; all ids are inside its vocabulary.
    unsafe {
        let vocab = sys::llama_model_get_vocab(model);
        let end_tokens =
            (0..sys::llama_vocab_n_tokens(vocab)).filter(|id| sys::llama_vocab_is_eog(vocab, *id));
        end_tokens.filter_map(|id| Token::try_from(id).ok()).collect()
    }
}
