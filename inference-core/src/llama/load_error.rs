//! Why a model could not be loaded.

use crate::prepare::MissingPlaceholder;

/// Why a model could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// The path contains a NUL byte.
    Path,
    /// The kernels could not be registered.
    Kernel(String),
    /// llama.cpp rejected the file; holds the first error that it logged.
    Refused(String),
    /// The context could not be created, usually for lack of memory.
    Context(String),
    /// The file has no vocabulary.
    NoVocabulary,
    /// The model does not generate text.
    NotGenerative,
    /// The file is a reranker without the prompt template it was trained with.
    NoRerankTemplate,
    /// The file is a reranker that outputs no probabilities.
    NoLabels,
    /// The file is no reranker.
    NoClassifier,
    /// The file's rerank template cannot be used.
    RerankTemplate(MissingPlaceholder),
    /// The warm-up batch could not be decoded.
    WarmUp(String),
    /// The draft model cannot be loaded.
    Draft(Box<LoadError>),
    /// The draft model has other tokens: this one, or another number of them.
    DraftVocabulary(String),
    /// A model that does not generate text has a draft model.
    DraftWithoutText,
    /// The MTP head of the model cannot be used.
    MtpHead(Box<LoadError>),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path => write!(f, "the path holds a zero byte"),
            Self::Kernel(why) => write!(f, "the CPU kernels cannot be used: {why}"),
            Self::Refused(why) => write!(f, "llama.cpp refused the model file: {why}"),
            Self::Context(why) => {
                write!(f, "no memory for the context; try fewer slots or a smaller context ({why})")
            }
            Self::NoVocabulary => write!(f, "the model has no vocabulary"),
            Self::NotGenerative => write!(f, "the model does not generate text"),
            Self::NoRerankTemplate => write!(
                f,
                "this reranker needs the prompt that it was trained with, which its file lacks \
                 (tokenizer.chat_template.rerank): its scores would mean nothing; convert it \
                 again with a current llama.cpp, or use another file"
            ),
            Self::NoLabels => write!(
                f,
                "this reranker's file has no labels to score (classifier.output_labels); convert \
                 it again with a current llama.cpp, or use another file"
            ),
            Self::NoClassifier => write!(
                f,
                "--pooling rank needs a reranker, and this model file has no classifier \
                 (cls.weight or cls.output.weight): serve a reranker, or use --pooling mean, cls \
                 or last for embeddings"
            ),
            Self::RerankTemplate(why) => write!(f, "{why}; use another file"),
            Self::WarmUp(why) => write!(f, "the first batch failed: {why}"),
            Self::Draft(why) => write!(f, "--draft-model: {why}"),
            Self::DraftVocabulary(why) => write!(
                f,
                "--draft-model: it has another vocabulary ({why}): use a small model of the same \
                 family"
            ),
            Self::DraftWithoutText => {
                write!(f, "--draft-model: the model does not generate text; leave it out")
            }
            Self::MtpHead(why) => write!(f, "the model's MTP head: {why}; --no-mtp leaves it out"),
        }
    }
}

impl std::error::Error for LoadError {}
