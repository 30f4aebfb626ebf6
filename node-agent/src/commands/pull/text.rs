//! PURE. Formats numbers and digests.

/// Lowercase hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A SHA-256 digest in lowercase hex; `None` if `text` is not one.
pub(crate) fn sha256(text: &str) -> Option<String> {
    let is = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is.then(|| text.to_ascii_lowercase())
}

/// Human-readable bytes: about three digits, in powers of 1000.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    for (unit, size) in UNITS {
        if count >= size {
            return format!("{:.1} {unit}", count as f64 / size as f64);
        }
    }
    format!("{count} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short_and_digests_are_recognised() {
        assert_eq!(bytes(999), "999 bytes");
        assert_eq!(bytes(1500), "1.5 kB");
        assert_eq!(bytes(4_370_000_000), "4.4 GB");
        assert_eq!(hex(&[0, 171]), "00ab");
        assert_eq!(sha256(&"Ab".repeat(32)), Some("ab".repeat(32)));
        for no in ["", "ab", &"ab".repeat(33), &"xy".repeat(32)] {
            assert_eq!(sha256(no), None);
        }
    }
}
