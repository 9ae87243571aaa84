//! The small file beside the daemon's configuration that remembers what a pool's members may have
//! taken with them: the newest epoch and which volumes may be dirty.

use forebay_device::LocalBoxFuture;

use crate::error::{Error, ErrorKind};
use crate::format::{FormatError, Witness as WitnessFile, WitnessVolume};
use crate::ids::PoolId;

/// Epochs that a witness of [`without_members`] is ahead of the one before: more than members can be ahead of a
/// witness. These begin one for each member that joins, leaves or fails while the witness cannot be written, and it is
/// told of each that it is needed for; a million is years of one a minute, and leaves 2^42 such steps.
pub const EPOCHS_LEFT_OUT: u64 = 1 << 20;

/// Where the witness is kept. One per pool.
pub trait Witness {
    /// The stored bytes, `None` if there are none.
    ///
    /// # Errors
    /// A sentence for people, if it exists and cannot be read.
    fn load(&self) -> LocalBoxFuture<'_, Result<Option<Vec<u8>>, String>>;

    /// Replaces the stored bytes, durably and all or nothing.
    ///
    /// # Errors
    /// A sentence for people.
    fn store(&self, bytes: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>>;
}

/// What can be served while no member is there, by what the witness knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithoutMembers {
    /// The pool.
    pub pool: PoolId,
    /// Volumes whose origins have everything: their requests may go straight there.
    pub served: Vec<WitnessVolume>,
    /// Volumes whose origins may lack what only the members hold: neither reads nor writes.
    pub withheld: Vec<WitnessVolume>,
    /// The epoch that begins: newer than any that a member may have heard of.
    pub epoch: u64,
    /// Must be stored durably before the first write to an origin. It begins an epoch that no member of before
    /// knows, so that their clean data is not believed afterwards.
    pub witness: Vec<u8>,
}

/// Tells from a stored witness what may be served although no member is there (INV-19, INV-20).
/// Members that come back find a newer epoch than theirs; the pool opens with them if a person
/// accepts that ([`crate::OpenOptions`]), and then keeps nothing of their clean data.
///
/// # Errors
/// [`ErrorKind::Damaged`] or [`ErrorKind::Future`]: then nothing may be served.
pub fn without_members(bytes: &[u8]) -> Result<WithoutMembers, Error> {
    let known = WitnessFile::decode(bytes).map_err(|error| {
        unreadable(error).hint("attach the cache devices; nothing is served without them")
    })?;
    let epoch = known.epoch.saturating_add(EPOCHS_LEFT_OUT);
    let next = WitnessFile { epoch, ..known.clone() };
    let (withheld, served) = known.volumes.into_iter().partition(|v| v.may_be_dirty);
    Ok(WithoutMembers { pool: known.pool, served, withheld, epoch, witness: next.encode() })
}

/// The error for a witness that does not decode.
pub(crate) fn unreadable(error: FormatError) -> Error {
    let kind = match error {
        FormatError::FutureVersion { .. } | FormatError::UnknownFeatures { .. } => {
            ErrorKind::Future
        }
        _ => ErrorKind::Damaged,
    };
    Error::new(kind, format!("the witness cannot be read: {error}"))
}

/// A witness in memory, for simulation and for pools that are thrown away.
#[derive(Default)]
pub struct MemoryWitness {
    bytes: std::cell::RefCell<Option<Vec<u8>>>,
}

impl Witness for MemoryWitness {
    fn load(&self) -> LocalBoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async { Ok(self.bytes.borrow().clone()) })
    }

    fn store(&self, bytes: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            *self.bytes.borrow_mut() = Some(bytes);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Mode;
    use crate::ids::{DeviceId, VolumeId};

    #[test]
    fn without_members_only_clean_volumes_are_served() {
        let volume = |id: u32, may_be_dirty| WitnessVolume {
            id: VolumeId(id),
            name: format!("v{id}"),
            origin: format!("/dev/origin{id}"),
            mode: Mode::Writeback,
            may_be_dirty,
            size_bytes: 1 << 30,
        };
        let file = WitnessFile {
            pool: PoolId([7; 16]),
            generation: 9,
            epoch: 4,
            members: vec![DeviceId([1; 16])],
            volumes: vec![volume(1, false), volume(2, true), volume(3, false)],
        };
        let without = without_members(&file.encode()).unwrap();
        assert_eq!(without.served, [volume(1, false), volume(3, false)]);
        assert_eq!(without.withheld, [volume(2, true)]);
        let next = WitnessFile::decode(&without.witness).unwrap();
        assert_eq!(next, WitnessFile { epoch: 4 + EPOCHS_LEFT_OUT, ..file.clone() });
        assert_eq!(without.epoch, next.epoch);
        let mut torn = file.encode();
        torn[100] ^= 1;
        assert!(without_members(&torn).is_err_and(|error| error.kind == ErrorKind::Damaged));
        assert!(without_members(&[]).is_err());
    }
}
