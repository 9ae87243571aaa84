//! Stripes of an array that are written as a whole although only a part of them is dirty.
//!
//! * An array with parity makes of each short write two accesses to the disk it is for, and as many to that of the
//!   parity. Where a stripe has many dirty pieces, to read it once and to write it once costs its disks less,
//!   however much lies between the pieces.
//! * What is written between the pieces is what the origin has returned, while nothing could change it: direct
//!   writes keep away ([`crate::origin::Origin::rewrite`]), and the whole stripe is taken, so the elevator does
//!   (INV-100). The log may have something newer there, which the origin gets in its turn.
//! * Where direct writes are under way, or the stripe cannot be read, its pieces are written one by one.
//! * Beside clients' reads neighbouring stripes are read together, and written together: their disks each get one
//!   long transfer of a kind then, between which reads have their turn.

use std::ops::Range;

use forebay_device::{Data, IoError};

use super::{Group, Run, blocks_bytes, joined};
use crate::core::Core;
use crate::counters::add;
use crate::format::State;
use crate::ids::{BLOCK_BYTES, SECTORS_ALL};
use crate::limits::{DESTAGE_MEMORY_MAX, WHOLE_STRIPE_SHARE_MIN};
use crate::origin::Origin;
use crate::planted;
use crate::volume::VolumeState;
use crate::wait::all_of;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Pieces of a stripe that are under way at a time, where they are written one by one after all: the stripe counts as
/// one write.
const PIECES_INFLIGHT_MAX: usize = 16;

/// Accesses to disks that a write of some blocks within a stripe costs, old data and one parity read before both are
/// written: two for each chunk and for the parity.
fn piece_accesses(origin: &Origin, blocks: &Range<u64>) -> u64 {
    let chunk = |block: u64| block / origin.chunk_blocks;
    2 * (chunk(blocks.end - 1) - chunk(blocks.start) + 2)
}

/// Accesses to read all chunks of a stripe and to write them with a parity.
fn whole_accesses(origin: &Origin) -> u64 {
    2 * (origin.stripe_blocks / origin.chunk_blocks) + 1
}

impl Core {
    /// Makes one group of all those of a stripe where that is worth it. `groups` is in the order of addresses.
    pub(super) fn whole_stripes(&self, v: &VolumeState, groups: Vec<Group>) -> Vec<Group> {
        let stripe_blocks = v.origin.stripe_blocks;
        if !v.origin.parity || stripe_blocks == 0 {
            return groups;
        }
        let mut out: Vec<Group> = Vec::with_capacity(groups.len());
        let blocks_most = self.stripes_together(v) * stripe_blocks;
        let mut rest = groups.into_iter().peekable();
        let number = |group: &Group| group.range().start / stripe_blocks;
        while let Some(first) = rest.next() {
            let stripe = number(&first);
            let mut pieces = vec![first];
            pieces.extend(std::iter::from_fn(|| rest.next_if(|next| number(next) == stripe)));
            let blocks = stripe * stripe_blocks..(stripe + 1) * stripe_blocks;
            // Zeroes may reach into it from the stripe before.
            let reached = out.last().is_some_and(|before| before.range().end > blocks.start);
            if !reached && self.is_worth_whole(v, &blocks, &pieces) {
                planted::seen("stripe written as a whole");
                let runs = pieces.into_iter().flat_map(|piece| piece.runs).collect();
                let stripe = Group { runs, whole: Some(blocks) };
                match out.last_mut() {
                    Some(last) if Self::fits_together(last, &stripe, blocks_most) => {
                        last.append(stripe);
                    }
                    _ => out.push(stripe),
                }
            } else {
                out.append(&mut pieces);
            }
        }
        out
    }

    /// Stripes that one write may be of.
    pub(super) fn stripes_together(&self, v: &VolumeState) -> u64 {
        let pace = v.origin.traffic.pace.borrow();
        match pace.spares() {
            _ if !v.origin.parity => 1,
            true => (pace.depth() as u64).max(1),
            false => self.tuning.destage_stripes_together,
        }
    }

    /// Whether a stripe goes on where `last` ends, and both are one write of so many blocks at the most. There has to
    /// be memory for what the write behind it takes from the cache meanwhile.
    fn fits_together(last: &Group, stripe: &Group, blocks_most: u64) -> bool {
        let (from, to) = (last.range(), stripe.range());
        let next_bytes = (last.count() + stripe.count()) * BLOCK_BYTES;
        let memory_bytes = last.memory_bytes() + stripe.memory_bytes() + next_bytes;
        last.whole.is_some()
            && from.end == to.start
            && to.end - from.start <= blocks_most
            && memory_bytes <= DESTAGE_MEMORY_MAX
    }

    fn is_worth_whole(&self, v: &VolumeState, blocks: &Range<u64>, pieces: &[Group]) -> bool {
        let is_plain = |group: &Group| {
            let mut runs = group.runs.iter().map(|run| &run.mapping);
            runs.all(|m| m.sectors == SECTORS_ALL && m.state == State::Dirty)
        };
        let ranges = || pieces.iter().map(Group::range);
        let dirty: u64 = ranges().map(|range| range.end - range.start).sum();
        let apart: u64 = ranges().map(|range| piece_accesses(&v.origin, &range)).sum();
        let worth = whole_accesses(&v.origin) * self.tuning.destage_whole_percent;
        pieces.len() > 1
            && 100 * apart >= worth
            && dirty * WHOLE_STRIPE_SHARE_MIN >= v.origin.stripe_blocks
            && blocks.end <= v.blocks()
            && pieces.iter().all(is_plain)
            && v.elevator.since_taken(blocks.start, v.origin.stripe_blocks as u32).is_none()
    }

    /// Writes what was read of a group, `parts` in the order of its runs.
    pub(super) async fn write_parts(
        &self,
        v: &VolumeState,
        group: &Group,
        parts: Vec<Data>,
    ) -> std::result::Result<(), IoError> {
        let Some(blocks) = &group.whole else {
            let data = joined(&parts);
            // What was copied is not kept while the origin takes its time: its memory was counted once.
            drop(parts);
            return v.origin.write(group.range().start * BLOCK_BYTES, data).await;
        };
        let stripe_blocks = v.origin.stripe_blocks;
        if group.is_long(stripe_blocks) {
            let _turn = v.elevator.turn.lock().await;
            if let Some(result) = self.write_whole(v, blocks, &group.runs, &parts).await {
                planted::seen("stripes written together");
                return result;
            }
        }
        let stripe = |run: &Run| run.mapping.block / stripe_blocks;
        let mut parts = &parts[..];
        for runs in group.runs.chunk_by(|run, next| stripe(run) == stripe(next)) {
            let (own, others) = parts.split_at(runs.len());
            parts = others;
            let first = stripe(&runs[0]) * stripe_blocks;
            match self.write_whole(v, &(first..first + stripe_blocks), runs, own).await {
                Some(result) => result?,
                None => self.write_pieces(v, runs, own).await?,
            }
        }
        Ok(())
    }

    /// `None` and nothing written if the stripes can be read and written only in pieces now.
    async fn write_whole(
        &self,
        v: &VolumeState,
        blocks: &Range<u64>,
        runs: &[Run],
        parts: &[Data],
    ) -> Option<std::result::Result<(), IoError>> {
        let bytes = blocks_bytes(blocks);
        let change = |stripes: &mut [u8]| {
            for (run, part) in runs.iter().zip(parts) {
                let at = (run.mapping.block - blocks.start) as usize * BLOCK;
                stripes[at..at + part.len()].copy_from_slice(part);
            }
        };
        let result = v.origin.rewrite(blocks.start * BLOCK_BYTES, bytes as usize, change).await?;
        let dirty: u64 = parts.iter().map(|part| part.len() as u64).sum();
        add(&self.counters.destage_fill_bytes, bytes - dirty);
        Some(result)
    }

    async fn write_pieces(
        &self,
        v: &VolumeState,
        runs: &[Run],
        mut parts: &[Data],
    ) -> std::result::Result<(), IoError> {
        planted::seen("stripe written in pieces after all");
        let pieces = runs.chunk_by(|run, next| run.behind() == next.mapping.block);
        let pieces = pieces.map(|runs| {
            let (own, others) = parts.split_at(runs.len());
            parts = others;
            (runs[0].mapping.block * BLOCK_BYTES, joined(own))
        });
        let pieces: Vec<_> = pieces.collect();
        for some in pieces.chunks(PIECES_INFLIGHT_MAX) {
            let writes = some.iter().map(|(offset, data)| v.origin.write(*offset, data.clone()));
            all_of(writes).await.into_iter().collect::<std::result::Result<(), _>>()?;
        }
        Ok(())
    }
}
