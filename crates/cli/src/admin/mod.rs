//! Commands that ask the daemon: thin wrappers around its API.
//!
//! What was asked for goes to standard output, as text or with `--json` as the API's answer; what
//! is said about it, to standard error.

mod activity;
pub(crate) mod advisor;
mod bypass;
pub(crate) mod codes;
mod consent;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod job;
pub(crate) mod pool;
pub(crate) mod scrub;
mod settings;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod volume;
mod wear;

use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use forebay_control::api::{Done, Job, JobState, One, Plan};
use forebay_control::client::{self, Client};
use forebay_control::error::Code;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Result;
use crate::daemon::config::CONTROL_PATH;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::text::{self, say, say_on, tell};

/// How often a command looks how far its job is.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(200);

/// After how long it looks first; many a job has nothing to do.
const POLL_FIRST: std::time::Duration = std::time::Duration::from_millis(10);

/// Exit code after a second Ctrl-C, as a shell reports an interrupted command.
const EXIT_INTERRUPTED: i32 = 130;

/// Exit code of a command line that makes no sense, whoever finds that out.
const EXIT_USAGE: i32 = 2;

/// What every command that asks has.
#[derive(Args)]
pub(crate) struct Asking {
    /// The daemon's control socket
    #[arg(long, value_name = "PATH", env = "FOREBAY_CONTROL", hide_env_values = true,
        default_value = CONTROL_PATH, global = true, display_order = 900)]
    control: PathBuf,
    /// Print the answer as JSON, with the version of its form as `schema`
    #[arg(long, global = true, display_order = 901)]
    json: bool,
    /// Print sizes in bytes, to the last one; what the daemon says in sentences keeps its units
    #[arg(long, global = true, display_order = 902)]
    bytes: bool,
}

/// An open way to the daemon.
pub(crate) struct Daemon<'a> {
    client: Client<'a>,
    socket: &'a Path,
    json: bool,
}

impl Asking {
    /// Prepares to ask.
    ///
    /// # Errors
    /// If the system gives too little.
    pub(crate) fn daemon(&self) -> Result<Daemon<'_>> {
        text::tell_bytes(self.bytes);
        let client = Client::new(&self.control)
            .map_err(|error| Failure::system("prepare to ask the daemon", &error))?;
        Ok(Daemon { client, socket: &self.control, json: self.json })
    }
}

impl Daemon<'_> {
    fn explain<T>(&self, answer: std::result::Result<T, client::Failure>) -> Result<T> {
        let socket = self.socket.display();
        answer.map_err(|failure| match failure {
            client::Failure::Connect(error) if error.kind() == ErrorKind::PermissionDenied => {
                Failure::new(format!("the control socket {socket} may not be opened: {error}")).hint(
                    "ask as root, or as who may open it: control.mode in the daemon's configuration",
                )
            }
            client::Failure::Connect(error) => {
                Failure::new(format!("no daemon answers at {socket}: {error}")).hint(
                    "start it with `forebay serve`; or name its socket with --control or in \
                     FOREBAY_CONTROL",
                )
            }
            client::Failure::Broken(why) => {
                Failure::new(format!("the daemon at {socket} gave no answer: {why}"))
                    .hint("see its log; `forebay status` shows whether it was carried out")
            }
            client::Failure::Refused(error) => error.into(),
        })
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.explain(self.client.get(path))
    }

    /// The same; nothing if no daemon is there, or one that is about to end.
    fn get_if_there<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        match self.client.get(path) {
            Err(client::Failure::Connect(error)) if error.kind() != ErrorKind::PermissionDenied => {
                Ok(None)
            }
            Err(client::Failure::Broken(_)) => Ok(None),
            Err(client::Failure::Refused(error)) if error.code == Code::Stopping => Ok(None),
            answer => self.explain(answer).map(Some),
        }
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.explain(self.client.post(path, body))
    }

    fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.explain(self.client.patch(path, body))
    }

    fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.explain(self.client.delete(path))
    }

    /// Prints an answer, as it is or as text.
    fn print<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T)) {
        if !self.json {
            return text(answer);
        }
        say_json(answer);
    }

    /// Prints one of many answers, as JSON on a line of its own; false if it cannot be written.
    fn print_line<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T) -> bool) -> bool {
        match serde_json::to_string(answer) {
            Ok(json) if self.json => say_on(json),
            _ => text(answer),
        }
    }

    /// Asks what a [`Change`](forebay_control::api::Change) would do, and prints it.
    fn plan(&self, change: &impl Serialize) -> Result<()> {
        let plan: Plan = self.post("/api/v1/plan", change)?;
        self.print(&plan, |plan| {
            say(text::beside("", &format!("{}:", plan.what)));
            for step in &plan.steps {
                say(text::beside("  - ", step));
            }
            let erased: Vec<_> =
                plan.erased.iter().map(|path| path.display().to_string()).collect();
            say(match erased.is_empty() {
                true => "Nothing would be erased.".to_owned(),
                false => text::beside("Would be erased: ", &erased.join(", ")),
            });
        });
        Ok(())
    }

    /// Waits for a job with progress; an error unless it has done what it was for. Ctrl-C asks the
    /// daemon to end it where it can be ended; one that somebody else has begun is left alone.
    fn follow(&self, begun: One<Job>) -> Result<One<Job>> {
        let interrupts = self.client.interrupts();
        let mut interrupts =
            interrupts.map_err(|error| Failure::system("wait for Ctrl-C", &error))?;
        let (mut job, joined) = (begun.clone(), begun.item.joined);
        let at = format!("/api/v1/jobs/{}", job.item.number);
        let progress = Progress::watch(&job.item.what);
        let (mut elapsed, mut is_cancelled, mut pause) = (0, false, POLL_FIRST);
        while job.item.state == JobState::Running {
            if self.client.pause(pause, &mut interrupts) {
                if joined {
                    progress.finish();
                    return Err(Failure::new("it goes on, for somebody else has begun it")
                        .on(&job.item.what)
                        .hint(format!("to end it: `forebay job cancel {}`", job.item.number)));
                }
                if is_cancelled {
                    progress.finish();
                    tell(format_args!("{} goes on; see `forebay job list`", job.item.what));
                    std::process::exit(EXIT_INTERRUPTED);
                }
                is_cancelled = true;
                // It may have ended just now.
                let _ = self.delete::<Done>(&at);
            }
            elapsed += pause.as_nanos() as u64;
            pause = (pause * 2).min(POLL_INTERVAL);
            job = self.get(&at)?;
            progress.tell(elapsed, &job::how_far(&job.item));
        }
        progress.finish();
        match (job.item.state, job.item.error.clone()) {
            (JobState::Done, _) => Ok(job),
            (_, Some(error)) => Err(Failure::from(error).on(&job.item.what)),
            (_, None) => Err(Failure::new("cancelled").on(&job.item.what)),
        }
    }
}

/// Prints an answer as JSON.
pub(crate) fn say_json(answer: &impl Serialize) {
    match serde_json::to_string_pretty(answer) {
        Ok(json) => say(json),
        Err(error) => tell(format_args!("error: {error}")),
    }
}

#[allow(clippy::disallowed_methods, reason = "a command has no reactor, and nothing else to do")]
fn wait(span: std::time::Duration) {
    std::thread::sleep(span);
}

/// A path as the daemon understands it, whose directory is another one.
fn absolute(path: &Path) -> Result<PathBuf> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::new(format!("the path {} cannot be used: {why}", path.display()))
            .hint("write it from the root on")
    };
    let path = std::path::absolute(path).map_err(|error| failed(&error))?;
    path.to_str().ok_or_else(|| failed(&"it is not UTF-8"))?;
    Ok(path)
}

/// What a part of the command line means. If it means nothing the command ends here, as for clap: nothing was asked of the
/// daemon yet.
fn understood<T>(parsed: Result<T>) -> T {
    parsed.unwrap_or_else(|failure| {
        crate::report_misuse(&failure);
        std::process::exit(EXIT_USAGE)
    })
}

/// Has a word typed, unless `yes`, of which `which` says which one it is: a name once more.
fn confirm(which: &str, name: &str, what: &str, yes: bool) -> Result<()> {
    confirm_by("--yes", which, name, what, yes)
}

/// The same of a danger that has a flag of its own; `said` if that was given.
fn confirm_by(flag: &str, which: &str, name: &str, what: &str, said: bool) -> Result<()> {
    if said {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(format!(
            "{what}: that needs a confirmation, and there is no terminal"
        ))
        .hint(format!("say {flag} in a script")));
    }
    tell(format_args!("{what}."));
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "Type {which} to go on: ").and_then(|()| out.flush());
    drop(out);
    let mut typed = String::new();
    let read = std::io::stdin().lock().read_line(&mut typed);
    if read.is_ok() && typed.trim() == name {
        return Ok(());
    }
    Err(Failure::new("not confirmed; nothing was changed").hint(format!("type {name}")))
}

/// The least room for what is broken into lines.
const CELL_COLUMNS_MIN: usize = 20;

/// Rows with their columns below each other, the last one as long as it is, or broken into lines where a terminal
/// has room for that.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut all = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    all.extend(rows.iter().cloned());
    let widths: Vec<usize> = (0..head.len())
        .map(|column| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut lines = Vec::new();
    for row in &all {
        let Some((last, cells)) = row.split_last() else { continue };
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  "));
        let head: String = cells.collect();
        let further = head.chars().count();
        let line = match text::columns(std::io::stdout()) {
            // A path is not broken: it has a line of its own.
            Some(columns)
                if last.split(' ').any(|word| further + word.chars().count() > columns) =>
            {
                format!("{}\n    {last}", head.trim_end())
            }
            Some(columns) if further + CELL_COLUMNS_MIN <= columns => {
                text::wrapped(columns, &head, further, last)
            }
            _ => format!("{head}{last}"),
        };
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_below_each_other_and_lines_have_no_tail() {
        let rows =
            [vec!["a".to_owned(), "1 GiB".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(table(&["NAME", "SIZE"], &rows), "NAME  SIZE\na     1 GiB\nlong");
    }
}
