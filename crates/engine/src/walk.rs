//! A walk through what is live in a set: runs are read back record by record and checked.
//!
//! * Of a record only its header and its live runs are read; runs with little between them share a
//!   device read. Few bytes are under way at a time, because a client's append waits behind them.
//! * What cannot be had this way is read again by itself, from every copy ([`Core::read_verified`]).

use std::collections::VecDeque;

use forebay_device::{Buf, Data, Io};

use crate::core::Core;
use crate::error::Result;
use crate::format::RecordHeader;
use crate::ids::{BLOCK_BYTES, Location, VolumeId};
use crate::index::Mapping;
use crate::limits::{WALK_AHEAD_BLOCKS, WALK_GAP_BLOCKS_MAX, WALK_HEADER_BLOCKS};

const BLOCK: usize = BLOCK_BYTES as usize;

/// A run of a volume that lies in one record.
pub(crate) type Run = (VolumeId, Mapping);

/// See the head of the file.
pub(crate) struct Walk {
    /// In the order of their places; a record's runs follow each other.
    runs: VecDeque<Run>,
    reading: VecDeque<Reading>,
    ahead_blocks: u32,
}

/// The live runs of one record on their way.
struct Reading {
    header: Location,
    runs: Vec<Run>,
    stretches: Vec<Stretch>,
}

/// Consecutive blocks of a record, the first of them `first` blocks behind the header's beginning.
struct Stretch {
    first: u32,
    blocks: u32,
    /// Nothing if no copy is left.
    io: Option<Io>,
}

fn header_of(m: &Mapping) -> Location {
    Location(m.location.0 - u64::from(m.distance))
}

impl Walk {
    /// A walk through runs of one set, to which nothing is appended and which stays until the walk
    /// ends.
    pub(crate) fn new(mut runs: Vec<Run>) -> Self {
        runs.sort_by_key(|(_, m)| m.location);
        Self { runs: runs.into(), reading: VecDeque::new(), ahead_blocks: 0 }
    }

    /// The live runs of the next record with their data; `None` at the end.
    pub(crate) async fn next(&mut self, core: &Core) -> Option<Vec<(Run, Result<Data>)>> {
        while self.reading.is_empty() || self.ahead_blocks < WALK_AHEAD_BLOCKS {
            let Some(reading) = self.begin(core) else { break };
            self.ahead_blocks += reading.blocks();
            self.reading.push_back(reading);
        }
        let reading = self.reading.pop_front()?;
        self.ahead_blocks -= reading.blocks();
        Some(reading.end(core).await)
    }

    /// Starts to read the next record's runs.
    fn begin(&mut self, core: &Core) -> Option<Reading> {
        let header = header_of(&self.runs.front()?.1);
        let mut runs = Vec::new();
        while let Some(run) = self.runs.pop_front_if(|(_, m)| header_of(m) == header) {
            runs.push(run);
        }
        let head = u32::from(runs[0].1.distance).min(WALK_HEADER_BLOCKS);
        let mut ranges = vec![(0, head)];
        for (_, m) in &runs {
            let (first, end) = (u32::from(m.distance), u32::from(m.distance) + m.count);
            match ranges.last_mut() {
                Some(last) if first <= last.1 + WALK_GAP_BLOCKS_MAX => last.1 = last.1.max(end),
                _ => ranges.push((first, end)),
            }
        }
        let copy = core.idlest_copy(header);
        let stretches = ranges.into_iter().map(|(first, end)| {
            let place = core.copy_of(Location(header.0 + u64::from(first)), copy);
            let blocks = end - first;
            let buf = || Buf::new(blocks as usize * BLOCK);
            let io = place.map(|(member, at)| member.device.read(at, buf()));
            Stretch { first, blocks, io }
        });
        let stretches = stretches.collect();
        Some(Reading { header, runs, stretches })
    }
}

impl Reading {
    fn blocks(&self) -> u32 {
        self.stretches.iter().map(|stretch| stretch.blocks).sum()
    }

    async fn end(self, core: &Core) -> Vec<(Run, Result<Data>)> {
        let mut parts = Vec::with_capacity(self.stretches.len());
        for Stretch { first, io, .. } in self.stretches {
            let data = match io {
                Some(io) => {
                    let outcome = io.await;
                    outcome.result.ok().and(outcome.buf).map(Buf::freeze)
                }
                None => None,
            };
            parts.push((first, data));
        }
        let mut answers = Vec::with_capacity(self.runs.len());
        for run in self.runs {
            let m = &run.1;
            let data = match part(&parts, m) {
                Some((head, data)) if core.is_good(self.header, head, m.distance, &data) => {
                    Ok(data)
                }
                bad => {
                    // Of a long header not all may have been read.
                    let is_whole = |head: &[u8]| match RecordHeader::peek(head) {
                        Ok(peeked) => usize::from(peeked.header_blocks) * BLOCK <= head.len(),
                        Err(_) => true,
                    };
                    if bad.is_some_and(|(head, _)| is_whole(head)) {
                        core.note_hurt(self.header);
                    }
                    core.read_verified(m.location, m.distance, m.count).await
                }
            };
            answers.push((run, data));
        }
        answers
    }
}

/// What was read of the header, and the bytes of a run.
fn part<'a>(parts: &'a [(u32, Option<Data>)], m: &Mapping) -> Option<(&'a Data, Data)> {
    let head = parts.first()?.1.as_ref()?;
    let distance = u32::from(m.distance);
    let (first, data) = parts.iter().rev().find(|(first, _)| *first <= distance)?;
    let start = (distance - first) as usize * BLOCK;
    Some((head, data.as_ref()?.slice(start..start + m.count as usize * BLOCK)))
}
