//! `forebay scrub`: all copies of what is cached are read, and what is damaged is healed.

use clap::Subcommand;
use forebay_control::api::{Change, Done, Job, One, Pool, Scrub};
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

fn print(scrub: &Scrub) {
    let rate = match scrub.rate_bytes_per_s {
        0 => "off".to_owned(),
        rate => format!("at most {} a second, once a week", text::bytes(rate)),
    };
    say(format_args!("scrub    {rate}"));
    say(match line(scrub) {
        Some(line) => text::beside("state    ", &line),
        None if scrub.begun_unix_s == 0 => "state    none has been begun yet".to_owned(),
        None => "state    none is under way; the last one found nothing damaged".to_owned(),
    });
}
