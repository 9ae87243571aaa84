//! The daemon's log: lines to standard error, written by a thread of their own.
//!
//! * Whoever logs never waits: a terminal that is stopped, or a pipe that nobody reads, must not hold
//!   a reactor up. What the thread cannot keep up with is dropped and counted.
//! * Under systemd each line carries its priority, and the time is the journal's.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::Result;
use crate::failure::Failure;
use crate::text;

/// Lines that wait for the thread; more are dropped. A bad day's worth at once, some hundred KiB.
const LINES_MAX: usize = 4096;

/// How long the end waits until the last lines are out.
const END_TIME_MAX: Duration = Duration::from_secs(1);

/// The way to the thread.
#[derive(Clone)]
struct Lines {
    sender: Arc<Mutex<Option<SyncSender<Vec<u8>>>>>,
    dropped: Arc<AtomicU64>,
    is_journal: bool,
}

/// One line on its way.
struct Line<'a> {
    lines: &'a Lines,
    bytes: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let sender = self.lines.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = sender.as_ref().map(|way| way.try_send(std::mem::take(&mut self.bytes)));
        if !matches!(sent, Some(Ok(()))) {
            self.lines.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { lines: self, bytes: Vec::new() }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line<'a> {
        // sd-daemon(3).
        let priority: &[u8] = match *about.level() {
            _ if !self.is_journal => b"",
            Level::ERROR => b"<3>",
            Level::WARN => b"<4>",
            Level::INFO => b"<6>",
            _ => b"<7>",
        };
        Line { lines: self, bytes: priority.to_vec() }
    }
}

/// What `FOREBAY_LOG` asks for.
fn level(asked: Option<OsString>) -> Result<LevelFilter> {
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(LevelFilter::INFO) };
    asked.to_str().and_then(|asked| asked.parse().ok()).ok_or_else(|| {
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        let nearest = text::did_you_mean(&asked.to_string_lossy(), levels.into_iter());
        let hint = "set it to off, error, warn, info, debug or trace, or leave it out for info";
        Failure::new(format!("FOREBAY_LOG says {asked:?}, which is no level"))
            .hint(format!("{nearest}{hint}"))
    })
}

/// Writes lines until there is no way for more.
fn write(lines: &Receiver<Vec<u8>>, dropped: &AtomicU64, out: &mut impl Write) {
    for line in lines {
        let missing = dropped.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _ = writeln!(out, "{missing} lines of the log are missing: nobody took them");
        }
        let _ = out.write_all(&line);
    }
}

/// The log; its last lines are written when this is dropped.
pub(super) struct Log {
    lines: Lines,
    ended: Receiver<()>,
}

impl Log {
    /// Begins to log, for the whole process. `FOREBAY_LOG` says what.
    ///
    /// # Errors
    /// If it says nothing known, or the system gives no thread.
    pub(super) fn start() -> Result<Log> {
        let level = level(std::env::var_os("FOREBAY_LOG"))?;
        Self::start_at(level).map_err(|error| Failure::system("start the log", &error))
    }

    fn start_at(level: LevelFilter) -> io::Result<Log> {
        let (sender, receiver) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let (end, ended) = channel();
        let theirs = Arc::clone(&dropped);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            write(&receiver, &theirs, &mut io::stderr());
            let _ = end.send(());
        })?;
        let is_journal =
            std::env::var_os("JOURNAL_STREAM").is_some() && !io::stderr().is_terminal();
        let lines = Lines { sender: Arc::new(Mutex::new(Some(sender))), dropped, is_journal };
        let log = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(lines.clone())
            .with_ansi(io::stderr().is_terminal())
            .with_target(false);
        if is_journal {
            log.without_time().init();
        } else {
            log.init();
        }
        text::tell_to_log(true);
        Ok(Log { lines, ended })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        text::tell_to_log(false);
        self.lines.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that nobody takes lines from ends with the process.
        let _: std::result::Result<(), RecvTimeoutError> = self.ended.recv_timeout(END_TIME_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_level_is_refused_and_nothing_is_the_usual_one() {
        let of = |asked: &str| level(Some(asked.into())).ok();
        assert_eq!(level(None).ok(), Some(LevelFilter::INFO));
        assert_eq!(of(""), Some(LevelFilter::INFO));
        assert_eq!(
            (of("debug"), of("ERROR")),
            (Some(LevelFilter::DEBUG), Some(LevelFilter::ERROR))
        );
        assert_eq!((of("verbose"), of("forebay=debug"), of("warn ")), (None, None, None));
        let refused = level(Some("dbeug".into())).expect_err("it is none");
        assert!(refused.hint_text().starts_with("did you mean debug? "), "{refused:?}");
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_hold_nobody_up() {
        let (sender, receiver) = sync_channel(2);
        let dropped = Arc::new(AtomicU64::new(0));
        let lines = Lines {
            sender: Arc::new(Mutex::new(Some(sender))),
            dropped: Arc::clone(&dropped),
            is_journal: false,
        };
        for number in 0..5 {
            writeln!(lines.make_writer(), "line {number}").unwrap();
        }
        lines.sender.lock().unwrap().take();
        let mut out = Vec::new();
        write(&receiver, &dropped, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "3 lines of the log are missing: nobody took them\nline 0\nline 1\n");
    }
}
