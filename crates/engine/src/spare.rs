//! Spares: devices that a pool may take by itself when it loses a member.
//!
//! * A spare holds nothing but its mark ([`crate::format::Spare`]), which stands where a member has its
//!   superblocks. It is named by no epoch, so it is never opened with the pool, is no evidence of anything,
//!   and may go at any time.
//! * Taking one is an addition. The mark stays until the superblock of the new member is written over it, in
//!   one slot after the other, so whatever a crash leaves is a spare or a member (INV-79).
//! * Which of a pool's spares is taken, and when, is not decided here.

use std::rc::Rc;

use forebay_device::{BlockDevice, Buf, IoError, LocalBoxFuture};

use crate::addition::{place_for, smallest};
use crate::core::Core;
use crate::creation::random_id;
use crate::departure::erase_superblock;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{FormatError, Layout, SUPERBLOCK_BYTES, Spare, Superblock};
use crate::ids::DeviceId;
use crate::planted::{self, Bug};
use crate::pool::Pool;

/// Reads the mark of a spare; `None` if the device is none.
///
/// # Errors
/// [`ErrorKind::Io`] if either superblock slot cannot be read, for it may be a member then;
/// [`ErrorKind::Future`] for a later format.
pub fn read_spare(device: &dyn BlockDevice) -> LocalBoxFuture<'_, Result<Option<Spare>>> {
    Box::pin(async move {
        let mut slots = Vec::new();
        for slot in 0..2 {
            let outcome =
                device.read(Layout::superblock_offset(slot), Buf::new(SUPERBLOCK_BYTES)).await;
            outcome.result.map_err(|error| Error::io("reading the mark of a spare", error))?;
            slots.extend(outcome.buf);
        }
        let [first, second] = &slots[..] else {
            return Err(Error::new(ErrorKind::Io, "a read has returned nothing"));
        };
        match Spare::choose([first, second]) {
            Ok(spare) => Ok(Some(spare)),
            Err(
                error @ (FormatError::FutureVersion { .. } | FormatError::UnknownFeatures { .. }),
            ) => Err(Error::new(
                ErrorKind::Future,
                format!("the mark of a spare cannot be read: {error}"),
            )
            .hint("use the Forebay version that wrote it, or a later one")),
            Err(_) => Ok(None),
        }
    })
}

/// Takes the mark off a spare, or the superblocks off a member.
///
/// # Errors
/// If the device fails.
pub fn unmark(device: &dyn BlockDevice) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let erased = erase_superblock(device).await;
        erased.map_err(|error| Error::io("taking the mark off a spare", error))
    })
}

/// What stands in the superblock slots of a device that is no member yet, or is to be none.
pub(crate) enum Blank {
    Zeroes,
    Mark(Spare),
}

impl Blank {
    /// Writes it into both slots, durably.
    pub(crate) async fn write(&self, device: &dyn BlockDevice) -> std::result::Result<(), IoError> {
        let Blank::Mark(mark) = self else { return erase_superblock(device).await };
        let block = Buf::copy_of(&mark.encode()).freeze();
        for slot in 0..2 {
            device.write(Layout::superblock_offset(slot), block.clone()).done().await?;
            device.flush().done().await?;
        }
        Ok(())
    }
}

impl Pool {
    /// How a device would be laid out if it were taken in the place of a member. Nothing is written.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if it is one of the pool's, smaller than its smallest member, or too large;
    /// [`ErrorKind::Stopping`]; [`ErrorKind::Io`] if the pool has latched.
    pub fn plan_spare(&self, device: &Rc<dyn BlockDevice>) -> Result<Layout> {
        self.core.check_joining(device)?;
        let superblock = self.core.superblock.borrow();
        // A smaller one could not hold what any of them may be the second place of.
        let least = smallest(&superblock, None);
        place_for(&superblock, device.geometry().size_bytes, least).map(|(layout, _)| layout)
    }

    /// Marks a device as a spare of the pool, durably; whatever it held is gone.
    ///
    /// # Errors
    /// Those of [`Pool::plan_spare`]; [`ErrorKind::Io`] if the device fails.
    pub fn mark_spare<'a>(
        &'a self,
        device: &'a Rc<dyn BlockDevice>,
    ) -> LocalBoxFuture<'a, Result<Spare>> {
        Box::pin(async move {
            self.plan_spare(device)?;
            let mark = self.core.new_mark();
            let failed = |error| Error::io("marking a spare", error);
            // A superblock that stood in either slot would count for more than the mark in the other.
            erase_superblock(&**device).await.map_err(failed)?;
            Blank::Mark(mark.clone()).write(&**device).await.map_err(failed)?;
            Ok(mark)
        })
    }
}

impl Core {
    fn new_mark(&self) -> Spare {
        let Superblock { pool, name, .. } = &*self.superblock.borrow();
        Spare { pool: *pool, device: DeviceId(random_id(&*self.rt)), name: name.clone() }
    }

    /// What is to stand on a device until it is a member, and if it cannot be one.
    pub(crate) async fn blank_of(&self, device: &dyn BlockDevice) -> Result<Blank> {
        let pool = self.superblock.borrow().pool;
        match read_spare(device).await?.filter(|mark| mark.pool == pool) {
            Some(mark) if !planted::is(Bug::SpareErased) => Ok(Blank::Mark(mark)),
            _ => Ok(Blank::Zeroes),
        }
    }
}
