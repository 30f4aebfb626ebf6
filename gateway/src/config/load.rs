//! Reads and checks a configuration file.

use std::path::Path;

use super::Config;
use super::files::{self, Files};
use super::yaml::{FILE_BYTES_MAX, Problem, parse};
use crate::config::document;

/// Reads and checks a file. The error lists every problem found.
pub fn load(path: &Path) -> Result<Config, Vec<Problem>> {
    // Callers name the file.
    let one = |message: String| vec![Problem { path: String::new(), message }];
    let files = Files::beside(path);
    let text = files::read(path, FILE_BYTES_MAX).map_err(one)?;
    document::check(parse(&text).map_err(one)?, files)
}
