//! Shows the progress of measurements: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between frames of the spinner.
const TICK: Duration = Duration::from_millis(200);

/// A progress bar; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// `steps`: their number, if known.
    pub(crate) fn new(steps: Option<u64>) -> Self {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(steps, target).with_style(style(steps.is_some()));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Self(bar)
    }

    /// Starts the next step; the previous one is done.
    pub(crate) fn begin(&self, what: &str) {
        self.0.set_message(what.to_string());
    }

    /// Marks a step as done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// Runs something that writes, without disturbing the bar.
    pub(crate) fn beside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }

    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Our templates are always valid; another style would do no harm.
fn style(counted: bool) -> ProgressStyle {
    let template = match counted {
        true => "{spinner} {wide_msg} {bar:24} {pos}/{len} {elapsed}",
        false => "{spinner} {wide_msg} {elapsed}",
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
