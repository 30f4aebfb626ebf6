//! Runs jobs on a model: the engine thread ([`engine_thread`]), the step for text generation
//! ([`step`]) and for embeddings ([`embed`]), and the parts a step decides with: who is next
//! ([`queue`]), which KV cells hold what ([`kv_pool`]), which prefixes are saved outside of them
//! ([`saved_prefixes`]) and in files ([`prefix_disk`]), how many rows a batch has ([`step_pace`],
//! [`planning`]), which tokens may come next ([`drafts`], [`draft_model`], [`hidden_states`],
//! [`vocabulary_part`], [`confidence`]) and whether to compute them ([`speculation`]), which one
//! does ([`sampler`]), how long a response may reason ([`reasoning_budget`]), and what a slot held
//! last ([`slots`]).

pub(crate) mod confidence;
pub(crate) mod draft_model;
pub(crate) mod drafts;
pub mod embed;
pub mod engine_thread;
pub mod fake;
pub(crate) mod hidden_states;
pub(crate) mod kv_pool;
pub(crate) mod planning;
pub mod prefix_disk;
pub(crate) mod prompt_lookup;
pub(crate) mod queue;
pub(crate) mod reasoning_budget;
pub(crate) mod sampler;
pub(crate) mod saved_prefixes;
pub mod sequence;
pub mod slots;
pub(crate) mod speculation;
pub mod step;
pub(crate) mod step_pace;
pub(crate) mod vocabulary_part;
