//! What a start depends on, beside records: both slots of the superblock and of the root on each member, and the headers
//! of segments. What does not verify there is written anew, from what does.
//!
//! * Only what is bad is written, and behind it comes a flush: a write that is cut off costs nothing that was good.
//!   To change the superblocks, or to write a root, begins with slot 0, and that may be the good one (INV-97).
//! * At rest both slots say the same, on all members. So whoever looks holds what those who write hold.
//! * A member that returns nothing at all has not lost just this, and is left alone; a lap says so.
//! * Where no header of a set can be written anew, because it has lost a copy and none says which, what the set holds is
//!   moved: with another header a start would not find out that it has too few.

use std::rc::Rc;

use forebay_device::Buf;

use super::At;
use crate::checkpoint::root_offset;
use crate::core::Core;
use crate::error::Result;
use crate::format::{Layout, Root, SUPERBLOCK_BYTES, SegmentHeader, State, Superblock};
use crate::ids::{BLOCK_BYTES, SegmentId};
use crate::member::Member;
use crate::planted;
use crate::superblock::write_slot;

/// What there is to do for the headers of a set.
#[derive(Default)]
struct Headers {
    /// What the bad ones should be.
    headers: Vec<SegmentHeader>,
    /// How many are left alone, on members that return nothing.
    unmended: u64,
    /// Whether all are bad, and nobody knows what they were.
    is_nameless: bool,
}

impl Core {
    /// Looks at superblocks and roots, and writes anew what is bad of them.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(super) async fn mend_slots(self: &Rc<Self>) -> Result<()> {
        let superblocks = self.mend_superblocks().await?;
        let (roots, needs_one) = self.mend_roots().await?;
        if needs_one {
            self.lap(false).await?;
        }
        if superblocks + roots > 0 {
            planted::seen("scrub: superblocks or roots written anew");
            self.note_replaced(superblocks + roots);
        }
        Ok(())
    }

    async fn mend_superblocks(&self) -> Result<u64> {
        let _control = self.control.lock().await;
        let current = self.superblock.borrow().clone();
        let mut mended = 0;
        for slot in 0..2 {
            let before = mended;
            let named = |member: &Member| current.present().any(|m| m.device == member.id);
            for (index, member) in self.serving().filter(|(_, member)| named(member)) {
                let own = Superblock { device: member.id, ..current.clone() };
                let is_own = |bytes: &[u8]| Superblock::decode(bytes).is_ok_and(|it| it == own);
                let at = Layout::superblock_offset(slot);
                if self.read_good(member, at, SUPERBLOCK_BYTES, is_own).await.is_some() {
                    continue;
                }
                if !self.may_mend(member).await {
                    self.note_unmended(1);
                    continue;
                }
                match write_slot(&*member.device, &own, slot).await {
                    Ok(()) => mended += 1,
                    Err(error) => self.fail_member(index, "writing the superblock of", error),
                }
            }
            if mended > before {
                self.flush_each("the superblock on").await?;
            }
        }
        Ok(mended)
    }

    /// How many root slots were written anew, and whether none was good anywhere, so that a new root is needed.
    async fn mend_roots(&self) -> Result<(u64, bool)> {
        let _lap = self.lap_lock.lock().await;
        let _roots = self.roots.lock().await;
        let (pool, bytes) = {
            let superblock = self.superblock.borrow();
            (superblock.pool, superblock.root_bytes)
        };
        // One that is older, which a write that was lost has left, is as bad as none.
        let is_root = |bytes: &[u8]| {
            let current = |root: Root| {
                root.pool == pool && root.generation == self.roots.generation() && !root.marks
            };
            Root::decode(bytes).is_ok_and(current)
        };
        let (mut good, mut bad) = (None, Vec::new());
        for (index, member) in self.serving() {
            for slot in 0..2 {
                let at = root_offset(bytes, slot);
                match self.read_good(member, at, bytes as usize, is_root).await {
                    Some(found) => good = Some(found),
                    None => bad.push((slot, index)),
                }
            }
        }
        let Some(good) = good.map(Buf::freeze) else { return Ok((0, true)) };
        let mut mended = 0;
        for slot in 0..2 {
            let before = mended;
            for &(_, index) in bad.iter().filter(|(of, _)| *of == slot) {
                let member = &self.members[index];
                if !self.may_mend(member).await {
                    self.note_unmended(1);
                    continue;
                }
                let write = member.device.write(root_offset(bytes, slot), good.clone());
                match write.done().await {
                    Ok(()) => mended += 1,
                    Err(error) => self.fail_member(index, "writing a root to", error),
                }
            }
            if mended > before {
                self.flush_each("a root on").await?;
            }
        }
        Ok((mended, false))
    }

    /// Looks at the headers of a set's segments, and writes anew those that are bad; how many it left alone, or nothing
    /// if it has to be done again.
    pub(super) async fn mend_headers(self: &Rc<Self>, at: At) -> Option<u64> {
        let found = self.headers_to_mend(at).await;
        if found.is_nameless {
            return self.leave_nameless(at).await.then_some(0);
        }
        if found.headers.is_empty() {
            return Some(found.unmended);
        }
        // Copies are given back, and what is closed becomes room, only by whoever holds it.
        let _lap = self.lap_lock.lock().await;
        let headers = self.headers_to_mend(at).await.headers;
        if headers.is_empty() {
            return self.is_at(at).then_some(found.unmended);
        }
        let bytes = headers.iter().map(|header| (header.segment, header.encode().clone()));
        if self.write_headers(bytes).await.is_err() {
            return None;
        }
        planted::seen("scrub: headers of segments written anew");
        if let Some(set) = self.sets.borrow_mut().get_mut(at.set) {
            set.stuck = false;
        }
        self.note_replaced(headers.len() as u64);
        Some(found.unmended)
    }

    /// Moves what a set holds of which a start could not read any header, and has images say so: those that name
    /// what is owed there would stop it. False if it has to be done again.
    async fn leave_nameless(self: &Rc<Self>, at: At) -> bool {
        if !self.is_at(at) {
            return true;
        }
        let holds_data = self.sets.borrow_mut().get_mut(at.set).is_some_and(|set| {
            // Nobody may take a header from the table for it.
            set.stuck = true;
            set.holds_data()
        });
        if !holds_data {
            return self.replace_records(1).await;
        }
        planted::seen("scrub: a set without a header was emptied");
        // It stays what it is, whatever is overwritten meanwhile.
        let pinned = self.pin_set(at.set);
        for _ in 0..2 {
            self.move_owed(at.set).await;
            let mut written = self.runs_of(at.set).await;
            written.retain(|(_, m)| m.state == State::Written);
            if !self.prove(&written).await {
                // What it was given is dirty again, and is moved as such.
                self.let_go_of_silent();
            }
        }
        self.copy_clean(at.set).await;
        let is_home = self.runs_of(at.set).await.iter().all(|(_, m)| !m.state.is_owed());
        self.unpin(pinned);
        // Its error has latched the pool and is an event.
        self.lap(false).await.is_ok() && is_home
    }

    /// What the bad headers of a set should be: what a good one says, or else the set table.
    async fn headers_to_mend(&self, at: At) -> Headers {
        let Some((segments, lacks_copy, stream)) = ({
            let sets = self.sets.borrow();
            let set = sets.get(at.set).filter(|set| set.incarnation == at.incarnation);
            set.map(|set| (set.segments.clone(), set.lacks_copy, set.stream))
        }) else {
            return Headers::default();
        };
        let (mut good, mut bad, mut unmended) = (None, Vec::new(), 0);
        for &segment in &segments {
            let (member, offset) = self.place(segment, 0);
            let is_own = |bytes: &[u8]| {
                SegmentHeader::decode(bytes).is_ok_and(|h| {
                    (h.segment, h.device, h.set, h.incarnation)
                        == (segment, member.id, at.set, at.incarnation)
                })
            };
            match self.read_good(member, offset, BLOCK_BYTES as usize, is_own).await {
                Some(bytes) => good = SegmentHeader::decode(&bytes).ok(),
                None if self.may_mend(member).await => bad.push((segment, member.id)),
                None => unmended += 1,
            }
        }
        // What the table does not know of is a segment of a member that is gone.
        let known = |first: &SegmentId| !lacks_copy && *first == at.set;
        let model = good.or_else(|| {
            segments.first().filter(|first| known(first)).map(|&segment| SegmentHeader {
                pool: self.superblock.borrow().pool,
                device: bad.first().map_or_else(Default::default, |(_, device)| *device),
                segment,
                set: at.set,
                incarnation: at.incarnation,
                stream,
                epoch: self.log.epoch.get(),
                partners: segments.to_vec(),
            })
        });
        if !self.is_at(at) {
            return Headers::default();
        }
        let Some(model) = model else {
            return Headers { is_nameless: unmended == 0, unmended, ..Headers::default() };
        };
        bad.retain(|(segment, _)| model.partners.contains(segment));
        let mended = |(segment, device)| SegmentHeader { segment, device, ..model.clone() };
        Headers { headers: bad.into_iter().map(mended).collect(), unmended, is_nameless: false }
    }

    /// What a member has at a place, if it is good the first or the second time.
    async fn read_good(
        &self,
        member: &Member,
        at: u64,
        bytes: usize,
        is_good: impl Fn(&[u8]) -> bool,
    ) -> Option<Buf> {
        for _ in 0..2 {
            let outcome = member.device.read(at, Buf::new(bytes)).await;
            let found = outcome.result.ok().and(outcome.buf).filter(|found| is_good(found));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether what is bad on a member can be put right: it serves, and returns one of its superblocks' first blocks.
    async fn may_mend(&self, member: &Member) -> bool {
        let is_silent = self.silence_of(member).await.is_some();
        !is_silent && member.is_serving() && !self.latched.get() && !self.lease.is_lost()
    }
}
