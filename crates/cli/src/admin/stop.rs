//! `forebay stop`.

use clap::Args;
use forebay_control::api::{Change, One, Status, Stop, Stopping};

use super::{Asking, Daemon, POLL_INTERVAL, confirm};
use crate::Result;
use crate::failure::Failure;
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
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    asking: Asking,
}

/// When a process was started, in the kernel's clock ticks; `None` if it cannot be seen. Numbers of
/// processes are given out again, this tells them apart.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    // proc(5): field 3 is the first one after the name, a zombie has ended; 22 is the start time.
    let mut fields = after_name.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Waits until the daemon's process has ended, or Ctrl-C was pressed.
fn wait(daemon: &Daemon<'_>, pid: u32) -> Result<()> {
    let interrupts = daemon.client.interrupts();
    let mut interrupts = interrupts.map_err(|error| Failure::system("wait for Ctrl-C", &error))?;
    let first = started(pid);
    while first.is_some() && started(pid) == first {
        if daemon.client.pause(POLL_INTERVAL, &mut interrupts) {
            return Err(Failure::new("not waited for: the daemon is ending")
                .hint("its log says when it has"));
        }
    }
    Ok(())
}

/// What may be gone for good when the daemon closes it.
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

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let daemon = options.asking.daemon()?;
    let body = Stop { destage: options.destage };
    if options.dry_run {
        return daemon.plan(&Change::Stop(body));
    }
    let status: Status = daemon.get("/api/v1/status")?;
    let clients: usize = status.exports.iter().map(|export| export.clients).sum();
    let cut_off = || format!("\"stop\" cuts off the daemon's clients, {clients} at the moment");
    let gone = endangered(&status).filter(|_| !options.destage);
    let whats: Vec<_> = gone.into_iter().chain((clients > 0).then(cut_off)).collect();
    if !whats.is_empty() {
        confirm("stop", "stop", &whats.join("; "), options.yes)?;
    }
    let stopping: Stopping = daemon.post("/api/v1/stop", &body)?;
    if let Some(job) = stopping.job.clone() {
        daemon.follow(One::of(job))?;
    }
    let last = daemon.get_if_there::<Status>("/api/v1/status")?.unwrap_or(status);
    let usage = last.pools.iter().filter_map(|pool| pool.usage.as_ref());
    let lost: u64 = usage.map(|usage| usage.lost_bytes).sum();
    wait(&daemon, stopping.pid)?;
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
