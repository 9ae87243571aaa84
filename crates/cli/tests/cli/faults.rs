//! A cache device of the real daemon fails under fio, in any way, with any profile: what fio has written is what it
//! reads, and so after a `kill -9`. `FOREBAY_SOAK=1` has every fault meet every profile, else each meets some.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::daemon::VOLUME_BYTES;
use crate::common::daemon::{
    Daemon, content, members, read_all, show, until, until_served, write_all,
};
use crate::common::have;
use crate::common::held::{Fault, FaultySsd};

/// A protection level, how many cache devices it has here, and the mode in which none of them is missed.
const PROFILES: [(&str, usize, &str); 7] = [
    ("raid0", 2, "writethrough"),
    ("nraid+", 2, "writethrough"),
    ("raid1", 2, "writeback"),
    ("nraid1+", 3, "writeback"),
    ("raid10", 4, "writeback"),
    ("raid5", 3, "writeback"),
    ("raid6", 4, "writeback"),
];

const FAULTS: [Fault; 4] = [Fault::Error, Fault::Hang, Fault::Vanish, Fault::Flip];

/// fio writes for a while, flushes now and then, and reads all of it again.
fn verifier(socket: &Path) -> Child {
    let mut fio = Command::new("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bsrange=4k-64k", "--size=32m"])
        .args([
            "--io_size=96m",
            "--iodepth=8",
            "--fsync=64",
            "--rate=,24m",
            "--output-format=terse",
        ])
        .args(["--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", "--do_verify=1"])
        .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Whether the machine can do it.
fn survives(profile: (&str, usize, &str), fault: Fault) -> bool {
    let (name, count, mode) = profile;
    let mut daemon = Daemon::new(&format!("fault-{name}-{fault:?}"));
    let Some(mut faulty) = FaultySsd::new(&daemon.dir, "faulty") else { return false };
    println!("{name}, {fault:?}");
    let mut create = vec!["pool".to_owned(), "create".to_owned(), "fast".to_owned()];
    create.extend(["--profile".to_owned(), name.to_owned()]);
    let sound = (1..count).map(|number| daemon.ssd(&format!("ssd-{number}")));
    for ssd in [faulty.path().to_owned()].into_iter().chain(sound) {
        create.extend(["--ssd".to_owned(), ssd.to_str().unwrap().to_owned()]);
    }
    let create: Vec<&str> = create.iter().map(String::as_str).collect();
    daemon.tell(&create);
    // The others share a disk with whatever else runs.
    let deadline = if fault == Fault::Hang { "device_deadline=20s" } else { "device_deadline=5m" };
    daemon.tell(&["pool", "set", "fast", deadline, "verify=reads"]);
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    daemon.tell(&[
        "volume",
        "add",
        "fast/vm",
        "--mode",
        mode,
        "--origin",
        origin.to_str().unwrap(),
    ]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let fio = verifier(&socket);
    let cached = || show(&daemon)["usage"]["cached_bytes"].as_u64().unwrap();
    until("fio writes", || cached() > 12 << 20);
    faulty.strike(fault);
    let output = fio.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}, {fault:?}: {said}");
    let all = read_all(&socket);
    if fault == Fault::Flip {
        until("damage is found", || daemon.tell(&["events"]).contains("damage-found"));
        assert_eq!(members(&daemon).len(), count);
    } else {
        until("it is gone on without", || members(&daemon).len() == count - 1);
    }
    // A process whose requests hang cannot end.
    faulty.mend();
    daemon.kill();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&socket) == all, "{name}, {fault:?}: after the end of the process");
    daemon.stop();
    true
}

fn meets(fault: Fault, number: usize) {
    if !have("fio") {
        return;
    }
    let is_all = std::env::var_os("FOREBAY_SOAK").is_some();
    for (at, profile) in PROFILES.into_iter().enumerate() {
        if (is_all || at % FAULTS.len() == number) && !survives(profile, fault) {
            return;
        }
    }
}

#[test]
fn a_cache_device_whose_requests_fail_costs_nothing() {
    meets(Fault::Error, 0);
}

#[test]
fn a_cache_device_that_hangs_costs_nothing() {
    meets(Fault::Hang, 1);
}

#[test]
fn a_cache_device_that_vanishes_costs_nothing() {
    meets(Fault::Vanish, 2);
}

#[test]
fn a_cache_device_that_rots_costs_nothing() {
    meets(Fault::Flip, 3);
}

/// An SSD that became read-only, as some do when they are worn out, is found at the next start.
#[test]
fn a_pool_starts_without_a_cache_device_that_has_become_read_only() {
    let mut daemon = Daemon::new("read-only");
    let Some(mut faulty) = FaultySsd::new(&daemon.dir, "faulty") else { return };
    let sound = daemon.ssd("ssd-1");
    let [worn, good] = [faulty.path(), &sound].map(|path| path.to_str().unwrap().to_owned());
    daemon.tell(&["pool", "create", "fast", "--ssd", &worn, "--ssd", &good]);
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let written = content(2, 1 << 20);
    write_all(&daemon, &written, 0);
    daemon.kill();
    faulty.strike(Fault::ReadOnly);
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&socket)[..written.len()] == written, "what only the cache has");
    assert_eq!(members(&daemon).len(), 1);
    let events = daemon.tell(&["events"]);
    assert!(events.contains("member-failed") && events.contains("starts without it"), "{events}");
    until("it is let go of", || {
        File::options().read(true).write(true).custom_flags(libc::O_EXCL).open(&worn).is_ok()
    });
    daemon.stop();
}
