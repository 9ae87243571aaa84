//! The same on this machine's own kernel, beside whatever else it does.
//!
//! * Only devices that the run has made are touched, and an SSD that was named. They have the run's name, or files of it
//!   below them; numbers of others are never assumed.
//! * How to undo something is told to a [`Keeper`] before it is done.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_device::BlockDevice;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::{OpenOptions, typed};
use forebay_device::real::prepare::prepare_file;
use forebay_device::real::probe::probe;
use forebay_engine::read_spare;

use super::ground::{Ground, unique_name};
use super::keeper::Keeper;
use super::protocol::Line;
use super::rig::{Asked, Rig, Ssd};
use super::said::Said;
use super::system::memory;
use crate::bench::{Bench, Result};

/// Runs all on this machine, with a device for the SSD if one is given away, else with a file.
///
/// # Errors
/// If the machine cannot do it, the device is refused, or something could not be taken down. What only one side lacks is
/// told of that side.
pub(super) fn run(bench: &mut Bench, asked: &Asked, device: Option<&Path>) -> Result<Said> {
    require_root()?;
    require_memory(asked)?;
    if let Some(path) = device {
        refuse_device(bench, path, asked.ssd_bytes())?;
    }
    let name = unique_name()?;
    let keeper = Keeper::start(&name)?;
    let mut ground = Ground::new(name, "modprobe", Some(keeper), asked.origins_bytes())?;
    let has_bcache = Path::new("/sys/fs/bcache").exists();
    for name in ["loop", "dm-mod", "dm-delay"] {
        // What is missing is noticed by whoever needs it; it may be built in.
        let _ = ground.module(name);
    }
    let ssd = match device {
        Some(path) => Ssd { device: path.to_owned(), is_given: true },
        None => file(bench, asked, &mut ground)?,
    };
    let (mut said, mut failed) = (Said::default(), None);
    let mut rig = Rig::new(ground, asked.clone(), |line| {
        if let Err(error) = said.hear(bench, line) {
            failed.get_or_insert(error);
        }
    });
    rig.tell_where("machine", &describe(&ssd))?;
    if has_bcache {
        let text = "bcache was there before: its cutoffs of write-back are 40 and 70 %, unless it was given 70 and 90 then";
        rig.tell(Line::Fact(text.to_owned()));
    }
    rig.set_up(&ssd);
    rig.measure_all();
    rig.ground.end()?;
    drop(rig);
    failed.map_or(Ok(said), Err)
}

fn require_root() -> Result<()> {
    // The files of a process in /proc belong to whom it runs as.
    let user = fs::metadata("/proc/self").map_err(|e| format!("/proc/self: {e}"))?.uid();
    refuse_user(user)
}

fn refuse_user(user: u32) -> Result<()> {
    match user {
        0 => Ok(()),
        _ => Err(
            "--native makes block devices, which takes root; without --native it takes neither \
                  root nor devices"
                .to_owned(),
        ),
    }
}

fn require_memory(asked: &Asked) -> Result<()> {
    refuse_memory(memory("MemAvailable")?, asked.memory_mib())
}

/// Refuses what would drive others out of memory.
fn refuse_memory(there_mib: f64, needed_mib: u64) -> Result<()> {
    if there_mib >= needed_mib as f64 {
        return Ok(());
    }
    Err(format!(
        "the slow disks take {needed_mib} MiB of memory with all else, and {there_mib:.0} can be had"
    ))
}

/// Refuses a device that is in use, holds something, or is too small.
fn refuse_device(bench: &Bench, path: &Path, bytes: u64) -> Result<()> {
    let device = FileDevice::open(&bench.clock, path, &OpenOptions::default());
    let device = device.map_err(|e| format!("--ssd: {e}; {}", e.hint()))?;
    if !device.is_block() {
        let path = path.display();
        return Err(format!("--ssd {path} is no block device; without --ssd a file is made"));
    }
    let refused = bench.clock.block_on(refuse_content(&device, bytes));
    refused.map_err(|reason| format!("--ssd {}: {reason}", typed(path)))
}

async fn refuse_content(device: &dyn BlockDevice, bytes: u64) -> Result<()> {
    let size = device.geometry().size_bytes;
    if size < bytes {
        return Err(format!("it has {size} bytes, and {bytes} are needed"));
    }
    let found = probe(device).await.map_err(|e| format!("reading it: {e}"))?;
    if let Some(first) = found.first() {
        let remedy = "use another one; or, if its data is not needed, `wipefs` it";
        return Err(format!("it holds: {} (at byte {}); {remedy}", first.what, first.offset));
    }
    let spare = read_spare(device).await.map_err(|e| format!("reading it: {e}"))?;
    spare.map_or(Ok(()), |spare| Err(format!("it is a spare of pool \"{}\"", spare.name)))
}

/// A loop device on a file that was written in full, past the page cache.
fn file(bench: &Bench, asked: &Asked, ground: &mut Ground) -> Result<Ssd> {
    let path = bench.options.dir.join("ssd.bin");
    let written = prepare_file(&bench.clock, &path, asked.ssd_bytes(), |_| ());
    bench.clock.block_on(written).map_err(|e| format!("{e}; {}", e.hint()))?;
    let variables = [("FILE", path.display().to_string())];
    ground.undo(&variables, "detach \"$FILE\"")?;
    let made = ground.shell("losetup --find --show --direct-io=on \"$FILE\"", &variables);
    let remedy = "name a --dir on another file system, or a device with --ssd";
    let made = made.map_err(|e| {
        format!("a loop device past the page cache on {}: {e}; {remedy}", path.display())
    })?;
    let device = Path::new(made.trim()).to_owned();
    match line_of(&device, "loop/dio").as_deref() {
        Some("1") => Ok(Ssd { device, is_given: false }),
        _ => Err(format!("{} goes through the page cache; {remedy}", path.display())),
    }
}

/// What the kernel says of a device.
fn line_of(device: &Path, file: &str) -> Option<String> {
    let name = device.canonicalize().ok()?.file_name()?.to_owned();
    let own = Path::new("/sys/class/block").join(name).canonicalize().ok()?;
    // A partition's queue is its disk's.
    let read = |dir: &Path| fs::read_to_string(dir.join(file)).ok();
    let text = read(&own).or_else(|| read(own.parent()?))?;
    Some(text.trim().to_owned())
}

fn describe(ssd: &Ssd) -> String {
    let cache = line_of(&ssd.device, "queue/write_cache").unwrap_or_else(|| "unknown".to_owned());
    let what = if ssd.is_given { ssd.device.display().to_string() } else { "a file".to_owned() };
    format!("{what}, {cache}")
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};
    use std::rc::Rc;

    use forebay_device::real::reactor::{Config, Reactor};

    use super::*;
    use crate::bench::Place;

    const BYTES: u64 = 8 << 20;

    /// What is said of a device of 8 MiB with these bytes in that place.
    fn said_of(offset: u64, bytes: &[u8], needed: u64) -> Result<()> {
        let place = Place::new(&std::env::temp_dir()).expect("a directory");
        let path = place.path().join("device");
        let mut file = fs::File::create(&path).expect("a file");
        file.set_len(BYTES).expect("a size");
        file.seek(SeekFrom::Start(offset)).expect("a place");
        file.write_all(bytes).expect("written");
        drop(file);
        let clock: Rc<Reactor> = Reactor::new(Config::default()).expect("a ring");
        let device = FileDevice::open(&clock, &path, &OpenOptions::default()).expect("a device");
        clock.block_on(refuse_content(&device, needed))
    }

    #[test]
    fn a_blank_device_is_taken() {
        assert_eq!(said_of(0, &[0], BYTES), Ok(()));
    }

    #[test]
    fn a_device_that_holds_something_is_refused() {
        let error = said_of(0, b"XFSB", BYTES).expect_err("XFS");
        assert!(error.contains("XFS file system"), "{error}");
        let error = said_of(128 << 10, b"FBYSUPER", BYTES).expect_err("a pool");
        assert!(error.contains("Forebay pool member"), "{error}");
    }

    #[test]
    fn a_device_that_is_too_small_is_refused() {
        let error = said_of(0, &[0], BYTES + 1).expect_err("too small");
        assert!(error.contains("8388608 bytes"), "{error}");
    }

    #[test]
    fn it_takes_root() {
        assert_eq!(refuse_user(0), Ok(()));
        assert!(refuse_user(1000).expect_err("a user").contains("root"));
    }

    #[test]
    fn memory_of_others_is_not_taken() {
        assert_eq!(refuse_memory(5120.0, 5120), Ok(()));
        assert!(refuse_memory(5119.0, 5120).is_err());
    }
}
