//! `forebay job`: long work of the daemon.

use clap::Subcommand;
use forebay_control::api::{Change, Done, Job, JobState, Many, One};

use super::pool::finish;
use super::{Asking, table};
use crate::Result;
use crate::text::{self, say};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the work that is under way or has ended
    List,
    /// Show one piece of work
    Show {
        /// Its number
        number: u64,
    },
    /// End it before its end, where that is safe
    Cancel {
        /// Its number
        number: u64,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

/// How far work under way is, or what it waits for.
pub(super) fn how_far(job: &Job) -> String {
    // More than there was if clients write: nothing of what there was can be said to be done then.
    let done = text::bytes(job.total_bytes.saturating_sub(job.left_bytes));
    let total = text::bytes(job.total_bytes);
    let left = format!("{done} of {total} done, {} left", text::bytes(job.left_bytes));
    if !job.waits_for.is_empty() {
        return format!("{left}; waits for {}", job.waits_for);
    }
    let to_go = job.left_s.map_or("-".to_owned(), |seconds| format!("{seconds} s"));
    format!("{left}, {}/s, {to_go} to go", text::bytes(job.rate_bytes_per_s))
}

fn row(job: &Job) -> Vec<String> {
    let what = match (&job.error, job.waits_for.as_str()) {
        (Some(error), _) => format!("{}: {}", job.what, error.message),
        (None, "") => job.what.clone(),
        (None, waits_for) => format!("{}: waits for {waits_for}", job.what),
    };
    vec![
        job.number.to_string(),
        state_name(job.state).to_owned(),
        text::bytes(job.total_bytes),
        text::bytes(job.left_bytes),
        format!("{}/s", text::bytes(job.rate_bytes_per_s)),
        job.left_s.map_or("-".to_owned(), |seconds| format!("{seconds} s")),
        what,
    ]
}

fn print(jobs: &[Job]) {
    let rows: Vec<_> = jobs.iter().map(row).collect();
    say(table(&["JOB", "STATE", "TOTAL", "LEFT", "RATE", "TO GO", "WHAT"], &rows));
}

/// Runs the command.
pub(crate) fn run(command: Command, asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    match command {
        Command::List => {
            let jobs: Many<Job> = daemon.get("/api/v1/jobs")?;
            daemon.print(&jobs, |jobs| print(&jobs.items));
        }
        Command::Show { number } => {
            let job: One<Job> = daemon.get(&format!("/api/v1/jobs/{number}"))?;
            daemon.print(&job, |job| print(std::slice::from_ref(&job.item)));
        }
        Command::Cancel { number, dry_run: true } => {
            return daemon.plan(&Change::CancelJob(number));
        }
        Command::Cancel { number, dry_run: false } => {
            let done: Done = daemon.delete(&format!("/api/v1/jobs/{number}"))?;
            finish(&daemon, &done);
        }
    }
    Ok(())
}
