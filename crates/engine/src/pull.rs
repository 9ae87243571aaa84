//! What a pool would be without one of its members: asked before somebody pulls it, and when it fails.
//!
//! * What [`Pool::can_pull`] answers is what would happen at that instant, by the same table of sets and the
//!   same [`Core::is_last`] as decide when a member fails (INV-73).
//! * Nothing waits and nothing is changed, so the answer may be old as soon as it is given: a write can make
//!   dirty what was clean. It stays true as long as `held_by` is empty because all dirty data has two copies.

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Standing;
use crate::format::Mode;
use crate::ids::{BLOCK_BYTES, DeviceId};
use crate::member::Member;
use crate::pool::Pool;
use crate::segment::{Set, SetTable};

/// Why a member should not be pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// There is no other one.
    Last,
    /// What an origin lacks is there and nowhere else. The pool would go on, and it would be lost.
    OnlyCopy,
    /// What an origin lacks is on others as well, and one of these has returned damage, or not returned something.
    Doubted,
    /// The witness cannot be written: without it nobody could tell later that the member is stale.
    Witness,
    /// The pool has stopped writing already.
    Latched,
}

/// What would be if a member were pulled now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Why it must stay; none if nothing would be lost and the pool would go on.
    pub held_by: Option<Hold>,
    /// Bytes that origins lack and that no other member has.
    pub only_dirty_bytes: u64,
    /// Bytes of clean data that no other member has: they would be read from the origins again.
    pub only_clean_bytes: u64,
    /// Bytes that origins lack and that would have a copy less than now.
    pub short_bytes: u64,
    /// Whether others are enough to copy these again; else they are destaged.
    pub copied_again: bool,
    /// The volumes that would be written through from then on, though they are written back now.
    pub written_through: Vec<String>,
    /// Whether it is on its way out of the pool.
    pub leaves: bool,
    /// Whether the pool uses it no more, because it has failed just now.
    pub has_failed: bool,
}

impl Pool {
    /// Puts into the events what was lost of late and waits to be told together with more.
    pub fn tell_lost(&self) {
        self.core.tell_untold();
    }

    /// Whether the witness could not be written the last time: volumes that are clean are written through until it
    /// can.
    pub fn is_unwitnessed(&self) -> bool {
        self.core.witness_lags.get()
    }

    /// What would be if a member were pulled now.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is none.
    pub fn can_pull(&self, id: DeviceId) -> Result<Pull> {
        let core = &self.core;
        let mut named = core.members.iter().enumerate().filter(|(_, member)| is_named(member));
        let Some((index, member)) = named.find(|(_, member)| member.id == id) else {
            let what = format!("cache device {id} is none of the pool's");
            return Err(Error::new(ErrorKind::NotFound, what)
                .hint("see `forebay pool show` for its cache devices"));
        };
        let blocks = core.sets.borrow().blocks_on(index);
        Ok(core.pull(index, member, blocks))
    }

    /// The same of all members, in one look.
    pub fn can_pull_each(&self) -> Vec<(DeviceId, Pull)> {
        let blocks = self.core.sets.borrow().blocks_on_each(self.core.members.iter().count());
        let named = self.core.members.iter().enumerate().filter(|(_, member)| is_named(member));
        named
            .map(|(index, member)| (member.id, self.core.pull(index, member, blocks[index])))
            .collect()
    }
}

/// Whether it is one of the pool's.
fn is_named(member: &Member) -> bool {
    !matches!(member.standing.get(), Standing::Joining | Standing::Gone)
}

impl Core {
    /// What would be without a member that has these blocks.
    fn pull(&self, index: usize, member: &Member, blocks: Blocks) -> Pull {
        let (has_failed, [only_dirty, only_clean, short]) = (member.is_failed(), blocks);
        let held_by = match () {
            () if self.latched.get() => Some(Hold::Latched),
            () if has_failed => None,
            () if self.witness_lags.get() => Some(Hold::Witness),
            () if self.is_last(index) => Some(Hold::Last),
            () if only_dirty > 0 => Some(Hold::OnlyCopy),
            () if short > 0 && !self.others_are_sound(index) => Some(Hold::Doubted),
            () => None,
        };
        // One that is on its way out stays when another one fails.
        let others = self.serving().filter(|(other, _)| *other != index).count();
        let copies = usize::from(self.dirty_copies());
        Pull {
            held_by,
            only_dirty_bytes: only_dirty * BLOCK_BYTES,
            only_clean_bytes: only_clean * BLOCK_BYTES,
            short_bytes: short * BLOCK_BYTES,
            copied_again: others >= copies,
            written_through: self.written_through_with(others),
            leaves: member.is_leaving(),
            has_failed,
        }
    }

    /// Whether no other member would be left if this one, which serves, failed now.
    pub(crate) fn is_last(&self, index: usize) -> bool {
        // The epoch without one that departs is being written, and it is empty.
        let departs = |member: &Member| self.leave.is_parting() && member.is_leaving();
        self.serving().all(|(other, member)| other == index || departs(member))
    }

    /// Whether no other member has returned damage, or not returned something: of one that has nobody knows what it has.
    fn others_are_sound(&self, index: usize) -> bool {
        self.serving().all(|(other, member)| {
            other == index || (member.damaged.get() == 0 && !member.doubted.get())
        })
    }

    /// Whether nothing would be lost without a member, and the pool would go on. What the index says of this instant
    /// decides, not what is durable: the pool begins an epoch without the member that agrees with the index
    /// ([`crate::marks`]).
    pub(crate) fn can_do_without(&self, index: usize) -> bool {
        let may_go = !self.latched.get() && !self.witness_lags.get() && !self.is_last(index);
        may_go && !self.sets.borrow().is_needed(index) && self.others_are_sound(index)
    }

    /// The volumes that are written back now and would not be with so many members.
    fn written_through_with(&self, members: usize) -> Vec<String> {
        let superblock = self.superblock.borrow();
        if self.is_short() || members >= usize::from(superblock.dirty_copies) {
            return Vec::new();
        }
        let agreed = |accepts: bool| accepts || superblock.accept_single_copy;
        let ends = superblock
            .volumes
            .iter()
            .filter(|v| v.mode == Mode::Writeback && !agreed(v.accept_single_copy));
        ends.map(|v| v.name.clone()).collect()
    }
}

/// Live blocks of sets with a copy on a member: those that lie there alone and that an origin may lack, the others
/// that lie there alone, and those that an origin may lack and that lie elsewhere, too.
type Blocks = [u64; 3];

fn with(set: &Set, [owed, clean, shared]: Blocks) -> Blocks {
    let (live, owing) = (u64::from(set.live_blocks), u64::from(set.owed_blocks));
    match set.segments.len() {
        1 => [owed + owing, clean + live - owing, shared],
        _ => [owed, clean, shared + owing],
    }
}

impl SetTable {
    /// Whether a member has something alone that an origin may lack.
    pub(crate) fn is_needed(&self, member: usize) -> bool {
        self.blocks_on(member)[0] > 0
    }

    fn blocks_on(&self, member: usize) -> Blocks {
        self.on(member).fold([0; 3], |blocks, set| with(set, blocks))
    }

    /// The same of so many members, by number, in one look at all sets.
    fn blocks_on_each(&self, members: usize) -> Vec<Blocks> {
        let mut each = vec![[0; 3]; members];
        for set in self.iter() {
            for &segment in &set.segments {
                let blocks = &mut each[self.member_of(segment)];
                *blocks = with(set, *blocks);
            }
        }
        each
    }
}
