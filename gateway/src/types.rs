//! Types that every layer shares. This is the lowest layer: nothing here imports another folder.

pub mod api;
pub mod atomic_file;
pub mod class;
pub mod error;
pub mod external;
pub mod header;
pub mod limits;
pub mod random;
pub mod request_id;
pub mod response;
pub mod secret;
