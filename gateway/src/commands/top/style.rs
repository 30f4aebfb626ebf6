//! PURE. Styles of the screen, and text that is safe to print.

use ratatui::style::{Color, Modifier, Style};

pub(super) const PLAIN: Style = Style::new();
pub(super) const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// Worth a look.
pub(super) const WARNING: Style = Style::new().fg(Color::Yellow);
/// Needs action.
pub(super) const BAD: Style = Style::new().fg(Color::Red);
pub(super) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// Node, model, and tenant names are foreign input: control characters must not reach the terminal.
pub(super) fn safe(text: &str) -> String {
    let safe = |c: char| if c.is_control() || is_invisible(c) { '?' } else { c };
    text.chars().map(safe).collect()
}

/// Characters that change the text direction or are invisible.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
