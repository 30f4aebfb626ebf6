//! The agent of a node. One binary, two processes: the **agent** (network, supervision) and the
//! **engine** (llama.cpp, no network), which the agent starts, watches, and restarts.
//!
//! Modules are layers, and a layer imports only the layers below it. From the top:
//!
//! - [`commands`]: one file or folder for each command; `serve` creates the parts and starts them.
//! - [`serve`]: the node: its API, the listener, links to gateways, status, and metrics.
//! - [`engine`]: the engine process, and how the agent starts it, confines it, and talks to it.
//! - [`types`]: types that all layers share: errors, responses, exit codes, output.
//!
//! A request passes [`serve::listener`] or [`serve::join`], [`serve::api`], [`engine::client`],
//! and, as a frame ([`engine::ipc`]), the engine process ([`engine::process`]); events return the
//! same way, and [`serve::stream`] turns them into a response. Start reading with that path, or
//! with [`engine::supervisor`], which starts engines and restarts them.

#![warn(unreachable_pub)]

pub mod commands;
mod engine;
pub mod serve;
mod types;
