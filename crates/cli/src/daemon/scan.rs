//! Finding cache devices by what is on them. Only reads, without claiming anything.
//!
//! Any place may not answer. A [`walk`] goes from one to the next on a thread of its own; if it is stuck,
//! another one goes on with the rest, and the place is left alone until the first has returned.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_control::error::Code;
use forebay_device::real::lock_holder;
use forebay_device::real::open::typed;
use forebay_engine::format::{
    CLAIM_BYTES, Claim, FormatError, Layout, SUPERBLOCK_BYTES, SlotChoice, Spare, Superblock,
};

use forebay_engine::ids::{DeviceId, PoolId};

use super::state::Record;
use crate::failure::Failure;
use crate::members::Identity;

/// A device with a superblock.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) superblock: Superblock,
    /// What hosts have said there of having the pool open.
    pub(super) claims: Vec<Claim>,
    /// Who on this machine has it locked.
    pub(super) locked_by: Option<String>,
}

/// A device with the mark of a spare.
#[derive(Clone, Debug)]
pub(super) struct Marked {
    pub(super) path: PathBuf,
    pub(super) mark: Spare,
}

/// A device with superblocks that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    pub(super) path: PathBuf,
    /// The pools that they name, as far as that can be believed.
    pools: Vec<PoolId>,
    why: String,
    /// Whether they are whole, and of a later version.
    pub(super) is_later: bool,
}

impl Unread {
    /// That it is there, and why it is of no use.
    pub(super) fn said(&self) -> String {
        format!("{} is there and cannot be read: {}", self.path.display(), self.why)
    }

    /// What to do about it.
    pub(super) fn advice(&self) -> String {
        match self.is_later {
            true => "use the version of Forebay that wrote it, or a later one".to_owned(),
            false => format!("see `forebay inspect {}`", typed(&self.path)),
        }
    }
}

/// What a scan has found.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    pub(super) members: Vec<Found>,
    pub(super) unread: Vec<Unread>,
    pub(super) spares: Vec<Marked>,
}

/// What a device is.
enum Kind {
    Member(Box<Found>),
    Unread(Unread),
    Spare(Marked),
}

/// A device whose superblock slots hold this; `None` if neither has ever been one.
fn unread(path: &Path, slots: &[Option<Vec<u8>>; 2], why: String, is_later: bool) -> Option<Kind> {
    let pools = slots.iter().flatten().filter_map(|bytes| Superblock::resembled_by(bytes));
    let pools: Vec<_> = pools.collect();
    let path = path.to_owned();
    (!pools.is_empty()).then_some(Kind::Unread(Unread { path, pools, why, is_later }))
}

/// What is at `path`; `None` for whatever is none of ours, or does not return anything.
fn look(path: &Path) -> Option<Kind> {
    let meta = std::fs::metadata(path).ok()?;
    let kind = meta.file_type();
    // Opening a pipe or a terminal could hang or do something.
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let file = File::open(path).ok()?;
    let slots = [0, 1].map(|slot| {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        file.read_exact_at(&mut bytes, Layout::superblock_offset(slot)).ok().map(|()| bytes)
    });
    let decode = |slot: &Option<Vec<u8>>| {
        slot.as_deref().map_or(Err(FormatError::Truncated), Superblock::decode)
    };
    let (first, second) = (decode(&slots[0]), decode(&slots[1]));
    let superblock = match (Superblock::choose(&first, &second), &slots) {
        (SlotChoice::Slot0, _) => first.ok()?,
        (SlotChoice::Slot1, _) => second.ok()?,
        (SlotChoice::Refused(error), _) => return unread(path, &slots, error.to_string(), true),
        (SlotChoice::Conflict, _) => {
            let why = "its two superblocks contradict each other".to_owned();
            return unread(path, &slots, why, false);
        }
        (SlotChoice::Neither, [Some(one), Some(other)])
            if let Ok(mark) = Spare::choose([one, other]) =>
        {
            return Some(Kind::Spare(Marked { path: path.to_owned(), mark }));
        }
        (SlotChoice::Neither, _) => {
            let why = first.err().map_or(String::new(), |error| format!(" ({error})"));
            return unread(path, &slots, format!("both superblocks are damaged{why}"), false);
        }
    };
    let claim = |slot| {
        let mut bytes = vec![0; CLAIM_BYTES];
        file.read_exact_at(&mut bytes, Claim::offset(&superblock, slot)?).ok()?;
        Claim::decode(&bytes).ok()
    };
    let claims = [0, 1].into_iter().filter_map(claim).collect();
    let locked_by = lock_holder(&meta);
    let path = path.to_owned();
    Some(Kind::Member(Box::new(Found { path, superblock, claims, locked_by })))
}

/// Where there may be a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    At(PathBuf),
    /// All that a pattern matches.
    Like(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::At(path) => path.display().fmt(f),
            Place::Like(pattern) => pattern.fmt(f),
        }
    }
}

/// How far a scan is.
#[derive(Default)]
pub(super) struct Trail {
    left: VecDeque<Place>,
    /// Where the walk is, and how many places it has been at.
    at: Option<Place>,
    steps: u64,
    /// Places to leave alone.
    avoided: BTreeSet<Place>,
    /// Devices that were looked at: one that has several names is found once, under the first.
    seen: Vec<Identity>,
    found: Sight,
}

/// A scan, for those who walk and for who waits.
#[derive(Clone, Default)]
pub(super) struct Scan(Arc<Mutex<Trail>>);

impl Scan {
    /// One of all these places but those to be avoided, in this order.
    pub(super) fn of(places: impl Iterator<Item = Place>, avoided: BTreeSet<Place>) -> Scan {
        let trail = Trail { left: places.collect(), avoided, ..Trail::default() };
        Scan(Arc::new(Mutex::new(trail)))
    }

    fn trail(&self) -> MutexGuard<'_, Trail> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the walk is, and a number that changes when it goes on.
    pub(super) fn at(&self) -> (Option<Place>, u64) {
        let trail = self.trail();
        (trail.at.clone(), trail.steps)
    }

    /// Leaves a place alone that the walk is stuck at; the next walk goes on with the rest.
    pub(super) fn avoid(&self, place: Place) {
        let mut trail = self.trail();
        trail.avoided.insert(place);
        trail.steps += 1;
    }

    /// What has been found so far.
    pub(super) fn take(&self) -> Sight {
        std::mem::take(&mut self.trail().found)
    }

    /// The next place, for the walk that has come to step `own`, or none if another one has taken over.
    fn next(&self, own: &mut Option<u64>) -> Option<Place> {
        let mut trail = self.trail();
        if own.is_some_and(|own| own != trail.steps) {
            return None;
        }
        let place = loop {
            let place = trail.left.pop_front();
            if place.as_ref().is_none_or(|place| !trail.avoided.contains(place)) {
                break place;
            }
        };
        trail.steps += 1;
        *own = Some(trail.steps);
        trail.at.clone_from(&place);
        place
    }

    /// Notes a device; whether it was not seen yet.
    fn is_new(&self, identity: Identity) -> bool {
        let mut trail = self.trail();
        let is_new = !trail.seen.contains(&identity);
        trail.seen.push(identity);
        is_new
    }
}

/// Paths that a pattern matches. Those of its last part are only listed: to look at one may take for ever,
/// and the others would not be found.
fn matched(pattern: &str) -> Vec<PathBuf> {
    let all = |pattern: &str| -> Vec<PathBuf> {
        glob::glob(pattern).into_iter().flatten().filter_map(Result::ok).collect()
    };
    let is_plain = |part: &str| !part.contains(['*', '?', '[']);
    let parts = pattern.rsplit_once('/').filter(|(_, last)| !last.contains("**"));
    let Some((folder, last)) = parts else { return all(pattern) };
    let Ok(wanted) = glob::Pattern::new(last) else { return Vec::new() };
    let folders = if is_plain(folder) { vec![format!("{folder}/").into()] } else { all(folder) };
    let mut found = Vec::new();
    for folder in folders {
        if is_plain(last) {
            found.push(folder.join(last));
            continue;
        }
        let names = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        let names = names.map(|entry| entry.file_name());
        let wanted = names.filter(|name| name.to_str().is_some_and(|name| wanted.matches(name)));
        found.extend(wanted.map(|name| folder.join(name)));
    }
    found.sort();
    found
}

/// Goes from place to place; blocks at each as long as that does not answer.
pub(super) fn walk(scan: &Scan) {
    let mut own = None;
    while let Some(place) = scan.next(&mut own) {
        match place {
            Place::Like(pattern) => {
                let matched = matched(&pattern);
                scan.trail().left.extend(matched.into_iter().map(Place::At));
            }
            Place::At(path) => {
                if Identity::of(&path).is_some_and(|identity| scan.is_new(identity))
                    && let Some(kind) = look(&path)
                {
                    let found = &mut scan.trail().found;
                    match kind {
                        Kind::Member(member) => found.members.push(*member),
                        Kind::Unread(unread) => found.unread.push(unread),
                        Kind::Spare(spare) => found.spares.push(spare),
                    }
                }
            }
        }
    }
}

/// What of a scan belongs to one pool.
pub(super) fn of_pool<'a>(found: &'a [Found], id: &str) -> Vec<&'a Found> {
    found.iter().filter(|found| found.superblock.pool.to_string() == id).collect()
}

/// Refuses devices of a pool of which one is a copy of another: nobody can tell which of the two is the right one.
pub(super) fn refuse_copies(own: &[&Found]) -> crate::Result<()> {
    let mut seen: BTreeMap<DeviceId, &Path> = BTreeMap::new();
    for Found { path, superblock, .. } in own {
        let Some(other) = seen.insert(superblock.device, path) else { continue };
        let what = format!(
            "{} and {} both claim to be cache device {} of pool \"{}\": one is a copy of the other",
            other.display(),
            path.display(),
            superblock.device,
            superblock.name
        );
        return Err(Failure::coded(Code::Refused, what).hint(
            "detach the copy, or erase it: what was written since it was made is on the other one alone",
        ));
    }
    Ok(())
}

/// Where the devices of a pool are.
pub(super) fn paths_of(record: &Record, sight: &Sight) -> crate::Result<Vec<PathBuf>> {
    let own = of_pool(&sight.members, &record.id);
    if own.is_empty() {
        if let Some(unread) = sight.unread_of(record).next() {
            let what = format!(
                "no cache device of pool \"{}\" can be read: {}",
                record.name,
                unread.said()
            );
            return Err(Failure::coded(Code::NotFound, what).hint(unread.advice()));
        }
        let last: Vec<_> = record.ssds.iter().map(|path| path.display().to_string()).collect();
        let what = format!("no cache device of pool \"{}\" is there", record.name);
        return Err(Failure::coded(Code::NotFound, what)
            .hint(format!("attach them; they were last at {}", last.join(", "))));
    }
    refuse_copies(&own)?;
    Ok(own.iter().map(|found| found.path.clone()).collect())
}

/// Refuses to go on without a device that a newer Forebay has written, and can read.
pub(super) fn refuse_later(record: &Record, sight: &Sight) -> crate::Result<()> {
    let is_whole = is_complete(&of_pool(&sight.members, &record.id));
    let later = sight.unread_of(record).find(|unread| unread.is_later);
    let Some(later) = later.filter(|_| !is_whole) else { return Ok(()) };
    let (name, said) = (&record.name, later.said());
    let what = format!("a cache device of pool \"{name}\" at {said}");
    Err(Failure::coded(Code::NeedsDecision, what).hint(format!(
        "{}; or go on without it for good: `forebay pool import {name} --accept-missing`",
        later.advice()
    )))
}

impl Sight {
    /// Those that cannot be read and are a pool's, as they say themselves or as they are where it was last.
    pub(super) fn unread_of<'a>(&'a self, record: &'a Record) -> impl Iterator<Item = &'a Unread> {
        self.unread.iter().filter(|unread| {
            unread.pools.iter().any(|pool| pool.to_string() == record.id)
                || record.ssds.contains(&unread.path)
        })
    }

    /// The spares of one pool.
    pub(super) fn spares_of(&self, id: &str) -> impl Iterator<Item = &Marked> {
        self.spares.iter().filter(move |marked| marked.mark.pool.to_string() == id)
    }
}

/// The newest superblock among these; with it goes what a pool is.
pub(super) fn newest<'a>(found: &[&'a Found]) -> Option<&'a Superblock> {
    found.iter().map(|found| &found.superblock).max_by_key(|s| (s.epoch, s.generation))
}

/// Whether all members that the newest superblock names are among these.
pub(super) fn is_complete(found: &[&Found]) -> bool {
    newest(found).is_some_and(|newest| {
        newest.present().all(|m| found.iter().any(|f| f.superblock.device == m.device))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_what_it_names() {
        let root = std::env::temp_dir().join(format!("forebay-matched-{}", std::process::id()));
        for name in ["a/ssd-1", "a/ssd-0", "a/disk", "b/ssd-2"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let names = |pattern: &str| -> Vec<String> {
            let found = matched(&format!("{}/{pattern}", root.display()));
            let found = found.iter().map(|path| path.strip_prefix(&root).unwrap());
            found.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(names("a/ssd-*"), ["a/ssd-0", "a/ssd-1"]);
        assert_eq!(names("?/ssd-[12]"), ["a/ssd-1", "b/ssd-2"]);
        assert_eq!(names("a/disk"), ["a/disk"]);
        assert!(names("c/*").is_empty() && names("a/none?").is_empty());
        assert!(names("**/disk").contains(&"a/disk".to_owned()));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_walk_that_was_stuck_leaves_the_rest_to_the_next_one() {
        let places = || ["a", "b", "c"].map(|path| Place::At(path.into()));
        let scan = Scan::of(places().into_iter(), BTreeSet::from([Place::At("c".into())]));
        let (mut first, mut second) = (None, None);
        assert_eq!(scan.next(&mut first), Some(Place::At("a".into())));
        let (at, steps) = scan.at();
        assert_eq!(at, Some(Place::At("a".into())));
        scan.avoid(Place::At("a".into()));
        assert_ne!(scan.at().1, steps);
        assert_eq!(scan.next(&mut second), Some(Place::At("b".into())));
        assert_eq!(scan.next(&mut first), None, "it has returned after all");
        assert_eq!(scan.next(&mut second), None, "what is to be avoided is");
    }
}
