//! `forebay doctor`: whether this machine and these devices are fit, before anything is made.
//!
//! * Needs no daemon. Nothing is written to a device; durable writes are measured in a file of its
//!   own in a directory, which is gone afterwards.
//! * What could not be looked at or measured is said, with the reason; it is never left out.

mod device;
mod disks;
mod latency;
mod machine;

use std::path::PathBuf;

use clap::Args;
use forebay_control::api::SCHEMA;
use serde::Serialize;

use crate::Result;
use crate::admin::say_json;
use crate::failure::Failure;
use crate::text::{beside, say};

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

/// All findings, as they come.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, subject: &str, check: &'static str, verdict: Verdict, what: String) {
        let (subject, hint) = (subject.to_owned(), String::new());
        self.0.push(Finding { subject, check, verdict, what, hint });
    }

    /// Says what to do about the last one.
    fn hint(&mut self, hint: impl Into<String>) {
        if let Some(last) = self.0.last_mut() {
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
    let mut findings = Findings::default();
    let reactor = machine::look(&mut findings);
    if options.devices.is_empty() {
        disks::look(&mut findings);
    }
    for path in &options.devices {
        if path.is_dir() {
            device::look_at_directory(path, &mut findings);
        } else {
            device::look(path, reactor.as_ref(), &mut findings);
        }
    }
    if let Some(reactor) = reactor {
        reactor.close();
    }
    let findings = findings.0;
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
