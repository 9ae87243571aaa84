//! `forebay job`: long work of the daemon.

use clap::Subcommand;
use forebay_control::api::{Change, Done, Job, JobState, Many, One};

use super::pool::finish;
use super::{Asking, table};
use crate::Result;
use crate::text::{self, say, whole};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the work that is under way or has ended
    List,
    /// Show one piece of work
    Show {
        /// Its number
        #[arg(value_parser = whole::<u64>(..))]
        number: u64,
    },
    /// End it before its end, where that is safe
    Cancel {
        /// Its number
        #[arg(value_parser = whole::<u64>(..))]
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
    let to_go = job.left_s.map_or(String::new(), |left| format!(", {} to go", text::left(left)));
    format!("{left}, {}/s{to_go}", text::bytes(job.rate_bytes_per_s))
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
        // What has ended has nothing to go.
        match job.left_s.filter(|_| job.state == JobState::Running) {
            Some(left) => text::left(left),
            None => "-".to_owned(),
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_has_rate_and_time_or_what_is_waited_for() {
        let job = serde_json::json!({
            "number": 1, "what": "flush of volume \"fast/vm\"", "state": "running", "joined": false,
            "total_bytes": 3u64 << 30, "left_bytes": 2u64 << 30, "rate_bytes_per_s": 8 << 20,
            "left_s": 256, "error": null, "waits_for": "",
        });
        let mut job: Job = serde_json::from_value(job).unwrap();
        assert_eq!(how_far(&job), "1 GiB of 3 GiB done, 2 GiB left, 8 MiB/s, 4 min to go");
        (job.left_s, job.rate_bytes_per_s) = (None, 0);
        assert_eq!(how_far(&job), "1 GiB of 3 GiB done, 2 GiB left, 0 B/s");
        job.waits_for = "the origin of fast/vm, which fails".to_owned();
        let waits = "1 GiB of 3 GiB done, 2 GiB left; waits for the origin of fast/vm, which fails";
        assert_eq!(how_far(&job), waits);
    }
}
