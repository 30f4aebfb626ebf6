//! PURE. Sets of characters and of bytes.

use crate::text::grammar::pattern::character;

/// Inclusive ranges of code points: sorted, disjoint, without surrogates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CharSet(Vec<(u32, u32)>);

const LAST: u32 = char::MAX as u32;
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

impl CharSet {
    /// A set from `ranges` in any order.
    pub(crate) fn new(ranges: impl IntoIterator<Item = (char, char)>) -> Self {
        let ranges = ranges.into_iter().map(|(from, to)| (u32::from(from), u32::from(to)));
        Self::of(ranges.filter(|(from, to)| from <= to).collect())
    }

    /// A single character.
    pub(crate) fn one(c: char) -> Self {
        Self::new([(c, c)])
    }

    /// All characters.
    pub(crate) fn all() -> Self {
        Self::default().negated()
    }

    fn of(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut apart: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (from, to) in ranges {
            match apart.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => apart.push((from, to)),
            }
        }
        Self(apart).without_surrogates()
    }

    fn without_surrogates(self) -> Self {
        let (low, high) = SURROGATES;
        let cut = |(from, to): (u32, u32)| {
            let before = (from < low).then(|| (from, to.min(low - 1)));
            let after = (to > high).then(|| (from.max(high + 1), to));
            [before, after].into_iter().flatten()
        };
        Self(self.0.into_iter().flat_map(cut).collect())
    }

    /// The complement.
    pub(crate) fn negated(&self) -> Self {
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for (from, to) in &self.0 {
            if *from > next {
                rest.push((next, from - 1));
            }
            next = to + 1;
        }
        if next <= LAST {
            rest.push((next, LAST));
        }
        Self(rest).without_surrogates()
    }

    /// True if it has no characters.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if both sets have a common character.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let mut others = other.0.iter().peekable();
        self.0.iter().any(|(from, to)| {
            while others.next_if(|(_, end)| end < from).is_some() {}
            others.peek().is_some_and(|(begin, _)| begin <= to)
        })
    }

    /// First UTF-8 bytes of the characters.
    pub(crate) fn first_bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        for (from, to) in &self.0 {
            for byte in first_byte(*from)..=first_byte(*to) {
                bytes.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
            }
        }
        bytes
    }

    /// Converts it to a character class of a regular expression.
    pub(crate) fn regex(&self) -> String {
        let name = |code: u32| char::from_u32(code).map(character).unwrap_or_default();
        match self.0.as_slice() {
            [(from, to)] if from == to => name(*from),
            ranges => {
                let range = |(from, to): &(u32, u32)| match from == to {
                    true => name(*from),
                    false => format!("{}-{}", name(*from), name(*to)),
                };
                format!("[{}]", ranges.iter().map(range).collect::<String>())
            }
        }
    }
}

/// First UTF-8 byte of a code point; it increases with the code point.
fn first_byte(code: u32) -> u8 {
    let mut buffer = [0; 4];
    let first = |c: char| c.encode_utf8(&mut buffer).bytes().next();
    char::from_u32(code).and_then(first).unwrap_or(u8::MAX)
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bytes([u64; 4]);

impl Bytes {
    /// Adds the bytes of `other`.
    pub(crate) fn add(&mut self, other: Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    /// True if both sets have a common byte.
    pub(crate) fn meets(&self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(word, other)| word & other != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_negate() {
        let set = CharSet::new([('c', 'f'), ('a', 'b'), ('x', 'x')]);
        assert_eq!(set.regex(), "[a-fx]");
        assert_eq!(set.negated().negated(), set);
        assert!(CharSet::all().negated().is_empty());
        assert_eq!(CharSet::one('/').regex(), r"\x{2f}");
        assert!(!CharSet::all().regex().contains("d800"));
    }

    #[test]
    fn sets_meet_where_they_share_a_character() {
        let set = CharSet::new([('a', 'c'), ('x', 'z')]);
        assert!(set.meets(&CharSet::one('y')));
        assert!(set.meets(&CharSet::new([('d', 'x')])));
        assert!(!set.meets(&CharSet::new([('d', 'w')])));
        assert!(!set.meets(&set.negated()));
    }

    #[test]
    fn first_bytes_are_those_of_utf8() {
        let first = |c: char| CharSet::one(c).first_bytes();
        assert!(first('é').meets(first('è')));
        assert!(!first('é').meets(first('e')));
        assert!(CharSet::new([('a', '\u{10ffff}')]).first_bytes().meets(first('中')));
    }
}
