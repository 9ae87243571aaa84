//! `forebay stop`.

use std::path::PathBuf;

use clap::Args;
use forebay_control::api::{Change, One, Plan, Status, Stop, Stopping};

use super::{Asking, Daemon, POLL_INTERVAL, confirm, confirm_by};
use crate::Result;
use crate::failure::Failure;
use crate::machine::started;
use crate::text::{self, tell};

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// Bring all dirty data to the origins first; the daemon goes on if that fails or is cancelled
    #[arg(long)]
    destage: bool,
    /// Do not ask although clients are connected
    #[arg(long)]
    yes: bool,
    /// Do not ask although files that were removed while in use are gone then, with all that they hold
    #[arg(long)]
    discard_removed: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    asking: Asking,
}

/// Waits until the daemon's process has ended, or Ctrl-C was pressed. `seen` is when the process of the daemon's number was
/// started, as seen from here before.
fn wait(daemon: &Daemon<'_>, stopping: &Stopping, seen: Option<u64>) -> Result<()> {
    let not_waited = |what: &str| {
        Err(Failure::new(format!("not waited for: {what}")).hint("its log says when it has ended"))
    };
    // A daemon of an older version does not tell.
    if seen.is_none() || stopping.started.is_some_and(|started| seen != Some(started)) {
        return not_waited("the daemon is ending, in another PID namespace than this command's");
    }
    let interrupts = daemon.client.interrupts();
    let mut interrupts = interrupts.map_err(|error| Failure::system("wait for Ctrl-C", &error))?;
    while started(stopping.pid) == seen {
        if daemon.client.pause(POLL_INTERVAL, &mut interrupts) {
            return not_waited("the daemon is ending");
        }
    }
    Ok(())
}

/// What it means that the daemon closes these.
fn gone(paths: &[PathBuf]) -> String {
    let (were, they) = if paths.len() == 1 { ("was", "it holds") } else { ("were", "they hold") };
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let paths = paths.join(", ");
    format!("{paths} {were} removed while in use: what {they} is gone when the daemon ends")
}

/// What may be gone for good when the daemon closes it, as far as a daemon of an older version tells.
fn endangered(status: &Status) -> Option<String> {
    let is_removed = |how: &str| how.contains("was removed while in use");
    let mut volumes = status.pools.iter().flat_map(|pool| &pool.volumes);
    if let Some(volume) = volumes.find(|volume| is_removed(&volume.reason)) {
        return Some(format!("Volume \"{}\": {}", volume.name, volume.reason));
    }
    let mut members = status.pools.iter().flat_map(|pool| &pool.members);
    let member = members.find(|member| is_removed(&member.displaced))?;
    Some(format!("SSD {}: {}", member.path.as_ref()?.display(), member.displaced))
}

/// Files that are gone with such an end, as the daemon has it; none if it does not tell, or destages first.
fn erased(daemon: &Daemon<'_>, body: &Stop) -> Vec<PathBuf> {
    if body.destage {
        return Vec::new();
    }
    let plan = daemon.post::<Plan>("/api/v1/plan", &Change::Stop(body.clone()));
    plan.map_or_else(|_| Vec::new(), |plan| plan.erased)
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let daemon = options.asking.daemon()?;
    let mut body = Stop { destage: options.destage, accept_removed: false };
    if options.dry_run {
        return daemon.plan(&Change::Stop(body));
    }
    let status: Status = daemon.get("/api/v1/status")?;
    let seen = started(status.pid);
    let clients: usize = status.exports.iter().map(|export| export.clients).sum();
    let cut_off = || format!("\"stop\" cuts off the daemon's clients, {clients} at the moment");
    let erased = erased(&daemon, &body);
    // Said only where there is something to agree to: a daemon of an older version does not know of it.
    body.accept_removed = !erased.is_empty();
    let gone = match erased.is_empty() {
        true => endangered(&status).filter(|_| !options.destage),
        false => Some(gone(&erased)),
    };
    if let Some(gone) = &gone {
        confirm_by("--discard-removed", "stop", "stop", gone, options.discard_removed)?;
    }
    if clients > 0 {
        confirm("stop", "stop", &cut_off(), options.yes)?;
    }
    let stopping: Stopping = daemon.post("/api/v1/stop", &body)?;
    if let Some(job) = stopping.job.clone() {
        daemon.follow(One::of(job))?;
    }
    let last = daemon.get_if_there::<Status>("/api/v1/status")?.unwrap_or(status);
    let usage = last.pools.iter().filter_map(|pool| pool.usage.as_ref());
    let lost: u64 = usage.map(|usage| usage.lost_bytes).sum();
    wait(&daemon, &stopping, seen)?;
    daemon.print(&stopping, |stopping| match (&stopping.job, stopping.dirty_bytes) {
        (Some(_), _) if lost > 0 => tell(format_args!(
            "the daemon has stopped; every origin has what is left, and {} are lost",
            text::bytes(lost)
        )),
        (Some(_), _) => tell("the daemon has stopped; every origin has all of its data"),
        (None, 0) => tell("the daemon has stopped"),
        (None, dirty) => tell(format_args!(
            "the daemon has stopped; {} exist only on its cache devices",
            text::bytes(dirty)
        )),
    });
    Ok(())
}
