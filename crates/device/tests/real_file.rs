//! Files and block devices against the real kernel.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use std::cell::Cell;
use std::fs::File;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use forebay_device::gate::Gate;
use forebay_device::io::pair;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::{OpenError, OpenOptions};
use forebay_device::real::place::Identity;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::runtime::{MILLISECOND, Runtime};
use forebay_device::{BlockDevice, Buf, IoErrorKind, Nanos};

/// A file that is removed at the end of its test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(size: u64) -> TempFile {
        Self::below(&std::env::temp_dir(), size)
    }

    fn below(folder: &Path, size: u64) -> TempFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("forebay-file-{}-{number}", std::process::id()));
        File::create_new(&path).unwrap().set_len(size).unwrap();
        TempFile(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn reactor() -> Rc<Reactor> {
    Reactor::new(Config::default()).unwrap()
}

fn open(reactor: &Rc<Reactor>, file: &TempFile, options: OpenOptions) -> FileDevice {
    FileDevice::open(reactor, &file.0, &options).unwrap()
}

fn pattern(len: usize, seed: u64) -> Buf {
    let mut buf = Buf::zeroed(len);
    for (at, word) in buf.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&((seed << 32) | at as u64).to_le_bytes());
    }
    buf
}

async fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Buf {
    let outcome = device.read(offset, Buf::new(len)).await;
    outcome.result.unwrap();
    outcome.buf.unwrap()
}

#[test]
fn what_is_written_is_read_with_either_sector() {
    for sector in [512u32, 4096] {
        let (reactor, file) = (reactor(), TempFile::new(1 << 20));
        let options = OpenOptions { sector_bytes: Some(sector), ..OpenOptions::default() };
        let device = open(&reactor, &file, options);
        assert_eq!(device.geometry().sector_bytes, sector);
        let device: &dyn BlockDevice = &device;
        let sector = sector as usize;
        reactor.block_on(async {
            let data = pattern(3 * sector, 7).freeze();
            device.write(sector as u64, data.clone()).done().await.unwrap();
            device.flush().done().await.unwrap();
            assert_eq!(read(device, sector as u64, 3 * sector).await[..], data[..]);
            if device.geometry().durable_writes {
                let data = pattern(2 * sector, 8).freeze();
                device.write_durable(0, data.clone()).done().await.unwrap();
                assert_eq!(read(device, 0, 2 * sector).await[..], data[..]);
            }
            let past = device.read(1 << 20, Buf::new(sector)).await;
            assert_eq!(past.result, Err(IoErrorKind::Invalid.into()));
            let odd = device.write(8, data.clone()).done().await;
            assert_eq!(odd, Err(IoErrorKind::Invalid.into()));
        });
    }
}

#[test]
fn many_requests_overlap_on_a_small_ring() {
    let file = TempFile::new(8 << 20);
    let reactor = Reactor::new(Config { entries: 4, submit_after: 2 }).unwrap();
    let device = open(&reactor, &file, OpenOptions::default());
    let device: &dyn BlockDevice = &device;
    reactor.block_on(async {
        let writes: Vec<_> =
            (0..2048).map(|n| device.write(n * 4096, pattern(4096, n).freeze())).collect();
        for write in writes {
            write.done().await.unwrap();
        }
        let reads: Vec<_> = (0..2048).map(|n| device.read(n * 4096, Buf::new(4096))).collect();
        for (number, read) in reads.into_iter().enumerate() {
            let outcome = read.await;
            outcome.result.unwrap();
            assert_eq!(outcome.buf.unwrap()[..], pattern(4096, number as u64)[..]);
        }
    });
    assert_eq!(reactor.operations_inflight_count(), 0);
}

#[test]
fn futures_dropped_in_flight_harm_nobody() {
    let (reactor, file) = (reactor(), TempFile::new(4 << 20));
    let device = Rc::new(open(&reactor, &file, OpenOptions::default()));
    let dynamic: &dyn BlockDevice = &*device;
    reactor.block_on(async {
        dynamic.write(0, pattern(4 << 20, 1).freeze()).done().await.unwrap();
        for round in 0..200u64 {
            // Half of the reads are dropped; their memory must not come back while the kernel
            // fills it, or it would show in the buffers of the other half.
            let mut kept = Vec::new();
            for number in 0..64u64 {
                let offset = (round * 7919 + number * 104_729) % 512 * 8192;
                let io = dynamic.read(offset, Buf::new(8192));
                if number % 2 == 0 {
                    drop(io);
                } else {
                    kept.push((offset, io));
                }
            }
            let mut canaries: Vec<Buf> = (0..64).map(|_| pattern(8192, 99)).collect();
            for (offset, io) in kept {
                let outcome = io.await;
                outcome.result.unwrap();
                let first = (1u64 << 32) | (offset / 8);
                assert_eq!(outcome.buf.unwrap()[..8], first.to_le_bytes());
            }
            canaries.retain(|canary| canary[..] != pattern(8192, 99)[..]);
            assert!(canaries.is_empty(), "the kernel wrote into memory that had a new owner");
        }
    });
}

#[test]
fn a_reactor_that_ends_under_load_takes_its_memory_back_first() {
    let file = TempFile::new(4 << 20);
    for round in 0..40 {
        let entries = if round % 2 == 0 { 256 } else { 2 };
        let reactor = Reactor::new(Config { entries, submit_after: 4 }).unwrap();
        let device = open(&reactor, &file, OpenOptions::default());
        let dynamic: &dyn BlockDevice = &device;
        let ios: Vec<_> = (0..600).map(|n| dynamic.read(n * 4096, Buf::new(4096))).collect();
        reactor.close();
        assert_eq!(reactor.operations_inflight_count(), 0);
        for io in ios {
            let outcome = forebay_device::executor::block_on_ready(io);
            assert!(outcome.buf.is_some(), "each request ended with its buffer");
        }
    }
}

#[test]
fn a_file_that_got_shorter_is_an_error_not_zeroes() {
    let (reactor, file) = (reactor(), TempFile::new(1 << 20));
    let device = open(&reactor, &file, OpenOptions::default());
    let device: &dyn BlockDevice = &device;
    for len in [0, 4096, 4096 + 100] {
        File::options().write(true).open(&file.0).unwrap().set_len(len).unwrap();
        let outcome = reactor.block_on(device.read(0, Buf::new(16384)));
        assert_eq!(outcome.result.unwrap_err().kind, IoErrorKind::Media, "length {len}");
    }
}

#[test]
fn only_one_opens_a_file_for_writing() {
    let (reactor, file) = (reactor(), TempFile::new(1 << 20));
    let first = open(&reactor, &file, OpenOptions::default());
    match FileDevice::open(&reactor, &file.0, &OpenOptions::default()) {
        Err(OpenError::InUse { by: Some(by), .. }) => {
            assert_eq!(by, "this very process");
        }
        other => panic!("{:?}", other.err()),
    }
    drop(first);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let one = open(&reactor, &file, read_only);
    let _other = open(&reactor, &file, read_only);
    let one: &dyn BlockDevice = &one;
    let refused = reactor.block_on(one.write(0, Buf::zeroed(4096).freeze()).done());
    assert_eq!(refused, Err(IoErrorKind::Permission.into()));
}

/// Locks one byte of a file as QEMU does, until the descriptor is closed.
fn lock_byte(file: &TempFile, kind: libc::c_int) -> File {
    let locked = File::options().read(true).write(true).open(&file.0).unwrap();
    // SAFETY: `flock` is plain numbers; zeroes are a valid value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_start, range.l_len) = (kind as libc::c_short, 203, 1);
    // SAFETY: the descriptor is open, and `range` is read.
    let result = unsafe { libc::fcntl(locked.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range) };
    assert_eq!(result, 0);
    locked
}

#[test]
fn a_file_with_a_locked_byte_is_in_use() {
    let (reactor, file) = (reactor(), TempFile::new(1 << 20));
    for (kind, read_only, is_refused) in [
        (libc::F_WRLCK, false, true),
        (libc::F_WRLCK, true, true),
        (libc::F_RDLCK, false, true),
        (libc::F_RDLCK, true, false),
    ] {
        let locked = lock_byte(&file, kind);
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let opened = FileDevice::open(&reactor, &file.0, &options);
        let in_use = matches!(opened, Err(OpenError::InUse { .. }));
        assert_eq!(in_use, is_refused, "kind {kind}, read-only {read_only}");
        drop((opened, locked));
        assert!(FileDevice::open(&reactor, &file.0, &options).is_ok());
    }
}

#[test]
fn a_device_in_use_is_waited_for() {
    let (reactor, file) = (reactor(), TempFile::new(1 << 20));
    let first = open(&reactor, &file, OpenOptions::default());
    let runtime = Rc::clone(&reactor);
    reactor.spawn(Box::pin(async move {
        (&*runtime as &dyn Runtime).sleep(30 * MILLISECOND).await;
        drop(first);
    }));
    let options = OpenOptions::default();
    let patient = FileDevice::open_when_free(&reactor, &file.0, &options, u64::MAX);
    assert!(reactor.block_on(patient).is_ok());
}

#[test]
fn what_cannot_be_opened_is_told_with_a_hint() {
    let reactor = reactor();
    let fails = |path: &Path, options: OpenOptions| {
        FileDevice::open(&reactor, path, &options).err().unwrap()
    };
    let plain = OpenOptions::default();
    let nowhere = fails(Path::new("/nonexistent/file"), plain);
    assert!(matches!(nowhere, OpenError::NotFound { .. }));
    let folder = fails(&std::env::temp_dir(), plain);
    assert!(matches!(folder, OpenError::NotStorage { .. }));
    let odd = TempFile::new(5000);
    let size = fails(&odd.0, plain);
    assert!(matches!(size, OpenError::Size { size_bytes: 5000, .. }));
    let empty = fails(&TempFile::new(0).0, plain);
    assert!(empty.to_string().ends_with("is empty"));
    let whole = TempFile::new(1 << 20);
    let sector = fails(&whole.0, OpenOptions { sector_bytes: Some(1024), ..plain });
    assert!(matches!(sector, OpenError::Sector { sector_bytes: 1024, .. }));
    for error in [nowhere, folder, size, empty, sector] {
        assert!(!error.hint().is_empty() && !error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn the_disk_that_is_mounted_as_root_is_refused() {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = table.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    let source = root.split(" - ").nth(1).unwrap().split(' ').nth(1).unwrap();
    if !Path::new(source).exists() || File::open(source).is_err() {
        println!("skipped: the root file system is not on a disk that we may open ({source})");
        return;
    }
    match FileDevice::open(&reactor(), Path::new(source), &OpenOptions::default()) {
        Err(OpenError::Mounted { at, .. }) => assert_eq!(at, Path::new("/")),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn tmpfs_works_through_the_page_cache() {
    let folder = Path::new("/dev/shm");
    if !folder.is_dir() {
        println!("skipped: no /dev/shm");
        return;
    }
    let (reactor, file) = (reactor(), TempFile::below(folder, 1 << 20));
    let device = open(&reactor, &file, OpenOptions::default());
    assert!(!device.is_direct());
    let device: &dyn BlockDevice = &device;
    reactor.block_on(async {
        device.write(512, pattern(1024, 3).freeze()).done().await.unwrap();
        device.flush().done().await.unwrap();
        assert_eq!(read(device, 512, 1024).await[..], pattern(1024, 3)[..]);
        let durable = device.write_durable(512, pattern(1024, 4).freeze()).done().await;
        assert_eq!(durable, Err(IoErrorKind::Unsupported.into()), "nobody knows when it is");
    });
}

/// Allocated bytes of a file.
fn allocated(file: &TempFile) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&file.0).unwrap()) * 512
}

#[test]
fn a_cache_file_keeps_its_blocks_and_an_origin_gives_them_back() {
    for punch in [false, true] {
        let (reactor, file) = (reactor(), TempFile::new(8 << 20));
        let device = open(&reactor, &file, OpenOptions { punch, ..OpenOptions::default() });
        assert_eq!(device.geometry().discard, punch);
        let device: &dyn BlockDevice = &device;
        reactor.block_on(async {
            device.write(0, pattern(8 << 20, 5).freeze()).done().await.unwrap();
            device.flush().done().await.unwrap();
            let before = allocated(&file);
            device.discard(0, 4 << 20).done().await.unwrap();
            assert_eq!(allocated(&file) < before, punch);
            device.write_zeroes(4096, (6 << 20) + 512).done().await.unwrap();
            let back = read(device, 4096, (6 << 20) + 512).await;
            assert!(back.iter().all(|&byte| byte == 0));
            let after = read(device, 4096 + (6 << 20) + 512, 512).await;
            assert_ne!(after[..8], [0; 8], "only the range was zeroed");
        });
    }
}

#[test]
fn memory_off_the_alignment_is_copied() {
    let (reactor, file) = (reactor(), TempFile::new(1 << 20));
    let device = open(&reactor, &file, OpenOptions::default());
    let device: &dyn BlockDevice = &device;
    reactor.block_on(async {
        let mut payload = pattern(4096 + 32, 4);
        let payload = payload.split_off(28).split_off(1).freeze().slice(0..4096 - 3584);
        device.write(0, payload.clone()).done().await.unwrap();
        let mut odd = Buf::zeroed(1024);
        let odd = odd.split_off(9);
        let odd = {
            let mut odd = odd;
            drop(odd.split_off(512));
            odd
        };
        let outcome = device.read(0, odd).await;
        outcome.result.unwrap();
        assert_eq!(outcome.buf.unwrap()[..], payload[..]);
    });
}

#[test]
fn a_task_that_is_dropped_mid_way_leaves_the_device_usable() {
    let (reactor, file) = (reactor(), TempFile::new(1 << 20));
    let device = Rc::new(open(&reactor, &file, OpenOptions::default()));
    let polled = Rc::new(Cell::new(0));
    let zero = {
        let dynamic: &dyn BlockDevice = &*device;
        dynamic.write_zeroes(0, 1 << 20)
    };
    let mut zero = Box::pin(zero);
    let count = Rc::clone(&polled);
    reactor.block_on(std::future::poll_fn(|cx| {
        count.set(count.get() + 1);
        let _ = zero.as_mut().poll(cx);
        Poll::Ready(())
    }));
    drop(zero);
    let (completer, io) = pair();
    let other = Rc::clone(&device);
    reactor.spawn(Box::pin(async move {
        let dynamic: &dyn BlockDevice = &*other;
        completer.done(dynamic.flush().done().await);
    }));
    assert_eq!(reactor.block_on(io.done()), Ok(()));
    assert_eq!(polled.get(), 1);
}

/// A loop device on a file, where this process may make one.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &TempFile, sector: u32) -> Option<Loop> {
        Loop::attach(file, &["--direct-io=on", "--sector-size", &sector.to_string()])
    }

    fn attach(file: &TempFile, options: &[&str]) -> Option<Loop> {
        let mut command = std::process::Command::new("losetup");
        Loop::told_by(command.args(["--find", "--show"]).args(options).arg(&file.0))
    }

    /// The one that a command has made, and says.
    fn told_by(command: &mut std::process::Command) -> Option<Loop> {
        match command.output() {
            Ok(output) if output.status.success() => {
                Some(Loop(String::from_utf8(output.stdout).unwrap().trim().into()))
            }
            Ok(output) => {
                println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("skipped: losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A folder that is removed at the end of its test, behind what is in it.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new(name: &str) -> TempFolder {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        TempFolder(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A mount that ends with its test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn succeeds(command: &mut std::process::Command) -> bool {
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
            false
        }
        Err(error) => {
            println!("skipped: {command:?}: {error}");
            false
        }
    }
}

#[test]
fn a_mounted_block_device_is_refused_with_its_mount_point() {
    use std::process::Command;
    let file = TempFile::new(8 << 20);
    let Some(disk) = Loop::new(&file, 512) else { return };
    let folder = file.0.with_extension("mount point");
    std::fs::create_dir(&folder).unwrap();
    let mounted = Mounted(folder);
    if !succeeds(Command::new("mkfs.ext4").arg("-q").arg(&disk.0))
        || !succeeds(Command::new("mount").arg(&disk.0).arg(&mounted.0))
    {
        return;
    }
    let error = FileDevice::open(&reactor(), &disk.0, &OpenOptions::default()).err().unwrap();
    match &error {
        OpenError::Mounted { at, .. } => assert_eq!(*at, mounted.0),
        other => panic!("{other}"),
    }
    assert!(error.hint().contains("umount"));
    let below = FileDevice::open(&reactor(), &file.0, &OpenOptions::default()).err().unwrap();
    assert!(matches!(below, OpenError::Mounted { .. }), "{below}");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "nothing is to be done here but to wait")]
fn a_file_that_is_attached_as_a_loop_device_is_refused_unless_it_is_only_read() {
    let file = TempFile::new(8 << 20);
    let Some(disk) = Loop::new(&file, 512) else { return };
    let open = |read_only| {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        FileDevice::open(&reactor(), &file.0, &options).map(drop)
    };
    let error = open(false).unwrap_err();
    match &error {
        OpenError::Attached { device, .. } => assert_eq!(*device, disk.0),
        other => panic!("{other}"),
    }
    assert!(error.hint().contains(&format!("losetup -d {}", disk.0.display())));
    // A child of another test has what was open here, and its lock, until it runs its own program; and whoever looks at new
    // devices may have this one open for a moment longer.
    let opens = |read_only| {
        let mut opened = open(read_only);
        for _ in 0..500 {
            if opened.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            opened = open(read_only);
        }
        opened.unwrap();
    };
    opens(true);
    drop(disk);
    opens(false);
    let _reader = Loop::attach(&file, &["--read-only"]).unwrap();
    opens(false);
}

#[test]
fn a_loop_device_is_the_file_that_it_is_all_of() {
    let file = TempFile::new(8 << 20);
    let Some(disk) = Loop::new(&file, 512) else { return };
    let own = Identity::of(&file.0).unwrap();
    assert_eq!(Identity::of(&disk.0), Some(own));
    let part = Loop::attach(&file, &["--offset", "1048576"]).unwrap();
    assert_ne!(Identity::of(&part.0), Some(own));
}

#[test]
fn a_loop_device_is_its_file_also_where_something_else_is_at_the_path_of_that() {
    use std::process::Command;
    let (folder, linked) = (TempFolder::new("covered"), TempFolder::new("linked"));
    let file = TempFile::below(&folder.0, 8 << 20);
    let link = TempFile(linked.0.join("link"));
    std::fs::hard_link(&file.0, &link.0).unwrap();
    let own = Identity::of(&file.0).unwrap();
    let Some(disk) = Loop::new(&file, 512) else { return };
    if !succeeds(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&folder.0)) {
        return;
    }
    let _cover = Mounted(folder.0.clone());
    assert_eq!(Identity::of(&disk.0), Some(own), "nothing is at its path");
    let stranger = TempFile(file.0.clone());
    File::create_new(&stranger.0).unwrap().set_len(8 << 20).unwrap();
    assert_eq!(Identity::of(&disk.0), Some(own), "another file is at its path");
    assert_ne!(Identity::of(&stranger.0), Some(own));
    FileDevice::open(&reactor(), &stranger.0, &OpenOptions::default()).map(drop).unwrap();
    let error = FileDevice::open(&reactor(), &link.0, &OpenOptions::default()).err().unwrap();
    assert!(matches!(&error, OpenError::Attached { device, .. } if *device == disk.0), "{error}");
}

#[test]
fn a_loop_device_is_its_file_also_where_its_path_is_one_of_another_mount_namespace() {
    use std::process::Command;
    let (folder, view) = (TempFolder::new("here"), TempFolder::new("there"));
    let file = TempFile::below(&folder.0, 8 << 20);
    let own = Identity::of(&file.0).unwrap();
    let there = view.0.join(file.0.file_name().unwrap());
    let script = "mount --bind \"$0\" \"$1\" && losetup --find --show \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).args([&folder.0, &view.0, &there]);
    let Some(disk) = Loop::told_by(&mut command) else { return };
    assert_eq!(Identity::of(&disk.0), Some(own));
    let error = FileDevice::open(&reactor(), &file.0, &OpenOptions::default()).err().unwrap();
    assert!(matches!(&error, OpenError::Attached { device, .. } if *device == disk.0), "{error}");
}

#[test]
fn a_loop_device_on_a_block_device_is_what_that_is() {
    let file = TempFile::new(8 << 20);
    let Some(below) = Loop::new(&file, 512) else { return };
    let node = TempFile(file.0.with_extension("node"));
    std::os::unix::fs::symlink(&below.0, &node.0).unwrap();
    let upper = Loop::attach(&node, &[]).unwrap();
    assert_eq!(Identity::of(&upper.0), Identity::of(&file.0));
}

/// A lease that runs out and is renewed costs a while; one that has ended costs the request.
#[test]
fn discards_and_zeroes_wait_at_the_fence() {
    let (file, reactor) = (TempFile::new(8 << 20), reactor());
    let device = open(&reactor, &file, OpenOptions { punch: true, ..OpenOptions::default() });
    let gate = Gate::new(Rc::clone(&reactor) as Rc<dyn Runtime>);
    device.fence(&gate);
    let device = Rc::new(device);
    let start = |zeroes: bool| {
        let (device, ended) = (Rc::clone(&device), Rc::new(Cell::new(None)));
        let told = Rc::clone(&ended);
        reactor.spawn(Box::pin(async move {
            let device = &*device as &dyn BlockDevice;
            let io = if zeroes { device.write_zeroes(0, 4096) } else { device.discard(0, 4096) };
            told.set(Some(io.done().await));
        }));
        ended
    };
    let pause = || reactor.block_on((&*reactor as &dyn Runtime).sleep(50 * MILLISECOND).done());
    for zeroes in [false, true] {
        gate.open_until(reactor.now());
        let waits = start(zeroes);
        pause().unwrap();
        assert_eq!(waits.get(), None, "there may be more time");
        gate.open_until(Nanos::MAX);
        while waits.get().is_none() {
            pause().unwrap();
        }
        assert_eq!(waits.get(), Some(Ok(())));
    }
    gate.open_until(reactor.now());
    let waits = [false, true].map(start);
    gate.end();
    pause().unwrap();
    let vanished = Some(Err(IoErrorKind::Vanished.into()));
    assert!(waits.iter().all(|waits| waits.get() == vanished));
}

/// FLUSHes that a block device has been sent so far (the 16th field of its `stat`).
fn flushes(disk: &Path) -> u64 {
    let name = disk.file_name().unwrap().to_string_lossy().into_owned();
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    stat.split_whitespace().nth(15).unwrap().parse().unwrap()
}

/// A loop device has a write cache and no FUA: the kernel flushes it behind the write.
#[test]
fn a_durable_write_has_been_flushed_when_it_ends() {
    let file = TempFile::new(8 << 20);
    let Some(disk) = Loop::new(&file, 4096) else { return };
    let reactor = reactor();
    let device = FileDevice::open(&reactor, &disk.0, &OpenOptions::default()).unwrap();
    let device: &dyn BlockDevice = &device;
    reactor.block_on(async {
        let before = flushes(&disk.0);
        device.write(0, pattern(4096, 1).freeze()).done().await.unwrap();
        assert_eq!(flushes(&disk.0), before);
        device.write_durable(4096, pattern(4096, 2).freeze()).done().await.unwrap();
        assert!(flushes(&disk.0) > before, "the disk was asked to make it durable");
        assert_eq!(read(device, 4096, 4096).await[..], pattern(4096, 2)[..]);
    });
}

#[test]
fn a_block_device_is_claimed_read_written_and_discarded() {
    for sector in [512u32, 4096] {
        let file = TempFile::new(8 << 20);
        let Some(disk) = Loop::new(&file, sector) else { return };
        let reactor = reactor();
        let device = FileDevice::open(&reactor, &disk.0, &OpenOptions::default()).unwrap();
        let geometry = device.geometry();
        assert_eq!((geometry.size_bytes, geometry.sector_bytes), (8 << 20, sector));
        assert!(device.is_block() && device.is_direct());
        let again = FileDevice::open(&reactor, &disk.0, &OpenOptions::default()).err().unwrap();
        assert!(matches!(again, OpenError::InUse { .. }), "{again}");
        let device: &dyn BlockDevice = &device;
        reactor.block_on(async {
            device.write(0, pattern(8 << 20, 6).freeze()).done().await.unwrap();
            device.flush().done().await.unwrap();
            assert_eq!(read(device, 1 << 20, 4096).await[8..], {
                let all = pattern(8 << 20, 6);
                all[(1 << 20) + 8..(1 << 20) + 4096].to_vec()
            });
            let before = allocated(&file);
            device.discard(0, 4 << 20).done().await.unwrap();
            assert!(!geometry.discard || allocated(&file) < before, "the loop file has a hole");
            device.write_zeroes(4 << 20, 1 << 20).done().await.unwrap();
            assert!(read(device, 4 << 20, 1 << 20).await.iter().all(|&byte| byte == 0));
        });
    }
}

#[test]
fn what_became_of_an_open_file_is_seen() {
    use forebay_device::real::place::Displaced;
    let (reactor, file) = (reactor(), TempFile::new(1 << 20));
    let device = open(&reactor, &file, OpenOptions::default());
    let look = || device.placed().unwrap().look(&file.0).unwrap();
    assert_eq!(look(), None);
    // A second name that is gone again, and another spelling of the first, mean nothing.
    let elsewhere = file.0.with_extension("moved");
    std::fs::hard_link(&file.0, &elsewhere).unwrap();
    std::fs::remove_file(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&file.0, &elsewhere).unwrap();
    assert_eq!(device.placed().unwrap().look(&elsewhere).unwrap(), None);
    std::fs::remove_file(&elsewhere).unwrap();
    let resize = |len| File::options().write(true).open(&file.0).unwrap().set_len(len).unwrap();
    let holes = || device.placed().unwrap().hole_bytes().unwrap();
    assert_eq!(holes(), 1 << 20, "it is one");
    resize(512 << 10);
    assert_eq!(look(), Some(Displaced::Shrunk { size_bytes: 512 << 10 }));
    assert_eq!(holes(), 0, "what was cut off is not");
    resize(2 << 20);
    assert_eq!((look(), holes()), (None, 1 << 20));
    std::fs::rename(&file.0, &elsewhere).unwrap();
    assert_eq!(look(), Some(Displaced::Moved));
    File::create_new(&file.0).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(look(), Some(Displaced::Replaced));
    std::fs::rename(&elsewhere, &file.0).unwrap();
    assert_eq!(look(), None);
    std::fs::remove_file(&file.0).unwrap();
    assert_eq!(look(), Some(Displaced::Removed));
    File::create_new(&file.0).unwrap();
    assert_eq!(look(), Some(Displaced::Removed));
    // A look that began before another one knows less; what was cut off does not come back.
    let (first, second) = (device.placed().unwrap().number(), device.placed().unwrap().number());
    let shrunk = Some(Displaced::Shrunk { size_bytes: 512 });
    device.note_displaced(second, shrunk);
    device.note_displaced(first, None);
    device.note_displaced(device.placed().unwrap().number(), None);
    assert_eq!(device.displaced(), shrunk);
    device.refuse_writes(true);
    let dynamic: &dyn BlockDevice = &device;
    reactor.block_on(async {
        read(dynamic, 0, 4096).await;
        let gone = Err(IoErrorKind::Vanished.into());
        assert_eq!(dynamic.write(0, pattern(4096, 1).freeze()).done().await, gone);
        // The flush of what it took, once.
        assert_eq!(dynamic.flush().done().await, gone);
        assert_eq!(dynamic.flush().done().await, Ok(()));
        assert_eq!(dynamic.write(0, pattern(4096, 1).freeze()).done().await, gone);
        device.refuse_writes(false);
        assert_eq!(dynamic.write(0, pattern(4096, 1).freeze()).done().await, Ok(()));
    });
    reactor.close();
}
