//! Cache devices whose superblocks nobody can read: damaged, or of a later version.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_engine::format::{FORMAT_VERSION, SUPERBLOCK_BYTES, checksum};

use crate::common::daemon::Daemon;

/// Changes both superblocks of a cache device.
fn edit(path: &Path, change: impl Fn(&mut [u8])) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    for slot in 0..2u64 {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let at = slot * SUPERBLOCK_BYTES as u64;
        file.read_exact_at(&mut bytes, at).unwrap();
        change(&mut bytes);
        file.write_all_at(&bytes, at).unwrap();
    }
}

/// As a bad SSD would.
fn damage(path: &Path) {
    edit(path, |bytes| bytes[60] ^= 1);
}

/// As a later version of Forebay would write them.
fn make_later(path: &Path) {
    edit(path, |bytes| {
        bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
        bytes[16..20].fill(0);
        let sum = checksum(bytes);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    });
}

#[test]
fn a_cache_device_that_cannot_be_read_does_not_become_an_origin() {
    let mut daemon = Daemon::new("unreadable-origin");
    let ssds = ["ssd-0", "ssd-1", "ssd-2"].map(|name| daemon.ssd(name));
    for (pool, ssd) in ["fast", "hurt", "later"].iter().zip(&ssds) {
        daemon.tell(&["pool", "create", pool, "--ssd", ssd.to_str().unwrap()]);
    }
    daemon.stop();
    damage(&ssds[1]);
    make_later(&ssds[2]);
    daemon.spawn();
    daemon.until("one pool is open", |status| status.contains("\"online\""));
    for ssd in &ssds[1..] {
        let origin = ssd.to_str().unwrap();
        let add = ["volume", "add", "fast/vm", "--origin", origin];
        daemon.refused(&add, "is a cache device that cannot be read", "forebay inspect");
    }
}
