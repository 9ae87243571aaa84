//! `forebay doctor`: whether this machine and these devices are fit, before anything is made.
//!
//! * Needs no daemon. Nothing is written to a device; durable writes are measured in a file of its
//!   own in a directory, which is gone afterwards.
//! * What could not be looked at or measured is said, with the reason; it is never left out.

mod device;
mod disks;
mod latency;
mod machine;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use clap::Args;
use forebay_control::api::SCHEMA;
use serde::Serialize;

use crate::Result;
use crate::admin::say_json;
use crate::failure::Failure;
use crate::text::{beside, say};

/// Longest wait for the next finding about a device: three times as long as a measurement takes.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// A disk, partition or file that is to be a cache device or an origin: it is only read. Or a
    /// directory: durable writes are measured there, on the disk below it
    #[arg(value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Print the answer as JSON, with the version of its form as `schema`
    #[arg(long, display_order = 901)]
    json: bool,
}

/// What a look at one thing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be, or a fact to know.
    Ok,
    /// Not looked at; the text says why.
    Skipped,
    /// It works, and something about it will be regretted.
    Warn,
    /// It does not work.
    Problem,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Skipped => "skipped",
            Verdict::Warn => "warn",
            Verdict::Problem => "problem",
        }
    }
}

/// One line.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    /// `machine`, or the path that was given.
    subject: String,
    /// What was looked at.
    check: &'static str,
    verdict: Verdict,
    /// What was found.
    what: String,
    /// What to do; empty if nothing is.
    hint: String,
}

/// All findings, as they come; a thread that looks shares them with whoever waits for it.
#[derive(Clone, Default)]
struct Findings(Arc<Mutex<Vec<Finding>>>);

impl Findings {
    fn all(&self) -> MutexGuard<'_, Vec<Finding>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, subject: &str, check: &'static str, verdict: Verdict, what: String) {
        let (subject, hint) = (subject.to_owned(), String::new());
        self.all().push(Finding { subject, check, verdict, what, hint });
    }

    /// Says what to do about the last one.
    fn hint(&self, hint: impl Into<String>) {
        if let Some(last) = self.all().last_mut() {
            last.hint = hint.into();
        }
    }
}

/// The answer with `--json`.
#[derive(Serialize)]
struct Report {
    schema: u32,
    /// The worst of all.
    verdict: Verdict,
    findings: Vec<Finding>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let found = Findings::default();
    let has_ring = machine::look(&found);
    if options.devices.is_empty() {
        disks::look(&found);
    }
    for path in &options.devices {
        look_closely(path, has_ring, &found)?;
    }
    let findings = std::mem::take(&mut *found.all());
    let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (problems, warnings) = (count(Verdict::Problem), count(Verdict::Warn));
    if options.json {
        say_json(&Report { schema: SCHEMA, verdict, findings });
    } else {
        print(&findings);
        let no_devices = options.devices.is_empty();
        say(format_args!("\n{}", conclusion(problems, warnings, no_devices)));
    }
    match problems {
        0 => Ok(()),
        1 => Err(Failure::new("there is a problem").hint("its line says what to do")),
        some => Err(Failure::new(format!("there are {some} problems"))
            .hint("the line of each says what to do")),
    }
}

/// Looks at a disk, a file or a directory, on a thread that is left behind if it does not answer.
///
/// # Errors
/// If the system has no thread.
fn look_closely(path: &Path, has_ring: bool, findings: &Findings) -> Result<()> {
    let (ending, ended) = channel();
    let seen = Findings::default();
    let (at, theirs) = (path.to_owned(), seen.clone());
    let look = move || {
        let is_directory = at.is_dir();
        let has_health = !is_directory && device::look(&at, has_ring, &theirs);
        if is_directory {
            device::look_at_directory(&at, &theirs);
        }
        // Nobody waits any more if it took too long.
        let _ = ending.send(has_health);
    };
    let thread = thread::Builder::new().name("device".to_owned()).spawn(look);
    let thread = thread.map_err(|error| Failure::system("start a thread", &error))?;
    let end = until_silent(&ended, ANSWER_MAX, || seen.all().len());
    findings.all().append(&mut seen.all());
    let subject = &*path.display().to_string();
    match end {
        // Its tools have an end of their own.
        Ok(true) => device::look_at_health(subject, path, findings),
        Ok(false) => {}
        Err(RecvTimeoutError::Timeout) => {
            let seconds = ANSWER_MAX.as_secs();
            let what = format!("it does not answer for {seconds} s: the rest was not looked at");
            findings.add(subject, "answer", Verdict::Problem, what);
            findings.hint(
                "`dmesg | tail` may tell more; this command ends when the system lets go of it",
            );
        }
        Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
    Ok(())
}

/// Waits for the end of some work for as long as it brings something at least every `limit`.
///
/// # Errors
/// If it does not, or ends without an answer.
fn until_silent<T>(
    ended: &Receiver<T>,
    limit: Duration,
    brought: impl Fn() -> usize,
) -> std::result::Result<T, RecvTimeoutError> {
    let mut known = 0;
    loop {
        let end = ended.recv_timeout(limit);
        let now = brought();
        match end {
            Err(RecvTimeoutError::Timeout) if now > known => known = now,
            end => return end,
        }
    }
}

fn print(findings: &[Finding]) {
    let mut subject = "";
    for finding in findings {
        if finding.subject != subject {
            if !subject.is_empty() {
                say("");
            }
            subject = &finding.subject;
            say(subject);
        }
        let Finding { check, verdict, what, hint, .. } = finding;
        say(beside(&format!("  {:7}  {check:11}  ", verdict.name()), what));
        if !hint.is_empty() {
            say(beside(&format!("{:24}hint: ", ""), hint));
        }
    }
}

fn conclusion(problems: usize, warnings: usize, no_devices: bool) -> String {
    let counted = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        some => Some(format!("{some} {what}s")),
    };
    let all: Vec<_> = [counted(problems, "problem"), counted(warnings, "warning")]
        .into_iter()
        .flatten()
        .collect();
    let mut text = match all.is_empty() {
        true => "Nothing stands in the way.".to_owned(),
        false => format!("{}.", all.join(", ")),
    };
    if no_devices {
        text.push_str(" Name disks, files or directories to have them looked at closely.");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn who_goes_on_finding_something_is_waited_for() {
        let (ending, ended) = channel::<bool>();
        let (tick, looks) = (Duration::from_millis(1), Cell::new(0));
        let found = |most: usize| {
            looks.set(looks.get() + 1);
            looks.get().min(most)
        };
        assert_eq!(until_silent(&ended, tick, || found(3)), Err(RecvTimeoutError::Timeout));
        assert_eq!(looks.get(), 4, "three findings, then none");
        ending.send(true).unwrap();
        assert_eq!(until_silent(&ended, tick, || 0), Ok(true));
        drop(ending);
        assert_eq!(until_silent(&ended, tick, || 9), Err(RecvTimeoutError::Disconnected));
    }
}
