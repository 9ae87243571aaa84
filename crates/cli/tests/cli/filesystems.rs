//! ext4, XFS and Btrfs on a volume: made, filled, checked, and checked again after the server was
//! killed. `nbdfuse` shows the volume as a file. One test needs no more than that; the other one
//! mounts the file system through a loop device, which takes root.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::common::daemon::{Daemon, content, until};
use crate::common::{Dir, run, stderr};

/// Room for the smallest XFS, which takes 300 MiB; several times what the pool may hold of it.
const VOLUME_BYTES: u64 = 400 << 20;

/// How often a device is tried again that is in use for a while: a minute long.
const BUSY_LOOKS_MAX: usize = 300;

/// A command where administrators' programs are found, too; ended after a while.
fn tool(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "120", program]).args(arguments);
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    command
}

fn done(program: &str, arguments: &[&str]) -> String {
    text_of(program, arguments, &run(&mut tool(program, arguments)))
}

fn text_of(program: &str, arguments: &[&str], output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}{}", stderr(output));
    text
}

/// The same, again while others are in the way: whoever took a view of its own of all mounts has it mounted until it ends, and
/// who looks through all mounts meets those of other tests, whose servers may just have ended.
fn done_in_time(program: &str, arguments: &[&str]) -> String {
    for _ in 0..BUSY_LOOKS_MAX {
        let output = run(&mut tool(program, arguments));
        // XFS leaves its log as it is until the last view is gone.
        let words = ["busy", "in use", "mounted", "not connected", "changes in a log"];
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        let is_busy = words.iter().any(|word| said.contains(word));
        if output.status.success() || !is_busy {
            return text_of(program, arguments, &output);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    done(program, arguments)
}

/// Whether all of these programs are there; if not, says that something is skipped.
fn have(what: &str, programs: &[&str]) -> bool {
    let is_there = |program: &&&str| {
        let output = run(&mut tool("sh", &["-c", &format!("command -v {program}")]));
        !output.status.success()
    };
    let missing = programs.iter().find(is_there);
    if let Some(program) = missing {
        crate::common::skip(program, &format!("{what}: there is no {program}"));
    }
    missing.is_none()
}

/// A volume as a file; not any more when this is dropped.
struct Fuse {
    child: Child,
    file: PathBuf,
}

impl Fuse {
    /// Shows a volume of a daemon; `None` where that is not allowed, with the reason printed.
    fn open(daemon: &Daemon, kind: &str) -> Option<Fuse> {
        let dir = &daemon.dir;
        let shown = daemon.json(&["volume", "show", &format!("fast/{kind}")]);
        let uri = shown["exports"][0].as_str().unwrap();
        let file = dir.path("volume");
        std::fs::write(&file, b"").unwrap();
        let words = dir.path("nbdfuse.log");
        let log = std::fs::File::create(&words).unwrap();
        let mut command = Command::new("nbdfuse");
        command.arg(&file).arg(uri).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut fuse = Fuse { child: command.spawn().unwrap(), file };
        for _ in 0..400 {
            if std::fs::metadata(&fuse.file).is_ok_and(|meta| meta.len() == VOLUME_BYTES) {
                return Some(fuse);
            }
            if fuse.child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        let words = std::fs::read_to_string(&words).unwrap_or_default();
        println!("skipped: nbdfuse cannot show a volume here: {}", words.trim());
        None
    }

    fn path(&self) -> &str {
        self.file.to_str().unwrap()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let file = self.path().to_owned();
        // Root unmounts by itself, others through fusermount.
        let unmount = |command: &&str| {
            let script = format!("{command} '{file}' 2>/dev/null");
            run(&mut tool("sh", &["-c", &script])).status.success()
        };
        // A loop device is detached when whoever took a view of its own of all mounts has ended.
        let is_ending = (0..BUSY_LOOKS_MAX).any(|look| {
            if look > 0 {
                std::thread::sleep(Duration::from_millis(200));
            }
            let is_unmounted = ["umount", "fusermount3 -u", "fusermount -u"].iter().any(unmount);
            is_unmounted || self.child.try_wait().is_ok_and(|status| status.is_some())
        });
        if !is_ending {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Something mounted or attached; not any more when this is dropped.
struct Undo(Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        let arguments: Vec<_> = self.0[1..].iter().map(String::as_str).collect();
        if std::thread::panicking() {
            run(&mut tool(&self.0[0], &arguments));
        } else {
            done_in_time(&self.0[0], &arguments);
        }
    }
}

/// Large files of what is mounted: all together are more than the pool may hold.
const LARGE_MOUNTED: usize = 20 << 20;
/// And of what is not: the programs that fill it write 4 KiB at a time, each when the last one is
/// there.
const LARGE_UNMOUNTED: usize = 1 << 20;

/// Many small files, a few large ones, some written twice, some removed again.
fn fill(root: &Path, large: usize) {
    for folder in 0..8_u64 {
        let path = root.join(format!("folder-{folder}"));
        std::fs::create_dir_all(&path).unwrap();
        for file in 0..60_u64 {
            let len = 100 + (file * 997 % 40_000) as usize;
            std::fs::write(path.join(file.to_string()), content(file, len)).unwrap();
        }
        std::fs::write(path.join("large"), content(folder + 100, large)).unwrap();
        for file in (0..60_u64).step_by(3) {
            std::fs::remove_file(path.join(file.to_string())).unwrap();
        }
        for file in (1..60_u64).step_by(3) {
            std::fs::write(path.join(file.to_string()), content(file + 1000, 9000)).unwrap();
        }
    }
}

/// Whether what [`fill`] wrote is all there.
fn compare(root: &Path, large: usize) {
    for folder in 0..8_u64 {
        let path = root.join(format!("folder-{folder}"));
        assert!(std::fs::read(path.join("large")).unwrap() == content(folder + 100, large));
        for file in 0..60_u64 {
            let found = std::fs::read(path.join(file.to_string()));
            match file % 3 {
                0 => assert!(found.is_err(), "{file} was removed"),
                1 => assert!(found.unwrap() == content(file + 1000, 9000), "{file}"),
                _ => {
                    let len = 100 + (file * 997 % 40_000) as usize;
                    assert!(found.unwrap() == content(file, len), "{file}");
                }
            }
        }
    }
}

/// Looks at a file system that is not mounted.
fn check(kind: &str, path: &str) {
    let (program, arguments): (_, &[&str]) = match kind {
        "ext4" => ("e2fsck", &["-f", "-n", path]),
        "xfs" => ("xfs_repair", &["-n", path]),
        _ => ("btrfs", &["check", "--readonly", path]),
    };
    done_in_time(program, arguments);
}

/// A daemon with a pool on two SSDs, and what is done to it as somebody does who uses it.
fn start(name: &str) -> Daemon {
    let daemon = Daemon::new(name);
    let (first, second) = (daemon.ssd("ssd-0"), daemon.ssd("ssd-1"));
    let ssds = [first.to_str().unwrap(), second.to_str().unwrap()];
    daemon.tell(&["pool", "create", "fast", "--ssd", ssds[0], "--ssd", ssds[1]]);
    daemon
}

/// A volume in front of a new disk, exported; not all of it has room in the cache.
fn add(daemon: &Daemon, kind: &str) {
    let (disk, volume) =
        (daemon.dir.sparse(&format!("disk-{kind}"), VOLUME_BYTES), format!("fast/{kind}"));
    daemon.tell(&["volume", "add", &volume, "--origin", disk.to_str().unwrap()]);
    daemon.tell(&["volume", "set", &volume, "limit=96M"]);
    daemon.tell(&["export", "add", &volume]);
}

/// Kills the daemon and starts it again.
fn start_again(daemon: &mut Daemon, kind: &str) {
    daemon.kill();
    daemon.start();
    until("the volume is served", || {
        let volume = daemon.json(&["volume", "show", &format!("fast/{kind}")]);
        volume["state"] == "online" && volume["exports"][0].is_string()
    });
}

/// Takes the volume away; what is left is the plain disk, which is looked at.
fn end(daemon: &Daemon, kind: &str) {
    let volume = format!("fast/{kind}");
    daemon.tell(&["export", "remove", &volume]);
    daemon.tell(&["volume", "remove", &volume, "--yes"]);
    check(kind, daemon.dir.path(&format!("disk-{kind}")).to_str().unwrap());
}

/// What is made and checked with which programs.
const KINDS: [(&str, &[&str]); 3] = [
    ("ext4", &["mkfs.ext4", "e2fsck", "debugfs"]),
    ("xfs", &["mkfs.xfs", "xfs_repair"]),
    ("btrfs", &["mkfs.btrfs", "btrfs"]),
];

#[test]
fn file_systems_are_made_filled_and_checked_without_mounting_them() {
    if !have("file systems", &["nbdfuse"]) {
        return;
    }
    let mut daemon = start("file-systems");
    let dir = Dir::new("file-systems-files");
    let files = dir.path("files");
    std::fs::create_dir(&files).unwrap();
    fill(&files, LARGE_UNMOUNTED);
    let from = files.to_str().unwrap();
    for (kind, programs) in KINDS {
        if !have(kind, programs) {
            continue;
        }
        add(&daemon, kind);
        let Some(mut fuse) = Fuse::open(&daemon, kind) else { return };
        match kind {
            "ext4" => done("mkfs.ext4", &["-q", "-F", "-d", from, fuse.path()]),
            // It has no way to take a directory.
            "xfs" => done("mkfs.xfs", &["-q", "-f", fuse.path()]),
            // It makes files anew, so one is copied.
            _ => {
                let image = dir.sparse("image", VOLUME_BYTES);
                let image = image.to_str().unwrap();
                done_in_time("mkfs.btrfs", &["-q", "-f", "--rootdir", from, image]);
                let (input, output) = (format!("if={image}"), format!("of={}", fuse.path()));
                done("dd", &[&input, &output, "bs=64K", "conv=notrunc,sparse", "status=none"])
            }
        };
        done("sync", &[fuse.path()]);
        for round in 0..2 {
            check(kind, fuse.path());
            let out = dir.path(&format!("{kind}-{round}"));
            std::fs::create_dir(&out).unwrap();
            let to = out.to_str().unwrap();
            match kind {
                "ext4" => done("debugfs", &["-R", &format!("rdump / {to}"), fuse.path()]),
                "xfs" => String::new(),
                _ => done("btrfs", &["restore", fuse.path(), to]),
            };
            if kind != "xfs" {
                compare(&out, LARGE_UNMOUNTED);
            }
            if round == 0 {
                // What was flushed survives.
                drop(fuse);
                start_again(&mut daemon, kind);
                let Some(again) = Fuse::open(&daemon, kind) else { panic!("it was there before") };
                fuse = again;
            }
        }
        drop(fuse);
        end(&daemon, kind);
    }
    daemon.stop();
}

/// Whether loop devices can be had; if not, says so.
fn can_loop() -> bool {
    let root = done("id", &["-u"]).trim() == "0";
    let free = run(&mut tool("losetup", &["-f"])).status.success();
    if !root || !free {
        let why = if root { "there is no free loop device" } else { "that takes root" };
        println!("skipped: mounting file systems: {why}");
    }
    root && free
}

#[test]
fn file_systems_are_mounted_filled_and_checked_over_a_loop_device() {
    if !have("mounting file systems", &["nbdfuse", "losetup", "mount"]) || !can_loop() {
        return;
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap();
    let mut daemon = start("mounted");
    for (kind, programs) in KINDS {
        if !have(kind, programs) {
            continue;
        }
        if !known.split_whitespace().any(|known| known == kind) {
            println!("skipped: mounting {kind}: the kernel does not know it");
            continue;
        }
        add(&daemon, kind);
        let root = daemon.dir.path(&format!("root-{kind}"));
        std::fs::create_dir(&root).unwrap();
        let root_text = root.to_str().unwrap();
        for round in 0..2 {
            let Some(fuse) = Fuse::open(&daemon, kind) else { return };
            let attached = run(&mut tool("losetup", &["-f", "--show", fuse.path()]));
            if !attached.status.success() {
                println!("skipped: mounting file systems: {}", stderr(&attached).trim());
                return;
            }
            let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
            let detach = Undo(vec!["losetup".into(), "-d".into(), device.clone()]);
            if round == 0 {
                let force = if kind == "ext4" { "-F" } else { "-f" };
                done(&format!("mkfs.{kind}"), &["-q", force, &device]);
            } else {
                check(kind, &device);
            }
            done("mount", &["-t", kind, &device, root_text]);
            let unmount = Undo(vec!["umount".into(), root_text.to_owned()]);
            if round == 0 {
                fill(&root, LARGE_MOUNTED);
                done("fstrim", &[root_text]);
            }
            compare(&root, LARGE_MOUNTED);
            drop(unmount);
            check(kind, &device);
            drop(detach);
            drop(fuse);
            if round == 0 {
                // What was unmounted was flushed.
                start_again(&mut daemon, kind);
            }
        }
        end(&daemon, kind);
    }
    daemon.stop();
}
