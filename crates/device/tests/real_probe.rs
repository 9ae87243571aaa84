//! Probing what the real tools make, and preparing files.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::RwLock;

use forebay_device::real::file::FileDevice;
use forebay_device::real::open::OpenOptions;
use forebay_device::real::prepare::{PrepareError, prepare_file};
use forebay_device::real::probe::{Found, probe, probe_with};
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::{BlockDevice, Buf};

/// Held for writing while a test takes all the space there is, for reading by those who need some.
static SPACE: RwLock<()> = RwLock::new(());

struct TempPath(PathBuf);

impl TempPath {
    fn new(name: &str) -> TempPath {
        TempPath(std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id())))
    }

    fn with_size(name: &str, size: u64) -> TempPath {
        let temp = Self::new(name);
        File::create_new(&temp.0).unwrap().set_len(size).unwrap();
        temp
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn reactor() -> Rc<Reactor> {
    Reactor::new(Config::default()).unwrap()
}

fn probe_file(path: &Path) -> Vec<Found> {
    let reactor = reactor();
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let device = FileDevice::open(&reactor, path, &options).unwrap();
    let found = reactor.block_on(probe(&device)).unwrap();
    let (file, size) = (File::open(path).unwrap(), device.geometry().size_bytes);
    let by_calls = probe_with(size, |buf, offset| file.read_exact_at(buf, offset)).unwrap();
    assert_eq!(by_calls, found);
    found
}

/// Runs a tool that formats a file; false (with the reason printed) if it is not here.
fn format(tool: &str, arguments: &[&str], path: &Path) -> bool {
    match Command::new(tool).args(arguments).arg(path).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("skipped: {tool}: {}", String::from_utf8_lossy(&output.stderr).trim());
            false
        }
        Err(error) => {
            println!("skipped: {tool}: {error}");
            false
        }
    }
}

#[test]
fn what_the_real_tools_make_is_found() {
    let _space = SPACE.read();
    let tools: &[(&str, &[&str], &str)] = &[
        ("mkfs.ext2", &["-q", "-F"], "ext2 file system"),
        ("mkfs.ext3", &["-q", "-F"], "ext3 file system"),
        ("mkfs.ext4", &["-q", "-F"], "ext4 file system"),
        ("mkfs.xfs", &["-q", "-f"], "XFS file system"),
        ("mkfs.btrfs", &["-q", "-f"], "Btrfs file system"),
        ("mkfs.vfat", &[], "FAT file system"),
        ("mkfs.ntfs", &["-q", "-F"], "NTFS file system"),
        ("mkfs.f2fs", &["-q"], "F2FS file system"),
        ("mkswap", &["-q"], "swap space"),
    ];
    for (tool, arguments, what) in tools {
        let file = TempPath::with_size(tool, 512 << 20);
        if format(tool, arguments, &file.0) {
            let found = probe_file(&file.0);
            assert!(found.iter().any(|found| found.what == *what), "{tool}: {found:?}");
        }
    }
}

#[test]
fn an_empty_or_tiny_file_has_nothing() {
    for size in [512, 4096, 65536, 1 << 20] {
        let file = TempPath::with_size(&format!("empty-{size}"), size);
        assert_eq!(probe_file(&file.0), []);
    }
}

#[test]
fn a_prepared_file_is_allocated_in_full_and_reads_as_zeroes() {
    let _space = SPACE.read();
    let (reactor, file) = (reactor(), TempPath::new("prepare"));
    let size = (20 << 20) + 4096;
    let mut told = Vec::new();
    reactor.block_on(prepare_file(&reactor, &file.0, size, |done| told.push(done))).unwrap();
    assert!(told.is_sorted() && told.last() == Some(&size) && told.len() == 21);
    let meta = std::fs::metadata(&file.0).unwrap();
    assert_eq!(meta.len(), size);
    assert!(meta.blocks() * 512 >= size, "no holes");
    assert_eq!(meta.mode() & 0o077, 0, "nobody else may read cached data");

    // A second time it is written over, if the size is the same.
    std::fs::write(&file.0, vec![7; size as usize]).unwrap();
    reactor.block_on(prepare_file(&reactor, &file.0, size, |_| ())).unwrap();
    let device = FileDevice::open(&reactor, &file.0, &OpenOptions::default()).unwrap();
    let device: &dyn BlockDevice = &device;
    let outcome = reactor.block_on(device.read(0, Buf::new(size as usize)));
    assert!(outcome.buf.unwrap().iter().all(|&byte| byte == 0));
    let in_use = reactor.block_on(prepare_file(&reactor, &file.0, size, |_| ()));
    assert!(matches!(in_use, Err(PrepareError::Open(_))), "it is open as a device");
    let other = reactor.block_on(prepare_file(&reactor, &file.0, size + 4096, |_| ()));
    assert!(
        matches!(other, Err(PrepareError::Exists { size_bytes: Some(found), .. }) if found == size)
    );
}

#[test]
fn a_file_that_does_not_fit_is_removed_again() {
    let _space = SPACE.write();
    let (reactor, file) = (reactor(), TempPath::new("huge"));
    let result = reactor.block_on(prepare_file(&reactor, &file.0, 8 << 40, |_| ()));
    match result {
        Err(error @ PrepareError::NoSpace { .. }) => assert!(error.hint().contains("df -h")),
        other => panic!("{other:?}"),
    }
    assert!(!file.0.exists());
}

#[test]
fn a_preparation_that_is_given_up_leaves_no_file() {
    let _space = SPACE.read();
    let (reactor, file) = (reactor(), TempPath::new("dropped"));
    let mut prepare = Box::pin(prepare_file(&reactor, &file.0, 64 << 20, |_| ()));
    reactor.block_on(std::future::poll_fn(|cx| {
        assert!(prepare.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    }));
    assert!(file.0.exists());
    drop(prepare);
    assert!(!file.0.exists());
}

#[test]
fn an_odd_size_is_refused_before_anything_is_created() {
    let (reactor, file) = (reactor(), TempPath::new("odd"));
    for size in [0, 512, 4097] {
        let result = reactor.block_on(prepare_file(&reactor, &file.0, size, |_| ()));
        assert!(matches!(result, Err(PrepareError::Size { .. })), "{result:?}");
        assert!(!file.0.exists());
    }
}
