//! The terminal: raw mode, alternate screen, always restored.

use std::io::{self, IsTerminal, stdout};
use std::mem::ManuallyDrop;

use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, EnterAlternateScreen};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::{DefaultTerminal, Frame, TerminalOptions, Viewport};

/// Columns and rows of a terminal that does not report its size, such as a serial console.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);

/// The terminal in raw mode. Dropping it, or a panic, restores it.
#[derive(Debug)]
pub struct Screen {
    /// Not dropped: its Drop reports a failure on standard error, which panics if the terminal is
    /// gone.
    terminal: ManuallyDrop<DefaultTerminal>,
    has_colors: bool,
}

impl Screen {
    /// Takes over the terminal of standard input and output.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn take() -> Result<Self, String> {
        if !(io::stdin().is_terminal() && stdout().is_terminal()) {
            return Err("this needs a terminal; --once prints the table once".into());
        }
        let failed = |e: io::Error| format!("the terminal cannot be used: {e}");
        // Fixed: ratatui would draw nothing on a terminal that reports no size.
        let options = TerminalOptions { viewport: Viewport::Fixed(area()) };
        let terminal = ratatui::try_init_with_options(options).map_err(failed)?;
        let screen = Self { terminal: ManuallyDrop::new(terminal), has_colors: has_colors() };
        execute!(stdout(), EnterAlternateScreen).map_err(failed)?;
        Ok(screen)
    }

    /// Replaces the contents of the screen with what `render` draws.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let area = area();
        if self.terminal.get_frame().area() != area {
            self.terminal.resize(area)?;
        }
        let has_colors = self.has_colors;
        self.terminal.draw(|frame| {
            render(frame);
            if !has_colors {
                // Headings stay bold.
                let plain = Style::new().fg(Color::Reset).remove_modifier(Modifier::DIM);
                frame.buffer_mut().set_style(area, plain);
            }
        })?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If this fails, the terminal is gone, and there is nothing to restore.
        let _ = self.terminal.show_cursor();
        // A panic has restored the rest already. Leaving the alternate screen twice would move the
        // cursor back, over the panic's message.
        if terminal::is_raw_mode_enabled().unwrap_or(true) {
            let _ = ratatui::try_restore();
        }
    }
}

fn area() -> Rect {
    let known = terminal::size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0);
    let (columns, rows) = known.unwrap_or(SIZE_UNKNOWN);
    Rect::new(0, 0, columns, rows)
}

/// Off if NO_COLOR is set (no-color.org).
fn has_colors() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}
