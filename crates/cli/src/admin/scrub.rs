//! `forebay scrub`: all copies of what is cached are read, and what is damaged is healed.

use clap::Subcommand;
use forebay_control::api::{Change, Done, Job, One, Pool, Scrub};
use forebay_control::name::Name;

use super::pool::finish;
use super::{Asking, Daemon};
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, plural, say, tell};

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
    daemon.print(&One::of(scrub), |scrub| print(&scrub.item));
    Ok(())
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
            "; {} and {} of metadata could not be read from some device",
            plural(unread as usize, "block"),
            plural(unmended as usize, "record")
        ),
    };
    format!(
        "{}: {} copied again, {} dropped, {} good in no copy; {} of metadata replaced{unread}",
        plural(scrub.damaged_blocks as usize, "damaged block"),
        scrub.copied_blocks,
        scrub.dropped_blocks,
        scrub.unhealed_blocks,
        plural(scrub.replaced_records as usize, "record")
    )
}

fn print(scrub: &Scrub) {
    let rate = match scrub.rate_bytes_per_s {
        0 => "off".to_owned(),
        rate => format!("at most {} a second, once a week", text::bytes(rate)),
    };
    say(format_args!("scrub    {rate}"));
    say(text::beside("state    ", &state(scrub)));
}

/// How a scrub is or was: one that was ended early has not looked at all there is.
fn state(scrub: &Scrub) -> String {
    let line = line(scrub);
    if scrub.running {
        return line.unwrap_or_default();
    }
    if scrub.begun_unix_s == 0 {
        return "none has been begun yet".to_owned();
    }
    let Some(last) = scrub.last else {
        let found = line.map_or(String::new(), |line| format!("{line}; "));
        return format!("none is under way; {found}`forebay events` says how the last one ended");
    };
    if last.early {
        let (read, total) = (text::bytes(last.read_bytes), text::bytes(last.total_bytes));
        let found = found(scrub);
        return format!(
            "none is under way; the last one was ended after {read} of {total}; until then {found}"
        );
    }
    line.unwrap_or_else(|| "none is under way; the last one found nothing damaged".to_owned())
}

#[cfg(test)]
mod tests {
    use forebay_control::api::ScrubEnd;

    use super::*;

    #[test]
    fn a_scrub_that_was_ended_early_is_not_one_that_found_nothing() {
        let total_bytes = 96 << 20;
        let done = Some(ScrubEnd { early: false, read_bytes: total_bytes, total_bytes });
        let ended = Some(ScrubEnd { early: true, read_bytes: 5 << 20, total_bytes });
        let of = |last, damaged_blocks| Scrub {
            begun_unix_s: 1,
            last,
            damaged_blocks,
            ..Scrub::default()
        };
        let whole = "none is under way; the last one found nothing damaged";
        assert_eq!(state(&of(done, 0)), whole);
        let early = "none is under way; the last one was ended after 5 MiB of 96 MiB; until then ";
        assert_eq!(state(&of(ended, 0)), format!("{early}nothing is damaged"));
        let unknown = "none is under way; `forebay events` says how the last one ended";
        assert_eq!(state(&of(None, 0)), unknown);
        assert!(state(&of(ended, 3)).starts_with(&format!("{early}3 damaged blocks")));
        assert!(state(&of(done, 3)).starts_with("the last one found 3 damaged blocks"));
        assert_eq!(state(&Scrub::default()), "none has been begun yet");
    }
}
