//! Runs jobs on a model: the engine's thread ([`engine_thread`]), its step for text ([`step`]) and
//! for embeddings ([`embed`]), and what a step decides with: who is next ([`queue`]), which cells
//! of the KV pool hold what ([`kv_pool`]), how many rows a batch has ([`pace`], [`planning`]), and
//! which token follows ([`sampler`]).

pub mod embed;
pub mod engine_thread;
pub mod fake;
pub mod kv_pool;
pub mod pace;
pub mod planning;
pub mod queue;
pub mod sampler;
pub mod sequence;
pub mod step;
