//! What is known of a range without reading it: where its newest data is, and what reads as zeroes.
//!
//! * One look at the index, without waiting: every change that was acknowledged before is seen.
//! * Zeroes are what the index knows to be zeroes, which the origin is still owed. What the origin
//!   holds counts as data, whatever it is.
//! * When a device error has stopped all writing, nothing is said to be zeroes any more: a read of
//!   it may fail, and a client that skipped that read would not notice.
//! * The work of a call is bounded ([`STATUS_STRIPES_MAX`], [`STATUS_RUNS_MAX`],
//!   [`STATUS_RAM_BLOCKS_MAX`], [`STATUS_EXTENTS_MAX`]); an answer may cover less than what was asked for, never nothing.

use crate::core::{Core, STRIPE_BLOCKS};
use crate::format::State;
use crate::ids::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_ALL, SECTORS_PER_BLOCK};
use crate::index::Mapping;
use crate::limits::{
    STATUS_EXTENTS_MAX, STATUS_RAM_BLOCKS_MAX, STATUS_RUNS_MAX, STATUS_STRIPES_MAX,
};
use crate::read::blocks_of;
use crate::volume::VolumeState;

/// Where the newest data of some bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// On the origin alone; nothing is known about it.
    Origin,
    /// On a cache device, and the origin was given it, too.
    Clean,
    /// In RAM; the origin has it, too.
    Ram,
    /// On a cache device; the origin may lack it.
    Dirty,
    /// It reads as zeroes. The cache knows that, the origin may not yet.
    Zeroes,
    /// Nowhere: the only copy died with its SSD, or is damaged, and reads fail.
    Lost,
}

/// A run of bytes in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// In bytes, a multiple of 512, not 0.
    pub len: u64,
    /// Where it is.
    pub place: Place,
}

/// The answer while it is being made: runs that follow each other, without gaps.
struct Answer<'a> {
    extents: &'a mut Vec<Extent>,
    /// The first byte not answered yet, and the end of the range.
    at: u64,
    end: u64,
    full: bool,
    /// Blocks that may still be looked up in RAM.
    ram_blocks: u32,
}

impl Answer<'_> {
    /// Says where the bytes up to `until` are.
    fn say(&mut self, until: u64, place: Place) {
        let until = until.min(self.end);
        if until <= self.at || self.full {
            return;
        }
        let len = until - self.at;
        let room = self.extents.len() < STATUS_EXTENTS_MAX;
        match self.extents.last_mut() {
            Some(last) if last.place == place => last.len += len,
            _ if room => self.extents.push(Extent { len, place }),
            _ => {
                self.full = true;
                return;
            }
        }
        self.at = until;
    }
}

impl Core {
    /// Appends to `extents`, which is empty, what is known of a valid range.
    pub(crate) fn status(&self, v: &VolumeState, offset: u64, len: u64, extents: &mut Vec<Extent>) {
        let end = offset + len;
        let ram_blocks = STATUS_RAM_BLOCKS_MAX;
        let mut answer = Answer { extents, at: offset, end, full: false, ram_blocks };
        let cached_end = (v.blocks() * BLOCK_BYTES).min(end);
        let stripe_bytes = STRIPE_BLOCKS * BLOCK_BYTES;
        let mut runs = 0;
        for stripe in (offset / stripe_bytes..).take(STATUS_STRIPES_MAX) {
            if answer.at >= cached_end || runs >= STATUS_RUNS_MAX {
                break;
            }
            let until = ((stripe + 1) * stripe_bytes).min(cached_end);
            let (first, count) = blocks_of(answer.at, until - answer.at);
            let index = self.shard(v.id, first).index.borrow();
            index.lookup(v.id, first, count, |mapping| {
                runs += 1;
                self.say_mapping(v, &mapping, &mut answer);
            });
            self.say_ram_or(v, until, Place::Origin, &mut answer);
            if answer.full {
                break;
            }
        }
        if answer.at >= cached_end {
            answer.say(end, Place::Origin); // the tail
        }
    }

    /// Says that bytes up to `until`, which the origin has, are in RAM or elsewhere.
    fn say_ram_or(&self, v: &VolumeState, until: u64, place: Place, answer: &mut Answer<'_>) {
        let until = until.min(answer.end);
        if !self.may_use_ram(v) || !self.ram.borrow().has_any(v.id) {
            return answer.say(until, place);
        }
        while answer.at < until && !answer.full {
            if answer.ram_blocks == 0 {
                answer.full = true;
                return;
            }
            let most = (answer.at / BLOCK_BYTES + u64::from(answer.ram_blocks)) * BLOCK_BYTES;
            let (in_ram, border) = self.ram_run(v, answer.at, until.min(most));
            answer.ram_blocks -= blocks_of(answer.at, border - answer.at).1.min(answer.ram_blocks);
            answer.say(border, if in_ram { Place::Ram } else { place });
        }
    }

    fn say_mapping(&self, v: &VolumeState, m: &Mapping, answer: &mut Answer<'_>) {
        let start = m.block * BLOCK_BYTES;
        self.say_ram_or(v, start, Place::Origin, answer);
        let place = match m.state {
            state if !self.may_serve(v, state) => Place::Origin,
            State::Clean | State::Provisional => Place::Clean,
            State::Zero | State::ZeroWritten if !self.latched.get() => Place::Zeroes,
            State::Written | State::Dirty | State::Zero | State::ZeroWritten => Place::Dirty,
            State::Lost => Place::Lost,
        };
        let until = start + u64::from(m.count) * BLOCK_BYTES;
        if place == Place::Clean && m.sectors == SECTORS_ALL {
            return self.say_ram_or(v, until, place, answer);
        }
        if m.sectors == SECTORS_ALL {
            return answer.say(until, place);
        }
        for sector in 0..SECTORS_PER_BLOCK {
            let here = m.sectors >> sector & 1 == 1;
            let until = start + (u64::from(sector) + 1) * SECTOR_BYTES;
            answer.say(until, if here { place } else { Place::Origin });
        }
    }
}
