//! Noticing that an origin was written behind our back, or is another disk: what names it, and hashes of 64 of its
//! blocks, taken at a clean stop, compared when it is attached again.
//!
//! * If nothing is dirty, what is cached of it is dropped and it is used as it is.
//! * Dirty data over an origin that is another one than it was written for may destroy what is there now, and
//!   without it clients lose what they were told is written. Neither is done before its owner has decided
//!   ([`Pool::accept_origin`]).
//! * The fingerprint goes last: whatever is cut off before finds the same question again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{BlockDevice, Buf, LocalBoxFuture};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Fingerprint, State, VolumeRecord, checksum};
use crate::ids::{BLOCK_BYTES, VolumeId};
use crate::planted::{self, Bug};
use crate::pool::Pool;
use crate::volume::VolumeState;

/// Blocks that are hashed. The first ones cover the superblocks of common file systems.
const PLACES: u64 = 64;
/// Places at the start of the device: partition tables and file-system superblocks.
const PLACES_AT_START: u64 = 32;

/// The block of place `i` on a device of `blocks` blocks: the first 32 blocks, then evenly spread
/// ones, the last of them the device's last block (GPT's copy).
fn block_of(place: u64, blocks: u64) -> u64 {
    if place < PLACES_AT_START {
        return place.min(blocks - 1);
    }
    let span = blocks - 1;
    (u128::from(span) * u128::from(place - PLACES_AT_START + 1)
        / u128::from(PLACES - PLACES_AT_START)) as u64
}

async fn hash(device: &dyn BlockDevice, block: u64) -> Result<u32> {
    let outcome = device.read(block * BLOCK_BYTES, Buf::new(BLOCK_BYTES as usize)).await;
    match (outcome.result, outcome.buf) {
        (Ok(()), Some(buf)) => Ok(checksum(&buf)),
        (Err(error), _) => Err(Error::io("reading the origin's fingerprint", error)),
        (Ok(()), None) => Err(Error::new(ErrorKind::Io, "reading the origin's fingerprint")),
    }
}

/// What a volume's origin looks like, also where dirty data waits for it: a file system's
/// first blocks are what it writes most, and what another host that mounts it changes first. What the origin could
/// still lose, or get, is no fingerprint.
///
/// It is in `seen` as far as it is known: whoever does not wait for the rest keeps that.
pub(crate) async fn look(v: &VolumeState, seen: &Cell<Option<Fingerprint>>) {
    if v.blocks() == 0 || v.origin.is_volatile() {
        return;
    }
    let mut print = Fingerprint {
        size_bytes: v.origin.device.geometry().size_bytes,
        identity: v.origin.device.identity().unwrap_or([0; 32]),
        taken: 0,
        hashes: [0; PLACES as usize],
    };
    seen.set(Some(print));
    for place in 0..PLACES {
        let block = block_of(place, v.blocks());
        if v.elevator.since_taken(block, 1).is_some() {
            continue;
        }
        // An origin that cannot be read now gives no fingerprint there; that is no reason to fail.
        if let Ok(hash) = hash(&*v.origin.device, block).await {
            print.hashes[place as usize] = hash;
            print.taken |= 1 << place;
            seen.set(Some(print));
        }
    }
}

/// Notes in the superblocks what volumes' origins look like.
pub(crate) async fn keep(core: &Core, seen: &BTreeMap<VolumeId, Fingerprint>) -> Result<()> {
    if seen.is_empty() {
        return Ok(());
    }
    let _control = core.control.lock().await;
    core.write_superblocks(|superblock| {
        for record in &mut superblock.volumes {
            if let Some(print) = seen.get(&record.id) {
                record.fingerprint = Some(*print);
            }
        }
    })
    .await
}

/// Whether it has a name, had one, and that was another one.
fn is_named_otherwise(print: &Fingerprint, origin: &dyn BlockDevice) -> bool {
    let before = Some(print.identity).filter(|identity| *identity != [0; 32]);
    before.zip(origin.identity()).is_some_and(|(before, now)| before != now)
}

/// The first block that is another one than it was.
async fn first_changed(
    print: &Fingerprint,
    origin: &dyn BlockDevice,
    blocks: u64,
) -> Result<Option<u64>> {
    for place in (0..PLACES).filter(|place| print.taken >> place & 1 == 1) {
        let block = block_of(place, blocks);
        if hash(origin, block).await? != print.hashes[place as usize] {
            return Ok(Some(block));
        }
    }
    Ok(None)
}

/// Compares an origin with its fingerprint. If it was changed while nothing was dirty, the cache
/// drops what it holds of it; if something is dirty, the origin is refused.
pub(crate) async fn check(
    core: &Rc<Core>,
    record: &VolumeRecord,
    origin: &dyn BlockDevice,
) -> Result<()> {
    let Some(print) = &record.fingerprint else { return Ok(()) };
    let blocks = record.size_bytes / BLOCK_BYTES;
    if blocks == 0 {
        return Ok(());
    }
    let difference = match is_named_otherwise(print, origin) {
        true => Some("is another disk than when the pool was stopped".to_owned()),
        false => first_changed(print, origin, blocks).await?.map(|block| {
            format!("was changed while the pool was stopped, at byte {}", block * BLOCK_BYTES)
        }),
    };
    if let Some(difference) = difference {
        if core.is_owing(record.id) {
            return Err(Error::new(
                ErrorKind::NeedsDecision,
                format!(
                    "the origin of \"{}\" {difference}, and dirty data waits for it",
                    record.name
                ),
            )
            .hint(
                "attach the right origin, or restore it; the dirty data stays in the cache. If it is the right one as \
                 it is, decide what becomes of the dirty data: `forebay volume accept-origin`",
            ));
        }
        core.volume_event(
            EventKind::OriginChanged,
            &record.name,
            format!("the origin of \"{}\" {difference}: its cached data is dropped", record.name),
        );
        return core.forget_durably(record.id, |_| true).await.map(drop);
    }
    Ok(())
}

/// What becomes of dirty data whose origin was changed behind our back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyData {
    /// It is written over what the origin has there now.
    Write,
    /// It is given up, what the origin has is read in its place.
    Drop,
}

impl Pool {
    /// Accepts the origin of a volume as it is although it was changed under dirty data: [`attach`](Pool::attach)
    /// said [`ErrorKind::NeedsDecision`], and does not any more. What is clean in the cache is dropped, for it is
    /// what the origin was. What is lost stays lost. Blocks that were dropped; durable when it returns. To be
    /// driven to its end.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Refused`] if the origin is attached, or was attached since the last
    /// clean stop; [`ErrorKind::Io`]: the decision is asked for again then, of what is left.
    pub fn accept_origin<'a>(
        &'a self,
        name: &'a str,
        dirty: DirtyData,
    ) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let core = &self.core;
            let _attaching = core.attaching.lock().await;
            let record = core.record(name)?;
            if core.volume(record.id).is_some() || record.fingerprint.is_none() {
                let what = format!("the origin of \"{name}\" is accepted as it is already");
                return Err(Error::new(ErrorKind::Refused, what).hint("nothing is to be decided"));
            }
            let is_kept = |state: State| state.is_owed() && dirty == DirtyData::Write;
            let dropped = core.forget_durably(record.id, |state| !is_kept(state)).await?;
            core.clear_fingerprint(record.id).await?;
            Ok(dropped)
        })
    }
}

impl Core {
    /// Drops what is cached of a volume whose state is such a one. No start finds it again when this returns, and
    /// no fingerprint may be cleared before.
    async fn forget_durably(
        self: &Rc<Self>,
        volume: VolumeId,
        is_dropped: impl Fn(State) -> bool,
    ) -> Result<u64> {
        let dropped = self.forget_volume(volume, is_dropped);
        if !planted::is(Bug::ForgottenVolatile) {
            self.lap(false).await?;
        }
        Ok(dropped)
    }

    /// The origin is in use: what it was says nothing any more.
    pub(crate) async fn clear_fingerprint(&self, volume: VolumeId) -> Result<()> {
        let _control = self.control.lock().await;
        self.write_superblocks(|superblock| {
            for known in superblock.volumes.iter_mut().filter(|v| v.id == volume) {
                known.fingerprint = None;
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_cover_the_start_and_the_last_block_of_any_device() {
        for blocks in [1, 2, 31, 33, 1000, 1 << 38] {
            let places: Vec<u64> = (0..PLACES).map(|place| block_of(place, blocks)).collect();
            assert!(places.iter().all(|&block| block < blocks), "{blocks}");
            assert_eq!(places[PLACES as usize - 1], blocks - 1);
            assert_eq!(places[0], 0);
        }
    }
}
