//! What a command is doing: one line that redraws itself on a terminal, plain lines elsewhere.

use std::cell::Cell;
use std::io::IsTerminal;

use forebay_device::runtime::{Nanos, SECOND};
use indicatif::{ProgressBar, ProgressStyle};

use crate::text::{self, tell};

/// Time between plain lines.
const PLAIN_INTERVAL: Nanos = 2 * SECOND;

/// One piece of work.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    total: u64,
    /// Tenths of the work, or time, at the last plain line.
    told: Cell<u64>,
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Progress {
    fn new(what: &str, total: u64, template: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total).with_style(style(template));
            bar.set_prefix(what.to_owned());
            bar
        });
        Progress { bar, what: what.to_owned(), total, told: Cell::new(0) }
    }

    /// Work that is counted in bytes.
    pub(crate) fn bytes(what: &str, total: u64) -> Progress {
        let template = "{prefix} [{bar:30}] {binary_bytes} of {binary_total_bytes}, \
                        {binary_bytes_per_sec}, {eta} left";
        Progress::new(what, total, template)
    }

    /// Work that is watched for a while.
    pub(crate) fn watch(what: &str) -> Progress {
        Progress::new(what, 0, "{spinner} {prefix:14} {msg}")
    }

    /// Tells how many bytes are done.
    pub(crate) fn bytes_done(&self, done: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None => {
                let quarters = done * 4 / self.total.max(1);
                if quarters > self.told.replace(quarters) {
                    let (done, total) = (text::bytes(done), text::bytes(self.total));
                    tell(format_args!("{}: {done} of {total}", self.what));
                }
            }
        }
    }

    /// Tells how it goes after `elapsed`.
    pub(crate) fn tell(&self, elapsed: Nanos, message: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(message.to_owned());
                bar.tick();
            }
            None => {
                let interval = elapsed / PLAIN_INTERVAL;
                if interval > self.told.replace(interval) {
                    tell(format_args!("{}: {message}", self.what));
                }
            }
        }
    }

    /// Leaves the last state on the screen.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}
