//! PURE. Reads the file with keys: one in each line, as 64 hex digits.

use std::sync::Arc;

use super::{Key, Keyring, Keys};

/// The first line of a file whose keys only decrypt.
const NONE: &str = "none";

impl Keyring {
    /// Reads the text of a file. The first key encrypts, unless the line `none` is before it; all
    /// decrypt. Empty lines, and what follows a `#`, are left out.
    ///
    /// # Errors
    /// There is no key, or a line is wrong. Errors do not repeat what is written there.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut found = Keys { encrypts: true, ..Keys::default() };
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        for (number, line) in (1..).zip(lines).filter(|(_, line)| !line.is_empty()) {
            if line == NONE {
                if !found.keys.is_empty() || !found.encrypts {
                    return Err(format!("line {number}: '{NONE}' must be the first line"));
                }
                found.encrypts = false;
                continue;
            }
            let key = secret(line).map(Key::new).ok_or_else(|| {
                format!("line {number}: expected 64 hex digits ('openssl rand -hex 32' makes them)")
            })?;
            if found.keys.contains(&key) {
                return Err(format!("line {number}: this key is in an earlier line"));
            }
            found.keys.push(key);
        }
        match found.keys.is_empty() {
            true => Err("there is no key ('openssl rand -hex 32' makes one)".into()),
            false => Ok(Self(Arc::new(found))),
        }
    }
}

fn secret(hex: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        hex.chars().map(|c| c.to_digit(16)?.try_into().ok()).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits
        .chunks(2)
        .filter_map(|pair| {
            let [high, low] = pair else { return None };
            Some(high << 4 | low)
        })
        .collect();
    bytes.try_into().ok().filter(|_| digits.len() == 64)
}
