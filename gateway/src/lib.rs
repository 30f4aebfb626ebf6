//! The gateway: one OpenAI-compatible endpoint in front of many small CPU machines.
//!
//! Modules are layers, and a layer imports only the layers below it (the `tidy` test holds the
//! order). From the top:
//!
//! - [`commands`]: the subcommands beside `run`.
//! - [`app`]: builds the parts and starts the tasks.
//! - [`tasks`]: what runs in the background: reload, state file, health checks, batches, traces.
//! - [`server`]: the listeners, their guards, and the routes.
//! - [`control`]: the admin API, the fleet page, health endpoints, nodes that join.
//! - [`proxy`]: the path of a request, one file for each stage.
//! - [`nodes`]: the links to nodes.
//! - [`context`]: the handle that stages and tasks receive, and the settings in force.
//! - [`observability`]: metrics, traces, and the history of the last minutes.
//! - [`dispatcher`]: the shell around the scheduler: one mutex, leases, snapshots.
//! - [`config`]: the checked configuration.
//! - [`upstream`]: HTTP/2 to nodes, and the client for external endpoints.
//! - [`scheduler`]: the pure core: queue, costs, routing, prefix index, fleet state, attempts.
//! - [`access`]: API keys, rate limits, budgets, quarantine.
//! - [`store`]: what outlives the gateway: files and batches, in SQLite.
//! - [`types`]: what every layer shares: errors, request ids, classes, responses.
//!
//! Start with [`proxy`], which shows the stages of a request on one screen. [`scheduler`] decides
//! which request gets a slot, and [`scheduler::attempts`] what happens after an attempt failed.

#![warn(unreachable_pub)]

pub mod access;
pub mod app;
pub mod commands;
pub mod config;
pub mod context;
pub mod control;
pub mod dispatcher;
pub(crate) mod nodes;
pub mod observability;
pub(crate) mod proxy;
pub mod scheduler;
pub mod server;
pub mod store;
pub mod tasks;
pub mod types;
pub(crate) mod upstream;
