//! Making a volume as large as its origin has become.
//!
//! * The new size is durable in the witness and in the superblocks before anybody is told of it (INV-40): a crash
//!   leaves the old size, at which nobody has seen the rest, or the new one. With the old one in the witness a pool
//!   that is served without its members would cut off what clients have seen.
//! * Bytes behind the last whole block are never cached, and growth makes them a part of one that may
//!   be. A write to them holds the block's range lock, beside which nothing is populated, and looks at
//!   the size again once it has it: a request that was cut before the growth finds a block like any
//!   other (INV-41).
//! * The origin is flushed before: what clients find in the new part is not lost in a power cut.

use std::rc::Rc;

use forebay_device::LocalBoxFuture;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Superblock, VOLUME_BLOCKS_MAX};
use crate::ids::{BLOCK_BYTES, SECTOR_BYTES};
use crate::planted::{self, Bug};
use crate::pool::Pool;
use crate::volume::VolumeState;
use crate::work::InFlight;

impl Pool {
    /// The size that [`Pool::grow_volume`] would give to a volume if its origin had `origin_bytes`: these in
    /// whole sectors of 512 B.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such volume or its origin is not attached,
    /// [`ErrorKind::Refused`] if the origin has become smaller or is too large.
    pub fn grown_size(&self, name: &str, origin_bytes: u64) -> Result<u64> {
        self.core.attached(name).and_then(|v| size_with(&v, origin_bytes))
    }

    /// Makes a volume as large as its origin is now; its size, in bytes. Requests go on meanwhile.
    /// To be driven to its end.
    ///
    /// # Errors
    /// Those of [`Pool::grown_size`]; [`ErrorKind::Stopping`]; [`ErrorKind::Io`] if the origin cannot
    /// be flushed, or the witness or the superblocks cannot be written. The volume has its old size then.
    pub fn grow_volume<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let core = &self.core;
            let v = core.attached(name)?;
            if core.is_stopping() || v.leaving.get() {
                let what = format!("the pool is stopping, or volume \"{name}\" is being removed");
                return Err(Error::new(ErrorKind::Stopping, what));
            }
            let _request = InFlight::new(core, &v);
            // One at a time.
            let _attaching = core.attaching.lock().await;
            let size_bytes = size_with(&v, v.origin.device.geometry().size_bytes)?;
            if size_bytes > v.size_bytes() {
                if planted::is(Bug::GrownBeforeDurable) {
                    v.set_size(size_bytes);
                }
                // What others have written there counts as written, so that this flush is one.
                v.origin.completed.set(v.origin.completed.get() + 1);
                core.flush_origin(&v).await?;
                core.grow(&v, size_bytes).await?;
            }
            Ok(size_bytes)
        })
    }
}

fn size_with(v: &VolumeState, origin_bytes: u64) -> Result<u64> {
    let found = origin_bytes / SECTOR_BYTES * SECTOR_BYTES;
    let refused = |what: String, hint: &str| Err(Error::new(ErrorKind::Refused, what).hint(hint));
    if found < v.size_bytes() {
        let size = v.size_bytes();
        return refused(
            format!("the origin of \"{}\" has {found} B, the volume {size} B", v.name),
            "a volume never becomes smaller; give the origin its size back",
        );
    }
    if found > VOLUME_BLOCKS_MAX * BLOCK_BYTES {
        return refused(
            format!("the origin of \"{}\" is larger than 4 PiB", v.name),
            "make it smaller again; the volume keeps its size",
        );
    }
    Ok(found)
}

impl Core {
    fn attached(&self, name: &str) -> Result<Rc<VolumeState>> {
        let volumes = self.volumes.borrow();
        volumes.values().find(|v| v.name == name).cloned().ok_or_else(|| {
            let what = format!("no volume \"{name}\" has its origin attached");
            Error::new(ErrorKind::NotFound, what).hint("check the name, or attach its origin")
        })
    }

    async fn grow(&self, v: &Rc<VolumeState>, size_bytes: u64) -> Result<()> {
        let grown = |superblock: &mut Superblock| {
            for record in superblock.volumes.iter_mut().filter(|record| record.id == v.id) {
                record.size_bytes = size_bytes;
            }
        };
        let control = self.control.lock().await;
        if !self.is_witnessed(grown).await {
            let what = format!(
                "volume \"{}\" does not grow: the witness cannot be written, and without its cache devices the pool \
                 would be served as large as the volume was",
                v.name
            );
            return Err(Error::new(ErrorKind::Io, what)
                .hint("make the witness file writable: `forebay events` says why it is not"));
        }
        self.write_superblocks(grown).await?;
        drop(control);
        v.set_size(size_bytes);
        Ok(())
    }
}
