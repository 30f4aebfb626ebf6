//! The engine's process, and the agent's side of it: what it is started with ([`flags`],
//! [`options`], [`tuning`], [`launch`]), what keeps it alive ([`supervisor`]), how requests reach
//! it ([`client`], [`ipc`]), and what it does ([`process`], [`sandbox`]).

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
