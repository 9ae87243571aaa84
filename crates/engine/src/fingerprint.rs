//! Noticing that an origin was written behind our back: hashes of 64 of its blocks, taken at a
//! clean stop, compared when it is attached again.

use std::rc::Rc;

use forebay_device::{BlockDevice, Buf};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Fingerprint, State, VolumeRecord, checksum};
use crate::ids::{BLOCK_BYTES, VolumeId};
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

fn is_owed(core: &Core, volume: VolumeId, block: u64) -> bool {
    let mut owed = false;
    core.shard(volume, block).index.borrow().lookup(volume, block, 1, |m| {
        owed |= m.state.is_owed() || m.state == State::Lost;
    });
    owed
}

/// Notes in the superblocks what a volume's origin looks like. What it could still lose is no
/// fingerprint.
pub(crate) async fn take(core: &Core, v: &Rc<VolumeState>) -> Result<()> {
    if v.blocks() == 0 || v.origin.is_volatile() {
        return Ok(());
    }
    let mut print = Fingerprint {
        size_bytes: v.origin.device.geometry().size_bytes,
        identity: [0; 32],
        taken: 0,
        hashes: [0; PLACES as usize],
    };
    for place in 0..PLACES {
        let block = block_of(place, v.blocks());
        if is_owed(core, v.id, block) {
            continue;
        }
        // An origin that cannot be read now gives no fingerprint there; that is no reason to fail.
        if let Ok(hash) = hash(&*v.origin.device, block).await {
            print.hashes[place as usize] = hash;
            print.taken |= 1 << place;
        }
    }
    let _control = core.control.lock().await;
    core.write_superblocks(|superblock| {
        for record in superblock.volumes.iter_mut().filter(|record| record.id == v.id) {
            record.fingerprint = Some(print);
        }
    })
    .await
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
    for place in (0..PLACES).filter(|place| print.taken >> place & 1 == 1) {
        let block = block_of(place, blocks);
        if hash(origin, block).await? == print.hashes[place as usize] {
            continue;
        }
        if core.is_owing(record.id) {
            return Err(Error::new(
                ErrorKind::NeedsDecision,
                format!(
                    "the origin of \"{}\" was changed at byte {} while the pool was stopped, \
                     and dirty data waits for it",
                    record.name,
                    block * BLOCK_BYTES
                ),
            )
            .hint("attach the right origin, or restore it; the dirty data stays in the cache"));
        }
        core.event(EventKind::OriginChanged, format!(
            "the origin of \"{}\" was changed while the pool was stopped: its cached data is dropped",
            record.name
        ));
        core.forget_volume(record.id);
        // Durable before the fingerprint is cleared: no later start may find the old data again.
        return core.lap(false).await;
    }
    Ok(())
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
