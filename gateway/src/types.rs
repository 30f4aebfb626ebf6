//! Types that every layer shares. The lowest layer: nothing here imports another folder.

pub mod api;
pub mod external;
pub mod limits;
pub mod random;
pub mod request_id;
