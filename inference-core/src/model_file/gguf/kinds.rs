//! PURE. The ggml tensor types, with elements and bytes per block.
//!
//! From ggml's `ggml.h` and `ggml-common.h` (ggml 0.26). A type that is not listed here has an
//! unknown size, which must not be guessed.

/// A ggml tensor type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Type number in a file.
    pub(crate) code: u32,
    /// Name, such as `q4_k`.
    pub(crate) name: &'static str,
    /// Elements per block.
    pub(crate) block_elements: u64,
    /// Bytes per block.
    pub(crate) block_bytes: u64,
}

const fn new(code: u32, name: &'static str, block_elements: u64, block_bytes: u64) -> Kind {
    Kind { code, name, block_elements, block_bytes }
}

/// All types that a file may contain.
pub(crate) const KINDS: &[Kind] = &[
    new(0, "f32", 1, 4),
    new(1, "f16", 1, 2),
    new(2, "q4_0", 32, 18),
    new(3, "q4_1", 32, 20),
    new(6, "q5_0", 32, 22),
    new(7, "q5_1", 32, 24),
    new(8, "q8_0", 32, 34),
    new(9, "q8_1", 32, 36),
    new(10, "q2_k", 256, 84),
    new(11, "q3_k", 256, 110),
    new(12, "q4_k", 256, 144),
    new(13, "q5_k", 256, 176),
    new(14, "q6_k", 256, 210),
    new(15, "q8_k", 256, 292),
    new(16, "iq2_xxs", 256, 66),
    new(17, "iq2_xs", 256, 74),
    new(18, "iq3_xxs", 256, 98),
    new(19, "iq1_s", 256, 50),
    new(20, "iq4_nl", 32, 18),
    new(21, "iq3_s", 256, 110),
    new(22, "iq2_s", 256, 82),
    new(23, "iq4_xs", 256, 136),
    new(24, "i8", 1, 1),
    new(25, "i16", 1, 2),
    new(26, "i32", 1, 4),
    new(27, "i64", 1, 8),
    new(28, "f64", 1, 8),
    new(29, "iq1_m", 256, 56),
    new(30, "bf16", 1, 2),
    new(34, "tq1_0", 256, 54),
    new(35, "tq2_0", 256, 66),
    new(39, "mxfp4", 32, 17),
    new(40, "nvfp4", 64, 36),
    new(41, "q1_0", 128, 18),
    new(42, "q2_0", 64, 18),
];

/// The type with this number.
pub(crate) fn kind(code: u32) -> Option<&'static Kind> {
    KINDS.iter().find(|k| k.code == code)
}

/// The type with this name.
pub(crate) fn named(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|k| k.name == name)
}

impl Kind {
    /// Size in bytes of a row of `elements`; `None` if they do not fill whole blocks or the size
    /// overflows.
    pub(crate) fn row_bytes(&self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements) {
            return None;
        }
        (elements / self.block_elements).checked_mul(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (i, a) in KINDS.iter().enumerate() {
            assert!(KINDS[i + 1..].iter().all(|b| a.code != b.code && a.name != b.name));
            assert_eq!(kind(a.code), Some(a));
            assert_eq!(named(a.name), Some(a));
        }
        assert_eq!(kind(4), None, "removed from the format");
    }

    #[test]
    fn a_row_is_made_of_whole_blocks() {
        let q4_k = named("q4_k").unwrap();
        assert_eq!(q4_k.row_bytes(512), Some(288));
        assert_eq!(q4_k.row_bytes(511), None);
        assert_eq!(named("f64").unwrap().row_bytes(u64::MAX), None);
    }
}
