//! The superblock: identity of pool and member, all members, all volumes, what is fixed at
//! creation. Two slots of 128 KiB at the start of every member.

use forebay_device::Nanos;

use super::codec::{
    FEATURE_GROWN, FEATURE_OWN_ROOTS, FEATURES_KNOWN, FormatError, begin, check, get_bool,
    get_bytes, get_text, get_u16, get_u32, get_u64, has_feature, nearly_has_magic, open_knowing,
    put_bytes, put_features, put_u16, put_u32, put_u64, seal, structure,
};
use super::geometry::{SEGMENTS_MAX, root_bytes_for, segment_bytes_valid, segments_offset_for};
use super::numbers::{NumberRange, Numbers, RANGES_MAX};
use super::slots::{SlotChoice, Slotted, choose_slot};
use super::volume::{self, VolumeRecord, name_valid};
use crate::ids::{BLOCK_BYTES, DeviceId, PoolId, SECTOR_BYTES};
use crate::limits::{
    CLEAN_COPIES_MAX, COPIES_MAX, DEVICE_DEADLINE_MAX, DEVICE_DEADLINE_MIN, MEMBERS_MAX, MILLIS,
    NAME_BYTES_MAX, RAM_BYTES_MAX, SCRUB_RATE_MAX, SHARDS_MAX, SHARDS_MIN, VOLUMES_MAX,
    WRITE_BUDGET_MAX,
};

pub(super) const MAGIC: &[u8; 8] = b"FBYSUPER";
/// Bytes of a superblock slot.
pub const SUPERBLOCK_BYTES: usize = 128 << 10;

structure!(at, "Superblock", 131_072, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    POOL @ 24: 16,
    DEVICE @ 40: 16,
    GENERATION @ 56: 8,
    CREATED_UNIX_S @ 64: 8,
    EPOCH @ 72: 8,
    START_NUMBER @ 80: 8,
    SEGMENTS_OFFSET @ 88: 8,
    INDEX_MEMORY_MAX @ 96: 8,
    SEGMENT_BYTES @ 104: 4,
    ROOT_BYTES @ 108: 4,
    SHARD_COUNT @ 112: 4,
    SECTOR_BYTES @ 116: 4,
    NEXT_VOLUME @ 120: 4,
    VOLUME_COUNT @ 124: 4,
    WRITE_AMPLIFICATION_MAX_PERCENT @ 128: 2,
    DIRTY_COPIES @ 130: 1,
    CLEAN_COPIES @ 131: 1,
    ACCEPT_SINGLE_COPY @ 132: 1,
    MEMBER_COUNT @ 133: 1,
    NAME_BYTES @ 134: 1,
    DIRTY_COPIES_NEXT @ 135: 1,
    NAME @ 136: 63,
    RAM_BYTES @ 200: 8,
    DEVICE_DEADLINE_MS @ 208: 4,
    MARKING_ROOT @ 216: 8,
    WHOLE_SINCE @ 224: 8,
    SCRUB_RATE_BYTES_PER_S @ 232: 8,
    SCRUB_BEGUN_UNIX_S @ 240: 8,
    SCRUB_NEXT @ 248: 4,
    VERIFY_READS @ 252: 1,
    MEMBERS @ 256: 512,
    WRITE_BUDGET_BYTES_PER_DAY @ 768: 8,
    RETIRED_END @ 776: 4,
    VOLUMES @ 4096: 126_976,
});

structure!(member, "Member record", 64, {
    DEVICE @ 0: 16,
    JOINED_EPOCH @ 16: 8,
    SEGMENT_BASE @ 24: 4,
    SEGMENT_COUNT @ 28: 4,
    STATE @ 32: 1,
    REPLACED @ 33: 1,
    MORE_SEGMENTS @ 36: 24,
});

/// Bytes of a range of numbers.
const RANGE_BYTES: usize = 8;

const _: () = assert!(at::SIZE == SUPERBLOCK_BYTES);
const _: () = assert!(at::MEMBERS + MEMBERS_MAX * member::SIZE <= at::VOLUMES);
const _: () = assert!(at::VOLUMES + VOLUMES_MAX * volume::at::SIZE == SUPERBLOCK_BYTES);
const _: () = assert!(at::MEMBERS - at::NAME > NAME_BYTES_MAX);
const _: () = assert!(member::MORE_SEGMENTS + (RANGES_MAX - 1) * RANGE_BYTES <= member::SIZE);

/// What became of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MemberState {
    /// Part of the epoch.
    Present = 1,
    /// Latched after a failure, or missing when the epoch began; not part of it.
    Failed = 2,
    /// Evacuated and taken away, or named and never written to; its segment numbers may be given to another.
    Removed = 3,
}

impl MemberState {
    /// The state with this number.
    pub fn from_number(number: u8) -> Option<MemberState> {
        Some(match number {
            1 => MemberState::Present,
            2 => MemberState::Failed,
            3 => MemberState::Removed,
            _ => return None,
        })
    }
}

/// One member, as all members' superblocks know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// Its identity.
    pub device: DeviceId,
    /// The numbers of its segments within the pool.
    pub segments: Numbers,
    /// The epoch that first named it.
    pub joined_epoch: u64,
    /// What became of it.
    pub state: MemberState,
    /// Whether another one has taken its place since it was lost; not in pools of older versions.
    pub replaced: bool,
}

/// See the module's words. Everything but `device` is the same on all members of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The pool.
    pub pool: PoolId,
    /// The member that it stands on.
    pub device: DeviceId,
    /// The pool's name, 1..=63 bytes.
    pub name: String,
    /// Counts the updates.
    pub generation: u64,
    /// When the pool was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Names the members.
    pub epoch: u64,
    /// Counts the daemon's starts.
    pub start_number: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Byte offset of the first segment on each member.
    pub segments_offset: u64,
    /// Bytes of a root slot on each member.
    pub root_bytes: u32,
    /// Virtual shards.
    pub shard_count: u32,
    /// Bound of the index, in bytes of memory.
    pub index_memory_max: u64,
    /// Copies of dirty data, 1..=3.
    pub dirty_copies: u8,
    /// Copies that dirty data is on the way to have, more than `dirty_copies`: new sets have them
    /// already. 0: none, as in pools of older versions.
    pub dirty_copies_next: u8,
    /// Copies of clean data, 1..=2.
    pub clean_copies: u8,
    /// SSD bytes per byte admitted that reclaim may cause, in percent, 100..=400.
    pub write_amplification_max_percent: u16,
    /// Bytes of the tier in RAM; 0 is none, as in pools of older versions.
    pub ram_bytes: u64,
    /// Bytes a second that a scrub reads; 0 is none, as in pools of older versions.
    pub scrub_rate_bytes_per_s: u64,
    /// Bytes a day that may be written to all members; 0: as many as come, as in pools of older versions.
    pub write_budget_bytes_per_day: u64,
    /// When the scrub's lap under way or its last one began, in seconds since 1970; 0: never.
    pub scrub_begun_unix_s: u64,
    /// One more than the number of the set at which the lap under way goes on; 0: none is.
    pub scrub_next: u32,
    /// Whether reads from members are checked before clients see them; not in older versions.
    pub verify_reads: bool,
    /// Milliseconds that a member may take to answer; 0 is the default, as in pools of older versions.
    pub device_deadline_ms: u32,
    /// Logical sector of the volumes' exports, 512 or 4096 bytes.
    pub sector_bytes: u32,
    /// Whether dirty data with fewer copies than asked was agreed to.
    pub accept_single_copy: bool,
    /// Each start writes a root of its own before it serves anybody: a feature, and the roots say
    /// since when. Older versions, which did not, refuse the pool.
    pub own_roots: bool,
    /// Number of the next volume; larger than every number ever given.
    pub next_volume: u32,
    /// Since this epoch no member was lost, only added: a root of it, or of a later one, speaks for the
    /// newest, too. 0: a root must be of the newest, as in pools of older versions.
    pub whole_since: u64,
    /// Generation of the root that notes what was lost with members when an epoch began: no older root
    /// counts. 0: none, as in pools of older versions.
    pub marking_root: u64,
    /// The number behind the highest that any member had whose record is gone; 0: none is, or only of those that
    /// older versions dropped.
    pub retired_end: u32,
    /// 1..=8 members, this one among them.
    pub members: Vec<MemberRecord>,
    /// Up to 124 volumes.
    pub volumes: Vec<VolumeRecord>,
}

impl Superblock {
    /// The bytes of a slot.
    ///
    /// # Panics
    /// If a field is out of its range.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.validate() {
            panic!("superblock not encodable: {error}");
        }
        let mut out = vec![0; SUPERBLOCK_BYTES];
        begin(&mut out, MAGIC);
        let grown = self.has_grown();
        put_features(&mut out, &[(self.own_roots, FEATURE_OWN_ROOTS), (grown, FEATURE_GROWN)]);
        self.encode_head(&mut out);
        let places = out[at::MEMBERS..].chunks_exact_mut(member::SIZE);
        for (record, place) in self.members.iter().zip(places) {
            put_bytes(place, member::DEVICE, &record.device.0);
            put_u64(place, member::JOINED_EPOCH, record.joined_epoch);
            for (index, range) in record.segments.places().iter().enumerate() {
                put_u32(place, range_at(index), range.base);
                put_u32(place, range_at(index) + 4, range.count);
            }
            place[member::STATE] = record.state as u8;
            place[member::REPLACED] = u8::from(record.replaced);
        }
        let places = out[at::VOLUMES..].chunks_exact_mut(volume::at::SIZE);
        for (record, place) in self.volumes.iter().zip(places) {
            record.encode(place);
        }
        seal(&mut out);
        out
    }

    fn encode_head(&self, out: &mut [u8]) {
        put_bytes(out, at::POOL, &self.pool.0);
        put_bytes(out, at::DEVICE, &self.device.0);
        put_u64(out, at::GENERATION, self.generation);
        put_u64(out, at::CREATED_UNIX_S, self.created_unix_s);
        put_u64(out, at::EPOCH, self.epoch);
        put_u64(out, at::START_NUMBER, self.start_number);
        put_u64(out, at::SEGMENTS_OFFSET, self.segments_offset);
        put_u64(out, at::INDEX_MEMORY_MAX, self.index_memory_max);
        put_u32(out, at::SEGMENT_BYTES, self.segment_bytes);
        put_u32(out, at::ROOT_BYTES, self.root_bytes);
        put_u32(out, at::SHARD_COUNT, self.shard_count);
        put_u32(out, at::SECTOR_BYTES, self.sector_bytes);
        put_u32(out, at::NEXT_VOLUME, self.next_volume);
        put_u32(out, at::VOLUME_COUNT, self.volumes.len() as u32);
        let amplification = self.write_amplification_max_percent;
        put_u16(out, at::WRITE_AMPLIFICATION_MAX_PERCENT, amplification);
        out[at::DIRTY_COPIES] = self.dirty_copies;
        out[at::DIRTY_COPIES_NEXT] = self.dirty_copies_next;
        out[at::CLEAN_COPIES] = self.clean_copies;
        out[at::ACCEPT_SINGLE_COPY] = u8::from(self.accept_single_copy);
        out[at::MEMBER_COUNT] = self.members.len() as u8;
        out[at::NAME_BYTES] = self.name.len() as u8;
        put_bytes(out, at::NAME, self.name.as_bytes());
        put_u64(out, at::RAM_BYTES, self.ram_bytes);
        put_u64(out, at::MARKING_ROOT, self.marking_root);
        put_u64(out, at::WHOLE_SINCE, self.whole_since);
        put_u64(out, at::SCRUB_RATE_BYTES_PER_S, self.scrub_rate_bytes_per_s);
        put_u64(out, at::WRITE_BUDGET_BYTES_PER_DAY, self.write_budget_bytes_per_day);
        put_u64(out, at::SCRUB_BEGUN_UNIX_S, self.scrub_begun_unix_s);
        put_u32(out, at::SCRUB_NEXT, self.scrub_next);
        out[at::VERIFY_READS] = u8::from(self.verify_reads);
        put_u32(out, at::DEVICE_DEADLINE_MS, self.device_deadline_ms);
        put_u32(out, at::RETIRED_END, self.retired_end);
    }

    /// Decodes a slot.
    ///
    /// # Errors
    /// If the bytes do not start with an intact superblock that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, FormatError> {
        let bytes = bytes.get(..SUPERBLOCK_BYTES).ok_or(FormatError::Truncated)?;
        open_knowing(FEATURES_KNOWN, bytes, at::SIZE, MAGIC)?;
        let name_bytes = usize::from(bytes[at::NAME_BYTES]);
        let superblock = Superblock {
            pool: PoolId(get_bytes(bytes, at::POOL)),
            device: DeviceId(get_bytes(bytes, at::DEVICE)),
            name: get_text(bytes, at::NAME, name_bytes, NAME_BYTES_MAX, "name")?,
            generation: get_u64(bytes, at::GENERATION),
            created_unix_s: get_u64(bytes, at::CREATED_UNIX_S),
            epoch: get_u64(bytes, at::EPOCH),
            start_number: get_u64(bytes, at::START_NUMBER),
            segment_bytes: get_u32(bytes, at::SEGMENT_BYTES),
            segments_offset: get_u64(bytes, at::SEGMENTS_OFFSET),
            root_bytes: get_u32(bytes, at::ROOT_BYTES),
            shard_count: get_u32(bytes, at::SHARD_COUNT),
            index_memory_max: get_u64(bytes, at::INDEX_MEMORY_MAX),
            dirty_copies: bytes[at::DIRTY_COPIES],
            dirty_copies_next: bytes[at::DIRTY_COPIES_NEXT],
            clean_copies: bytes[at::CLEAN_COPIES],
            write_amplification_max_percent: get_u16(bytes, at::WRITE_AMPLIFICATION_MAX_PERCENT),
            ram_bytes: get_u64(bytes, at::RAM_BYTES),
            marking_root: get_u64(bytes, at::MARKING_ROOT),
            whole_since: get_u64(bytes, at::WHOLE_SINCE),
            scrub_rate_bytes_per_s: get_u64(bytes, at::SCRUB_RATE_BYTES_PER_S),
            write_budget_bytes_per_day: get_u64(bytes, at::WRITE_BUDGET_BYTES_PER_DAY),
            scrub_begun_unix_s: get_u64(bytes, at::SCRUB_BEGUN_UNIX_S),
            scrub_next: get_u32(bytes, at::SCRUB_NEXT),
            verify_reads: get_bool(bytes, at::VERIFY_READS, "verify_reads")?,
            device_deadline_ms: get_u32(bytes, at::DEVICE_DEADLINE_MS),
            sector_bytes: get_u32(bytes, at::SECTOR_BYTES),
            accept_single_copy: get_bool(bytes, at::ACCEPT_SINGLE_COPY, "accept_single_copy")?,
            own_roots: has_feature(bytes, FEATURE_OWN_ROOTS),
            next_volume: get_u32(bytes, at::NEXT_VOLUME),
            retired_end: get_u32(bytes, at::RETIRED_END),
            members: decode_members(bytes)?,
            volumes: decode_volumes(bytes)?,
        };
        superblock.validate()?;
        Ok(superblock)
    }

    /// The pool that bytes name which look like a superblock that is damaged, or of a later version, and not like something
    /// else or nothing. The name may be damaged, too.
    pub fn resembled_by(bytes: &[u8]) -> Option<PoolId> {
        let is_one = bytes.len() >= at::DEVICE && nearly_has_magic(bytes, MAGIC);
        is_one.then(|| PoolId(get_bytes(bytes, at::POOL)))
    }

    /// Which of the two slots to believe.
    pub fn choose(
        slot0: &Result<Superblock, FormatError>,
        slot1: &Result<Superblock, FormatError>,
    ) -> SlotChoice {
        choose_slot(slot0, slot1)
    }

    /// Whether a version that knows one range of numbers of each member must refuse it.
    pub fn has_grown(&self) -> bool {
        self.members.iter().any(|member| member.segments.are_split())
    }

    fn validate(&self) -> Result<(), FormatError> {
        check(name_valid(&self.name), "name")?;
        check((SHARDS_MIN..=SHARDS_MAX).contains(&self.shard_count), "shard_count")?;
        check(segment_bytes_valid(self.segment_bytes), "segment_bytes")?;
        check(self.root_bytes == root_bytes_for(self.shard_count), "root_bytes")?;
        let segments_offset = segments_offset_for(self.segment_bytes, self.root_bytes);
        check(self.segments_offset == segments_offset, "segments_offset")?;
        check(self.index_memory_max > 0, "index_memory_max")?;
        check((1..=COPIES_MAX).contains(&self.dirty_copies.into()), "dirty_copies")?;
        let next = self.dirty_copies_next;
        let rises = next > self.dirty_copies && usize::from(next) <= COPIES_MAX;
        check(next == 0 || rises, "dirty_copies_next")?;
        check((1..=CLEAN_COPIES_MAX).contains(&self.clean_copies.into()), "clean_copies")?;
        let percent = self.write_amplification_max_percent;
        check((100..=400).contains(&percent), "write_amplification_max_percent")?;
        let ram = self.ram_bytes;
        check(ram <= RAM_BYTES_MAX && ram.is_multiple_of(BLOCK_BYTES), "ram_bytes")?;
        check(self.scrub_rate_bytes_per_s <= SCRUB_RATE_MAX, "scrub_rate_bytes_per_s")?;
        let budget = self.write_budget_bytes_per_day;
        check(budget <= WRITE_BUDGET_MAX, "write_budget_bytes_per_day")?;
        // Behind the last set of the largest pool a lap stands at `SEGMENTS_MAX`, and ends.
        check(self.scrub_next <= SEGMENTS_MAX + 1, "scrub_next")?;
        let deadline = Nanos::from(self.device_deadline_ms) * MILLIS;
        let usual = (DEVICE_DEADLINE_MIN..=DEVICE_DEADLINE_MAX).contains(&deadline);
        check(deadline == 0 || usual, "device_deadline_ms")?;
        check(self.whole_since <= self.epoch, "whole_since")?;
        let sector = u64::from(self.sector_bytes);
        check(sector == SECTOR_BYTES || sector == BLOCK_BYTES, "sector_bytes")?;
        self.validate_members()?;
        self.validate_volumes()
    }

    fn validate_members(&self) -> Result<(), FormatError> {
        check(self.retired_end <= SEGMENTS_MAX, "retired_end")?;
        check((1..=MEMBERS_MAX).contains(&self.members.len()), "member_count")?;
        check(self.members.iter().any(|member| member.device == self.device), "device")?;
        for (index, member) in self.members.iter().enumerate() {
            member.segments.validate()?;
            check(member.joined_epoch <= self.epoch, "member joined_epoch")?;
            let is_gone = member.state != MemberState::Present;
            check(is_gone || !member.replaced, "member replaced")?;
            for other in &self.members[..index] {
                check(member.device != other.device, "member device")?;
                check(!member.overlaps(other), "member segment_base")?;
            }
        }
        Ok(())
    }

    fn validate_volumes(&self) -> Result<(), FormatError> {
        check(self.volumes.len() <= VOLUMES_MAX, "volume_count")?;
        for (index, volume) in self.volumes.iter().enumerate() {
            volume.validate()?;
            check(volume.id.0 < self.next_volume, "next_volume")?;
            for other in &self.volumes[..index] {
                check(volume.id != other.id, "volume id")?;
                check(volume.name != other.name, "volume name")?;
            }
        }
        check(self.next_volume > 0, "next_volume")
    }
}

impl MemberRecord {
    /// Whether two members that are not removed claim the same segment numbers.
    fn overlaps(&self, other: &MemberRecord) -> bool {
        let gone = [self.state, other.state].contains(&MemberState::Removed);
        !gone && other.segments.ranges().any(|range| self.segments.overlap(range))
    }
}

fn decode_members(bytes: &[u8]) -> Result<Vec<MemberRecord>, FormatError> {
    let count = usize::from(bytes[at::MEMBER_COUNT]);
    check((1..=MEMBERS_MAX).contains(&count), "member_count")?;
    let places = bytes[at::MEMBERS..].chunks_exact(member::SIZE).take(count);
    places
        .map(|place| {
            Ok(MemberRecord {
                device: DeviceId(get_bytes(place, member::DEVICE)),
                segments: decode_numbers(place, has_feature(bytes, FEATURE_GROWN)),
                joined_epoch: get_u64(place, member::JOINED_EPOCH),
                state: MemberState::from_number(place[member::STATE])
                    .ok_or(FormatError::Invalid { field: "member state" })?,
                replaced: get_bool(place, member::REPLACED, "member replaced")?,
            })
        })
        .collect()
}

/// The numbers in a member record; without the feature no more than the first range.
fn decode_numbers(place: &[u8], grown: bool) -> Numbers {
    let mut ranges = [NumberRange::default(); RANGES_MAX];
    let used = if grown { RANGES_MAX } else { 1 };
    for (index, range) in ranges.iter_mut().enumerate().take(used) {
        let at = range_at(index);
        *range = NumberRange { base: get_u32(place, at), count: get_u32(place, at + 4) };
    }
    Numbers::of(ranges)
}

/// Where a range of numbers stands in a member record: the first one apart from the others.
fn range_at(index: usize) -> usize {
    match index {
        0 => member::SEGMENT_BASE,
        _ => member::MORE_SEGMENTS + (index - 1) * RANGE_BYTES,
    }
}

fn decode_volumes(bytes: &[u8]) -> Result<Vec<VolumeRecord>, FormatError> {
    let count = get_u32(bytes, at::VOLUME_COUNT) as usize;
    check(count <= VOLUMES_MAX, "volume_count")?;
    let places = bytes[at::VOLUMES..].chunks_exact(volume::at::SIZE).take(count);
    places.map(VolumeRecord::decode).collect()
}

impl Slotted for Superblock {
    fn same_identity(&self, other: &Self) -> bool {
        self.pool == other.pool && self.device == other.device
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}
