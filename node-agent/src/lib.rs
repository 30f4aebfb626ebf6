//! A node's agent. One binary, two processes: the **agent** (network, supervision) and the
//! **engine** (llama.cpp, no network), which it starts, watches and starts again.
//!
//! A request's way: [`server`] or [`join`] -> [`api`] -> [`engine_client`] -> frames
//! ([`engine_ipc`]) -> the engine's process ([`engine_role`]) -> [`generate`] -> client.
//! [`supervisor`] keeps the process alive, [`status`] tells gateways about it.

pub mod api;
pub mod app;
pub mod backoff;
pub mod bench;
pub mod capacity;
pub mod check;
pub mod commands;
pub mod digest;
pub mod doctor;
pub mod engine;
pub mod engine_client;
pub mod engine_flags;
pub mod engine_ipc;
pub mod engine_role;
pub mod error;
pub mod generate;
pub mod health;
pub mod join;
pub mod join_flags;
pub mod launch;
pub mod machine;
pub mod measuring;
pub mod metrics;
pub mod model_files;
pub mod notify;
pub mod options;
pub mod plan;
pub mod pull;
pub mod respond;
pub mod sandbox;
pub mod serve;
pub mod server;
pub mod status;
pub mod supervisor;
pub mod synth;
pub mod tls;
pub mod tune;
pub mod types;
pub mod vitals;
pub mod watchdog;
