//! An origin that becomes larger while its volume is served.

use crate::common::Client;
use crate::common::daemon::{VOLUME_BYTES, content, served, until_served};

/// Of 512 B, behind the old end; the first ones are of a block that the old size had cut.
const MORE_BYTES: usize = (8 << 20) + 1024;

fn size(client: &Client) -> usize {
    client.size_bytes as usize
}

fn resize(path: &std::path::Path, len: usize) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(len as u64).unwrap();
}

#[test]
fn a_volume_grows_with_its_origin_while_clients_go_on() {
    let mut daemon = served("growth");
    let (socket, origin) = (daemon.dir.path("nbd"), daemon.dir.path("origin"));
    let more = VOLUME_BYTES + MORE_BYTES;
    let mut old = Client::connect(&socket);
    assert_eq!(size(&old), VOLUME_BYTES);
    let shown = |daemon: &crate::common::daemon::Daemon| {
        daemon.json(&["volume", "show", "fast/vm"])["size_bytes"].as_u64().unwrap() as usize
    };
    // As large as it is: nothing happens, and nothing is told.
    daemon.tell(&["volume", "grow", "fast/vm"]);
    assert!(!daemon.tell(&["events"]).contains("volume-grown"));
    resize(&origin, more);
    assert_eq!(size(&Client::connect(&socket)), VOLUME_BYTES, "only when it is asked for");
    let plan = daemon.tell(&["volume", "grow", "fast/vm", "--dry-run"]);
    assert!(plan.contains("would grow by 8"), "{plan}");
    assert_eq!(shown(&daemon), VOLUME_BYTES);
    // Who only asked, and cuts it back then, has cut nothing off.
    resize(&origin, VOLUME_BYTES);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["state"], "online");
    resize(&origin, more);
    assert_eq!(daemon.json(&["volume", "grow", "fast/vm"])["size_bytes"], more);
    assert!(daemon.tell(&["events"]).contains("volume-grown"));
    // Who is connected keeps the size that it was told; who connects is told the new one.
    let newest = content(3, 1 << 20);
    old.write((VOLUME_BYTES - (1 << 20)) as u64, &newest).unwrap();
    assert!(old.write(VOLUME_BYTES as u64, &newest[..512]).is_err());
    for _ in 0..4 {
        // On whichever reactor.
        let mut client = Client::connect(&socket);
        assert_eq!(size(&client), more);
        client.write((more - 512) as u64, &newest[..512]).unwrap();
        let mut found = vec![0; 1 << 20];
        client.read((VOLUME_BYTES - (1 << 20)) as u64, &mut found).unwrap();
        assert!(found == newest);
        client.flush().unwrap();
    }
    drop(old);
    // After a kill it is as large, and what was written behind the old end is there.
    daemon.kill();
    daemon.start();
    until_served(&daemon);
    let mut client = Client::connect(&socket);
    assert_eq!(size(&client), more);
    let mut found = vec![0; 512];
    client.read((more - 512) as u64, &mut found).unwrap();
    assert!(found == newest[..512]);
    drop(client);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    assert!(std::fs::read(&origin).unwrap()[more - 512..] == newest[..512]);
    // One that has become larger meanwhile is noticed at the start.
    daemon.stop();
    resize(&origin, more + (1 << 20));
    daemon.start();
    until_served(&daemon);
    let events = daemon.tell(&["events"]);
    assert!(events.contains("origin-grown") && events.contains("larger"), "{events}");
    assert_eq!(shown(&daemon), more);
    daemon.tell(&["volume", "grow", "fast/vm"]);
    assert_eq!(shown(&daemon), more + (1 << 20));
    // It never becomes smaller.
    resize(&origin, more);
    daemon.refused(&["volume", "grow", "fast/vm"], "has 40", "never becomes smaller");
    resize(&origin, more + (1 << 20));
    daemon.refused(&["volume", "grow", "fast/other"], "no volume \"fast/other\"", "volume list");
    daemon.stop();
}
