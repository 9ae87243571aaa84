//! What is good in no copy although its members serve: a sector has gone bad, or something was stored wrong. It
//! costs exactly these blocks, and the pool goes on (INV-86).
//!
//! * Whoever reads the log and finds it asks here: clients' reads and writes, destaging, moves, scrubs, and a start
//!   that appends again what was open. Block by block it is looked at again; what is good in any copy stays, and is
//!   moved or destaged as ever.
//! * Clean blocks are dropped. Of written ones the origin is flushed first: behind that it has them. What is dirty
//!   is lost: nobody has it, and what the origin has is older.
//! * *Lost* is a fact in the log, durable before anybody is told. What is on its way to give the blocks another
//!   content wins over it, and no write of them gets its place in the log while it is noted; a move that is under way
//!   finds nothing any more where it copied from. No lock is taken: a write that waits for room may have it, and whoever
//!   makes that room may come here.
//! * A member that does not even return its superblock has not lost just this: nothing is noted then, nor after an
//!   error that says nothing about the medium. Who brings data home or makes room cannot go on without an answer, so
//!   for them it has failed, as if it had failed a write, if it returns nothing for some seconds.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::slice::from_ref;

use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Data, IoError, IoErrorKind, Nanos};

use crate::bypass::{Kind, Reason, Way};
use crate::core::Core;
use crate::direct::region_parts;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{EntryKind, Layout, State, Stream};
use crate::ids::{BLOCK_BYTES, Location, SegmentId, VolumeId};
use crate::index::Mapping;
use crate::limits::{LOST_PLACES_MAX, LOST_TOLD_INTERVAL};
use crate::log::{append_error, new_entry};
use crate::member::Member;
use crate::planted::{self, Bug, seen};
use crate::read::is_held;
use crate::scrub::Inspection;
use crate::text::bytes;
use crate::volume::VolumeState;

/// Rest of who cannot tell what is good, before the next look.
pub(crate) const UNSURE_REST: Nanos = 100 * MILLISECOND;

/// How long it is looked before a member that returns nothing is left behind, or else the pool latches: longer than a
/// controller takes to reset. Whoever brings data home or makes room waits as long, and clients that need that.
pub(crate) const UNSURE_SPAN_MAX: Nanos = 5 * SECOND;

/// How often what looks good is read once more before it counts as unreadable after all: whoever looks and whoever
/// reads may find different things as often as a device pleases.
pub(crate) const REREADS_MAX: u32 = 3;

/// Rest of who finds blocks that are about to be overwritten: it would come back to them at once.
const OVERWRITTEN_REST: Nanos = 5 * MILLISECOND;

impl Core {
    /// Settles what becomes of a run that could not be read: what of it is good in no copy is dropped or durably
    /// lost when this returns, or is about to be overwritten. False if all of it can be read now and nothing has changed.
    ///
    /// # Errors
    /// If it cannot be said what is good: a member does not answer, or returns nothing at all; or the pool has
    /// latched.
    pub(crate) async fn give_up_damaged(&self, volume: VolumeId, m: &Mapping) -> Result<bool> {
        self.check_latch()?;
        if !self.is_still(volume, m) || self.is_stray_at(m.location) {
            return Ok(true);
        }
        let pinned = self.sets.borrow_mut().pin(m.location);
        let settled = self.settle_damaged(volume, m).await;
        self.unpin(pinned);
        settled
    }

    async fn settle_damaged(&self, volume: VolumeId, m: &Mapping) -> Result<bool> {
        let mut damaged = self.damaged_parts(m).await?;
        if damaged.is_empty() {
            return Ok(false);
        }
        if self.is_failing() {
            // A member that has just failed may have them, and is believed by a start that comes before the epoch which
            // leaves it behind (INV-62): behind that it is looked again.
            seen("damaged: found while a member fails");
            self.settle_members().await?;
            return Ok(true);
        }
        if m.state == State::Written
            && let Some(v) = self.volume(volume)
        {
            // Its error is an event, and the blocks are dirty again then.
            self.flush_origin(&v).await.ok();
            self.until_idle(Stream::Facts).await?;
        }
        let mut before = Vec::with_capacity(damaged.len());
        damaged.retain(|part| {
            let noting = self.log.before_writes(volume, part.block);
            let is_free = noting.is_some();
            before.extend(noting);
            is_free
        });
        if damaged.is_empty() {
            seen("damaged: on its way to be overwritten");
            self.rt.sleep(OVERWRITTEN_REST).await.result.ok();
            return Ok(true);
        }
        let noting = self.lost.noting();
        let noted = self.drop_or_lose(volume, &damaged).await;
        drop(noting);
        self.quiet.wake_all();
        noted.map(|()| true)
    }

    /// The same for who brings data home or moves it: a member that returns nothing of a run that nobody else has
    /// is left behind with all that it had alone, and the pool goes on; what becomes of the run is looked at again.
    ///
    /// # Errors
    /// If that was the last member, or it cannot be said what is good: the pool has latched.
    pub(crate) async fn settle_unreadable(&self, volume: VolumeId, m: &Mapping) -> Result<()> {
        let until = self.rt.now() + UNSURE_SPAN_MAX;
        let mut silent: Option<(usize, Nanos)> = None;
        loop {
            let before = self.segments_at(m.location);
            let Err(error) = self.give_up_damaged(volume, m).await else { return Ok(()) };
            self.check_latch()?;
            if !self.is_still(volume, m) || self.segments_at(m.location) != before {
                // Moved, or lost with a member, while it was looked at.
                return Ok(());
            }
            let silence = self.silent_copy(m).await;
            let now = self.rt.now();
            silent = silence.as_ref().map(|(index, _)| {
                // An answer in between, or another one's silence, is another beginning.
                (*index, silent.filter(|(before, _)| before == index).map_or(now, |it| it.1))
            });
            if let (Some((index, error)), Some((_, since))) = (silence, silent)
                && now - since >= UNSURE_SPAN_MAX
            {
                // Not more than one: what the others have may be enough then.
                seen("damaged: a member that returns nothing");
                self.fail_member(index, "reading from", error);
                return self.check_latch();
            }
            if now >= until && (silent.is_none() || now >= until + UNSURE_SPAN_MAX) {
                // The only good copy may be there: nothing more is written until somebody looks.
                self.latch(&error.what, IoErrorKind::Media.into());
                return Err(error);
            }
            // What was wrong may pass, and whoever asks has time.
            seen("damaged: looked at once more");
            self.rt.sleep(UNSURE_REST).await.result.ok();
        }
    }

    fn segments_at(&self, location: Location) -> Vec<SegmentId> {
        let sets = self.sets.borrow();
        let (id, _) = sets.split(location);
        sets.get(id).map_or_else(Vec::new, |set| set.segments.to_vec())
    }

    /// A member with a copy of a run that returns neither that nor its superblock, with its error.
    async fn silent_copy(&self, m: &Mapping) -> Option<(usize, IoError)> {
        for segment in self.segments_at(m.location) {
            let index = self.sets.borrow().member_of(segment);
            let member = &self.members[index];
            let (_, block) = self.sets.borrow().split(m.location);
            let (_, at) = self.place(segment, block);
            let read = |at: u64, blocks: u32| {
                member.device.read(at, Buf::new(blocks as usize * BLOCK_BYTES as usize))
            };
            // Whatever is wrong with this place, a device that is there returns another one.
            let error = match read(at, m.count).await.result {
                Ok(()) => None,
                Err(_) => self.silence_of(member).await,
            };
            if let Some(error) = error.filter(|_| member.is_serving()) {
                return Some((index, error));
            }
        }
        None
    }

    /// The parts of a run that are good in no copy: twice, and every member with one returns something between.
    async fn damaged_parts(&self, m: &Mapping) -> Result<Vec<Mapping>> {
        let header = Location(m.location.0 - u64::from(m.distance));
        let first = u32::from(m.distance);
        let unknown = || {
            let what = format!("no good copy of the log's block {}", m.location.0);
            Error::new(ErrorKind::Io, what)
                .hint("look at the cache devices; what they do not return may be dirty data")
        };
        let mut parts = Vec::new();
        for look in 0..2 {
            let inspected = self.inspect(header, first, from_ref(&(first..first + m.count))).await;
            let Inspection { blocks, is_unsure, .. } = inspected.ok_or_else(unknown)?;
            parts = (0..m.count)
                .zip(&blocks)
                .filter(|(_, block)| block.is_none())
                .map(|(at, _)| m.part(at, 1))
                .collect();
            if parts.is_empty() {
                break;
            }
            if is_unsure || (look == 0 && !self.return_something(header).await) {
                return Err(unknown());
            }
        }
        Ok(parts)
    }

    /// Whether every member with a copy returns one of its superblocks: one that is silent has not lost just what
    /// is asked of it, and may have what is bad elsewhere.
    pub(crate) async fn return_something(&self, at: Location) -> bool {
        for copy in 0..self.copies(at) {
            let Some((member, _)) = self.copy_of(at, copy) else { continue };
            if self.silence_of(member).await.is_some() {
                return false;
            }
        }
        true
    }

    /// The error of a member that returns none of its superblocks.
    pub(crate) async fn silence_of(&self, member: &Member) -> Option<IoError> {
        let mut silence = None;
        for slot in 0..2 {
            let at = Layout::superblock_offset(slot);
            let outcome = member.device.read(at, Buf::new(BLOCK_BYTES as usize)).await;
            match outcome.result {
                Ok(()) => return None,
                Err(error) => silence = Some(error),
            }
        }
        silence
    }

    /// What was overwritten or moved meanwhile is left alone.
    async fn drop_or_lose(&self, volume: VolumeId, damaged: &[Mapping]) -> Result<()> {
        let mut lost: Vec<(u64, u32)> = Vec::new();
        for part in damaged {
            let mut live = None;
            let shard = self.shard(volume, part.block);
            shard.index.borrow().lookup(volume, part.block, 1, |m| live = Some(m));
            let Some(m) = live.filter(|m| m.state.has_data() && m.location == part.location) else {
                continue;
            };
            if m.state == State::Written && part.state != State::Written {
                // Destaged meanwhile: whoever comes back has the origin flushed first, and loses nothing then.
                seen("damaged: destaged meanwhile");
                continue;
            }
            if !m.state.is_owed() {
                seen("damaged: dropped");
                self.drop_unreadable(volume, &m);
                continue;
            }
            self.ram.borrow_mut().void(volume, m.block, m.count.into());
            if planted::is(Bug::DamageNotLost) {
                self.map_remove(volume, m.block, m.count);
                continue;
            }
            seen("damaged: lost");
            self.lose(volume, m);
            match lost.last_mut() {
                Some((first, count)) if *first + u64::from(*count) == m.block => *count += 1,
                _ => lost.push((m.block, 1)),
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        self.log_lost(volume, &lost).await?;
        let blocks = lost.iter().map(|(_, count)| u64::from(*count)).sum();
        self.tell_flushes(&BTreeMap::from([(volume, blocks)]));
        {
            let mut untold = self.scrub.untold.borrow_mut();
            let of = untold.entry(volume).or_default();
            for (first, count) in lost {
                let known = of.entry(first).or_insert(count);
                *known = count.max(*known);
            }
        }
        self.tell_damaged();
        Ok(())
    }

    /// Notes durably that runs of blocks are lost.
    async fn log_lost(&self, volume: VolumeId, lost: &[(u64, u32)]) -> Result<()> {
        if planted::is(Bug::DamageNotDurable) {
            return Ok(());
        }
        let parts = lost.iter().flat_map(|&(first, count)| region_parts(first, count));
        let append = |(block, count)| {
            self.log.append(Stream::Facts, new_entry(EntryKind::Lost, volume, block, count), None)
        };
        let appends: Vec<_> = parts.map(append).collect();
        for append in appends {
            append.done().await.map_err(|error| append_error("noting what is lost", error))?;
        }
        self.flush_members().await
    }

    /// Tells what was lost since it was told last: of a device that returns nothing any more it is found in many small
    /// parts.
    pub(crate) fn tell_damaged(&self) {
        let is_early = |told: Nanos| self.rt.now() < told + LOST_TOLD_INTERVAL && !self.is_ending();
        if !self.scrub.told.get().is_some_and(is_early) {
            self.tell_untold();
        }
    }

    /// The same, however short ago that was.
    pub(crate) fn tell_untold(&self) {
        if self.scrub.untold.borrow().is_empty() {
            return;
        }
        self.scrub.told.set(Some(self.rt.now()));
        for (volume, runs) in self.scrub.untold.take() {
            // At a start no origin is attached yet.
            let name = {
                let superblock = self.superblock.borrow();
                let of = superblock.volumes.iter().find(|v| v.id == volume);
                of.map_or_else(|| volume.0.to_string(), |v| v.name.clone())
            };
            let what = format!(
                "{} of volume \"{name}\" are good in no copy, its origin lacks them, and they are lost: reading \
                 them fails until they are overwritten; {}",
                bytes(runs.values().map(|count| u64::from(*count) * BLOCK_BYTES).sum()),
                places(&runs)
            );
            self.volume_event(EventKind::DamageUnhealed, &name, what);
        }
    }

    /// What of a run that could not be read can be read after all; nothing if it has changed meanwhile, or what is
    /// good of it in no copy has been given up.
    ///
    /// # Errors
    /// Those of [`Core::give_up_damaged`]; or if it looks good each time and cannot be read.
    pub(crate) async fn reread(&self, volume: VolumeId, m: &Mapping) -> Result<Option<Data>> {
        let mut failed = Ok(None);
        for _ in 0..REREADS_MAX {
            if self.give_up_damaged(volume, m).await? || !self.is_still(volume, m) {
                return Ok(None);
            }
            match self.read_verified(m.location, m.distance, m.count).await {
                Ok(bytes) => {
                    seen("damaged: read after all");
                    return Ok(Some(bytes));
                }
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Reads again what could not be read, once it is settled what becomes of it (INV-86); else an error.
    pub(crate) async fn read_damaged(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        m: &Mapping,
        offset: u64,
        mut buf: Buf,
    ) -> (Buf, Result<()>) {
        if self.latched.get() {
            // Nothing is noted any more, and what is wrong with this block is more to the point than that.
            let what = format!("reading volume \"{}\": no good copy on any cache device", v.name);
            return (buf, Err(Error::new(ErrorKind::Io, what)));
        }
        // Else it would come here again and again, from within itself.
        self.log.until_published(v.id, m.block..m.block + u64::from(m.count), &self.latched).await;
        let (len, within) = (buf.len(), (offset - m.block * BLOCK_BYTES) as usize);
        let bytes = match self.reread(v.id, m).await {
            Ok(None) => {
                let way = Way::new(Kind::Prefetch, Some(Reason::Sequential));
                return Box::pin(self.read_piece(v, &way, offset, buf)).await;
            }
            Ok(Some(bytes)) if is_held(m, within, len) => Ok(bytes),
            Ok(Some(bytes)) => self.merged(v, m, &bytes).await,
            Err(error) => Err(error),
        };
        let outcome = bytes.map(|bytes| buf.copy_from_slice(&bytes[within..within + len]));
        (buf, outcome)
    }
}

/// Where runs of blocks are, as a sentence: byte offsets and lengths.
fn places(runs: &BTreeMap<u64, u32>) -> String {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (&first, &count) in runs {
        let (at, len) = (first * BLOCK_BYTES, u64::from(count) * BLOCK_BYTES);
        match joined.last_mut() {
            Some((start, all)) if *start + *all >= at => *all = (*all).max(at + len - *start),
            _ => joined.push((at, len)),
        }
    }
    let one = |(at, len): &(u64, u64)| format!("{} from byte {at} on", bytes(*len));
    let named: Vec<_> = joined.iter().take(LOST_PLACES_MAX).map(one).collect();
    let more = match joined.len() - named.len() {
        0 => String::new(),
        more => format!(", and {more} more places"),
    };
    format!("they are {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_touch_are_one_and_not_all_are_named() {
        let runs = BTreeMap::from([(8, 2), (10, 1), (64, 256)]);
        assert_eq!(places(&runs), "they are 12 KiB from byte 32768 on, 1 MiB from byte 262144 on");
        let many: BTreeMap<u64, u32> = (0..100).map(|i| (i << 40, 1)).collect();
        let text = places(&many);
        assert!(text.ends_with(", and 84 more places") && text.len() < 800, "{text}");
    }
}
