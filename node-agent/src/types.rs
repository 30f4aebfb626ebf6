//! Types that every layer shares: errors and their rendering, exit codes, backoff, randomness, and
//! output. The lowest layer: nothing here imports another folder.

pub(crate) mod backoff;
pub(crate) mod cache_folder;
pub(crate) mod causes;
pub(crate) mod error;
pub(crate) mod executable;
pub(crate) mod exit;
pub(crate) mod key_file;
pub(crate) mod print;
pub(crate) mod progress;
pub(crate) mod random;
pub(crate) mod response;
