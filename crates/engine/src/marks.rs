//! What is lost with members that fail in use and held the only copy: noted durably before anybody is
//! told of it, and before the epoch without them begins (INV-62).
//!
//! * Records of what is lost would not do. What only the failed member has may have overtaken something
//!   older that another one has, and a replay would bring that back. So all shards are imaged, and a start
//!   in the coming epoch replays nothing from before.
//! * For that nothing may be on its way into the log. What is in flight is handed back and goes into the
//!   log again once the epoch has begun, with the bytes that are still in memory ([`crate::log`]).
//! * The root with these images counts only for the superblock that names it. As long as none does, a
//!   start with the failed member finds the epoch before, with the root that slot 1 still has, and nothing
//!   is lost. Slot 1 has the new one before any other root is written.
//! * If another member fails meanwhile, all of it is done once more. Where superblocks name the first root
//!   by then, slot 1 has that one before the second is written over it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use forebay_device::IoErrorKind;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Root, State};
use crate::ids::{BLOCK_BYTES, Location, VolumeId};
use crate::index::Mapping;
use crate::planted::{self, Bug};
use crate::recovery::mappings;
use crate::text::bytes;
use crate::wait::{TaskGuard, yield_once};

/// A member that may have taken the only copy of something with it, by its number in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss(u64);

/// What members take with them that fail in use.
///
/// While that is being noted, nothing but images is appended. What has been noted is told of once it is durable.
#[derive(Default)]
pub(crate) struct Losses {
    last: Cell<Loss>,
    marking: Cell<bool>,
    /// Blocks per volume that are noted and not told of yet.
    untold: RefCell<BTreeMap<VolumeId, u64>>,
}

impl Losses {
    /// The newest one.
    pub(crate) fn last(&self) -> Loss {
        self.last.get()
    }

    /// Whether there are newer ones than this: what was on its way into the log by then is handed back, and what is
    /// written for a root counts for nothing.
    pub(crate) fn any_since(&self, loss: Loss) -> bool {
        self.last() != loss
    }

    /// Whether what is lost is being noted.
    pub(crate) fn is_marking(&self) -> bool {
        self.marking.get()
    }

    fn add(&self) {
        self.last.set(Loss(self.last().0 + 1));
    }

    fn note(&self, volume: VolumeId, count: u32) {
        *self.untold.borrow_mut().entry(volume).or_default() += u64::from(count);
    }

    /// What is noted is durable; what is to be told of.
    fn end_marking(&self) -> BTreeMap<VolumeId, u64> {
        self.marking.set(false);
        self.untold.take()
    }
}

/// The root that notes what is lost, durable in slot 0 of all members that serve, and of one that is to join.
pub(crate) struct Marks<'a> {
    pub root: Root,
    /// The last one that it is about.
    loss: Loss,
    _roots: TaskGuard<'a>,
}

impl Marks<'_> {
    /// Whether it says all that is lost until now, for this epoch.
    pub(crate) fn is_of(&self, core: &Core, epoch: u64) -> bool {
        !core.losses.any_since(self.loss) && self.root.epoch == epoch
    }
}

/// A run in parts that lie within one of these places, which are in order, and parts that do not.
fn split(m: &Mapping, places: &[Range<u64>]) -> Vec<(Mapping, bool)> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < m.count {
        let place = m.location.0 + u64::from(at);
        let next = places.get(places.partition_point(|range| range.end <= place));
        let is_within = next.is_some_and(|range| range.start <= place);
        let border = next.map(|range| if is_within { range.end } else { range.start });
        let count = border.map_or(u64::MAX, |border| border - place).min((m.count - at).into());
        parts.push((m.part(at, count as u32), is_within));
        at += count as u32;
    }
    parts
}

impl Core {
    /// Has everything on its way into the log handed back: a member is gone that may have the only copy
    /// of something.
    pub(crate) fn note_loss(&self) {
        self.losses.add();
        self.log.wake_all();
        self.room.wake_all();
        self.epoch_begun.wake_all();
    }

    /// Notes as lost what only members held that have failed, durably, for the epoch that comes.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn mark_losses<'a>(
        &'a self,
        before: Option<Marks<'a>>,
        epoch: u64,
    ) -> Result<Marks<'a>> {
        if !self.losses.marking.replace(true) {
            self.note_loss();
        }
        let roots = match before {
            Some(marks) => marks._roots,
            None => self.roots.lock().await,
        };
        loop {
            let loss = self.losses.last();
            self.until_handed_back().await?;
            self.give_up_images();
            self.lose_strays().await;
            let images = match self.write_images(loss).await {
                Ok(images) => images,
                Err(_) if self.losses.any_since(loss) => continue,
                Err(error) => {
                    self.latch(&error.what, IoErrorKind::Other.into());
                    return Err(error);
                }
            };
            self.flush_each("what is left on").await?;
            let root = Root { marks: true, ..self.next_root(images, epoch, false) };
            self.write_marks(&root, 0).await?;
            self.mark_joining(&root).await;
            if !self.losses.any_since(loss) {
                planted::seen("losses marked");
                return Ok(Marks { root, loss, _roots: roots });
            }
        }
    }

    /// Takes what nothing can be read from out of the index: what an origin may lack is lost, the rest is
    /// read from there. What it was found to have is no less there because the fact of that waits for the epoch.
    async fn lose_strays(&self) {
        for shard in &self.shards {
            if !self.sets.borrow().has_strays() {
                return;
            }
            let proven = self.proven_in_queue();
            let found = mappings(&shard.index.borrow());
            for (volume, m) in found.into_iter().filter(|(_, m)| m.state.has_data()) {
                if !self.is_stray_at(m.location) {
                    continue;
                }
                if !m.state.is_owed() {
                    self.evict(volume, &m);
                    continue;
                }
                let known = if m.state == State::Written { &proven[..] } else { &[] };
                for (part, is_proven) in split(&m, known) {
                    match is_proven {
                        true => self.let_go_of_proven(volume, &part),
                        false => self.lose_stray(volume, part),
                    }
                }
            }
            yield_once().await;
        }
    }

    /// Its origin has it: nothing is lost with its place.
    fn let_go_of_proven(&self, volume: VolumeId, m: &Mapping) {
        planted::seen("losses: known to be on its origin");
        self.void_if_hurt(volume, m);
        let want = |state| state == m.state;
        self.map_transition(volume, m.block, m.count, m.location, want, None);
        self.note_drop(volume, m.block);
    }

    fn lose_stray(&self, volume: VolumeId, m: Mapping) {
        if planted::is(Bug::LossNotMarked) {
            return self.map_remove(volume, m.block, m.count);
        }
        self.ram.borrow_mut().void(volume, m.block, m.count.into());
        self.lose(volume, m);
        self.losses.note(volume, m.count);
    }

    /// Writes the root that notes what is lost to a slot of all members that serve, durably.
    pub(crate) async fn write_marks(&self, root: &Root, slot: u64) -> Result<()> {
        if planted::is(Bug::LossNotDurable) {
            return Ok(());
        }
        self.write_root(root, slot).await
    }

    /// The epoch that names the root has begun: the log goes on, and who asks for what is lost is told.
    /// Whether anything is.
    pub(crate) async fn end_marking(&self, marks: Marks<'_>) -> Result<bool> {
        self.write_marks(&marks.root, 1).await?;
        if marks.root.epoch == self.log.epoch.get() {
            self.roots.note_swept(marks.root.epoch);
            self.roots.note_durable(marks.root.epoch);
        }
        let lost = self.losses.end_marking();
        self.tell_flushes(&lost);
        if !lost.is_empty() {
            self.event(EventKind::BlocksLost, self.loss_note(&lost));
        }
        Ok(!lost.is_empty())
    }

    /// Each client's next FLUSH fails: it may have relied on what is lost.
    pub(crate) fn tell_flushes(&self, lost: &BTreeMap<VolumeId, u64>) {
        for volume in lost.keys().filter_map(|&id| self.volume(id)) {
            volume.losses.set(volume.losses.get() + 1);
            volume.origin.notice(self.rt.now());
            volume.loss_notice.set(volume.origin.notices.get());
        }
    }

    fn loss_note(&self, lost: &BTreeMap<VolumeId, u64>) -> String {
        let superblock = self.superblock.borrow();
        let of = |id: VolumeId| superblock.volumes.iter().find(|v| v.id == id);
        let each = lost.iter().map(|(&id, blocks)| {
            let name = of(id).map_or_else(String::new, |v| v.name.clone());
            format!("{} of volume \"{name}\"", bytes(blocks * BLOCK_BYTES))
        });
        let each: Vec<_> = each.collect();
        format!(
            "{} had their only copy on a cache device that has failed, and are lost: reading them fails \
             until they are overwritten; all else is served",
            each.join(", ")
        )
    }

    /// Waits until it is durable what is lost.
    ///
    /// # Errors
    /// If the pool has latched, or something is nowhere and has not been noted as lost.
    pub(crate) async fn until_marked(&self) -> Result<()> {
        self.settle_members().await?;
        if self.sets.borrow().has_owed_strays() && !self.is_failing() {
            return Err(Error::new(ErrorKind::Io, "it is on no cache device that is there"));
        }
        Ok(())
    }

    /// Whether nothing can be read from where this location is.
    pub(crate) fn is_stray_at(&self, location: Location) -> bool {
        let (set, _) = self.sets.borrow().split(location);
        self.is_stray(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SECTORS_ALL;

    #[test]
    fn a_run_is_split_where_what_is_known_of_it_ends() {
        let (block, count, location) = (100, 10, Location(50));
        let state = State::Written;
        let m = Mapping { block, count, state, location, distance: 1, sectors: SECTORS_ALL };
        let parts = |places: &[Range<u64>]| -> Vec<(u64, u32, u64, bool)> {
            let parts = split(&m, places);
            parts.iter().map(|(p, is)| (p.block, p.count, p.location.0, *is)).collect()
        };
        assert_eq!(parts(&[]), [(100, 10, 50, false)]);
        assert_eq!(parts(&[0..50, 60..70]), [(100, 10, 50, false)]);
        assert_eq!(parts(&[40..70, 80..90]), [(100, 10, 50, true)]);
        let some =
            [(100, 2, 50, true), (102, 3, 52, false), (105, 1, 55, true), (106, 4, 56, false)];
        assert_eq!(parts(&[48..52, 55..56]), some);
    }
}
