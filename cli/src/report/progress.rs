//! A progress bar on standard error, only when it is a terminal: a log file gets no control codes.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress of long work.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar over `steps` steps.
    pub(crate) fn new(label: &str, steps: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(
            Some(steps),
            if std::io::stderr().is_terminal() {
                ProgressDrawTarget::stderr()
            } else {
                ProgressDrawTarget::hidden()
            },
        );
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(label.to_string());
        Progress(bar)
    }

    /// Says what is being done now.
    pub(crate) fn message(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }

    /// One step is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
