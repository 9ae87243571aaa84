//! Bits that flip on an SSD behind the daemon's back: no client sees them, and a scrub finds and heals
//! them.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::acceptance::tonight;
use crate::common::Client;
use crate::common::daemon::{Daemon, content};

const BLOCK: usize = 4096;
const BYTES: usize = 8 << 20;

/// Flips a bit in each place where a cache device has these blocks; in how many.
fn rot(ssd: &Path, data: &[u8], blocks: [usize; 3]) -> u64 {
    let file = std::fs::File::options().read(true).write(true).open(ssd).unwrap();
    let len = file.metadata().unwrap().len();
    let wanted = blocks.map(|block| &data[block * BLOCK..(block + 1) * BLOCK]);
    let (mut hit, mut piece) = (0, vec![0; 1 << 20]);
    for at in (0..len).step_by(piece.len()) {
        file.read_exact_at(&mut piece, at).unwrap();
        for (i, block) in piece.chunks_exact(BLOCK).enumerate() {
            if wanted.contains(&block) {
                let at = at + (i * BLOCK) as u64 + 1234;
                file.write_all_at(&[block[1234] ^ 16], at).unwrap();
                hit += 1;
            }
        }
    }
    file.sync_all().unwrap();
    hit
}

#[test]
fn bits_that_flip_reach_nobody_and_are_healed() {
    let mut daemon = Daemon::new("scrub");
    let ssds = ["ssd-0", "ssd-1"].map(|name| daemon.ssd(name));
    let paths = ssds.each_ref().map(|path| path.to_str().unwrap().to_owned());
    let origin = daemon.dir.sparse("origin", 32 << 20);
    let socket = daemon.dir.path("nbd");
    // Two of what is clean, too: else there may be one of everything before it is looked at.
    let create = ["pool", "create", "fast", "--clean-copies", "2"];
    daemon.tell(&[&create[..], &["--ssd", &paths[0], "--ssd", &paths[1]]].concat());
    daemon.tell(&["pool", "set", "fast", "verify=reads", "scrub_rate=200M"]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    // Nothing is destaged meanwhile: that, too, would find what is damaged.
    daemon.tell(&["volume", "set", "fast/vm", &tonight()]);

    let data = content(5, BYTES);
    let mut client = Client::connect(&socket);
    for (i, piece) in data.chunks(1 << 20).enumerate() {
        client.write((i << 20) as u64, piece).unwrap();
    }
    client.flush().unwrap();
    client.flush().unwrap();
    assert_eq!(rot(&ssds[0], &data, [20, 100, 700]), 3, "each block is there once");
    // No one reads before the lap, so that all of it is the lap's.
    daemon.tell(&["scrub", "start", "fast", "--wait"]);
    let usage = |daemon: &Daemon| daemon.json(&["pool", "show", "fast"])["usage"].clone();
    let found = usage(&daemon)["scrub"].clone();
    assert_eq!((&found["copied_blocks"], &found["unhealed_blocks"]), (&3.into(), &0.into()));
    assert_eq!(usage(&daemon)["verify"], "reads");
    let status = daemon.tell(&["scrub", "status", "fast"]);
    assert!(status.contains("3 damaged blocks: 3 copied again"), "{status}");
    let events = daemon.tell(&["events"]);
    assert!(events.contains("damage-found") && events.contains("scrub-ended"), "{events}");
    assert!(daemon.tell(&["pool", "show", "fast"]).contains("damaged blocks"));

    let all = |client: &mut Client| {
        let mut read = vec![0; BYTES];
        client.read(0, &mut read).unwrap();
        read
    };
    assert!(all(&mut client) == data);
    // Readers find it, too, in whichever copy of a set they read.
    assert!(rot(&ssds[0], &data, [30, 110, 710]) >= 3);
    assert!(rot(&ssds[1], &data, [31, 111, 711]) >= 3);
    daemon.until("what readers have met is copied again", |_| {
        assert!(all(&mut client) == data, "the other copy is served");
        usage(&daemon)["scrub"]["copied_blocks"].as_u64() > Some(3)
    });
    daemon.tell(&["scrub", "start", "fast", "--wait"]);

    daemon.tell(&["scrub", "start", "fast", "--wait"]);
    assert_eq!(daemon.json(&["scrub", "status", "fast"])["damaged_blocks"], 0);
    assert!(all(&mut client) == data);
    drop(client);

    // As slow as it may be, so that it is still there to be ended.
    daemon.tell(&["pool", "set", "fast", "scrub_rate=64K"]);
    daemon.tell(&["scrub", "start", "fast"]);
    assert_eq!(daemon.json(&["scrub", "start", "fast"])["joined"], true);
    let jobs = daemon.tell(&["job", "list"]);
    assert!(jobs.contains("running") && jobs.contains("scrub of pool \"fast\""), "{jobs}");
    // It goes on in the next life of the daemon.
    daemon.stop();
    daemon.start();
    daemon.until("the scrub has a job", |_| {
        daemon.tell(&["job", "list"]).contains("scrub of pool \"fast\"")
    });
    daemon.tell(&["scrub", "stop", "fast"]);
    daemon.until("its job has ended", |_| daemon.tell(&["job", "list"]).contains("cancelled"));
    assert_eq!(usage(&daemon)["scrub"]["running"], false);
    daemon.tell(&["pool", "set", "fast", "scrub_rate=0", "verify=off"]);
    daemon.refused(&["scrub", "start", "fast"], "is off", "scrub_rate=8M");
    daemon.refused(&["pool", "set", "fast", "scrub_rate=1"], "1 B a second", "64 KiB");
    daemon.misused(&["pool", "set", "fast", "scrub_rate=fast"], "no size", "scrub_rate=8M");
    daemon.misused(
        &["pool", "set", "fast", "verify=all"],
        "verify=all cannot be set",
        "verify=off|reads",
    );
    daemon.refused(&["scrub", "status", "none"], "there is no pool", "pool list");
    daemon.stop();
}

/// Dirty data that rots in both copies is lost, and told so until it is overwritten or given up, no longer.
#[test]
fn what_is_good_in_no_copy_is_told_of_until_it_is_mended() {
    let mut daemon = crate::common::daemon::patient("unhealed");
    daemon.tell(&["volume", "set", "fast/vm", &tonight()]);
    let data = content(5, BYTES);
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    for (i, piece) in data.chunks(1 << 20).enumerate() {
        client.write((i << 20) as u64, piece).unwrap();
    }
    client.flush().unwrap();
    for ssd in ["ssd-0", "ssd-1"] {
        assert_eq!(rot(&daemon.dir.path(ssd), &data, [20, 100, 700]), 3);
    }
    daemon.tell(&["scrub", "start", "fast", "--wait"]);
    let pool = || daemon.json(&["pool", "show", "fast"]);
    assert_eq!(pool()["usage"]["scrub"]["unhealed_blocks"], 3);
    assert_eq!(
        (&pool()["health"], &pool()["usage"]["lost_bytes"]),
        (&"failed".into(), &(3 * BLOCK).into())
    );
    daemon.refused(&["volume", "flush", "fast/vm"], "12 KiB of volume", "explain blocks-lost");
    client.write(20 * BLOCK as u64, &data[..BLOCK]).unwrap();
    client.write(100 * BLOCK as u64, &data[..BLOCK]).unwrap();
    assert_eq!(pool()["usage"]["lost_bytes"], BLOCK);
    daemon.tell(&["volume", "accept-lost", "fast/vm", "--yes"]);
    assert_eq!((&pool()["health"], &pool()["action"]), (&"good".into(), &"".into()));
    daemon.tell(&["volume", "flush", "fast/vm"]);
    drop(client);
    daemon.stop();
}
