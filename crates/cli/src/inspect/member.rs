//! One cache device: its superblocks and roots.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_engine::format::{
    CLAIM_BYTES, Claim, FormatError, Layout, MemberRecord, Root, SUPERBLOCK_BYTES, SlotChoice,
    Spare, Superblock, VolumeRecord,
};
use forebay_engine::ids::{BLOCK_BYTES, Location, SegmentId};

use crate::Result;
use crate::failure::Failure;
use crate::text;

/// Where bytes come from: a file, or memory in tests.
pub(super) trait Bytes {
    /// Fills `buf` from `offset`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Bytes for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buf, offset)
    }
}

/// Why bytes are not shown: they cannot be read, or mean nothing.
#[derive(Clone, Debug)]
pub(super) enum Damage {
    /// The device does not give them.
    Unreadable(String),
    /// The device ends before this byte.
    Short(u64),
    /// They do not decode.
    Format(FormatError),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Damage::Unreadable(reason) => write!(f, "cannot be read: {reason}"),
            Damage::Short(end) => write!(f, "cannot be read: the device ends before byte {end}"),
            Damage::Format(error) => error.fmt(f),
        }
    }
}

impl Damage {
    /// Whether it is whole, and of a later version.
    pub(super) fn is_later(&self) -> bool {
        matches!(self, Damage::Format(error) if error.needs_newer())
    }

    /// With what it is.
    fn told(&self) -> String {
        let what = if self.is_later() { "of a later version" } else { "damaged" };
        format!("{what}: {self}")
    }
}

impl From<FormatError> for Damage {
    fn from(error: FormatError) -> Self {
        Damage::Format(error)
    }
}

/// See the head of the file.
pub(super) struct Member {
    path: PathBuf,
    bytes: Box<dyn Bytes>,
    slots: Vec<std::result::Result<Superblock, Damage>>,
    choice: SlotChoice,
}

impl Member {
    /// Opens a cache device for reading, without claiming it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Member> {
        // A pipe would wait for somebody who writes.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let looked = opened.and_then(|file| Ok((file.metadata()?.file_type(), file)));
        let (kind, file) = looked.map_err(|error| {
            Failure::system(format!("open {}", path.display()), &error)
                .hint("check the path and its permissions")
        })?;
        if !kind.is_file() && !kind.is_block_device() {
            let what = format!("{} is neither a file nor a block device", path.display());
            return Err(
                Failure::new(what).hint("give a cache device of a pool, or an image of one")
            );
        }
        Ok(Member::of(path, Box::new(file)))
    }

    pub(super) fn of(path: &Path, bytes: Box<dyn Bytes>) -> Member {
        let mut member =
            Member { path: path.to_owned(), bytes, slots: Vec::new(), choice: SlotChoice::Neither };
        for slot in 0..2 {
            let read = member.read(Layout::superblock_offset(slot), SUPERBLOCK_BYTES);
            let decoded = read.and_then(|bytes| Ok(Superblock::decode(&bytes)?));
            member.slots.push(decoded);
        }
        let plain = |slot: &std::result::Result<Superblock, Damage>| match slot {
            Ok(superblock) => Ok(superblock.clone()),
            Err(Damage::Format(error)) => Err(*error),
            Err(Damage::Unreadable(_) | Damage::Short(_)) => Err(FormatError::Truncated),
        };
        member.choice = Superblock::choose(&plain(&member.slots[0]), &plain(&member.slots[1]));
        member
    }

    /// Its path.
    pub(super) fn path(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// Reads `len` bytes.
    pub(super) fn read(&self, offset: u64, len: usize) -> std::result::Result<Vec<u8>, Damage> {
        let mut bytes = vec![0; len];
        match self.bytes.read_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Damage::Short(offset + len as u64))
            }
            Err(error) => Err(Damage::Unreadable(error.to_string())),
        }
    }

    /// What is in the superblock slots.
    pub(super) fn slots(&self) -> &[std::result::Result<Superblock, Damage>] {
        &self.slots
    }

    /// Which of them counts.
    pub(super) fn choice(&self) -> SlotChoice {
        self.choice
    }

    /// The superblock to go by; where two contradict each other, the first.
    pub(super) fn superblock(&self) -> Option<&Superblock> {
        let index = match self.choice {
            SlotChoice::Slot0 | SlotChoice::Conflict => 0,
            SlotChoice::Slot1 => 1,
            SlotChoice::Refused(_) | SlotChoice::Neither => return None,
        };
        self.slots[index].as_ref().ok()
    }

    /// The claims of those who have the pool open, or had it.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let superblock = self.superblock();
        let offsets = [0, 1].map(|slot| Claim::offset(superblock?, slot));
        let read = |at: u64| Claim::decode(&self.read(at, CLAIM_BYTES).ok()?).ok();
        offsets.into_iter().flatten().filter_map(read).collect()
    }

    /// The mark, if it is a spare.
    pub(super) fn spare(&self) -> Option<Spare> {
        let slot = |slot| self.read(Layout::superblock_offset(slot), SUPERBLOCK_BYTES).ok();
        let (first, second) = (slot(0)?, slot(1)?);
        Spare::choose([&first, &second]).ok()
    }

    /// Why there is no superblock to go by, and what can be done.
    pub(super) fn why_unreadable(&self) -> Failure {
        let failure = |what: String| Failure::new(what).on(self.path());
        if let SlotChoice::Refused(error) = self.choice {
            return failure(format!("the superblock cannot be read: {error}"))
                .hint("use the Forebay version that wrote it, or a later one");
        }
        if let Some(spare) = self.spare() {
            let what = format!("it is a spare of pool \"{}\" ({})", spare.name, spare.pool);
            return failure(what).hint("there is nothing on it but its mark");
        }
        // What ends before a slot never was one.
        let is_foreign = |slot: &_| {
            matches!(slot, Err(Damage::Format(FormatError::BadMagic) | Damage::Short(_)))
        };
        if self.slots.iter().all(is_foreign) {
            return failure("there is no superblock, so nothing else can be found".to_owned())
                .hint("give a cache device of a pool; an origin holds nothing of ours");
        }
        failure("both superblocks are damaged, so nothing else can be found".to_owned()).hint(
            "keep the device as it is: put back a copy of its first 256 KiB if there is one; what its pool can do \
             without it stands in docs/user/recovery-and-uninstall.md",
        )
    }

    /// This member's own record.
    pub(super) fn record(&self) -> Option<&MemberRecord> {
        let superblock = self.superblock()?;
        superblock.members.iter().find(|member| member.device == superblock.device)
    }

    /// Where a segment of this member starts.
    pub(super) fn segment_offset(&self, segment: SegmentId) -> Option<u64> {
        let (superblock, record) = (self.superblock()?, self.record()?);
        let place = record.segments.place_of(segment)?;
        let offset = u64::from(place) * u64::from(superblock.segment_bytes);
        Some(superblock.segments_offset + offset)
    }

    /// The set and the block within it that a location names.
    pub(super) fn split(&self, location: Location) -> Option<(SegmentId, u32)> {
        let blocks = u64::from(self.superblock()?.segment_bytes) / BLOCK_BYTES;
        let set = u32::try_from(location.0 / blocks).ok()?;
        Some((SegmentId(set), (location.0 % blocks) as u32))
    }

    /// The contents of both root slots.
    pub(super) fn roots(&self) -> Vec<std::result::Result<Root, Damage>> {
        let Some(superblock) = self.superblock() else { return Vec::new() };
        let bytes = superblock.root_bytes;
        (0..2u64)
            .map(|slot| {
                let at = 2 * SUPERBLOCK_BYTES as u64 + slot * u64::from(bytes);
                Ok(Root::decode(&self.read(at, bytes as usize)?)?)
            })
            .collect()
    }

    /// Prints superblocks and roots.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.path())?;
        for (slot, superblock) in self.slots.iter().enumerate() {
            match superblock {
                Ok(superblock) => print_superblock(slot, superblock, out)?,
                Err(damage) => writeln!(out, "superblock slot {slot}: {}", damage.told())?,
            }
        }
        match self.choice {
            SlotChoice::Slot0 => writeln!(out, "superblock: slot 0 counts")?,
            SlotChoice::Slot1 => writeln!(out, "superblock: slot 1 counts")?,
            SlotChoice::Refused(error) => writeln!(out, "superblock: refused: {error}")?,
            SlotChoice::Conflict => {
                writeln!(out, "superblock: the slots contradict each other; going on with slot 0")?;
            }
            SlotChoice::Neither => writeln!(out, "superblock: no slot can be read")?,
        }
        if let Some(Spare { pool, device, name }) = self.spare() {
            writeln!(out, "spare: pool {pool} \"{name}\", device {device}")?;
        }
        for claim in self.claims() {
            let Claim { number, beat, beat_unix_s, lease_ms, released, host, .. } = &claim;
            writeln!(
                out,
                "claim: host \"{}\", number {number}, beat {beat}, beat_unix_s {beat_unix_s}, \
                 lease_ms {lease_ms}, released {released}",
                host.name
            )?;
        }
        for (slot, root) in self.roots().iter().enumerate() {
            let name = ['A', 'B'][slot];
            match root {
                Ok(root) => print_root(name, root, self.superblock(), out)?,
                Err(damage) => writeln!(out, "root slot {name}: {}", damage.told())?,
            }
        }
        Ok(())
    }
}

/// The features that are in use, by name.
fn features(used: &[(bool, &'static str)]) -> String {
    let names: Vec<_> = used.iter().filter(|(used, _)| *used).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Those of a superblock.
pub(super) fn superblock_features(s: &Superblock) -> String {
    features(&[(s.own_roots, "own_roots"), (s.has_grown(), "grown")])
}

/// Those of a root.
pub(super) fn root_features(root: &Root) -> String {
    features(&[(root.own_roots, "own_roots"), (root.marks, "marks"), (root.let_go, "let_go")])
}

fn print_superblock(slot: usize, s: &Superblock, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "superblock slot {slot}: generation {}", s.generation)?;
    writeln!(out, "  pool {} \"{}\", device {}", s.pool, s.name, s.device)?;
    writeln!(
        out,
        "  created_unix_s {}, epoch {}, whole_since {}, marking_root {}, start_number {}, features {}",
        s.created_unix_s,
        s.epoch,
        s.whole_since,
        s.marking_root,
        s.start_number,
        superblock_features(s)
    )?;
    writeln!(
        out,
        "  segment_bytes {} ({}), segments_offset {}, root_bytes {}, shard_count {}",
        s.segment_bytes,
        text::bytes(s.segment_bytes.into()),
        s.segments_offset,
        s.root_bytes,
        s.shard_count
    )?;
    writeln!(
        out,
        "  dirty_copies {}, dirty_copies_next {}, clean_copies {}, accept_single_copy {}, \
         write_amplification_max_percent {}",
        s.dirty_copies,
        s.dirty_copies_next,
        s.clean_copies,
        s.accept_single_copy,
        s.write_amplification_max_percent
    )?;
    writeln!(
        out,
        "  sector_bytes {}, index_memory_max {}, next_volume {}",
        s.sector_bytes, s.index_memory_max, s.next_volume
    )?;
    writeln!(
        out,
        "  scrub_rate_bytes_per_s {}, scrub_begun_unix_s {}, scrub_next {}, verify_reads {}",
        s.scrub_rate_bytes_per_s, s.scrub_begun_unix_s, s.scrub_next, s.verify_reads
    )?;
    writeln!(out, "  write_budget_bytes_per_day {}", s.write_budget_bytes_per_day)?;
    for member in &s.members {
        let ranges = member.segments.ranges();
        let ranges: Vec<_> = ranges.map(|r| format!("{}..{}", r.base, r.end())).collect();
        writeln!(
            out,
            "  member {}: {:?}, segments {}, joined_epoch {}{}",
            member.device,
            member.state,
            ranges.join(", "),
            member.joined_epoch,
            if member.replaced { ", replaced" } else { "" },
        )?;
    }
    s.volumes.iter().try_for_each(|volume| print_volume(volume, out))
}

fn print_volume(v: &VolumeRecord, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "  volume {} \"{}\": {:?}, size_bytes {} ({}), cache_block_bytes {}, origin \"{}\"{}{}{}",
        v.id.0,
        v.name,
        v.mode,
        v.size_bytes,
        text::bytes(v.size_bytes),
        v.cache_block_bytes,
        v.origin,
        if v.may_be_dirty { ", may be dirty" } else { "" },
        if v.accept_single_copy { ", single copy accepted" } else { "" },
        if v.fingerprint.is_some() { ", fingerprint present" } else { "" },
    )
}

fn print_root(
    name: char,
    root: &Root,
    superblock: Option<&Superblock>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let stranger = superblock.is_some_and(|superblock| superblock.pool != root.pool);
    let empty = root.images.iter().filter(|image| image.is_empty()).count();
    let lowest = root.images.iter().map(|image| image.watermark.0).min().unwrap_or(0);
    writeln!(
        out,
        "root slot {name}: generation {}, epoch {}, start_number {}, sequence {}, open_counter {}, \
         clean_stop {}, features {}{}",
        root.generation,
        root.epoch,
        root.start_number,
        root.sequence.0,
        root.open_counter,
        u8::from(root.clean_stop),
        root_features(root),
        if stranger { ", of another pool" } else { "" },
    )?;
    writeln!(
        out,
        "  {} images, {empty} of them empty, lowest watermark {lowest}",
        root.images.len()
    )
}
