//! PURE. Decodes terminal input into keys.

/// A key with a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// `q`, Escape, Ctrl-C, or Ctrl-D: quit.
    Quit,
    /// Up arrow or `k`.
    Up,
    /// Down arrow or `j`.
    Down,
    /// Left arrow or `h`.
    Left,
    /// Right arrow or `l`.
    Right,
    /// `r`: reverse the order.
    Reverse,
}

/// Decodes bytes that were read together. An Escape that starts no sequence is the Escape key.
pub(crate) fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let key = match (first, after) {
            (0x1b, [b'[' | b'O', more @ ..]) => {
                let end = more.iter().position(|byte| (0x40..=0x7e).contains(byte));
                let end = end.unwrap_or(more.len().saturating_sub(1));
                rest = more.get(end + 1..).unwrap_or_default();
                more.get(end).and_then(|last| arrow(*last))
            }
            (0x1b | 0x03 | 0x04 | b'q' | b'Q', _) => Some(Key::Quit),
            (b'k', _) => Some(Key::Up),
            (b'j', _) => Some(Key::Down),
            (b'h', _) => Some(Key::Left),
            (b'l', _) => Some(Key::Right),
            (b'r', _) => Some(Key::Reverse),
            _ => None,
        };
        keys.extend(key);
    }
    keys
}

fn arrow(last: u8) -> Option<Key> {
    match last {
        b'A' => Some(Key::Up),
        b'B' => Some(Key::Down),
        b'C' => Some(Key::Right),
        b'D' => Some(Key::Left),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Key::{Down, Left, Quit, Reverse, Right, Up};

    #[test]
    fn arrows_letters_and_control_characters_are_keys() {
        assert_eq!(keys(b"\x1b[A\x1b[B\x1bOC\x1b[D"), [Up, Down, Right, Left]);
        assert_eq!(keys(b"kjlhrq"), [Up, Down, Right, Left, Reverse, Quit]);
        assert_eq!(keys(b"\x03\x04\x1b"), [Quit, Quit, Quit]);
    }

    #[test]
    fn what_means_nothing_is_passed_over() {
        assert_eq!(keys(b"x \xff\x1b[15~r\x1b[1;5C"), [Reverse, Right]);
        assert_eq!(keys(b"\x1b["), []);
        assert_eq!(keys(b"\x1b[1"), []);
        assert_eq!(keys(b""), []);
    }
}
