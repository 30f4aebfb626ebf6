//! The engine process and the agent's side of it: how it is started ([`flags`], [`options`],
//! [`tuning`], [`launch`]), kept alive ([`supervisor`]) and given requests ([`client`], [`ipc`]),
//! and what it does ([`process`], [`sandbox`]).

pub mod affinity;
pub mod client;
pub mod flags;
pub mod ipc;
pub mod kernel_trial;
pub mod launch;
pub mod measuring;
pub mod model_files;
pub mod options;
pub mod plan_facts;
pub mod process;
pub mod sandbox;
pub mod supervisor;
pub mod systemd;
pub mod tuning;
