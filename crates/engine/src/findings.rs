//! What a start finds on the members. Nothing is written before all of it has been read (INV-105):
//! 1. newest root of any member; segment headers, from which the set table is rebuilt
//! 2. images of all shards ([`crate::images`])
//! 3. records behind the images: from footers, or by scanning sets that have none ([`crate::scan`]). Which are adopted is
//!    decided by [`crate::adoption`].
//! 4. replay in sequence order
//!
//! * So a start that cannot read what it needs has changed nothing, and whoever is missing, or is left out because it failed an
//!   attempt ([`crate::start`]), is shut out only once all that the pool goes on with is known to be there without it.
//! * What a member does not return is not the same as nothing. A member of which the start needs it has failed: the next
//!   attempt is without it, as if it had failed a write.
//! * Nor is it that at once. A path or a controller may come back, and is given the time that it is given in use.

use std::collections::{BTreeMap, BTreeSet};

use forebay_device::{Buf, Io, IoError, IoErrorKind};

use crate::apply::RecordPlace;
use crate::checkpoint::root_offset;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Entry, FooterRecord, FormatError, Root, SegmentHeader, SlotChoice, Stream};
use crate::ids::{BLOCK_BYTES, DeviceId, Incarnation, SegmentId, Sequence};
use crate::images::Loaded;
use crate::index::{Mapping, shard_of};
use crate::lives::newest_lives;
use crate::member::Member;
use crate::membership::{Trust, trust_in};
use crate::planted::{self, Bug};
use crate::recovery::{RecoveryReport, mappings};
use crate::scan::OpenAtCrash;
use crate::segment::{Set, SetState};
use crate::sound::check_counter;
use crate::start::MEND;
use crate::unreadable::{UNSURE_REST, UNSURE_SPAN_MAX};
use crate::wait::all_of;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Reads in flight while headers and footers are looked at.
const READS_MAX: usize = 64;

/// Sequences left out after a start, so that none of a record that was never adopted comes again.
const SEQUENCE_GAP: u64 = 1 << 20;

/// What a start has found; the set table and the index have the rest.
pub(crate) struct Findings {
    pub report: RecoveryReport,
    /// The root that counts, but for images that could not be loaded.
    pub root: Root,
    /// What is to be written to slot 1 of a member before slot 0 may be.
    pub renewed: Vec<(usize, Root)>,
    /// Whether then all slots hold the newest root.
    pub alike: bool,
    pub trust: Trust,
    /// Segments without a header that counts.
    pub bare: BTreeSet<SegmentId>,
    pub loaded: Loaded,
    /// Sets without a footer.
    pub open: Vec<OpenAtCrash>,
}

/// What the root slots of all members hold.
struct RootSlots {
    newest: Root,
    /// What is to be written to slot 1 of a member before slot 0 may be.
    renewed: Vec<(usize, Root)>,
    /// Whether then all slots hold the newest.
    alike: bool,
}

impl Core {
    /// Reads what the members have, and rebuilds the set table and the index. What they are known to lack is to be had from those
    /// that are `missing`, perhaps.
    ///
    /// # Errors
    /// What keeps the pool from opening; nothing has been changed.
    pub(crate) async fn look_through(&self, missing: &BTreeSet<DeviceId>) -> Result<Findings> {
        let findings = self.read_all().await;
        // Who has lost the pool gets errors for everything.
        self.lease.check()?;
        let findings = findings?;
        let may_be_elsewhere = !missing.is_empty() && !self.accepted.get();
        if may_be_elsewhere && self.lacks_owed(&findings) {
            planted::seen("start: not without who may have what is lacking");
            let superblock = self.superblock.borrow();
            let ids: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let what = format!(
                "pool \"{}\" lacks cache device {}, and the others do not return some of what origins lack, which that one may \
                 have",
                superblock.name,
                ids.join(", ")
            );
            let error = Error::new(ErrorKind::NeedsDecision, what);
            return Err(error.hint(format!(
                "attach it; or accept that these writes are lost and open without it for good: `forebay pool import {} \
                 --accept-missing`",
                superblock.name
            )));
        }
        Ok(findings)
    }

    async fn read_all(&self) -> Result<Findings> {
        let mut report = RecoveryReport::default();
        let RootSlots { newest: mut root, renewed, alike } = self.newest_root().await?;
        // Only the start right after it may believe it: a later one may have appended and crashed.
        report.clean_stop = root.clean_stop && root.start_number == self.log.start_number - 1;
        let trust = trust_in(&self.superblock.borrow(), &root, report.clean_stop);
        let headers = self.read_headers(&mut report).await?;
        let newest = headers.iter().map(|h| h.incarnation.counter).max().unwrap_or(0);
        let newest = newest.max(root.open_counter);
        check_counter("counter of the newest segment", newest)?;
        self.log.open_counter.set(newest);
        let (headers, cut_off): (Vec<_>, Vec<_>) =
            headers.into_iter().partition(|header| counts(&root, header.incarnation));
        let found: BTreeSet<_> = headers.iter().map(|h| (h.segment, h.incarnation)).collect();
        let lives = {
            let superblock = self.superblock.borrow();
            newest_lives(headers, &cut_off, |n, epoch| superblock.is_same_since(n, epoch))
        };
        self.adopt_sets(lives, &found);
        let bare = self.without_headers(&found);
        let loaded = self.load_images(&mut root, trust, &mut report).await?;
        // What could not be read may be because of that.
        self.check_latch()?;
        let open = self.replay(&root, &loaded, &mut report).await?;
        self.forget_removed();
        Ok(Findings { report, root, renewed, alike, trust, bare, loaded, open })
    }

    /// The valid root with the highest generation on any member, and what becomes of the slots.
    async fn newest_root(&self) -> Result<RootSlots> {
        let (pool, bytes) = {
            let superblock = self.superblock.borrow();
            (superblock.pool, superblock.root_bytes)
        };
        let count = self.shards.len();
        let mut found: Vec<[Option<Root>; 2]> = Vec::new();
        for member in self.members.iter() {
            let mut slots = Vec::new();
            for slot in 0..2 {
                let at = root_offset(bytes, slot);
                let root = self.read_member(member, at, bytes as usize).await;
                slots.push(root.map_or(Err(FormatError::Truncated), |buf| Root::decode(&buf)));
            }
            if let SlotChoice::Refused(error) = Root::choose(&slots[0], &slots[1]) {
                return Err(Error::new(
                    ErrorKind::Future,
                    format!("a root cannot be read: {error}"),
                )
                .hint("use the Forebay version that wrote it, or a later one"));
            }
            let mut slots = slots.into_iter().map(|slot| slot.ok().filter(|r| r.pool == pool));
            found.push([slots.next().flatten(), slots.next().flatten()]);
        }
        self.check_ages(&found)?;
        let all = || found.iter().flatten().flatten();
        // Also of those that do not count: no number is given out twice.
        let marking = self.superblock.borrow().marking_root;
        let highest = all().map(|root| root.generation).max().unwrap_or(0);
        // What is written from now on must not lie before the one that is named, readable or not.
        self.roots.begin_behind(highest.max(marking));
        check_counter("generation of the root", self.roots.generation())?;
        let newest = newest_of(all(), marking);
        let newest = newest.filter(|root| root.images.len() == count).ok_or_else(|| {
            Error::new(ErrorKind::Damaged, "no readable root on any cache device")
                .hint("see both root slots with `forebay inspect`; no data has been changed")
        })?;
        // What slot 1 of one has, slot 0 of all has durably: a crash came on the way from slot to slot.
        let proven: BTreeSet<u64> = self.proven_roots(&found).map(|root| root.generation).collect();
        let (mut renewed, mut alike) = (Vec::new(), true);
        for (member, [first, second]) in found.into_iter().enumerate() {
            let is_proven = first.as_ref().is_some_and(|root| proven.contains(&root.generation));
            // The superblocks that name a root were written behind a good flush of slot 0.
            let named = first.as_ref().is_some_and(|root| root.is_named(marking));
            let renew =
                first.is_some() && (second.is_none() || first == second || named || is_proven);
            alike &= renew && first.as_ref() == Some(&newest);
            renewed.extend(first.filter(|_| renew).map(|root| (member, root)));
        }
        Ok(RootSlots { newest: newest.settled(marking), renewed, alike })
    }

    /// The roots in slot 1 that say that all whom their epoch names had them in slot 0, durably. One that notes losses is there
    /// once superblocks name it; earlier versions wrote none at a start.
    fn proven_roots<'a>(
        &self,
        found: &'a [[Option<Root>; 2]],
    ) -> impl Iterator<Item = &'a Root> + use<'a> {
        let marking = self.superblock.borrow().marking_root;
        let second = found.iter().filter_map(|[_, second]| second.as_ref());
        second.filter(move |root| root.own_roots && (!root.marks || root.is_named(marking)))
    }

    /// Ends an attempt that has begun with older copies of members, which were put back in their place: all that they hold
    /// verifies, and may have been overwritten since. A root comes to slot 1 once it is durable in slot 0 of all that its epoch
    /// names, so one of them that has nothing as new has been set back.
    ///
    /// (Also one of which slot 0 rots just before the start behind a crash on the way from slot 0 to slot 1.)
    ///
    /// # Errors
    /// If there are any; the next attempt is without them.
    fn check_ages(&self, found: &[[Option<Root>; 2]]) -> Result<()> {
        let superblock = self.superblock.borrow();
        let proven = self.proven_roots(found).max_by_key(|root| root.generation);
        let Some(proven) = proven else { return Ok(()) };
        let mut error = Ok(());
        for (member, roots) in self.members.iter().zip(found) {
            let mut records = superblock.members.iter();
            let is_named =
                records.any(|it| it.device == member.id && it.joined_epoch <= proven.epoch);
            // Slot 0 is not written again before slot 1 has what it had. Where both are damaged nothing is known.
            let newest = roots.iter().flatten().map(|root| root.generation).max();
            let is_older = |generation: &u64| is_named && *generation < proven.generation;
            let Some(own) = newest.filter(is_older) else { continue };
            if planted::is(Bug::OlderCopyBelieved) {
                continue;
            }
            planted::seen("start: an older copy of a member");
            let what = format!(
                "cache device {} is as it was at checkpoint {}, and the others went on with it until {}: it has been set back, \
                 as by a copy or a snapshot of it",
                member.id, own, proven.generation
            );
            if let Some(place) = member.place.get() {
                self.deadline.attempts().fail(place, |_| what.clone());
            }
            error = Err(Error::new(ErrorKind::Io, what).hint(MEND));
        }
        error
    }

    /// Every valid segment header of this pool.
    ///
    /// # Errors
    /// If a header cannot be read.
    async fn read_headers(&self, report: &mut RecoveryReport) -> Result<Vec<SegmentHeader>> {
        let mut segments = Vec::new();
        for member in self.superblock.borrow().present() {
            segments.extend(member.segments.iter());
        }
        let pool = self.superblock.borrow().pool;
        let mut headers = Vec::new();
        for batch in segments.chunks(READS_MAX) {
            let reads: Vec<(SegmentId, Io)> = batch
                .iter()
                .map(|&segment| {
                    let (member, at) = self.place(segment, 0);
                    (segment, member.device.read(at, Buf::new(BLOCK)))
                })
                .collect();
            for (segment, read) in reads {
                report.bytes_read += BLOCK_BYTES;
                let first = read.await;
                let bytes = match (first.result, first.buf) {
                    (Ok(()), Some(buf)) => buf,
                    _ => self.read_header_again(segment).await?,
                };
                let header = match SegmentHeader::decode(&bytes) {
                    // It may be right the second time.
                    Err(_) if SegmentHeader::is_resembled_by(&bytes) => {
                        SegmentHeader::decode(&self.read_header_again(segment).await?)
                    }
                    decoded => decoded,
                };
                let Ok(header) = header else { continue };
                let member = self.sets.borrow().member_of(segment);
                let ours = header.pool == pool
                    && header.segment == segment
                    && header.device == self.members[member].id;
                if ours {
                    headers.push(header);
                }
            }
        }
        Ok(headers)
    }

    /// Reads a segment's header whose first read failed or returned a damaged one.
    async fn read_header_again(&self, segment: SegmentId) -> Result<Buf> {
        let (member, at) = self.place(segment, 0);
        loop {
            match self.read_member(member, at, BLOCK).await {
                Ok(bytes) => return Ok(bytes),
                // Where a device or its controller is reset it may call that an error of its medium.
                Err(_) if self.rest_for(member).await => {}
                Err(error) => return Err(self.unreturned(segment, 0, error)),
            }
        }
    }

    /// Reads from a member. During a start, which can wait, only an error of the medium is one at once.
    pub(crate) async fn read_member(
        &self,
        member: &Member,
        at: u64,
        bytes: usize,
    ) -> std::result::Result<Buf, IoError> {
        loop {
            let outcome = member.device.read(at, Buf::new(bytes)).await;
            let error = match (outcome.result, outcome.buf) {
                (Ok(()), Some(buf)) => return Ok(buf),
                (result, _) => result.err().unwrap_or(IoErrorKind::Other.into()),
            };
            if error.kind == IoErrorKind::Media || !self.rest_for(member).await {
                return Err(error);
            }
        }
    }

    /// Waits for a moment, for a member to return something again. False where that is in vain: a start waits for
    /// [`UNSURE_SPAN_MAX`] for each of them, all in all, and nobody else does.
    pub(crate) async fn rest_for(&self, member: &Member) -> bool {
        let (rested, counted) = member.rested.get();
        if !self.is_recovering() || self.check_latch().is_err() || rested >= UNSURE_SPAN_MAX {
            return false;
        }
        // Several may wait at a time.
        let end = self.rt.now() + UNSURE_REST;
        let begin = counted.max(self.rt.now());
        member.rested.set((rested + end.saturating_sub(begin), counted.max(end)));
        self.rt.sleep(UNSURE_REST).await.result.ok();
        true
    }

    /// Ends a start that cannot go on without what a member does not return.
    pub(crate) fn unreturned(&self, segment: SegmentId, block: u32, error: IoError) -> Error {
        let (member, at) = self.place(segment, block);
        let doing = format!("reading at byte {at} of");
        let index = self.sets.borrow().member_of(segment);
        self.fail_member(index, &doing, error);
        Error::io(format!("{doing} cache device {}", member.id), error).hint(MEND)
    }

    /// Whether something that origins lack is known not to be there, of sets that had a copy on a member that is.
    fn lacks_owed(&self, Findings { trust, open, .. }: &Findings) -> bool {
        if *trust == Trust::Nothing || !self.superblock.borrow().may_be_dirty() {
            return false;
        }
        let sets = self.sets.borrow();
        let lacks_copy = |id: SegmentId| sets.get(id).is_some_and(|set| set.lacks_copy);
        let hurt = open.iter().filter(|set| set.is_hurt() && lacks_copy(set.id));
        let hurt: BTreeMap<SegmentId, &OpenAtCrash> = hurt.map(|set| (set.id, set)).collect();
        let is_lacking = |m: &Mapping| {
            let (id, first) = sets.split(m.location);
            hurt.get(&id).is_some_and(|set| !set.has_all(m, first))
        };
        // Nobody pays for that but who has found something bad.
        !hurt.is_empty()
            && self.shards.iter().any(|shard| {
                let found = mappings(&shard.index.borrow());
                found.iter().any(|(_, m)| m.state.is_owed() && m.state.has_data() && is_lacking(m))
            })
    }

    /// Builds the set table. `found` is where a header was, and of which life.
    fn adopt_sets(&self, lives: Vec<SegmentHeader>, found: &BTreeSet<(SegmentId, Incarnation)>) {
        let mut claimed = BTreeSet::new();
        let (mut sets, superblock) = (self.sets.borrow_mut(), self.superblock.borrow());
        for header in lives {
            let mut segments = header.partners;
            let named = segments.len();
            segments.retain(|&n| sets.knows(n) && superblock.is_same_since(n, header.epoch));
            let lacks_copy = segments.len() < named;
            claimed.extend(segments.iter().copied());
            sets.put(Set {
                state: SetState::Closing,
                durable_blocks: self.segment_blocks,
                lacks_copy,
                leads: found.contains(&(header.set, header.incarnation)),
                ..Set::opened(header.set, segments, header.incarnation, header.stream)
            });
        }
        sets.claim(&claimed);
    }

    /// Replays everything behind the images; returns the sets that have no footer.
    async fn replay(
        &self,
        root: &Root,
        loaded: &Loaded,
        report: &mut RecoveryReport,
    ) -> Result<Vec<OpenAtCrash>> {
        let lowest = root.lowest_watermark();
        let ids: Vec<SegmentId> = self.sets.borrow().iter().map(|set| set.id).collect();
        let mut records: Vec<(Sequence, RecordPlace, Vec<Entry>)> = Vec::new();
        let mut open = Vec::new();
        let mut highest = root.sequence;
        let mut asked = Vec::new();
        for id in ids {
            let sets = self.sets.borrow();
            let Some(set) = sets.get(id) else { continue };
            let imaged = root.own_roots && set.incarnation.start < root.start_number;
            let skipped = set.stream == Stream::Metadata || imaged && !loaded.needed.contains(&id);
            drop(sets);
            if skipped {
                self.set_closed(id, Sequence(0));
            } else {
                asked.push((id, imaged));
            }
        }
        // Together, for a large pool has a million footers, and one after the other each is a wait.
        for batch in asked.chunks(READS_MAX) {
            let footers = batch.iter().map(|&(id, _)| self.closed_records(id, lowest));
            for (&(id, imaged), (bytes, closed)) in batch.iter().zip(all_of(footers).await) {
                report.bytes_read += bytes;
                match closed {
                    Some((last, found)) => {
                        highest = highest.max(last);
                        self.set_closed(id, last);
                        if !imaged {
                            self.collect(id, found.into_iter(), &mut records);
                        }
                    }
                    None => {
                        // Nothing stands behind the images that it could be replayed for.
                        let is_known = (imaged || report.clean_stop) && !loaded.failed;
                        let set = self.scan(id, is_known, report).await?;
                        let last = set.records.iter().map(|r| r.sequence).max();
                        let last = last.unwrap_or_default();
                        highest = highest.max(last);
                        if let Some(set) = self.sets.borrow_mut().get_mut(id) {
                            set.last_sequence = last;
                        }
                        if !imaged {
                            self.collect(id, set.replayed(), &mut records);
                        }
                        open.push(set);
                    }
                }
            }
        }
        check_counter("sequence of the newest record", highest.0)?;
        self.log.resume(Sequence(highest.0 + SEQUENCE_GAP));
        records.sort_by_key(|(sequence, ..)| *sequence);
        for (sequence, place, entries) in records {
            report.records_replayed += 1;
            for entry in entries.iter().filter(|e| e.kind.names_blocks() && self.is_sound(e)) {
                let shard = shard_of(entry.volume, entry.block, self.shards.len() as u32);
                if sequence > root.images[shard as usize].watermark {
                    self.apply(entry, place, true);
                }
            }
        }
        Ok(open)
    }

    fn set_closed(&self, id: SegmentId, last: Sequence) {
        let mut sets = self.sets.borrow_mut();
        if let Some(set) = sets.get_mut(id) {
            set.last_sequence = last;
            sets.transition(id, SetState::Closed);
        }
    }

    fn collect(
        &self,
        id: SegmentId,
        found: impl Iterator<Item = FooterRecord>,
        into: &mut Vec<(Sequence, RecordPlace, Vec<Entry>)>,
    ) {
        let length = |r: &FooterRecord| u32::from(r.header_blocks) + u32::from(r.data_blocks);
        let holds_data = self.sets.borrow().get(id).is_some_and(Set::holds_data);
        for record in found.filter(|r| self.is_record_length(r.offset_blocks, length(r))) {
            let place = RecordPlace {
                header: self.sets.borrow().location(id, record.offset_blocks),
                header_blocks: u32::from(record.header_blocks),
            };
            let mut entries = record.entries;
            // No writer puts data among facts, and an image would not be believed that leads there.
            entries.retain(|entry| holds_data || !entry.has_data());
            into.push((record.sequence, place, entries));
        }
    }

    /// The records of a set with a footer, if they reach behind `lowest`; `None` without a footer. With the
    /// bytes that were read for it.
    async fn closed_records(
        &self,
        id: SegmentId,
        lowest: Sequence,
    ) -> (u64, Option<(Sequence, Vec<FooterRecord>)>) {
        let mut bytes_read = 0;
        let set = self.sets.borrow().get(id).map(|set| (set.segments.clone(), set.incarnation));
        let Some((segments, incarnation)) = set else { return (0, None) };
        for segment in segments {
            bytes_read += BLOCK_BYTES;
            let Some(trailer) = self.read_trailer(segment).await else { continue };
            if trailer.set != id || trailer.incarnation != incarnation {
                continue;
            }
            if trailer.last_sequence <= lowest {
                return (bytes_read, Some((trailer.last_sequence, Vec::new())));
            }
            bytes_read += u64::from(trailer.body_blocks()) * BLOCK_BYTES;
            if let Some(records) = self.read_footer_body(segment, &trailer).await {
                return (bytes_read, Some((trailer.last_sequence, records)));
            }
        }
        (bytes_read, None)
    }
}

/// The root that counts: the newest but for those that note what was lost for an epoch that did not come
/// to be, and none from before what `marking` names. Where none is left, somebody has agreed to lose the
/// members that had one: then the newest of the others knows most.
fn newest_of<'a>(all: impl Iterator<Item = &'a Root> + Clone, marking: u64) -> Option<Root> {
    let counts = |root: &&Root| match root.marks {
        true => root.is_named(marking),
        false => root.generation >= marking,
    };
    let newest = all.clone().filter(counts).max_by_key(|root| root.generation);
    newest.or_else(|| all.filter(|root| root.marks).max_by_key(|root| root.generation)).cloned()
}

impl Root {
    /// Whether it is the one that notes what was lost when an epoch began.
    fn is_named(&self, marking: u64) -> bool {
        self.marks && self.generation == marking
    }

    /// The same as one like any other; of no epoch that a superblock knows if none names it.
    fn settled(self, marking: u64) -> Root {
        let epoch = if self.marks && !self.is_named(marking) { 0 } else { self.epoch };
        Root { marks: false, epoch, ..self }
    }
}

/// Whether a set is of a start that has ended. Those after the root's did not get as far as a root of
/// their own, so what they have appended is in the log where they had it from, too; unless they, or the
/// root, are of a version that wrote none.
fn counts(root: &Root, incarnation: Incarnation) -> bool {
    !root.own_roots || incarnation.start <= root.start_number
}
