//! A write budget from the command line.

use crate::common::Client;
use crate::common::daemon::{Daemon, content, served, until};

#[test]
fn a_write_budget_is_kept_shown_and_taken_back() {
    let mut daemon = served("wear");
    // A MiB an hour, and an hour's to begin with.
    daemon.tell(&["pool", "set", "fast", "write_budget=24M"]);
    let shown = || daemon.tell(&["pool", "show", "fast"]);
    assert!(shown().contains("24 MiB may be written to the SSDs a day"), "{}", shown());
    let budget = || daemon.json(&["pool", "show", "fast"])["usage"]["write_budget"].clone();
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    let mut at = 0;
    let mut write = |client: &mut Client, count: u64| {
        for block in at..at + count {
            client.write(block * 4096, &content(block, 4096)).unwrap();
        }
        at += count;
    };
    write(&mut client, 1024);
    until("it is in debt", || budget()["left_bytes"].as_i64().unwrap() < 0);
    assert_eq!(budget()["new_left_out_permille"], 1000);
    assert!(shown().contains("% of what is written over nothing cached"), "{}", shown());
    write(&mut client, 256);
    client.flush().unwrap();
    let stats = daemon.tell(&["stats", "--bypass"]);
    assert!(stats.contains("write-budget"), "{stats}");
    for block in 0..1280 {
        let mut found = vec![0; 4096];
        client.read(block * 4096, &mut found).unwrap();
        assert!(found == content(block, 4096), "block {block}");
    }
    // It is kept with the pool; what a data sheet says is a budget, too.
    drop(client);
    daemon.stop();
    daemon.start();
    let budget = || daemon.json(&["pool", "show", "fast"])["usage"]["write_budget"].clone();
    assert_eq!(budget()["bytes_per_day"], 24 << 20);
    daemon.tell(&["pool", "set", "fast", "write_budget=600TBW/5y"]);
    assert_eq!(budget()["bytes_per_day"].as_u64().unwrap(), 600_000_000_000_000 / 1825);
    daemon.tell(&["pool", "set", "fast", "write_budget=1dwpd"]);
    assert!(budget()["bytes_per_day"].as_u64().unwrap() > 64 << 20);
    daemon.misused(&["pool", "set", "fast", "write_budget=much"], "is no budget", "1200TBW/5y");
    daemon.refused(&["pool", "set", "fast", "write_budget=1K"], "1024 B a day", "1 MiB");
    daemon.tell(&["pool", "set", "fast", "write_budget=0"]);
    assert!(budget().is_null());
    daemon.stop();
}

#[test]
fn a_pool_is_made_with_a_write_budget() {
    let mut daemon = Daemon::new("wear-create");
    let ssd = daemon.ssd("ssd-0").to_str().unwrap().to_owned();
    let create =
        |budget: &'static str| ["pool", "create", "fast", "--ssd", &ssd, "--write-budget", budget];
    daemon.misused(&create("much"), "is no budget", "1200TBW/5y");
    daemon.refused(&create("1K"), "1024 B a day", "1 MiB");
    let planned = daemon.json(&[&create("600TBW/5y")[..], &["--dry-run"]].concat());
    assert_eq!(planned["write_budget_bytes_per_day"].as_u64(), Some(600_000_000_000_000 / 1825));
    let planned = daemon.json(&[&create("0")[..], &["--dry-run"]].concat());
    assert_eq!(planned["write_budget_bytes_per_day"], 0);
    // As often as all of it is filled.
    let said = daemon.tell(&create("2dwpd"));
    assert!(said.contains("write budget  1022 MiB a day"), "{said}");
    let budget = || daemon.json(&["pool", "show", "fast"])["usage"]["write_budget"].clone();
    assert_eq!(budget()["bytes_per_day"], (2 * 511) << 20);
    daemon.stop();
}
