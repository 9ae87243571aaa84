//! Copies: how many there are of what, which one is read, and changing their number.
//!
//! * All copies of a set are the same from its first record on, since a record is published only when
//!   it is on each of them (INV-2). So any may be read, of dirty sets and of clean ones; the one whose
//!   member has least to do is.
//! * `dirty_copies` is a promise: how many members may be missing at a start is decided by it
//!   ([`crate::membership`]). So fewer are durable before the first set with fewer is opened, and more
//!   only once nothing is left of what has fewer (INV-42).
//! * On the way to more, `dirty_copies_next` is durable first. From then on sets are opened with as
//!   many; what is dirty in others is destaged, not copied again. When no such set is fed or owed any
//!   more and what was appended till then is published, a lap is written: its images are on as many
//!   members, name nothing owed in such a set, and no record of one is behind them. Then it is promised.
//!   Whatever is cut off, the next start finds the old promise and goes on.
//! * A set of which everything has become clean keeps `clean_copies` copies and gives the others back
//!   (INV-43). The images of a durable root say by then that nothing in it is owed, and are past all of
//!   its records. First the headers of what stays are written again, naming no others, and flushed; then
//!   the headers of the others are overwritten, and flushed; then these are discarded and free. So at each
//!   instant one header at least is whole; and as long as one of those that go is, all that it names is
//!   there, so of the headers of one set a start believes the one that names the most.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::Buf;
use forebay_device::runtime::MILLISECOND;

use crate::core::Core;
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{SegmentHeader, Stream};
use crate::ids::{BLOCK_BYTES, Incarnation, Location, SegmentId, Sequence};
use crate::limits::{CLEAN_COPIES_MAX, COPIES_MAX};
use crate::planted::{self, Bug};
use crate::segment::SetState;
use crate::work::Job;

/// How often it is looked whether anything is still dirty with fewer copies.
const LOOK_INTERVAL: u64 = 50 * MILLISECOND;

/// What shall become of the copies of a pool; see [`Pool::set_copies`](crate::Pool::set_copies).
#[derive(Clone, Copy, Debug, Default)]
pub struct CopiesChange {
    /// Of dirty data, 1..=3.
    pub dirty: Option<u8>,
    /// Of clean data, 1 or 2.
    pub clean: Option<u8>,
    /// Agrees, for the volumes that are written back, to a single copy of dirty data.
    pub accept_data_loss_on_ssd_failure: bool,
}

/// Whether so many members can hold so many copies.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub(crate) fn check_copies(change: &CopiesChange, members: usize) -> Result<()> {
    let (dirty, clean) = (change.dirty.map(|n| (n, "dirty", COPIES_MAX)), change.clean);
    let clean = clean.map(|n| (n, "clean", CLEAN_COPIES_MAX));
    for (copies, of, most) in dirty.into_iter().chain(clean) {
        if copies == 0 || usize::from(copies) > most.min(members) {
            let devices = if members == 1 { "device" } else { "devices" };
            let what = format!("{copies} {of} copies on {members} cache {devices}");
            return Err(Error::new(ErrorKind::Invalid, what).hint(format!(
                "use at least as many devices as copies; 1 to {most} copies of {of} data"
            )));
        }
    }
    Ok(())
}

impl Core {
    /// The copy of a location whose member has least to do.
    pub(crate) fn idlest_copy(&self, location: Location) -> usize {
        self.idlest_copy_for(location, BLOCK_BYTES).unwrap_or(0)
    }

    /// The same of those that can be read by themselves at multiples of `unit`, if there is one.
    pub(crate) fn idlest_copy_for(&self, location: Location, unit: u64) -> Option<usize> {
        let sets = self.sets.borrow();
        let (id, _) = sets.split(location);
        let set = sets.get(id).expect("a live location lies in a set in use");
        let members = set.segments.iter().map(|&segment| &self.members[sets.member_of(segment)]);
        let fitting = members.enumerate().filter(|(_, member)| {
            unit.is_multiple_of(u64::from(member.device.geometry().sector_bytes))
        });
        fitting.min_by_key(|(_, member)| member.queue.get()).map(|(copy, _)| copy)
    }
}

impl Core {
    /// See [`Pool::check_copies`](crate::Pool::check_copies).
    pub(crate) fn check_copies_change(&self, change: &CopiesChange) -> Result<()> {
        check_copies(change, self.staying_count())?;
        let superblock = self.superblock.borrow();
        let agreed = change.accept_data_loss_on_ssd_failure || superblock.accept_single_copy;
        if change.dirty != Some(1) || agreed {
            return Ok(());
        }
        let written_back = superblock.volumes.iter().filter(|v| v.mode.writes_back());
        let names: Vec<_> = written_back
            .filter(|v| !v.accept_single_copy)
            .map(|v| format!("\"{}\"", v.name))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let what = format!(
            "volume {} is written back: with one dirty copy it loses data when the SSD dies",
            names.join(", ")
        );
        Err(Error::new(ErrorKind::Invalid, what).hint(
            "set accept_data_loss_on_ssd_failure=true with it, or write the volume through first: \
             `forebay volume set POOL/NAME writethrough`",
        ))
    }

    /// See [`Pool::set_copies`](crate::Pool::set_copies).
    pub(crate) async fn set_copies(self: &Rc<Self>, change: &CopiesChange) -> Result<()> {
        // With fewer copies promised than members were lost, a start would not believe what those have
        // left on others.
        let control = self.lock_settled(|_| false).await?;
        // What volumes have agreed to is looked at under the lock that their modes change under.
        self.check_copies_change(change)?;
        let accepts = change.accept_data_loss_on_ssd_failure && change.dirty == Some(1);
        self.write_superblocks(|superblock| {
            superblock.clean_copies = change.clean.unwrap_or(superblock.clean_copies);
            match change.dirty {
                Some(more)
                    if more > superblock.dirty_copies && !planted::is(Bug::CopiesPromisedEarly) =>
                {
                    superblock.dirty_copies_next = more;
                }
                Some(copies) => {
                    superblock.dirty_copies = copies;
                    superblock.dirty_copies_next = 0;
                }
                None => {}
            }
            for volume in superblock.volumes.iter_mut() {
                volume.accept_single_copy |= accepts && volume.mode.writes_back();
            }
        })
        .await?;
        let copies = self.superblock.borrow().clean_copies;
        self.sets.borrow_mut().set_clean_copies(copies.into());
        for v in self.volumes.borrow().values().filter(|v| v.mode.get().writes_back()) {
            v.accept_single_copy.set(v.accept_single_copy.get() || accepts);
        }
        drop(control);
        self.start_raise();
        // There may be members enough for them now, or too few.
        self.review_redundancy();
        self.start_rebuild();
        Ok(())
    }

    /// The copies of dirty data that were asked for and are not promised yet.
    fn copies_awaited(&self) -> Option<u8> {
        let superblock = self.superblock.borrow();
        let next = superblock.dirty_copies_next;
        (next > superblock.dirty_copies).then_some(next)
    }

    /// Goes on with raising the copies of dirty data, if that was asked for.
    pub(crate) fn start_raise(self: &Rc<Self>) {
        let Some(copies) = self.copies_awaited() else { return };
        if usize::from(copies) > self.staying_count() {
            let what = format!(
                "{copies} copies of dirty data were asked for, and {} members are left: it stays with {}",
                self.staying_count(),
                self.dirty_copies()
            );
            return self.event(EventKind::CopiesShort, what);
        }
        self.spawn_job(Job::Raise, raiser(Rc::clone(self)));
    }

    /// Whether a set with fewer copies holds anything that an origin may lack, or is about to.
    fn has_fewer(&self, copies: u8) -> bool {
        self.sets.borrow().iter().any(|set| {
            let fed = matches!(set.state, SetState::Open | SetState::Closing);
            let owes = set.owed_blocks > 0 || (fed && set.stream.is_dirty());
            owes && set.segments.len() < usize::from(copies)
        })
    }

    /// Lets destaging go on for a while; what is open with fewer copies is not fed any more.
    async fn destage_fewer(self: &Rc<Self>) -> Result<()> {
        for stream in Stream::DIRTY {
            self.close_short(stream).await;
        }
        self.flush_members().await?;
        let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
        let draining: Vec<_> = volumes.iter().map(|v| v.drain.guard()).collect();
        self.housekeeping.wake_all();
        let timer = self.rt.sleep(LOOK_INTERVAL);
        self.housekeeping.until_or(|| self.is_at_rest(), timer).await;
        drop(draining);
        Ok(())
    }

    /// A step towards so many copies of dirty data.
    async fn raise(self: &Rc<Self>, copies: u8) -> Result<()> {
        if self.has_fewer(copies) {
            return self.destage_fewer().await;
        }
        self.close_short(Stream::Facts).await;
        // So that the images are past every record of a set with fewer: replayed without one that a
        // lost member had, an older version that it superseded would come back.
        self.until_published(self.log.last_sequence()).await?;
        self.lap(false).await?;
        let _control = self.lock_settled(|_| false).await?;
        let wanted = self.copies_awaited() == Some(copies) && !self.has_fewer(copies);
        if !wanted || usize::from(copies) > self.staying_count() {
            return Ok(());
        }
        self.write_superblocks(|superblock| {
            superblock.dirty_copies = copies;
            superblock.dirty_copies_next = 0;
        })
        .await?;
        let what = format!("all dirty data has {copies} copies from now on");
        self.event(EventKind::CopiesRaised, what);
        Ok(())
    }
}

/// A set that gives copies back.
struct Shrunk {
    /// What stays, with its new headers.
    headers: Vec<SegmentHeader>,
    surplus: Vec<SegmentId>,
}

impl Core {
    /// Gives back what `sets` have more than clean data needs; they had it before the images of the
    /// root that is durable now were taken, the lowest of them at `watermark`.
    ///
    /// # Errors
    /// If a member fails (the pool has latched then).
    pub(crate) async fn give_back_surplus(
        &self,
        sets: Vec<(SegmentId, Incarnation)>,
        watermark: Sequence,
    ) -> Result<()> {
        for sets in sets.chunks(self.tuning.headers_together) {
            let mut shrunk = Vec::new();
            for &set in sets {
                shrunk.extend(self.shrink(set, watermark).await);
            }
            if !shrunk.is_empty() {
                self.give_back_copies(&shrunk).await?;
            }
        }
        Ok(())
    }

    /// Frees what nobody reads any more.
    async fn give_back_copies(&self, shrunk: &[Shrunk]) -> Result<()> {
        let headers = shrunk.iter().flat_map(|set| &set.headers);
        if !planted::is(Bug::SurplusStillNamed) {
            self.write_headers(headers.map(|h| (h.segment, h.encode().to_vec()))).await?;
        }
        let surplus = || shrunk.iter().flat_map(|set| &set.surplus).copied();
        self.erase_headers(surplus()).await?;
        self.settle_members().await?;
        for segment in surplus() {
            self.discard(segment, 1).await;
            self.sets.borrow_mut().give_back(segment);
            planted::seen("surplus copy given back");
        }
        self.note_room();
        self.room.wake_all();
        Ok(())
    }

    /// Takes surplus copies from one set, so that nobody reads them from now on.
    async fn shrink(&self, set: (SegmentId, Incarnation), watermark: Sequence) -> Option<Shrunk> {
        let (id, incarnation) = set;
        let kept: Vec<_> = {
            let sets = self.sets.borrow();
            let set = sets.get(id).filter(|set| set.incarnation == incarnation)?;
            set.segments.iter().take(sets.clean_copies()).copied().collect()
        };
        let mut headers = Vec::with_capacity(kept.len());
        for &segment in &kept {
            let (member, at) = self.place(segment, 0);
            let outcome = member.device.read(at, Buf::new(BLOCK_BYTES as usize)).await;
            let header = outcome.result.ok().and(outcome.buf);
            let header = header.and_then(|bytes| SegmentHeader::decode(&bytes).ok());
            let own =
                |h: &SegmentHeader| (h.segment, h.set, h.incarnation) == (segment, id, incarnation);
            match header.filter(own) {
                Some(header) => headers.push(SegmentHeader { partners: kept.clone(), ..header }),
                None => {
                    let mut sets = self.sets.borrow_mut();
                    sets.get_mut(id).filter(|set| set.incarnation == incarnation)?.stuck = true;
                    return None;
                }
            }
        }
        let mut sets = self.sets.borrow_mut();
        // Copies may have gone with a member meanwhile.
        sets.get(id)
            .filter(|set| set.segments.starts_with(&kept) && kept.len() == sets.clean_copies())?;
        let surplus = sets.shrink(set, watermark)?;
        Some(Shrunk { headers, surplus })
    }

    /// Leaves segments without a header, durably where their member has not failed.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn erase_headers(
        &self,
        segments: impl Iterator<Item = SegmentId>,
    ) -> Result<()> {
        let segments: Vec<SegmentId> = segments.collect();
        let mut members = BTreeSet::new();
        for some in segments.chunks(self.tuning.headers_together) {
            let erased = some.iter().map(|&segment| (segment, vec![0; BLOCK_BYTES as usize]));
            members.extend(self.put_headers(erased).await);
            // A start may have many, and a member that fails is served until it has ended.
            self.check_latch()?;
        }
        self.flush_some("the headers of segments on", |member| members.contains(&member)).await
    }

    /// Discards a segment from a block on: from the second one if the header was erased, as a discard could bring it back, and
    /// else from the first one, as a header alone would have a start read the whole segment.
    pub(crate) async fn discard(&self, segment: SegmentId, from: u32) {
        let (member, at) = self.place(segment, from);
        if member.is_serving() {
            let bytes = self.segment_bytes - u64::from(from) * BLOCK_BYTES;
            // A failed discard costs the SSD some work and nothing else.
            member.device.discard(at, bytes).done().await.ok();
        }
    }

    /// Writes the first blocks of segments, durably.
    ///
    /// # Errors
    /// If a member fails and the pool latches.
    pub(crate) async fn write_headers(
        &self,
        headers: impl Iterator<Item = (SegmentId, Vec<u8>)>,
    ) -> Result<()> {
        self.put_headers(headers).await;
        self.flush_all("the headers of segments").await
    }

    /// The members that were written to.
    async fn put_headers(
        &self,
        headers: impl Iterator<Item = (SegmentId, Vec<u8>)>,
    ) -> BTreeSet<usize> {
        let mut writes = Vec::new();
        for (segment, bytes) in headers {
            let member = self.sets.borrow().member_of(segment);
            let (device, at) = self.place(segment, 0);
            // One that has failed meanwhile is read by nobody any more.
            if device.is_serving() {
                writes.push((member, device.device.write(at, Buf::copy_of(&bytes).freeze())));
            }
        }
        add(&self.counters.ssd_header_bytes, writes.len() as u64 * BLOCK_BYTES);
        let members = writes.iter().map(|(member, _)| *member).collect();
        for (member, write) in writes {
            let outcome = write.done().await;
            self.members[member].unflushed.set(true);
            if let Err(error) = outcome {
                self.fail_member(member, "writing to", error);
            }
        }
        members
    }
}

/// Brings the copies of dirty data to what was asked for.
async fn raiser(core: Rc<Core>) {
    while !core.is_at_rest() {
        let possible = core.copies_awaited().filter(|&n| usize::from(n) <= core.staying_count());
        let Some(copies) = possible else { break };
        if core.raise(copies).await.is_err() {
            // It has latched the pool and is an event.
            break;
        }
    }
}
