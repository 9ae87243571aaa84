//! One device or directory.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_device::real::file::FileDevice;
use forebay_device::real::open::OpenOptions;
use forebay_device::real::open::typed;
use forebay_device::real::probe::probe_with;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_engine::format::segment_bytes_for;

use forebay_control::api::HealthVerdict;

use super::latency::{flushes, reads, syncs};
use super::{Findings, Verdict};
use crate::health::{Known, Tools, ask};
use crate::inspect::{spare_at, superblock_at};
use crate::members::{ANOTHER, fill, refuse_holes, refuse_sparse, refuse_sparse_anew, set_aside};
use crate::{memory, text};

/// A durable write of an SSD that honours flushes takes tens of microseconds with power-loss
/// protection and one or two milliseconds without it; slower ones are disks, or busy.
const SYNC_SLOW: Duration = Duration::from_millis(5);

/// What is said of slower ones.
const SYNC_HINT: &str = "writes that a client flushes wait as long on a cache device here; an SSD with power-loss \
                         protection is a hundred times faster";

/// Looks at a disk, a partition or a file; whether there is one.
pub(super) fn look(path: &Path, has_ring: bool, findings: &Findings) -> bool {
    let subject = &*path.display().to_string();
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => {
            findings.add(subject, "open", Verdict::Problem, error.to_string());
            findings.hint("check the path; `lsblk` lists the block devices");
            return false;
        }
    };
    let is_block = meta.file_type().is_block_device();
    if !is_block && !meta.is_file() {
        let what = "neither a disk, nor a file, nor a directory".to_owned();
        findings.add(subject, "open", Verdict::Problem, what);
        findings.hint("name a disk, a partition or a regular file");
        return false;
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            findings.add(subject, "open", Verdict::Problem, error.to_string());
            findings.hint(format!("run as a user who may read it: `ls -lL {}`", typed(path)));
            return false;
        }
    };
    let queue = is_block.then(|| queue_of(&meta)).flatten();
    let is_free = look_at_use(subject, path, has_ring, findings);
    let size_bytes = look_at_size(subject, path, &file, findings);
    match &queue {
        Some(queue) => look_at_queue(subject, queue, findings),
        None if is_block => {
            let what = "/sys does not tell its sectors and cache".to_owned();
            findings.add(subject, "sectors", Verdict::Skipped, what);
        }
        None => look_at_holes(subject, path, is_free, findings),
    }
    let Some(size_bytes) = size_bytes else { return true };
    look_at_content(subject, path, &file, size_bytes, findings);
    match reads(path, size_bytes) {
        Ok(times) => {
            let what = times.text("reads of 4 KiB");
            findings.add(subject, "reading", Verdict::Ok, what);
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let what = "not measured: it cannot be read past the page cache".to_owned();
            findings.add(subject, "reading", Verdict::Skipped, what);
        }
        Err(error) => {
            findings.add(subject, "reading", Verdict::Problem, error.to_string());
            findings.hint("`dmesg | tail` may tell more");
        }
    }
    if queue.as_deref().is_some_and(is_ssd) {
        look_at_flushes(subject, &file, is_free, findings);
    }
    let what = "not measured: that would write to it".to_owned();
    findings.add(subject, "fsync", Verdict::Skipped, what);
    findings.hint("name a directory on the same disk, and it is measured there");
    true
}

/// Whether it is known that nobody has it.
fn look_at_use(subject: &str, path: &Path, has_ring: bool, findings: &Findings) -> bool {
    let reactor = if has_ring { Reactor::new(Config::default()).ok() } else { None };
    let Some(reactor) = reactor else {
        let what = "not looked at: that needs io_uring".to_owned();
        findings.add(subject, "free", Verdict::Skipped, what);
        return false;
    };
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened = FileDevice::open(&reactor, path, &options).map(drop);
    reactor.close();
    match opened {
        Ok(_) => {
            findings.add(subject, "free", Verdict::Ok, "nobody uses it".into());
            true
        }
        Err(error) => {
            let verdict = if error.is_in_use() { Verdict::Warn } else { Verdict::Problem };
            findings.add(subject, "free", verdict, error.to_string());
            findings.hint(error.hint());
            false
        }
    }
}

/// How long an SSD takes to flush. Nothing is written for that, so it is the least that a durable write waits.
fn look_at_flushes(subject: &str, file: &File, is_free: bool, findings: &Findings) {
    if !is_free {
        let what = "not measured: flushes would hold up who uses it".to_owned();
        return findings.add(subject, "flush", Verdict::Skipped, what);
    }
    match flushes(file) {
        Ok(times) => {
            let what = times.text("flushes with nothing written before");
            let slow = times.p50() > SYNC_SLOW;
            let verdict = if slow { Verdict::Warn } else { Verdict::Ok };
            findings.add(subject, "flush", verdict, what);
            if slow {
                findings.hint(SYNC_HINT);
            }
        }
        Err(error) => {
            let what = format!("not measured: {error}");
            findings.add(subject, "flush", Verdict::Skipped, what);
        }
    }
}

/// Whether it is a disk that /sys calls not rotating.
fn is_ssd(queue: &Path) -> bool {
    std::fs::read_to_string(queue.join("rotational")).is_ok_and(|text| text.trim() == "0")
}

fn look_at_size(subject: &str, path: &Path, file: &File, findings: &Findings) -> Option<u64> {
    let size = size_of(path, file);
    let Some(size_bytes) = size.filter(|size| *size > 0) else {
        findings.add(subject, "size", Verdict::Problem, "it is empty".into());
        findings.hint("check the path, and that a medium is in it");
        return None;
    };
    let size = text::bytes(size_bytes);
    if segment_bytes_for(size_bytes).is_none() {
        let what = format!("{size}: large enough as an origin only");
        findings.add(subject, "size", Verdict::Warn, what);
        findings.hint("a cache device has at least 512 MiB");
        return Some(size_bytes);
    }
    let (index, policy) =
        (memory::Index::of(size_bytes, u64::MAX), memory::policy_bytes(size_bytes));
    let what = format!(
        "{size}; as a cache device it takes {} of RAM when full of pieces of 64 KiB, up to {}",
        text::bytes(index.usual + policy),
        text::bytes(index.dense + policy)
    );
    let most = memory::total().map(memory::promisable);
    if most.is_some_and(|most| most < index.dense + policy) {
        findings.add(subject, "size", Verdict::Warn, what);
        findings.hint(format!(
            "this machine has memory for {}: use a smaller partition, or `pool create --index-max`",
            text::bytes(memory::cache_for(most.unwrap_or(0)))
        ));
    } else if memory::available().is_some_and(|available| available < index.dense + policy) {
        findings.add(subject, "size", Verdict::Warn, what);
        findings
            .hint("that is more than is available now: use a smaller partition, or free memory");
    } else {
        findings.add(subject, "size", Verdict::Ok, what);
    }
    Some(size_bytes)
}

/// The size of a file, or of a block device in sectors of 512 bytes as /sys has it.
fn size_of(path: &Path, file: &File) -> Option<u64> {
    let meta = file.metadata().ok()?;
    if !meta.file_type().is_block_device() {
        return Some(meta.len());
    }
    let sectors = std::fs::read_to_string(sysfs(&std::fs::metadata(path).ok()?).join("size"));
    sectors.ok()?.trim().parse::<u64>().ok()?.checked_mul(512)
}

fn sysfs_of(number: u64) -> PathBuf {
    let (major, minor) = (libc::major(number), libc::minor(number));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

fn sysfs(meta: &Metadata) -> PathBuf {
    sysfs_of(meta.rdev())
}

/// Where the kernel tells of a disk's queue; a partition's is the disk's.
fn queue_of(meta: &Metadata) -> Option<PathBuf> {
    let own = sysfs(meta);
    [own.join("queue"), own.join("../queue")].into_iter().find(|queue| queue.is_dir())
}

fn look_at_queue(subject: &str, queue: &Path, findings: &Findings) {
    let read = |name: &str| {
        let text = std::fs::read_to_string(queue.join(name)).unwrap_or_default();
        text.trim().to_owned()
    };
    let (logical, physical) = (read("logical_block_size"), read("physical_block_size"));
    let what = format!("{logical} B, of {physical} B inside");
    if matches!(logical.as_str(), "512" | "4096") {
        findings.add(subject, "sectors", Verdict::Ok, what);
    } else {
        findings.add(subject, "sectors", Verdict::Problem, what);
        findings.hint("use a disk with sectors of 512 or 4096 B");
    }
    let kind = match read("rotational").as_str() {
        "0" => "not rotating: an SSD, or a virtual disk that says so",
        "1" => "rotating, or a virtual disk that says so: an origin rather than a cache device",
        _ => "/sys does not tell",
    };
    findings.add(subject, "kind", Verdict::Ok, kind.into());
    match read("write_cache").as_str() {
        "write back" => {
            let what = "volatile: what was not flushed is lost with the power; Forebay flushes";
            findings.add(subject, "write cache", Verdict::Ok, what.into());
        }
        "write through" => {
            let what = "none that is volatile, as the device says: a flush costs nothing";
            findings.add(subject, "write cache", Verdict::Ok, what.into());
        }
        _ => {
            let what = "/sys does not tell".to_owned();
            findings.add(subject, "write cache", Verdict::Skipped, what);
        }
    }
    match read("discard_max_bytes").parse::<u64>() {
        Ok(1..) => findings.add(subject, "discard", Verdict::Ok, "it can".into()),
        _ => {
            let what = "it cannot: an SSD that is not told what is free wears sooner".to_owned();
            findings.add(subject, "discard", Verdict::Ok, what);
        }
    }
}

/// What the disk below says of itself.
pub(super) fn look_at_health(subject: &str, path: &Path, findings: &Findings) {
    let mut known = Known::default();
    known.learn(ask(&Tools::default(), path), 0);
    let health = known.health();
    let disk = health.disk.as_ref().map_or(String::new(), |disk| format!("{}: ", disk.display()));
    let verdict = match health.verdict {
        HealthVerdict::Unknown => Verdict::Skipped,
        HealthVerdict::Good => Verdict::Ok,
        HealthVerdict::Warning => Verdict::Warn,
        HealthVerdict::Failing => Verdict::Problem,
    };
    findings.add(subject, "health", verdict, format!("{disk}{}", health.summary));
    match verdict {
        Verdict::Skipped if health.disk.is_some() => {
            findings.hint("smartctl (smartmontools) and nvme (nvme-cli) ask disks, as root");
        }
        Verdict::Warn => findings.hint("it works; as a cache device it is written to a lot"),
        Verdict::Problem => findings.hint("do not trust it with data"),
        _ => {}
    }
}

/// A cache device must not run out of space under dirty data.
fn look_at_holes(subject: &str, path: &Path, is_free: bool, findings: &Findings) {
    let is_member = matches!(superblock_at(path), Ok(Some(_)));
    let looked = match is_free {
        // What is reserved in it is enough, and what is there is needed.
        _ if is_member => refuse_holes(path, |bytes| set_aside(path, bytes)),
        true => refuse_sparse_anew(path, |bytes| fill(path, bytes)),
        false => refuse_sparse(path, 0, |_| ANOTHER.to_owned()),
    };
    match looked {
        Ok(()) => findings.add(subject, "holes", Verdict::Ok, "none".into()),
        Err(failure) => {
            findings.add(subject, "holes", Verdict::Warn, failure.what().to_owned());
            let hint = failure.hint_text();
            findings.hint(match is_member {
                true => format!("a write there fails if its file system is full then: {hint}"),
                false => format!("right for an origin; for a cache device {hint}"),
            });
        }
    }
}

/// What is on it.
fn look_at_content(subject: &str, path: &Path, file: &File, size_bytes: u64, findings: &Findings) {
    match content_of(path, file, size_bytes) {
        Err(error) => {
            findings.add(subject, "content", Verdict::Problem, format!("cannot be read: {error}"));
            findings.hint("`dmesg | tail` may tell more");
        }
        Ok((what, hint)) => {
            findings.add(subject, "content", Verdict::Ok, what);
            findings.hint(hint);
        }
    }
}

/// What is on a device of `size_bytes`, and what that means; nothing is said of what means nothing.
///
/// # Errors
/// If it cannot be read.
pub(super) fn content_of(
    path: &Path,
    file: &File,
    size_bytes: u64,
) -> std::io::Result<(String, String)> {
    if let Ok(Some(superblock)) = superblock_at(path) {
        let name = &superblock.name;
        let what = format!("a cache device of pool \"{name}\" ({})", superblock.pool);
        return Ok((what, format!("`forebay pool import {name}` opens the pool")));
    }
    if let Ok(Some(spare)) = spare_at(path) {
        let what = format!("a spare of pool \"{}\" ({})", spare.name, spare.pool);
        let hint = "it holds nothing; `forebay pool device remove` gives it up";
        return Ok((what, hint.to_owned()));
    }
    let found = probe_with(size_bytes, |buf, offset| file.read_exact_at(buf, offset))?;
    if found.is_empty() {
        return Ok(("nothing that is known".to_owned(), String::new()));
    }
    let all: Vec<_> = found.iter().map(|f| format!("{} (at byte {})", f.what, f.offset)).collect();
    Ok((all.join(", "), "an origin keeps it; as a cache device it is refused".to_owned()))
}

/// Measures durable writes on the disk below a directory.
pub(super) fn look_at_directory(path: &Path, findings: &Findings) {
    let subject = &*path.display().to_string();
    let below = std::fs::metadata(path).ok().and_then(|meta| {
        let link = std::fs::read_link(sysfs_of(meta.dev())).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    });
    match below {
        Some(name) => findings.add(subject, "disk", Verdict::Ok, format!("/dev/{name}")),
        None => {
            let what = "the file system does not tell on which disk it is".to_owned();
            findings.add(subject, "disk", Verdict::Skipped, what);
        }
    }
    match syncs(path) {
        Ok(times) => {
            let slow = times.p50() > SYNC_SLOW;
            let verdict = if slow { Verdict::Warn } else { Verdict::Ok };
            let what = times.text("durable writes of 4 KiB to a file");
            findings.add(subject, "fsync", verdict, what);
            if slow {
                findings.hint(SYNC_HINT);
            }
        }
        Err(error) => {
            let what = format!("not measured: {error}");
            findings.add(subject, "fsync", Verdict::Skipped, what);
            findings.hint("name a directory that you may write to");
        }
    }
}
