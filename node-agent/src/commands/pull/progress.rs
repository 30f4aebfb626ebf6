//! Shows the progress of a pull on stderr: a bar for people, occasional lines for logs.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::text;

/// Percent between two lines.
const LINE_PERCENT: u64 = 10;
/// Bytes between two lines if the length is unknown.
const LINE_BYTES: u64 = 256_000_000;

/// Shows one file after the other.
#[derive(Debug)]
pub(crate) struct DownloadProgress {
    shown: Shown,
    name: String,
    total: Option<u64>,
    /// For lines: the next one is due at this percentage, or number of bytes.
    next: u64,
}

#[derive(Debug)]
enum Shown {
    Bar(ProgressBar),
    Lines,
    /// Lines of the agent's log.
    Log,
    Nothing,
}

impl DownloadProgress {
    /// A bar if stderr is a terminal, else lines; nothing if `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let shown = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            // Hidden until there is a file.
            (false, true) => Shown::Bar(ProgressBar::hidden()),
            (false, false) => Shown::Lines,
        };
        Self { shown, name: String::new(), total: None, next: 0 }
    }

    /// A bar if stderr is a terminal, else lines of the agent's log.
    pub(crate) fn of_service() -> Self {
        let shown = match std::io::stderr().is_terminal() {
            true => Shown::Bar(ProgressBar::hidden()),
            false => Shown::Log,
        };
        Self { shown, name: String::new(), total: None, next: 0 }
    }

    /// Starts the next file, of which `at` bytes are present.
    pub(crate) fn begin(&mut self, name: &str, at: u64, total: Option<u64>) {
        (self.name, self.total) = (name.to_string(), total);
        match &self.shown {
            Shown::Bar(before) => {
                before.finish_and_clear();
                self.shown = Shown::Bar(new_bar(name, at, total));
            }
            Shown::Lines | Shown::Log => {
                self.next = self.reached(at) + self.step();
            }
            Shown::Nothing => {}
        }
    }

    /// Sets the number of bytes present.
    pub(crate) fn set(&mut self, at: u64) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_position(at),
            Shown::Lines | Shown::Log if self.reached(at) >= self.next => {
                let reached = self.reached(at);
                self.next = reached + self.step();
                self.print(&line(&self.name, reached, self.total));
            }
            Shown::Lines | Shown::Log | Shown::Nothing => {}
        }
    }

    /// Writes a line to stderr without disturbing the bar.
    pub(crate) fn print(&self, line: &str) {
        // If writing fails, there is no one to tell.
        let write = || drop(writeln!(std::io::stderr(), "{line}"));
        match &self.shown {
            Shown::Bar(bar) => bar.suspend(write),
            Shown::Log => tracing::info!(progress = line, "download"),
            Shown::Lines | Shown::Nothing => write(),
        }
    }

    pub(crate) fn end(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }

    /// Progress in whole steps of percent or bytes.
    fn reached(&self, at: u64) -> u64 {
        match self.total {
            Some(total) => percent(at, total) / LINE_PERCENT * LINE_PERCENT,
            None => at / LINE_BYTES * LINE_BYTES,
        }
    }

    fn step(&self) -> u64 {
        if self.total.is_some() { LINE_PERCENT } else { LINE_BYTES }
    }
}

/// `reached`: percent, or bytes if the length is unknown.
fn line(name: &str, reached: u64, total: Option<u64>) -> String {
    match total {
        Some(total) => format!("{name}: {reached:3} % of {}", text::bytes(total)),
        None => format!("{name}: {}", text::bytes(reached)),
    }
}

fn percent(at: u64, total: u64) -> u64 {
    at.saturating_mul(100) / total.max(1)
}

fn new_bar(name: &str, at: u64, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr())
        .with_style(style(total.is_some()))
        .with_message(name.to_string())
        .with_position(at);
    // The bytes from an earlier pull say nothing about the speed.
    bar.reset_eta();
    bar
}

/// Our templates are always valid; another style would do no harm.
fn style(known: bool) -> ProgressStyle {
    let template = if known {
        "{wide_msg} {bar:24} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}"
    } else {
        "{wide_msg} {spinner} {decimal_bytes} {decimal_bytes_per_sec}"
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_well_formed_and_lines_are_few() {
        for template in [true, false] {
            let bar = ProgressBar::with_draw_target(Some(9), ProgressDrawTarget::hidden());
            bar.set_style(style(template));
        }
        let mut progress =
            DownloadProgress { shown: Shown::Lines, name: String::new(), total: None, next: 0 };
        progress.begin("m", 25, Some(100));
        assert_eq!(progress.next, 30);
        progress.set(29);
        assert_eq!(progress.next, 30);
        progress.set(45);
        assert_eq!(progress.next, 50);
        assert_eq!(line("m", 40, Some(100)), "m:  40 % of 100 bytes");
        progress.begin("m", 0, None);
        assert_eq!(progress.next, LINE_BYTES);
    }
}
