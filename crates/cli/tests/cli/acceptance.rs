//! What only the owner of data can decide: data whose only copy died with an SSD, and dirty data whose origin was
//! changed behind the daemon's back.

use std::path::Path;

use crate::common::Client;
use crate::common::daemon::{
    Daemon, PATIENT, SSD_BYTES, VOLUME_BYTES, content, patient, read_all, show, until,
    until_served, written,
};
use crate::common::looped::LoopSsd;

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
    // Whoever agreed to less has not seen this.
    let accept = "/api/v1/pools/fast/volumes/vm/accept-lost";
    let less = serde_json::json!({"lost_bytes": lost() - 1});
    let answer = crate::api::post(&daemon.dir.path("control.sock"), accept, &less);
    assert_eq!(answer["code"], "needs-decision", "{answer}");
    assert_eq!(blocks(&socket), before, "a plan, or a refusal, changes nothing");
    // Nobody is told that the origin has all of it.
    for claims in
        [["volume", "flush", "fast/vm"].as_slice(), &["volume", "set", "fast/vm", "writethrough"]]
    {
        daemon.refused(claims, "of volume \"fast/vm\" are lost", "explain blocks-lost");
    }
    let status = daemon.tell(&["status"]);
    assert!(
        status.contains("Every origin has what is left.") && !status.contains("all of its data"),
        "{status}"
    );

    // Of a pool nothing goes as long as one of its volumes cannot.
    daemon.tell(&["export", "remove", "fast/vm"]);
    for how in ["--dry-run", "--yes"] {
        daemon.refused(&["pool", "destroy", "fast", how], "lost", "accept-lost");
    }
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
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

/// A setting with which nothing is destaged for some hours.
pub fn tonight() -> String {
    let now = crate::common::run(std::process::Command::new("date").arg("+%H"));
    let hour: u32 = std::str::from_utf8(&now.stdout).unwrap().trim().parse().unwrap();
    format!("destage-hours={:02}:00-{:02}:00", (hour + 4) % 24, (hour + 6) % 24)
}

/// What is written, and is on its way to the origin only at night; what is there at a stop stays dirty.
fn dirty_and_changed(name: &str) -> (Daemon, Vec<u8>, Vec<u8>) {
    let mut daemon = patient(name);
    daemon.tell(&["volume", "set", "fast/vm", &tonight()]);
    let newest = written(&daemon, 2);
    daemon.stop();
    // A backup was restored onto it, say.
    let others = content(3, VOLUME_BYTES);
    std::fs::write(daemon.dir.path("origin"), &others).unwrap();
    daemon.start();
    (daemon, newest, others)
}

#[test]
fn an_origin_that_was_changed_under_dirty_data_waits_for_its_owner() {
    let accept = |dirty| ["volume", "accept-origin", "fast/vm", "--dirty", dirty];
    for dirty in ["write", "drop"] {
        let (mut daemon, newest, others) = dirty_and_changed(&format!("refused-{dirty}"));
        let volume = |daemon: &Daemon| daemon.json(&["volume", "show", "fast/vm"]);
        until("it is refused", || volume(&daemon)["state"] == "origin-refused");
        assert_eq!(volume(&daemon)["dirty_bytes"], VOLUME_BYTES, "{}", volume(&daemon));
        assert_eq!(show(&daemon)["health"], "failed");
        let action = show(&daemon)["action"].to_string();
        assert!(action.contains("forebay volume accept-origin fast/vm"), "{action}");
        assert!(daemon.tell(&["events", "--severity", "critical"]).contains("origin-refused"));
        // Whatever it is called, it is an origin, and somebody's data.
        let (origin, alias) = (daemon.dir.path("origin"), daemon.dir.path("alias"));
        std::os::unix::fs::symlink(&origin, &alias).unwrap();
        let alias = alias.to_str().unwrap();
        let is_one = "is the origin of volume \"fast/vm\"";
        daemon.refused(&["pool", "create", "other", "--ssd", alias], is_one, "nobody needs");
        daemon.refused(&["volume", "add", "fast/two", "--origin", alias], is_one, "another disk");
        daemon.refused(&accept(dirty), "that only the cache has", "--yes");
        let plan = daemon.json(&[&accept(dirty)[..], &["--dry-run"]].concat());
        assert!(plan["steps"][0].to_string().contains("32 MiB"), "{plan}");
        assert_eq!(volume(&daemon)["state"], "origin-refused", "a plan changes nothing");
        daemon.tell(&["export", "remove", "fast/vm"]);
        for how in ["--dry-run", "--yes"] {
            // It is there: that it has to be attached would be no help.
            let remove = ["volume", "remove", "fast/vm", how];
            daemon.refused(&remove, "which is not in use: ", "accept-origin");
        }
        let shown = daemon.json(&[&accept(dirty)[..], &["--yes"]].concat());
        assert_eq!(shown["state"], "online", "{shown}");
        let socket = daemon.dir.path("nbd");
        daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
        assert_eq!(show(&daemon)["health"], "good");
        assert!(daemon.tell(&["events"]).contains("origin-accepted"));
        daemon.refused(&[&accept(dirty)[..], &["--yes"]].concat(), "no decision", "in use");
        let expected = if dirty == "write" { &newest } else { &others };
        for _ in 0..2 {
            until_served(&daemon);
            assert!(read_all(&daemon.dir.path("nbd")) == *expected, "{dirty}");
            daemon.kill();
            daemon.start();
        }
        until_served(&daemon);
        daemon.tell(&["volume", "flush", "fast/vm"]);
        daemon.stop();
        assert!(std::fs::read(daemon.dir.path("origin")).unwrap() == *expected, "{dirty}");
    }
}
