//! Whether a cache device can be pulled: what the engine says, in sentences, and how long to wait.

use std::path::Path;

use forebay_control::api;
use forebay_control::name::Name;
use forebay_device::real::open::typed;
use forebay_engine::format::{MemberState, Superblock};
use forebay_engine::{Hold, Pull};

use super::devices::Device;
use super::progress::not_over;
use super::volumes::BLOCK_BYTES;
use super::{Daemon, Open, Slot};
use crate::Result;
use crate::text::{self, plural};

/// Why not the device at this place, what to do, and how long that takes.
fn reason(
    name: &Name,
    open: &Open,
    path: &Path,
    pull: &Pull,
    hold: Hold,
) -> (String, String, Option<u64>) {
    let superblock = open.pool.superblock();
    let flush: Vec<String> = superblock
        .volumes
        .iter()
        .filter(|volume| volume.may_be_dirty)
        .map(|volume| format!("`forebay volume flush {name}/{}`", volume.name))
        .collect();
    let flush = flush.join(", ");
    let add = format!("add another one first: `forebay pool device add {name} PATH`");
    // Beside the last one nothing else has what is dirty.
    let only = pull.only_dirty_bytes + if hold == Hold::Last { pull.short_bytes } else { 0 };
    let lost = format!("{} are dirty and on it alone, and would be lost", text::bytes(only));
    match hold {
        Hold::Last if only > 0 => (
            format!("it is the only one: {lost}"),
            format!("{add}; to have nothing to lose here: {flush}"),
            None,
        ),
        Hold::Last => {
            let why = "it is the only one: nothing would be lost, but the pool would stop writing";
            (why.to_owned(), add, None)
        }
        Hold::OnlyCopy => {
            let (_, copied_again) = open.pool.short_bytes();
            let wait = match superblock.dirty_copies {
                1 => None,
                _ if copied_again => Some("wait for the event `copies-restored`".to_owned()),
                _ => Some(add),
            };
            let wait = wait.map_or(String::new(), |wait| format!("{wait}; or "));
            let action = format!(
                "{wait}bring them home: {flush}; or have it emptied: `forebay pool device remove {name} {}`",
                typed(path)
            );
            let restored = open.rebuild().left_s.filter(|_| superblock.dirty_copies > 1);
            (lost, action, restored.or(open.safe().destage.left_s).map(not_over))
        }
        Hold::Doubted => (
            format!(
                "{} are dirty, and of the others, which have them, one has returned damage, or not what it was asked for",
                text::bytes(pull.short_bytes)
            ),
            format!("bring them home: {flush}"),
            open.safe().destage.left_s.map(not_over),
        ),
        Hold::Witness => (
            "the witness cannot be written, and without it one that is stale may be believed"
                .to_owned(),
            "make the state directory writable".to_owned(),
            None,
        ),
        Hold::Latched => (
            "the pool has stopped writing, and may need it".to_owned(),
            "see `forebay events`, and restart the daemon before anything else".to_owned(),
            None,
        ),
    }
}

/// What would be different, a sentence each.
fn notes(name: &Name, open: &Open, pull: &Pull, left: usize) -> Vec<String> {
    let (bytes, mut notes) = (text::bytes, Vec::new());
    if pull.leaves {
        notes.push("It is being removed: wait for that, and nothing goes with it.".to_owned());
    }
    if !pull.written_through.is_empty() {
        let volumes: Vec<_> =
            pull.written_through.iter().map(|volume| format!("{name}/{volume}")).collect();
        notes.push(format!(
            "Write-back ends until there is another one: {} {} written through, and what is dirty is \
             destaged.",
            volumes.join(", "),
            if volumes.len() == 1 { "is" } else { "are" },
        ));
    }
    if pull.short_bytes > 0 {
        let how = match pull.copied_again {
            true => format!("is copied again ({} left)", plural(left, "cache device")),
            false => "is destaged".to_owned(),
        };
        notes.push(format!(
            "{} of dirty data have a copy less until that {how}.",
            bytes(pull.short_bytes)
        ));
    }
    if pull.only_clean_bytes > 0 {
        let cached = (open.pool.blocks().0 * BLOCK_BYTES).max(1);
        let share = 100.0 * pull.only_clean_bytes as f64 / cached as f64;
        notes.push(format!(
            "{} of clean data go with it, {share:.0} % of what is cached: they are read from origins \
             again.",
            bytes(pull.only_clean_bytes)
        ));
    }
    notes
}

/// An answer about a device that the pool does not use.
fn unused(device: &str, id: String, summary: &str, action: &str) -> api::Pull {
    api::Pull {
        device: device.to_owned(),
        id,
        safe: action.is_empty(),
        summary: summary.to_owned(),
        action: action.to_owned(),
        wait_s: Some(0).filter(|_| action.is_empty()),
        only_dirty_bytes: 0,
        only_clean_bytes: 0,
        ends_write_back: false,
        notes: Vec::new(),
    }
}

/// One that the pool has gone on without, or that it does not have yet.
fn not_in_use(slot: &Slot, superblock: &Superblock, wanted: &str) -> Option<api::Pull> {
    let seen = slot.seen.borrow();
    let gone = superblock.members.iter().filter(|member| member.state != MemberState::Present);
    let mut places = gone.map(|member| {
        let id = member.device;
        (id, seen.iter().find(|found| found.superblock.device == id))
    });
    let gone = places.find(|(id, found)| {
        id.to_string() == wanted || found.is_some_and(|found| found.path == Path::new(wanted))
    });
    if let Some((id, found)) = gone {
        let device = found.map_or(wanted.to_owned(), |found| found.path.display().to_string());
        let summary = "Safe to pull: the pool has gone on without it.";
        return Some(unused(&device, id.to_string(), summary, ""));
    }
    let is_new = slot.record.borrow().ssds.iter().any(|path| path == Path::new(wanted))
        && seen.iter().all(|found| found.path != Path::new(wanted));
    is_new.then(|| {
        let summary = "Not safe to pull: it is being added just now.";
        unused(wanted, String::new(), summary, "ask again when that has ended")
    })
}

impl Daemon {
    /// Whether a pool uses the device at this path, or keeps it as a spare.
    fn is_used_at(&self, path: &Path) -> bool {
        self.open_pools().iter().any(|(_, open)| {
            let (members, spares) = (open.members.borrow(), open.spares.ready());
            let mut all = members.files().chain(spares.iter().flat_map(|(_, spare)| spare.files()));
            all.any(|(at, _)| at == path)
        })
    }

    /// Whether a cache device can be pulled now.
    pub(super) fn can_i_pull(&self, name: &Name, wanted: &str) -> Result<api::Pull> {
        let (slot, open) = self.open(name.as_str())?;
        let superblock = open.pool.superblock();
        if let Some((id, path)) = self.spare_named(name, wanted)? {
            let path = path.display().to_string();
            if open.spares.is_ready(&id) {
                let summary = "Safe to pull: it is a spare and holds nothing.";
                return Ok(unused(&path, id, summary, ""));
            }
            let summary =
                "Not known to be safe to pull: a spare was there last, and is not held now.";
            let action = format!("see what is there instead: `forebay inspect {path}`");
            return Ok(unused(&path, id, summary, &action));
        }
        let device = match self.device_of(name, wanted) {
            Ok(device) => device,
            // What is at the path of one that was lost may be another pool's by now.
            Err(failure) if self.is_used_at(Path::new(wanted)) => return Err(failure),
            Err(failure) => return not_in_use(&slot, &superblock, wanted).ok_or(failure),
        };
        Ok(pull_of(name, &open, &device, &open.pool.can_pull(device.id)?))
    }

    /// The pools as they are shown, each cache device with whether it can be pulled.
    pub(super) fn show_pools(&self) -> Vec<api::Pool> {
        self.describe_pools().into_iter().map(|pool| self.with_pulls(pool)).collect()
    }

    /// The same of one.
    pub(super) fn show_pool(&self, name: &str) -> Result<api::Pool> {
        Ok(self.with_pulls(self.describe_pool(name)?))
    }

    fn with_pulls(&self, mut pool: api::Pool) -> api::Pool {
        let (Ok((_, open)), Ok(name)) = (self.open(&pool.name), pool.name.parse()) else {
            return pool;
        };
        for (id, pull) in open.pool.can_pull_each() {
            let is_it =
                |member: &&mut api::Member| member.state.is_there() && member.id == id.to_string();
            let Some(member) = pool.members.iter_mut().find(is_it) else { continue };
            let Some(path) = member.path.clone() else { continue };
            member.pull = Some(pull_of(&name, &open, &Device { id, path }, &pull));
        }
        pool
    }
}

/// What would be if a device that a pool uses were pulled now.
fn pull_of(name: &Name, open: &Open, device: &Device, pull: &Pull) -> api::Pull {
    if let Some(host) = open.pool.lost_to() {
        let (path, id) = (device.path.display().to_string(), device.id.to_string());
        let summary = format!("Not safe to pull: host \"{host}\" has taken the pool over.");
        return unused(&path, id, &summary, "ask there");
    }
    let (summary, action, wait_s) = match pull.held_by {
        Some(hold) => {
            let (why, action, wait_s) = reason(name, open, &device.path, pull, hold);
            (format!("Not safe to pull: {why}."), action, wait_s)
        }
        None => {
            let why = match () {
                () if pull.has_failed => "it has failed, and the pool goes on without it",
                () if open.pool.unproven_blocks() == 0 && open.is_any_displaced() => {
                    "nothing is dirty"
                }
                () if open.pool.unproven_blocks() == 0 && open.pool.lost_blocks() > 0 => {
                    "every origin has what is left"
                }
                () if open.pool.unproven_blocks() == 0 => "every origin has all of its data",
                () => "all that is dirty is on another cache device, too",
            };
            (format!("Safe to pull: {why}."), String::new(), Some(0))
        }
    };
    let left = open.pool.superblock().present().count().saturating_sub(1);
    api::Pull {
        device: device.path.display().to_string(),
        id: device.id.to_string(),
        safe: pull.held_by.is_none(),
        summary,
        action,
        wait_s,
        only_dirty_bytes: pull.only_dirty_bytes,
        only_clean_bytes: pull.only_clean_bytes,
        ends_write_back: !pull.written_through.is_empty(),
        notes: notes(name, open, pull, left),
    }
}
