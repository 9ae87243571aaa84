//! The oracle: which values each sector of each volume may still have.
//!
//! * A sector's *versions* are the values it may have now or after a crash. Every event moves the
//!   oracle's own clock, so the order of events is all that counts, not virtual time.
//! * A write may take effect at any moment between its start and its end. Once it has ended, no
//!   read that starts later returns what ended before the write began: that is *hidden*.
//! * What is hidden can come back by a power cut until it is *buried*, which a flush does that
//!   begins after the newer version was acknowledged and succeeds. An FUA write buries at once.
//! * A failed write and a trim may or may not have taken effect; the first read decides.
//! * After a crash a sector may have several values. The first read of one decides for good, for
//!   later crashes too: what recovery shows, it has made durable.
//! * A read that ends without a write nearby decides likewise, as far as reads go.
//!
//! # After a failed flush of an origin
//!
//! What was written *directly*, that is by the origin before it was acknowledged, may be lost by a
//! flush that fails, for good: a later flush that succeeds does not bring it back, and reads may show
//! it until the power goes. The cache has no copy that it owes, so it cannot write it again; as with
//! any disk, the client is told and has to. So what such a write has superseded is in *doubt*: it can
//! come back by a power cut although a flush succeeded later, and although the lost value was read.
//! As narrow as that is meant:
//!
//! * A flush succeeds for a session that has not been told of the failure, by a flush of its own that
//!   failed, only if nothing was lost. The notice ends with the process, like the connection that
//!   it would go to.
//! * An acknowledged write that went into the log leaves nothing older in doubt, whatever was lost:
//!   it is written to the origin again. Nor does a write that is given to the origin after the
//!   failure. One that was on its way counts as if the failure came right behind its acknowledgement:
//!   who is told after that has been told of it.
//! * FUA is about one write, which fails by itself: it leaves nothing in doubt.
//! * The power cut ends the doubt, and the first read decides as ever: a cache that kept the lost
//!   value must not show it unless the origin has it.
//! * Only if the process ended between the failure and the power cut, nobody was left who knew of the
//!   loss: what the next process read of the lost value may have been cached. Such a sector may have
//!   either value, *astray*, until it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use forebay_device::model::world::Crash;

use crate::content::{Found, SECTOR, identify};

/// A moment that has not come: in flight, not hidden, not buried.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Version {
    value: u64,
    /// The write's start and end.
    start: u64,
    end: u64,
    /// Reads that start after this moment do not return it.
    hidden: u64,
    /// Flushes that start after this moment make it impossible after a power cut.
    buried: u64,
    /// Was there when the last recovery ended.
    recovered: bool,
    /// Its write was acknowledged as a success.
    acknowledged: bool,
    /// The origin was given it before that.
    direct: bool,
    /// In flight when a flush failed, and given to the origin before.
    met: bool,
    /// Failed flushes that may have lost what had superseded it: when, and when it was buried.
    doubts: Vec<(u64, u64)>,
    /// In doubt, and the process that knew has ended.
    forgotten: bool,
    /// See the module.
    astray: bool,
}

impl Version {
    fn new(value: u64, start: u64, end: u64, recovered: bool) -> Self {
        Self {
            value,
            start,
            end,
            hidden: NEVER,
            buried: NEVER,
            recovered,
            acknowledged: recovered,
            direct: false,
            met: false,
            doubts: Vec::new(),
            forgotten: false,
            astray: false,
        }
    }

    fn hide(&mut self, now: u64) {
        self.hidden = self.hidden.min(now);
    }

    fn bury(&mut self, now: u64) {
        self.hide(now);
        self.buried = self.buried.min(now);
    }

    fn remove(&mut self, now: u64) {
        self.hide(now);
        self.buried = 0;
    }

    /// What has superseded it may have been lost by a flush that failed now.
    fn doubt(&mut self, now: u64) {
        self.doubts.push((now, self.buried));
        self.buried = NEVER;
    }

    /// A write that began after this one's end was acknowledged.
    fn supersede(&mut self, now: u64) {
        (self.forgotten, self.astray) = (false, false);
        self.bury(now);
    }
}

#[derive(Clone, Default)]
struct Volume {
    sectors: Vec<Vec<Version>>,
    /// Start of the latest flush that succeeded.
    flushed: u64,
    /// When a session was last told of a failed flush, and when all were or had ended.
    told: BTreeMap<usize, u64>,
    told_all: u64,
    /// Sectors with versions in doubt.
    doubtful: BTreeSet<u64>,
    /// Starts of the reads in flight.
    reads: BTreeMap<u64, ()>,
}

impl Volume {
    /// Forgets what neither a crash nor a read in flight can bring back.
    fn prune(versions: &mut Vec<Version>, flushed: u64, oldest_read: u64) {
        if versions.len() > 1 {
            versions.retain(|v| v.buried >= flushed.max(1) || v.hidden > oldest_read);
        }
    }

    fn oldest_read(&self) -> u64 {
        self.reads.first_key_value().map_or(NEVER, |(start, ())| *start)
    }

    /// The versions of the sectors in `range`, pruned.
    fn each(&mut self, range: Range<u64>) -> impl Iterator<Item = (u64, &mut Vec<Version>)> {
        let (flushed, oldest_read) = (self.flushed, self.oldest_read());
        let sectors = &mut self.sectors[range.start as usize..range.end as usize];
        sectors.iter_mut().zip(range).map(move |(versions, sector)| {
            Self::prune(versions, flushed, oldest_read);
            (sector, versions)
        })
    }
}

/// How an operation changes what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The data of this stamp, or zeroes for 0.
    Value(u64),
    /// Old data or zeroes, sector by sector.
    Trim,
}

/// An operation in progress: give it back to the oracle when it ends. One that a crash cuts short
/// is simply dropped.
#[derive(Debug)]
#[must_use = "tell the oracle how the operation ended"]
pub struct Access {
    volume: usize,
    range: Range<u64>,
    start: u64,
    /// Of a flush: who asks, and when it had last been told of a failure.
    session: usize,
    told: u64,
}

impl Access {
    fn new(volume: usize, range: Range<u64>, start: u64) -> Self {
        Self { volume, range, start, session: 0, told: 0 }
    }
}

/// A read that no history allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The volume and sector.
    pub volume: usize,
    /// The sector, in units of 512 bytes.
    pub sector: u64,
    /// What was read.
    pub found: Found,
    /// The values that would have been right.
    pub allowed: Vec<u64>,
    /// Whether the value was right once, and superseded.
    pub stale: bool,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stale = if self.stale { " (superseded)" } else { "" };
        write!(
            f,
            "volume {} sector {}: read {:?}{stale}, allowed {:?}",
            self.volume, self.sector, self.found, self.allowed
        )
    }
}

/// See the module.
#[derive(Clone, Default)]
pub struct Oracle {
    clock: u64,
    volumes: Vec<Volume>,
}

impl Oracle {
    /// Adds a volume of `sectors` sectors, all durable with `value` (0: zeroes). Volumes count
    /// from 0.
    pub fn add_volume(&mut self, sectors: u64, value: u64) {
        let first = Version::new(value, 0, 0, true);
        let sectors = (0..sectors).map(|_| vec![first.clone()]).collect();
        self.volumes.push(Volume { sectors, ..Volume::default() });
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write, trim or zeroing begins.
    pub fn change_start(&mut self, volume: usize, range: Range<u64>, change: Change) -> Access {
        let start = self.tick();
        let value = match change {
            Change::Value(value) => value,
            Change::Trim => 0,
        };
        let version = Version::new(value, start, NEVER, false);
        for (_, versions) in self.volumes[volume].each(range.clone()) {
            versions.push(version.clone());
        }
        Access::new(volume, range, start)
    }

    /// A write, trim or zeroing ends.
    pub fn change_end(&mut self, access: Access, change: Change, ok: bool, fua: bool) {
        let now = self.tick();
        let decided = ok && change != Change::Trim;
        for (_, versions) in self.volumes[access.volume].each(access.range) {
            let met = versions.iter().any(|v| v.met && v.start == access.start && v.end == NEVER);
            for version in versions.iter_mut() {
                if version.start == access.start && version.end == NEVER {
                    version.end = now;
                    version.acknowledged = decided;
                } else if decided && version.end < access.start {
                    version.supersede(now);
                    if met && !version.doubts.is_empty() {
                        version.doubt(now);
                    }
                    if fua {
                        version.remove(now);
                    }
                }
            }
        }
    }

    /// A read begins.
    pub fn read_start(&mut self, volume: usize, range: Range<u64>) -> Access {
        let start = self.tick();
        self.volumes[volume].reads.insert(start, ());
        Access::new(volume, range, start)
    }

    /// A read failed: it says nothing.
    pub fn read_failed(&mut self, access: Access) {
        self.volumes[access.volume].reads.remove(&access.start);
    }

    /// A read succeeded with `bytes`.
    ///
    /// # Errors
    /// The first sector with a value that it cannot have had during the read.
    pub fn read_end(&mut self, access: Access, bytes: &[u8]) -> Result<(), Violation> {
        let now = self.tick();
        assert_eq!(bytes.len() as u64, (access.range.end - access.range.start) * SECTOR as u64);
        let Access { volume, range, start, .. } = access;
        let conclude = |versions: &mut [Version], value| narrow(versions, value, start, now);
        let result = self.judge_each(volume, range, start, bytes, conclude);
        self.volumes[volume].reads.remove(&start);
        result
    }

    /// Judges what was found by a read that started at `start`, up to the first sector that it cannot have found so.
    fn judge_each(
        &mut self,
        volume: usize,
        range: Range<u64>,
        start: u64,
        bytes: &[u8],
        conclude: impl Fn(&mut [Version], u64),
    ) -> Result<(), Violation> {
        let sectors = self.volumes[volume].each(range).zip(bytes.chunks_exact(SECTOR));
        for ((sector, versions), bytes) in sectors {
            let found = identify(volume, sector, bytes);
            let value = judge(versions, found, start).map_err(|(allowed, stale)| Violation {
                volume,
                sector,
                found,
                allowed,
                stale,
            })?;
            conclude(versions, value);
        }
        Ok(())
    }

    /// A flush of `volume` begins, on behalf of a session.
    pub fn flush_start(&mut self, volume: usize, session: usize) -> Access {
        let start = self.tick();
        let v = &self.volumes[volume];
        let told = v.told.get(&session).copied().unwrap_or(0).max(v.told_all);
        Access { session, told, ..Access::new(volume, 0..0, start) }
    }

    /// A flush ends.
    pub fn flush_end(&mut self, access: Access, ok: bool) {
        let now = self.tick();
        let volume = &mut self.volumes[access.volume];
        if !ok {
            volume.told.insert(access.session, now);
            return;
        }
        volume.flushed = volume.flushed.max(access.start);
        let untold = |&(failed, buried): &(u64, u64)| failed > access.told && buried < access.start;
        for sector in &volume.doubtful {
            for version in &mut volume.sectors[*sector as usize] {
                if version.doubts.iter().any(untold) {
                    version.remove(now);
                }
            }
        }
    }

    /// The origin is being given `bytes` (zeroes if there are none) for these sectors. A change in
    /// flight that has this value is a direct one; whether there is one.
    pub fn origin_written(
        &mut self,
        volume: usize,
        range: Range<u64>,
        bytes: Option<&[u8]>,
    ) -> bool {
        let mut direct = false;
        let mut bytes = bytes.map(|bytes| bytes.chunks_exact(SECTOR));
        let sectors = range.start as usize..range.end as usize;
        for (sector, versions) in range.zip(&mut self.volumes[volume].sectors[sectors]) {
            let given = bytes.as_mut().and_then(Iterator::next);
            if versions.iter().all(|version| version.end < NEVER) {
                continue;
            }
            let found = given.map_or(Found::Stamp(0), |bytes| identify(volume, sector, bytes));
            for version in versions.iter_mut().filter(|version| version.end == NEVER) {
                version.direct |= found == Found::Stamp(version.value);
                direct |= version.direct;
            }
        }
        direct
    }

    /// A flush of a volume's origin fails, whoever asked for it.
    pub fn origin_flush_failed(&mut self, volume: usize) {
        let now = self.tick();
        let end = self.volumes[volume].sectors.len() as u64;
        let mut doubtful = Vec::new();
        let flushed = self.volumes[volume].flushed.max(1);
        for (sector, versions) in self.volumes[volume].each(0..end) {
            if versions.len() < 2 {
                continue;
            }
            let possible = |version: &&mut Version| version.buried >= flushed;
            let (mut direct, mut newest_logged) = (Vec::new(), 0);
            for version in versions.iter_mut().filter(possible) {
                version.met |= version.direct && version.end == NEVER;
                if version.direct {
                    direct.push((version.start, version.end));
                } else if version.acknowledged {
                    newest_logged = newest_logged.max(version.start);
                }
            }
            for version in versions.iter_mut().filter(possible) {
                // Of writes at the same time either may have been the last.
                let lost = direct
                    .iter()
                    .any(|&(start, end)| start != version.start && end >= version.start);
                if lost && version.end >= newest_logged {
                    version.doubt(now);
                    doubtful.push(sector);
                }
            }
        }
        self.volumes[volume].doubtful.extend(doubtful);
    }

    /// Whether somebody has written to these sectors, or begun to.
    pub fn was_written(&self, volume: usize, range: Range<u64>) -> bool {
        let sectors = &self.volumes[volume].sectors[range.start as usize..range.end as usize];
        sectors.iter().flatten().any(|version| version.start > 0)
    }

    /// Everything acknowledged so far is durable: a clean stop, or destaging, has succeeded.
    pub fn all_durable(&mut self) {
        let now = self.tick();
        for volume in &mut self.volumes {
            volume.flushed = now;
        }
    }

    /// The machine or the process ended; operations in progress are cut short.
    pub fn crash(&mut self, crash: Crash) {
        let now = self.tick();
        for volume in &mut self.volumes {
            volume.reads.clear();
            volume.told.clear();
            volume.told_all = now;
            if crash == Crash::PowerCut {
                volume.doubtful.clear();
            }
            let end = volume.sectors.len() as u64;
            for (_, versions) in volume.each(0..end) {
                let forgotten = crash == Crash::PowerCut && versions.iter().any(|v| v.forgotten);
                // The next process flushes the origin first; that proves what no failed flush has met.
                let doubtful = versions.iter().any(|v| !v.doubts.is_empty());
                let direct = crash == Crash::ProcessKill && doubtful;
                for version in versions {
                    version.end = version.end.min(now);
                    version.recovered = true;
                    version.direct &= direct;
                    match crash {
                        Crash::PowerCut => {
                            (version.hidden, version.buried) = (NEVER, NEVER);
                            version.doubts.clear();
                            version.astray |= forgotten;
                            // One of several that are possible now; it supersedes none of them.
                            version.acknowledged = false;
                            version.forgotten = false;
                        }
                        Crash::ProcessKill => version.forgotten |= !version.doubts.is_empty(),
                    }
                }
            }
        }
    }

    /// Judges an image of the whole volume, at rest, like a read of all of it.
    ///
    /// # Errors
    /// The first sector with a value that it cannot have.
    pub fn check_image(&mut self, volume: usize, image: &[u8]) -> Result<(), Violation> {
        let access = self.read_start(volume, 0..(image.len() / SECTOR) as u64);
        self.read_end(access, image)
    }

    /// The same of one that somebody might find, but nobody has: nothing follows from it.
    ///
    /// # Errors
    /// The first sector with a value that it cannot have.
    pub fn check_possible(&mut self, volume: usize, image: &[u8]) -> Result<(), Violation> {
        let (range, now) = (0..(image.len() / SECTOR) as u64, self.clock);
        self.judge_each(volume, range, now, image, |_, _| ())
    }
}

/// The value found, if a read that started at `start` may return it; else what it may return.
fn judge(versions: &[Version], found: Found, start: u64) -> Result<u64, (Vec<u64>, bool)> {
    let readable = |v: &&Version| v.hidden > start;
    if let Found::Stamp(value) = found
        && versions.iter().filter(readable).any(|v| v.value == value)
    {
        return Ok(value);
    }
    let stale = versions.iter().any(|v| found == Found::Stamp(v.value));
    Err((versions.iter().filter(readable).map(|v| v.value).collect(), stale))
}

/// Draws the conclusions from a read of `value` between `start` and `now`.
fn narrow(versions: &mut [Version], value: u64, start: u64, now: u64) {
    if let [_] = versions {
        return;
    }
    let matching = versions.iter().filter(|v| v.value == value && v.hidden > start);
    // Several versions may have the same value, zeroes say: conclude only what holds for each.
    let (mut oldest, mut recovered) = (NEVER, true);
    for version in matching {
        oldest = oldest.min(version.start);
        recovered &= version.recovered;
    }
    let quiet = versions.iter().all(|v| v.end < start);
    for version in versions.iter_mut().filter(|v| v.value != value) {
        if version.astray {
            continue;
        }
        let after_crash = recovered && version.recovered;
        if !after_crash && !quiet {
            if version.end < oldest {
                version.hide(now);
            }
        } else if !version.doubts.is_empty() {
            version.hide(now);
        } else if after_crash {
            version.remove(now);
        } else {
            version.bury(now);
        }
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
