//! The engine process and the agent's side of it: how it is started ([`flags`], [`options`],
//! [`tuning`], [`launch`]), kept alive ([`supervisor`]) and given requests ([`client`], [`ipc`]),
//! and what it does ([`process`], [`sandbox`], [`prefix_disk`]).

pub(crate) mod affinity;
pub(crate) mod client;
pub(crate) mod flags;
pub(crate) mod ipc;
pub(crate) mod kernel_trial;
pub(crate) mod launch;
pub(crate) mod measuring;
pub(crate) mod model_files;
pub(crate) mod options;
pub(crate) mod plan_facts;
pub(crate) mod prefix_disk;
pub(crate) mod process;
pub(crate) mod sandbox;
pub(crate) mod slot_files;
pub(crate) mod supervisor;
pub(crate) mod systemd;
pub(crate) mod template;
pub(crate) mod tuning;
