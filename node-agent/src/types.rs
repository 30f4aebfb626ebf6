//! Types that every layer shares: errors and their rendering, exit codes, backoff, randomness, and
//! output. The lowest layer: nothing here imports another folder.

pub mod backoff;
pub mod causes;
pub mod error;
pub mod executable;
pub mod exit;
pub mod key_file;
pub mod print;
pub mod progress;
pub mod random;
pub mod response;
