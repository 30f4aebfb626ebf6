//! PURE. The operator's view of the fleet: sort order and scroll position, changed by keys.

use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers};

/// Sort order of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    /// By name.
    #[default]
    Name,
    /// By state.
    State,
    /// By busy slots.
    Busy,
    /// By prefill speed.
    Prefill,
    /// By decode speed.
    Decode,
}

impl Sort {
    pub(super) const ALL: [Self; 5] =
        [Self::Name, Self::State, Self::Busy, Self::Prefill, Self::Decode];

    pub(super) fn head(self) -> &'static str {
        match self {
            Self::Name => "NODE",
            Self::State => "STATE",
            Self::Busy => "BUSY",
            Self::Prefill => "PREFILL T/S",
            Self::Decode => "DECODE T/S",
        }
    }
}

/// The operator's view settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Sort order of nodes.
    pub sort: Sort,
    /// True to reverse the order.
    pub is_reversed: bool,
    /// Lines scrolled off the top.
    pub scroll: u16,
}

impl View {
    /// Handles a key or a resize of the terminal. Returns false to quit.
    pub(crate) fn handle(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        let count = Sort::ALL.len();
        let at = Sort::ALL.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        let sort = |at: usize| Sort::ALL.get(at % count).copied().unwrap_or_default();
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Char('c' | 'd'), true) => return false,
            (KeyCode::Char(_), true) => {}
            (KeyCode::Char('q' | 'Q') | KeyCode::Esc, _) => return false,
            (KeyCode::Up | KeyCode::Char('k'), _) => self.scroll = self.scroll.saturating_sub(1),
            (KeyCode::Down | KeyCode::Char('j'), _) => self.scroll = self.scroll.saturating_add(1),
            (KeyCode::Left | KeyCode::Char('h'), _) => self.sort = sort(at + count - 1),
            (KeyCode::Right | KeyCode::Char('l'), _) => self.sort = sort(at + 1),
            (KeyCode::Char('r'), _) => self.is_reversed = !self.is_reversed,
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    fn press(code: KeyCode, modifiers: KeyModifiers) -> (bool, View) {
        let mut view = View { scroll: 1, sort: Sort::Busy, ..View::default() };
        let goes_on = view.handle(&Event::Key(KeyEvent::new(code, modifiers)));
        (goes_on, view)
    }

    #[test]
    fn arrows_and_letters_change_the_view() {
        for (letter, arrow, scroll, sort) in [
            ('k', KeyCode::Up, 0, Sort::Busy),
            ('j', KeyCode::Down, 2, Sort::Busy),
            ('h', KeyCode::Left, 1, Sort::State),
            ('l', KeyCode::Right, 1, Sort::Prefill),
        ] {
            let view = View { scroll, sort, ..View::default() };
            assert_eq!(press(KeyCode::Char(letter), KeyModifiers::NONE), (true, view));
            for modifiers in [KeyModifiers::NONE, KeyModifiers::CONTROL] {
                assert_eq!(press(arrow, modifiers), (true, view));
            }
        }
        assert!(press(KeyCode::Char('r'), KeyModifiers::NONE).1.is_reversed);
    }

    #[test]
    fn escape_q_and_control_characters_quit() {
        for code in [KeyCode::Esc, KeyCode::Char('q'), KeyCode::Char('Q')] {
            assert!(!press(code, KeyModifiers::NONE).0, "{code:?}");
        }
        for letter in ['c', 'd'] {
            assert!(!press(KeyCode::Char(letter), KeyModifiers::CONTROL).0, "{letter}");
            assert!(press(KeyCode::Char(letter), KeyModifiers::NONE).0, "{letter}");
        }
        let unchanged = View { scroll: 1, sort: Sort::Busy, ..View::default() };
        assert_eq!(press(KeyCode::Char('j'), KeyModifiers::CONTROL), (true, unchanged));
        assert_eq!(press(KeyCode::F(5), KeyModifiers::NONE), (true, unchanged));
    }
}
