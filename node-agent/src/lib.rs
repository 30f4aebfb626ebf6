//! A node's agent. One binary, two processes: the **agent** (network, supervision) and the
//! **engine** (llama.cpp, no network), which the agent starts, watches, and starts again.
//!
//! Modules are layers, and a layer imports only the layers below it. From the top:
//!
//! - [`commands`]: one file or folder for each command; `serve` builds the parts and starts them.
//! - [`serve`]: the node: its API, the listener, links to gateways, status, and metrics.
//! - [`engine`]: the engine's process, and how the agent starts it, confines it, and talks to it.
//! - [`types`]: what every layer shares: errors, responses, exit codes, what is printed.
//!
//! A request passes [`serve::listener`] or [`serve::join`], [`serve::api`], [`engine::client`],
//! and, as a frame ([`engine::ipc`]), the engine's process ([`engine::process`]); events come back
//! the same way, and [`serve::stream`] turns them into a response.

pub mod commands;
pub mod engine;
pub mod serve;
pub mod types;
