//! Types that every layer shares. This is the lowest layer: nothing here imports another folder.

pub(crate) mod address;
pub mod api;
pub(crate) mod atomic_file;
pub(crate) mod budget;
pub mod class;
pub mod error;
pub mod external;
pub(crate) mod header;
pub mod limits;
pub(crate) mod query;
pub(crate) mod random;
pub(crate) mod request_body;
pub mod request_context;
pub(crate) mod request_id;
pub(crate) mod response;
pub mod secret;
pub mod served_model;
pub(crate) mod usage;
pub mod user;
