//! A new pool: what it shall be, whether it can be, and writing it.

use std::rc::Rc;

use forebay_device::{BlockDevice, Buf, LocalBoxFuture, Runtime};

use crate::checkpoint::root_offset;
use crate::copies::{CopiesChange, check_copies};
use crate::deadline::check_device_deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    ImageRef, Layout, MemberRecord, MemberState, Numbers, Root, SEGMENTS_MAX, Superblock,
    segment_bytes_for, shards_with_claims,
};
use crate::ids::{DeviceId, PoolId, SECTOR_BYTES, Sequence};
use crate::limits::{
    INDEX_BYTES_PER_GIB, INDEX_MEMORY_MIN, MEMBERS_MAX, NAME_BYTES_MAX, SCRUB_RATE_DEFAULT,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SHARDS_MAX, SHARDS_MIN,
};
use crate::pool::Pool;
use crate::superblock::witness_of;
use crate::witness::Witness;

/// What a new pool shall be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Its name, 1..=63 bytes.
    pub name: String,
    /// Copies of dirty data, 1..=3, at most the number of members.
    pub dirty_copies: u8,
    /// Copies of clean data, 1 or 2, at most the number of members.
    pub clean_copies: u8,
    /// Bound of the index, in bytes of memory; `None`: 1.6 MiB per GiB of cache.
    pub index_memory_max: Option<u64>,
    /// SSD bytes per byte admitted that reclaim may cause, in percent, 100..=400.
    pub write_amplification_max_percent: u16,
    /// Bytes of a segment; `None`: by the size of the smallest member. Sizes below 1 MiB are for
    /// simulation.
    pub segment_bytes: Option<u32>,
    /// Bytes of the tier in RAM, a multiple of 4 KiB; the product uses whole chunks of 2 MiB
    /// ([`RAM_STEP_BYTES`](crate::limits::RAM_STEP_BYTES)), the simulator less. 0: none.
    pub ram_bytes: u64,
    /// Bytes a second that a scrub reads; 0: none.
    pub scrub_rate_bytes_per_s: u64,
    /// Bytes a day that may be written to all members; 0: as many as come.
    pub write_budget_bytes_per_day: u64,
    /// Whether reads from members are checked before clients see them.
    pub verify_reads: bool,
    /// Milliseconds that a cache device may take to answer, 100..=600,000; 0 is the default, 5 s.
    pub device_deadline_ms: u32,
}

impl CreateOptions {
    /// The defaults for a pool of this name.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            dirty_copies: 1,
            clean_copies: 1,
            index_memory_max: None,
            write_amplification_max_percent: 150,
            segment_bytes: None,
            ram_bytes: 0,
            scrub_rate_bytes_per_s: SCRUB_RATE_DEFAULT,
            write_budget_bytes_per_day: 0,
            verify_reads: false,
            device_deadline_ms: 0,
        }
    }
}
/// Writes a new pool onto `devices`; whatever they held is gone.
///
/// # Errors
/// [`ErrorKind::Invalid`] or [`ErrorKind::Refused`] before anything is written, [`ErrorKind::Io`].
pub fn create<'a>(
    rt: &'a dyn Runtime,
    devices: &'a [Rc<dyn BlockDevice>],
    witness: &'a dyn Witness,
    options: &'a CreateOptions,
) -> LocalBoxFuture<'a, Result<PoolId>> {
    Box::pin(async move {
        let (superblock, layouts) = lay_out(rt, devices, options)?;
        let root = Root {
            pool: superblock.pool,
            generation: 1,
            epoch: 1,
            start_number: 0,
            sequence: Sequence(0),
            open_counter: 0,
            clean_stop: true,
            own_roots: true,
            marks: false,
            let_go: true,
            images: vec![ImageRef::default(); superblock.shard_count as usize],
        };
        let bytes = Buf::copy_of(&root.encode()).freeze();
        let failed = |error| Error::io("writing a new pool", error);
        for (index, (device, layout)) in devices.iter().zip(&layouts).enumerate() {
            let mut own = superblock.clone();
            own.device = own.members[index].device;
            for slot in 0..2 {
                let at = root_offset(layout.root_bytes, slot);
                device.write(at, bytes.clone()).done().await.map_err(failed)?;
            }
            // Both slots, so that no newer generation of an erased pool is left beside it.
            let block = Buf::copy_of(&own.encode()).freeze();
            for slot in 0..2 {
                let at = Layout::superblock_offset(slot);
                device.write(at, block.clone()).done().await.map_err(failed)?;
            }
            device.flush().done().await.map_err(failed)?;
        }
        witness.store(witness_of(&superblock)).await.map_err(|reason| {
            Error::new(ErrorKind::Io, format!("writing the witness: {reason}"))
                .hint("make the witness file writable; opening the pool writes it, too")
        })?;
        Ok(superblock.pool)
    })
}

/// [`ErrorKind::Invalid`], and what to do.
pub(crate) fn invalid(what: impl Into<String>, hint: &str) -> Error {
    Error::new(ErrorKind::Invalid, what).hint(hint)
}

/// Whether a pool or a volume may be called this.
pub(crate) fn check_name(kind: &str, name: &str) -> Result<()> {
    let good = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if good {
        return Ok(());
    }
    Err(invalid(format!("{kind} name {name:?} cannot be used"), "use 1 to 63 printable bytes"))
}

/// Whether reclaim may be held to this.
pub(crate) fn check_write_amplification(percent: u16) -> Result<()> {
    if (100..=400).contains(&percent) {
        return Ok(());
    }
    Err(invalid(format!("write amplification limit {percent} %"), "use 100 to 400"))
}

/// Bound of the index of a pool of so many bytes, where nothing else is said.
pub(crate) fn index_memory_for(bytes: u64) -> u64 {
    (bytes >> 30).saturating_mul(INDEX_BYTES_PER_GIB).max(INDEX_MEMORY_MIN)
}

/// What [`create`] would write: members with their segments, copies, bounds. Nothing is written; the
/// identities are other ones each time.
///
/// # Errors
/// [`ErrorKind::Invalid`], [`ErrorKind::Refused`].
pub fn plan(
    rt: &dyn Runtime,
    devices: &[Rc<dyn BlockDevice>],
    options: &CreateOptions,
) -> Result<Superblock> {
    lay_out(rt, devices, options).map(|(superblock, _)| superblock)
}

/// The superblock and layouts of a new pool, or why there can be none.
fn lay_out(
    rt: &dyn Runtime,
    devices: &[Rc<dyn BlockDevice>],
    options: &CreateOptions,
) -> Result<(Superblock, Vec<Layout>)> {
    check_name("pool", &options.name)?;
    if devices.is_empty() || devices.len() > MEMBERS_MAX {
        return Err(invalid(format!("{} cache devices", devices.len()), "use 1 to 8"));
    }
    let twice = devices
        .iter()
        .enumerate()
        .any(|(i, device)| devices[..i].iter().any(|other| Rc::ptr_eq(device, other)));
    if twice {
        return Err(invalid("a cache device is given twice", "name each device once"));
    }
    let (dirty, clean) = (Some(options.dirty_copies), Some(options.clean_copies));
    check_copies(&CopiesChange { dirty, clean, ..CopiesChange::default() }, devices.len())?;
    let percent = options.write_amplification_max_percent;
    check_write_amplification(percent)?;
    Pool::check_ram_bytes(options.ram_bytes)?;
    Pool::check_scrub_rate(options.scrub_rate_bytes_per_s)?;
    Pool::check_write_budget(options.write_budget_bytes_per_day)?;
    if options.device_deadline_ms > 0 {
        check_device_deadline(options.device_deadline_ms)?;
    }
    let smallest = devices.iter().map(|d| d.geometry().size_bytes).min().unwrap_or(0);
    let by_size = || {
        let bytes = segment_bytes_for(smallest).and_then(|bytes| u32::try_from(bytes).ok());
        bytes.ok_or_else(|| {
            Error::new(ErrorKind::Refused, format!("a cache device of {smallest} B is too small"))
                .hint("use cache devices of at least 512 MiB")
        })
    };
    let segment_bytes = options.segment_bytes.map_or_else(by_size, Ok)?;
    let sizes = SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX;
    if !segment_bytes.is_power_of_two() || !sizes.contains(&segment_bytes.into()) {
        return Err(invalid(
            format!("segments of {segment_bytes} B"),
            "use a power of two from 64 KiB to 32 MiB",
        ));
    }
    let total: u64 = devices.iter().map(|d| d.geometry().size_bytes).sum();
    let index_memory_max =
        options.index_memory_max.unwrap_or_else(|| index_memory_for(total)).max(INDEX_MEMORY_MIN);
    let shards = (index_memory_max >> 20).clamp(SHARDS_MIN.into(), SHARDS_MAX.into()) as u32;
    let shard_count = shards_with_claims(shards, segment_bytes);
    let mut layouts = Vec::new();
    let mut members = Vec::new();
    let mut base = 0;
    for device in devices {
        let size = device.geometry().size_bytes;
        let layout = Layout::new(size, segment_bytes, shard_count).ok_or_else(|| {
            Error::new(ErrorKind::Refused, format!("a cache device of {size} B cannot be laid out"))
                .hint("use cache devices of at least 512 MiB and at most 256 TiB")
        })?;
        if layout.segment_count > SEGMENTS_MAX - base {
            let what = format!("a pool of more than {SEGMENTS_MAX} segments of {segment_bytes} B");
            return Err(Error::new(ErrorKind::Refused, what)
                .hint("leave out the smallest cache device: its size sets that of a segment"));
        }
        members.push(MemberRecord {
            device: DeviceId(random_id(rt)),
            segments: Numbers::new(base, layout.segment_count),
            joined_epoch: 1,
            state: MemberState::Present,
            replaced: false,
        });
        base += layout.segment_count;
        layouts.push(layout);
    }
    let superblock = Superblock {
        pool: PoolId(random_id(rt)),
        device: members[0].device,
        name: options.name.clone(),
        generation: 1,
        created_unix_s: rt.unix_seconds(),
        epoch: 1,
        start_number: 0,
        segment_bytes,
        segments_offset: layouts[0].segments_offset,
        root_bytes: layouts[0].root_bytes,
        shard_count,
        index_memory_max,
        dirty_copies: options.dirty_copies,
        dirty_copies_next: 0,
        clean_copies: options.clean_copies,
        write_amplification_max_percent: percent,
        ram_bytes: options.ram_bytes,
        scrub_rate_bytes_per_s: options.scrub_rate_bytes_per_s,
        write_budget_bytes_per_day: options.write_budget_bytes_per_day,
        retired_end: 0,
        scrub_begun_unix_s: 0,
        scrub_next: 0,
        verify_reads: options.verify_reads,
        device_deadline_ms: options.device_deadline_ms,
        sector_bytes: SECTOR_BYTES as u32,
        accept_single_copy: false,
        own_roots: true,
        whole_since: 0,
        marking_root: 0,
        next_volume: 1,
        members,
        volumes: Vec::new(),
    };
    Ok((superblock, layouts))
}

pub(crate) fn random_id(rt: &dyn Runtime) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&rt.random().to_le_bytes());
    id[8..].copy_from_slice(&rt.random().to_le_bytes());
    id
}
