//! The terminal: raw mode, alternate screen, always restored.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::frame::{Line, Style};

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// Size of a terminal that does not report one: columns, rows.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);

/// The terminal in raw mode. Dropping it, or a panic, restores it.
#[derive(Debug)]
pub struct Screen {
    before: Arc<Before>,
    has_colours: bool,
}

/// The terminal's state before.
#[derive(Debug)]
struct Before {
    termios: Termios,
    is_restored: AtomicBool,
}

impl Before {
    fn restore(&self) {
        if !self.is_restored.swap(true, Ordering::Relaxed) {
            // If this fails, nobody is left to tell.
            let _ = write(LEAVE.as_bytes());
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.termios);
        }
    }
}

impl Screen {
    /// Takes over the terminal of standard input and output.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn take() -> Result<Self, String> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Err("this needs a terminal; --once prints the table once".into());
        }
        let failed = |e: rustix::io::Errno| format!("the terminal cannot be used: {e}");
        let termios = tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = termios.clone();
        raw.make_raw();
        let before = Arc::new(Before { termios, is_restored: AtomicBool::new(false) });
        restore_on_panic(before.clone());
        let screen = Self { before, has_colours: has_colours() };
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw).map_err(failed)?;
        write(ENTER.as_bytes()).map_err(|e| format!("the terminal cannot be written: {e}"))?;
        Ok(screen)
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).map_or(SIZE_UNKNOWN, |s| (s.ws_col, s.ws_row));
        let (columns, rows) = if size.0 == 0 || size.1 == 0 { SIZE_UNKNOWN } else { size };
        (columns.into(), rows.into())
    }

    /// Replaces the contents of the screen.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&self, lines: &[Line]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (row, line) in lines.iter().enumerate() {
            let style = if self.has_colours { colour(line.style) } else { plain(line.style) };
            let end = if row + 1 == lines.len() { "" } else { "\r\n" };
            text += &format!("{style}{}\x1b[0m\x1b[K{end}", line.text);
        }
        text += "\x1b[J";
        write(text.as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.before.restore();
    }
}

/// Restores the terminal before a panic message is printed.
fn restore_on_panic(before: Arc<Before>) {
    let inner = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before.restore();
        inner(panic);
    }));
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Off if NO_COLOR is set (no-color.org).
fn has_colours() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

fn colour(style: Style) -> &'static str {
    match style {
        Style::Plain => "",
        Style::Head => "\x1b[1m",
        Style::Good => "\x1b[32m",
        Style::Warning => "\x1b[33m",
        Style::Bad => "\x1b[31m",
        Style::Faint => "\x1b[2m",
    }
}

/// Without colors, headings are still bold.
fn plain(style: Style) -> &'static str {
    if style == Style::Head { "\x1b[1m" } else { "" }
}
