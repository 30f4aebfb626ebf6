//! The gateway: one OpenAI-compatible endpoint in front of many small CPU machines.
//!
//! A request's way is [`pipeline`]. What it needs: [`dispatcher`] binds waiting requests
//! ([`admission`], pure) to free slots of nodes ([`fleet`], pure) by [`routing`] (pure);
//! [`upstream`] is how a node is spoken to, whoever dialled ([`fleet::join`],
//! [`fleet::static_nodes`]). [`error`] and [`respond`] say what went wrong, [`config`]
//! what was wanted, [`edge`] how much a client may take of the public listener ([`server`]),
//! [`app`] puts it all together.

pub mod access;
pub mod admin;
pub mod admission;
pub mod api;
pub mod app;
pub mod broker;
pub mod budget;
pub mod cli;
pub mod config;
pub mod context;
pub mod dispatcher;
pub mod edge;
pub mod error;
pub mod external;
pub mod fleet;
pub mod follow;
pub mod header;
pub mod health;
pub mod limiter;
pub mod metrics;
pub mod notify;
pub mod pipeline;
pub mod prefix;
pub mod prober;
pub mod progress;
pub mod pursuit;
pub mod quarantine;
pub mod recent;
pub mod reload;
pub mod rent;
pub mod replace;
pub mod respond;
pub mod routing;
pub mod secret;
pub mod server;
pub mod settings;
pub mod spend;
pub mod state;
pub mod tally;
pub mod tls;
pub mod traces;
pub mod types;
pub mod upstream;
pub mod usage;
