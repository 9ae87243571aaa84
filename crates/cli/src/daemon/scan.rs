//! Finding cache devices by what is on them. Only reads, without claiming anything.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_engine::format::{FormatError, Layout, SUPERBLOCK_BYTES, SlotChoice, Superblock};

/// A device with a superblock.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) superblock: Superblock,
}

/// The superblock of what is at `path`; `None` for whatever has none, or cannot be read.
fn look(path: &Path) -> Option<Superblock> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    // Opening a pipe or a terminal could hang or do something.
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let file = File::open(path).ok()?;
    let mut slots = (0..2).map(|slot| {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        match file.read_exact_at(&mut bytes, Layout::superblock_offset(slot)) {
            Ok(()) => Superblock::decode(&bytes),
            Err(_) => Err(FormatError::Truncated),
        }
    });
    let (first, second) = (slots.next()?, slots.next()?);
    match Superblock::choose(&first, &second) {
        SlotChoice::Slot0 => first.ok(),
        SlotChoice::Slot1 => second.ok(),
        _ => None,
    }
}

/// Looks at all that the patterns match and at `known`; a device that has several names is found
/// once, under the one that was known.
pub(super) fn scan(patterns: &[String], known: &[PathBuf]) -> Vec<Found> {
    let matched = patterns.iter().filter_map(|pattern| glob::glob(pattern).ok());
    let matched = matched.flatten().filter_map(Result::ok);
    let mut seen = BTreeMap::new();
    let mut found = Vec::new();
    for path in known.iter().cloned().chain(matched) {
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        let identity = match meta.file_type().is_block_device() {
            true => (true, meta.rdev(), 0),
            false => (false, meta.dev(), meta.ino()),
        };
        if seen.insert(identity, ()).is_some() {
            continue;
        }
        if let Some(superblock) = look(&path) {
            found.push(Found { path, superblock });
        }
    }
    found
}

/// What of a scan belongs to one pool.
pub(super) fn of_pool<'a>(found: &'a [Found], id: &str) -> Vec<&'a Found> {
    found.iter().filter(|found| found.superblock.pool.to_string() == id).collect()
}

/// The newest superblock among these; with it goes what a pool is.
pub(super) fn newest<'a>(found: &[&'a Found]) -> Option<&'a Superblock> {
    found.iter().map(|found| &found.superblock).max_by_key(|s| (s.epoch, s.generation))
}

/// Whether all members that the newest superblock names are among these.
pub(super) fn is_complete(found: &[&Found]) -> bool {
    newest(found).is_some_and(|newest| {
        newest.present().all(|m| found.iter().any(|f| f.superblock.device == m.device))
    })
}
