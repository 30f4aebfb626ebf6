//! PURE. Finds stop strings in streamed text.
//!
//! It holds back text that might be the start of a stop string, so that no part of one is ever
//! emitted. It holds at most the length of the longest stop string.

/// Searches streamed text for stop strings.
#[derive(Debug, Default)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    pending: String,
}

impl StopMatcher {
    /// Searches for any of `stops`; never finds empty strings.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, pending: String::new() }
    }

    /// Takes text and appends what can be emitted to `out`. Returns the index of the stop string
    /// that matched, if one did: `out` ends before it, and nothing more must be pushed.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        self.pending.push_str(text);
        let stops = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found = stops.filter_map(|(index, stop)| Some((self.pending.find(stop)?, index))).min();
        if let Some((at, index)) = found {
            out.push_str(&self.pending[..at]);
            self.pending.clear();
            return Some(index);
        }
        let shown = self.pending.len() - self.partial_match();
        out.push_str(&self.pending[..shown]);
        self.pending.drain(..shown);
        None
    }

    /// Ends the text: held-back text is emitted after all.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.pending);
        self.pending.clear();
    }

    /// Length of the longest suffix of `pending` that starts a stop string.
    fn partial_match(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.pending.len().saturating_sub(longest.saturating_sub(1));
        (from..self.pending.len())
            .filter(|i| self.pending.is_char_boundary(*i))
            .find(|i| self.stops.iter().any(|s| s.starts_with(&self.pending[*i..])))
            .map_or(0, |i| self.pending.len() - i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        for chunk in chunks {
            if matcher.push(chunk, &mut out).is_some() {
                return (out, true);
            }
        }
        matcher.finish(&mut out);
        (out, false)
    }

    #[test]
    fn a_stop_string_split_over_tokens_is_found_and_never_shown() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".into(), true));
    }

    #[test]
    fn a_false_start_is_shown_once_it_is_known_to_be_one() {
        assert_eq!(run(&["END"], &["E", "N", "X"]), ("ENX".into(), false));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), true));
    }

    #[test]
    fn the_earliest_of_several_wins() {
        assert_eq!(run(&["c", "b"], &["abc"]), ("a".into(), true));
    }

    #[test]
    fn without_stops_everything_passes_at_once() {
        let mut out = String::new();
        assert_eq!(StopMatcher::new(vec![String::new()]).push("text", &mut out), None);
        assert_eq!(out, "text");
    }

    #[test]
    fn the_one_that_matched_is_named() {
        let matched = |stops: &[&str], text| {
            let stops = stops.iter().map(|stop| stop.to_string()).collect();
            StopMatcher::new(stops).push(text, &mut String::new())
        };
        assert_eq!(matched(&["", "c", "b"], "abc"), Some(2));
        assert_eq!(matched(&["bc", "b"], "abc"), Some(0));
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_text_before_the_first_stop(
            text in "[ab🐱]{0,24}", stop in "[ab🐱]{1,4}", size in 1usize..5
        ) {
            let chars: Vec<char> = text.chars().collect();
            let chunks: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
            let refs: Vec<&str> = chunks.iter().map(String::as_str).collect();
            let expected = match text.find(&stop) {
                Some(at) => (text[..at].to_string(), true),
                None => (text.clone(), false),
            };
            prop_assert_eq!(run(&[&stop], &refs), expected);
        }
    }
}
