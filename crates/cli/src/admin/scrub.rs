//! `forebay scrub`: all copies of what is cached are read, and what is damaged is healed.

use clap::Subcommand;
use forebay_control::api::{Change, Done, Job, JobState, Many, One, Pool, Scrub};
use forebay_control::name::Name;

use super::pool::finish;
use super::{Asking, Daemon};
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, say, tell};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Read all copies now; what is damaged is healed from another copy, or dropped if its origin has it
    Start {
        /// The pool
        pool: Name,
        /// Wait until it has ended
        #[arg(long)]
        wait: bool,
        /// Only say what would be done
        #[arg(long, conflicts_with = "wait")]
        dry_run: bool,
    },
    /// End it where it is; the next one begins when it is due
    Stop {
        /// The pool
        pool: Name,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Show how far it is and what it has found
    Status {
        /// The pool
        pool: Name,
    },
}

/// Runs the command.
pub(crate) fn run(command: Command, asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    match command {
        Command::Start { pool, dry_run: true, .. } => {
            return daemon.plan(&Change::StartScrub(pool));
        }
        Command::Start { pool, wait, dry_run: false } => {
            let job: One<Job> = daemon.post(&format!("/api/v1/pools/{pool}/scrub"), &())?;
            let job = if wait { daemon.follow(job)? } else { job };
            daemon.print(&job, |_| tell_started(&pool, wait));
            if wait && !daemon.json {
                return show(&daemon, &pool);
            }
        }
        Command::Stop { pool, dry_run: true } => return daemon.plan(&Change::StopScrub(pool)),
        Command::Stop { pool, dry_run: false } => {
            let done: Done = daemon.delete(&format!("/api/v1/pools/{pool}/scrub"))?;
            finish(&daemon, &done);
        }
        Command::Status { pool } => return show(&daemon, &pool),
    }
    Ok(())
}

fn tell_started(pool: &Name, is_over: bool) {
    if !is_over {
        tell(format_args!("the scrub is under way; next: `forebay scrub status {pool}`"));
    }
}

fn show(daemon: &Daemon<'_>, name: &Name) -> Result<()> {
    let pool: One<Pool> = daemon.get(&format!("/api/v1/pools/{name}"))?;
    let scrub = pool.item.usage.map(|usage| usage.scrub).ok_or_else(|| {
        Failure::new(format!("pool \"{name}\" is not open"))
            .hint(format!("`forebay pool show {name}` says why"))
    })?;
    let jobs: Many<Job> = daemon.get("/api/v1/jobs")?;
    let last = last_of(name, &jobs.items);
    daemon.print(&One::of(scrub), |scrub| print(&scrub.item, last));
    Ok(())
}

/// The last scrub of a pool that the daemon remembers as a job.
fn last_of<'a>(pool: &Name, jobs: &'a [Job]) -> Option<&'a Job> {
    let what = format!("scrub of pool \"{pool}\"");
    jobs.iter().filter(|job| job.what == what).max_by_key(|job| job.number)
}

/// How a scrub goes, in one line; nothing if there is nothing to say.
pub(super) fn line(scrub: &Scrub) -> Option<String> {
    if !scrub.running && is_clean(scrub) {
        return None;
    }
    if !scrub.running {
        return Some(format!("the last one found {}", found(scrub)));
    }
    let left = text::bytes(scrub.left_bytes);
    let until = match (scrub.left_s, scrub.waits_for.as_str()) {
        (Some(left), _) => format!("about {} to go", text::left(left)),
        (None, "") => "nobody can tell when it ends".to_owned(),
        (None, waits_for) => format!("it waits for {waits_for}"),
    };
    Some(format!("{left} left to read, {until}; so far {}", found(scrub)))
}

/// Whether all could be read and was found as it should be.
fn is_clean(scrub: &Scrub) -> bool {
    let left = scrub.unread_blocks + scrub.unmended_records;
    scrub.damaged_blocks + scrub.replaced_records + left == 0
}

fn found(scrub: &Scrub) -> String {
    if is_clean(scrub) {
        return "nothing is damaged".to_owned();
    }
    let unread = match (scrub.unread_blocks, scrub.unmended_records) {
        (0, 0) => String::new(),
        (unread, unmended) => format!(
            "; {unread} blocks and {unmended} records of metadata could not be read from some device"
        ),
    };
    format!(
        "{} damaged blocks: {} copied again, {} dropped, {} good in no copy; {} records of metadata \
         replaced{unread}",
        scrub.damaged_blocks,
        scrub.copied_blocks,
        scrub.dropped_blocks,
        scrub.unhealed_blocks,
        scrub.replaced_records
    )
}

fn print(scrub: &Scrub, last: Option<&Job>) {
    let rate = match scrub.rate_bytes_per_s {
        0 => "off".to_owned(),
        rate => format!("at most {} a second, once a week", text::bytes(rate)),
    };
    say(format_args!("scrub    {rate}"));
    say(text::beside("state    ", &state(scrub, last)));
}

/// How a scrub is or was: one that was ended early has not looked at all there is.
fn state(scrub: &Scrub, last: Option<&Job>) -> String {
    let line = line(scrub);
    if scrub.running {
        return line.unwrap_or_default();
    }
    if scrub.begun_unix_s == 0 {
        return "none has been begun yet".to_owned();
    }
    let Some(last) = last else {
        let found = line.map_or(String::new(), |line| format!("{line}; "));
        return format!("none is under way; {found}`forebay events` says how the last one ended");
    };
    if matches!(last.state, JobState::Cancelled | JobState::Failed) {
        let read = text::bytes(last.total_bytes.saturating_sub(last.left_bytes));
        let total = text::bytes(last.total_bytes);
        let found = found(scrub);
        return format!(
            "none is under way; the last one was ended after {read} of {total}; until then {found}"
        );
    }
    line.unwrap_or_else(|| "none is under way; the last one found nothing damaged".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u64, what: &str, state: &str, left_mib: u64) -> Job {
        let job = serde_json::json!({
            "number": number, "what": what, "state": state, "total_bytes": 96 << 20,
            "left_bytes": left_mib << 20, "rate_bytes_per_s": 1 << 20, "left_s": null, "error": null,
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_scrub_that_was_ended_early_is_not_one_that_found_nothing() {
        let mut scrub = Scrub { begun_unix_s: 1, ..Scrub::default() };
        let of = |pool: &str| format!("scrub of pool \"{pool}\"");
        let done = job(3, &of("fast"), "done", 0);
        let ended = job(4, &of("fast"), "cancelled", 91);
        let jobs = [done.clone(), ended.clone(), job(5, &of("faster"), "done", 0)];
        let pool: Name = "fast".parse().unwrap();
        assert_eq!(last_of(&pool, &jobs).map(|job| job.number), Some(4));
        let whole = "none is under way; the last one found nothing damaged";
        assert_eq!(state(&scrub, Some(&done)), whole);
        let early = "none is under way; the last one was ended after 5 MiB of 96 MiB; until then ";
        assert_eq!(state(&scrub, Some(&ended)), format!("{early}nothing is damaged"));
        let unknown = "none is under way; `forebay events` says how the last one ended";
        assert_eq!(state(&scrub, None), unknown);
        scrub.damaged_blocks = 3;
        assert!(state(&scrub, Some(&ended)).starts_with(&format!("{early}3 damaged blocks")));
        assert!(state(&scrub, Some(&done)).starts_with("the last one found 3 damaged blocks"));
        scrub.begun_unix_s = 0;
        assert_eq!(state(&scrub, None), "none has been begun yet");
    }
}
