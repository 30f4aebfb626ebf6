//! Runs jobs on a model: the engine thread ([`engine_thread`]), the step for text generation
//! ([`step`]) and for embeddings ([`embed`]), and the parts a step decides with: who is next
//! ([`queue`]), which KV cells hold what ([`kv_pool`]), how many rows a batch has ([`step_pace`],
//! [`planning`]), and which token comes next ([`sampler`]).

pub mod embed;
pub mod engine_thread;
pub mod fake;
pub mod kv_pool;
pub mod planning;
pub mod queue;
pub mod sampler;
pub mod sequence;
pub mod step;
pub mod step_pace;
