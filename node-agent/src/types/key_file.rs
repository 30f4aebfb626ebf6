//! Keys, and files that contain one.

use std::convert::Infallible;
use std::fmt::{self, Debug, Formatter};
use std::path::Path;
use std::str::FromStr;

/// A key file is one line.
const KEY_BYTES_MAX: u64 = 4096;

/// Environment variable with the join key. Child processes do not get it.
pub(crate) const JOIN_KEY_VARIABLE: &str = "FLOTILLA_JOIN_KEY";

/// A key from the command line or the environment. Never printed.
#[derive(Clone)]
pub(crate) struct SecretKey(pub String);

impl Debug for SecretKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(***)")
    }
}

impl FromStr for SecretKey {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.trim().into()))
    }
}

/// Reads a key from a file: its first line, trimmed.
pub(crate) fn read_key(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let fail = |e: &dyn std::fmt::Display| format!("key file {}: {e}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(|e| fail(&e))?;
    match text.trim() {
        "" => Err(fail(&"is empty")),
        key => Ok(key.to_string()),
    }
}
