//! Reading what is missing of a piece from its origin: places between which little is cached in one request, and what is
//! around them, if it is to be populated.

use forebay_device::Buf;

use crate::bypass::{Reason, Way};
use crate::core::Core;
use crate::counters::add;
use crate::error::Result;
use crate::ids::BLOCK_BYTES;
use crate::limits::RUNS_TOGETHER_MAX;
use crate::populate::Rest;
use crate::volume::VolumeState;
use crate::wait::all_of;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A run of a piece that is missing, and its part of the buffer.
pub(crate) struct Hole {
    /// Which one of its piece.
    pub number: usize,
    /// Where it begins in the volume, in bytes.
    pub offset: u64,
    pub buf: Buf,
}

impl Hole {
    fn end(&self) -> u64 {
        self.offset + self.buf.len() as u64
    }
}

impl Core {
    /// Reads a run that is not cached, and `more` behind it, at once with what lies between them, and populates it if the
    /// policy wants it: into RAM, if it may be a `guest` there. What it leaves to be read behind the reply.
    pub(crate) async fn read_miss(
        &self,
        v: &VolumeState,
        way: &Way,
        offset: u64,
        mut buf: Buf,
        more: &mut [Hole],
        guest: bool,
    ) -> (Buf, Result<Option<Rest>>) {
        let end = more.last().map_or(offset + buf.len() as u64, Hole::end);
        let len = buf.len() + more.iter().map(|hole| hole.buf.len()).sum::<usize>();
        let len = len as u64;
        add(&self.counters.read_origin_bytes, len);
        let planned = match way.passing {
            Some(why) => Err(why),
            None => self.plan_population(v, way, offset, (end - offset) as usize),
        };
        let (plan, rest) = match planned {
            Ok(planned) => planned,
            Err(why) => {
                self.past(v, way, why, len);
                let (buf, result) = self.read_holes(v, offset, end, buf, more).await;
                return (buf, result.map(|()| None));
            }
        };
        let kept_behind = more.iter().map(|hole| plan.kept(hole.offset, hole.buf.len() as u64));
        let kept = plan.kept(offset, buf.len() as u64) + kept_behind.sum::<u64>();
        if kept < len {
            self.past(v, way, Reason::Profile, len - kept);
        }
        let wide = Buf::new(plan.count as usize * BLOCK);
        let start = plan.block * BLOCK_BYTES;
        let (wide, result) = self.read_origin(v, start, wide).await;
        match result {
            Ok(()) => {
                hand_out(&wide, start, offset, &mut buf, more);
                if !(guest && self.fill_from_origin(v, &plan, &wide)) {
                    self.populate(v, &plan, &wide.freeze());
                }
                (buf, Ok(Some(rest)))
            }
            Err(_) => {
                // The neighbourhood may be what cannot be read; the client asked for less.
                self.end_population(&plan.population);
                let (buf, result) = self.read_each(v, offset, buf, more).await;
                (buf, result.map(|()| None))
            }
        }
    }

    /// Reads what is missing and not to be populated, up to `end`, with one request to the origin.
    async fn read_holes(
        &self,
        v: &VolumeState,
        offset: u64,
        end: u64,
        mut buf: Buf,
        more: &mut [Hole],
    ) -> (Buf, Result<()>) {
        if more.is_empty() {
            return self.read_origin(v, offset, buf).await;
        }
        match self.read_origin(v, offset, Buf::new((end - offset) as usize)).await {
            (wide, Ok(())) => {
                hand_out(&wide, offset, offset, &mut buf, more);
                (buf, Ok(()))
            }
            (_, Err(_)) => self.read_each(v, offset, buf, more).await,
        }
    }

    /// The same with one for each: what lies between may be what cannot be read.
    async fn read_each(
        &self,
        v: &VolumeState,
        offset: u64,
        buf: Buf,
        more: &mut [Hole],
    ) -> (Buf, Result<()>) {
        let (buf, mut result) = self.read_origin(v, offset, buf).await;
        for holes in more.chunks_mut(RUNS_TOGETHER_MAX) {
            let reads = holes.iter_mut().map(async |hole| {
                let part = std::mem::replace(&mut hole.buf, Buf::new(0));
                let (read, outcome) = self.read_origin(v, hole.offset, part).await;
                hole.buf = read;
                outcome
            });
            result = all_of(reads).await.into_iter().fold(result, Result::and);
        }
        (buf, result)
    }
}

/// Copies what was asked for out of bytes that were read from `start` on.
fn hand_out(wide: &[u8], start: u64, offset: u64, buf: &mut Buf, more: &mut [Hole]) {
    let from = |offset: u64, buf: &mut Buf| {
        let (within, len) = ((offset - start) as usize, buf.len());
        buf.copy_from_slice(&wide[within..within + len]);
    };
    from(offset, buf);
    more.iter_mut().for_each(|hole| from(hole.offset, &mut hole.buf));
}
