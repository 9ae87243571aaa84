//! Data whose only copy dies with an SSD: reads of it fail, and its owner may give it up.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may fail and wait")]

mod common;

use std::path::Path;

use common::Client;
use common::daemon::{
    Daemon, PATIENT, SSD_BYTES, VOLUME_BYTES, content, until, until_served, written,
};
use common::looped::LoopSsd;

const BLOCK: usize = 4096;
const ACCEPT: [&str; 3] = ["volume", "accept-lost", "fast/vm"];

/// The volume block by block; `None` for what cannot be read.
fn blocks(socket: &Path) -> Vec<Option<Vec<u8>>> {
    let mut client = Client::connect(socket);
    let mut read = |at: usize| {
        let mut block = vec![0; BLOCK];
        client.read((at * BLOCK) as u64, &mut block).ok().map(|()| block)
    };
    (0..VOLUME_BYTES / BLOCK).map(&mut read).collect()
}

#[test]
fn what_died_with_an_ssd_is_an_error_until_its_owner_gives_it_up() {
    let mut daemon = Daemon::new("lost");
    let Some(failing) = LoopSsd::new(&daemon.dir, "loop-0", SSD_BYTES) else { return };
    let other = daemon.ssd("ssd-1");
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    let older = content(1, VOLUME_BYTES);
    std::fs::write(&origin, &older).unwrap();
    let two = ["--ssd", failing.path(), "--ssd", other.to_str().unwrap(), "--dirty-copies", "1"];
    let agreed = ["--clean-copies", "1", "--accept-data-loss-on-ssd-failure"];
    daemon.tell(&[&["pool", "create", "fast"], &two[..], &agreed].concat());
    daemon.tell(&PATIENT);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon.tell(&["volume", "set", "fast/vm", "destage-hours=00:00-00:01"]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let shown = daemon.json(&ACCEPT);
    assert_eq!(shown["lost_bytes"], 0, "nothing is lost, and nothing is asked: {shown}");

    let newest = written(&daemon, 2);
    failing.fail();
    // All cache devices have to be written to for the pool to notice.
    daemon.tell(&["pool", "set", "fast", "write_amplification_max_percent=200"]);
    let lost = || daemon.json(&["volume", "show", "fast/vm"])["lost_bytes"].as_u64().unwrap();
    until("it is told", || lost() > 0);
    let before = blocks(&socket);
    let gone = before.iter().filter(|block| block.is_none()).count();
    assert!(gone > 0 && lost() == (gone * BLOCK) as u64, "{gone} blocks, {} B", lost());
    daemon.refused(&ACCEPT, "older data than was written", "--yes");
    let plan = daemon.json(&[&ACCEPT[..], &["--dry-run"]].concat());
    assert!(plan["what"].to_string().contains("would be accepted as lost"), "{plan}");
    assert_eq!(blocks(&socket), before, "a plan, or a refusal, changes nothing");

    let shown = daemon.json(&[&ACCEPT[..], &["--yes"]].concat());
    assert_eq!((&shown["lost_bytes"], &shown["state"]), (&0.into(), &"online".into()), "{shown}");
    assert!(daemon.tell(&["events"]).contains("lost-accepted"));
    for turn in 0..2 {
        for (at, (now, before)) in blocks(&socket).iter().zip(&before).enumerate() {
            let here = at * BLOCK..(at + 1) * BLOCK;
            let right = if before.is_some() { &newest[here] } else { &older[here] };
            assert!(now.as_deref() == Some(right), "block {at} in turn {turn}");
        }
        // Also if what had it comes back.
        daemon.kill();
        failing.mend();
        daemon.start();
        until_served(&daemon);
    }
    daemon.stop();
}
