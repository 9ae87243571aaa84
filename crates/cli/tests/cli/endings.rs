//! Ends that are told as what they are: of scrubs, of the daemon, of pools and of what they lack; what would be gone is said
//! before, and agreed to.

use serde_json::{Value, json};

use crate::api::post;
use crate::common::Client;
use crate::common::daemon::{Daemon, content, patient, served, show, until, written};

/// What a change would do; nothing is changed.
fn planned(daemon: &Daemon, arguments: &[&str]) -> Value {
    let plan = daemon.json(&[arguments, &["--dry-run"]].concat());
    assert_eq!(plan["done"], false, "{plan}");
    plan
}

fn scrub(daemon: &Daemon) -> Value {
    daemon.json(&["scrub", "status", "fast"])
}

/// The last job.
fn last_job(daemon: &Daemon) -> Value {
    let jobs = daemon.json(&["job", "list"]);
    jobs["items"].as_array().unwrap().last().unwrap().clone()
}

/// Begins a scrub that takes long, and waits until it has read something.
fn begin_scrub(daemon: &Daemon) {
    daemon.tell(&["scrub", "start", "fast"]);
    until("it has read something", || scrub(daemon)["read_bytes"].as_u64() > Some(0));
}

/// The last scrub was ended before its end, and everybody says so.
fn was_ended_early(daemon: &Daemon) {
    until("its job has ended", || last_job(daemon)["state"] == "cancelled");
    let job = last_job(daemon);
    let (left, total) = (job["left_bytes"].as_u64().unwrap(), job["total_bytes"].as_u64().unwrap());
    assert!(left > 0 && total > 0, "{job}");
    assert_eq!(scrub(daemon)["running"], false);
    let last = scrub(daemon)["last"].clone();
    assert_eq!((&last["early"], &last["total_bytes"]), (&true.into(), &total.into()), "{last}");
    assert_eq!(last["read_bytes"], total - left, "{last}");
    let status = daemon.tell(&["scrub", "status", "fast"]);
    assert!(status.contains("the last one was ended after "), "{status}");
    assert!(!status.contains("the last one found nothing damaged"), "{status}");
}

#[test]
fn a_scrub_that_was_ended_is_told_with_how_far_it_came() {
    let mut daemon = patient("scrub-ended");
    written(&daemon, 2);
    daemon.tell(&["pool", "set", "fast", "scrub_rate=1M"]);
    begin_scrub(&daemon);
    daemon.tell(&["scrub", "stop", "fast"]);
    was_ended_early(&daemon);
    begin_scrub(&daemon);
    let number = last_job(&daemon)["number"].to_string();
    daemon.tell(&["job", "cancel", &number]);
    was_ended_early(&daemon);
    let events = daemon.tell(&["events"]);
    assert!(events.contains("scrub-stopped") && events.contains("left to read"), "{events}");
    daemon.tell(&["pool", "set", "fast", "scrub_rate=1G"]);
    daemon.tell(&["scrub", "start", "fast", "--wait"]);
    let status = daemon.tell(&["scrub", "status", "fast"]);
    assert!(status.contains("the last one found nothing damaged"), "{status}");
    assert_eq!(last_job(&daemon)["left_bytes"], 0);
    assert_eq!(scrub(&daemon)["last"]["early"], false);
    daemon.stop();
}

#[test]
fn what_goes_with_the_daemon_is_said_before_and_agreed_to() {
    let mut daemon = patient("stop-removed");
    written(&daemon, 2);
    let origin = daemon.dir.path("origin");
    let other = daemon.dir.sparse("other", 32 << 20);
    daemon.tell(&["volume", "add", "fast/other", "--origin", other.to_str().unwrap()]);
    assert_eq!(planned(&daemon, &["stop"])["erased"], json!([]));
    std::fs::remove_file(&origin).unwrap();
    std::fs::remove_file(&other).unwrap();
    // At once: it does not rest upon what was seen some time before.
    daemon.refused(&["pool", "export", "fast", "--dry-run"], "was removed while in use", "save it");
    let plan = planned(&daemon, &["stop"]);
    let steps = plan["steps"].to_string();
    assert!(
        steps.contains("was removed while in use") && steps.contains("--discard-removed"),
        "{plan}"
    );
    assert_eq!(plan["erased"], json!([origin, other]));
    let text = daemon.tell(&["stop", "--dry-run"]);
    assert!(text.contains("Would be erased: ") && !text.contains("Nothing would"), "{text}");
    let both = format!("{}, {} were removed while in use", origin.display(), other.display());
    daemon.refused(&["stop"], &both, "--discard-removed");
    // What agrees to cutting off clients does not agree to that.
    daemon.refused(&["stop", "--yes"], &both, "--discard-removed");
    // Who asks the daemon itself has to agree, too.
    let control = daemon.dir.path("control.sock");
    let refused = post(&control, "/api/v1/stop", &json!({}));
    assert_eq!(refused["code"], "refused", "{refused}");
    assert!(refused["hint"].to_string().contains("accept_removed"), "{refused}");
    daemon.tell(&["stop", "--discard-removed"]);
    assert!(daemon.wait());
}

/// A pool with one copy of dirty data on two SSDs, of which one is not there any more.
fn undecided(name: &str) -> Daemon {
    let mut daemon = Daemon::new(name);
    let ssds = ["ssd-0", "ssd-1"].map(|name| daemon.ssd(name).to_str().unwrap().to_owned());
    let origin = daemon.dir.sparse("origin", 32 << 20);
    let create = ["pool", "create", "fast", "--ssd", &ssds[0], "--ssd", &ssds[1]];
    let agreed = ["--dirty-copies", "1", "--accept-data-loss-on-ssd-failure"];
    daemon.tell(&[&create[..], &agreed].concat());
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    // Enough for both; behind a clean stop it is known which blocks the missing one had.
    (0..16).for_each(|mib| client.write(mib << 20, &content(7, 1 << 20)).unwrap());
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    std::fs::rename(&ssds[1], daemon.dir.path("away")).unwrap();
    daemon.start();
    daemon
}

#[test]
fn a_pool_is_opened_without_what_is_missing_once_that_is_confirmed() {
    let mut daemon = undecided("accept-missing");
    let state = || show(&daemon)["state"].clone();
    until("somebody has to decide", || state() == "needs-decision");
    let import = ["pool", "import", "fast"];
    let with = |more: &[&'static str]| [&import[..], more].concat();
    for more in [&[][..], &["--dry-run"]] {
        let error = "may hold the only copy of writes to volume \"vm\"";
        daemon.refused(&with(more), error, "--accept-missing");
    }
    let plan = planned(&daemon, &with(&["--accept-missing"]));
    assert!(plan["steps"].to_string().contains("writes that only they hold are lost"), "{plan}");
    daemon.refused(&with(&["--accept-missing"]), "needs a confirmation", "--yes");
    // Who asks the daemon itself has to agree, too.
    let control = daemon.dir.path("control.sock");
    for confirm in [Value::Null, json!("other")] {
        let body = json!({"pool": "fast", "accept_missing": true, "confirm": confirm});
        let refused = post(&control, "/api/v1/import", &body);
        assert_eq!(refused["code"], "bad-request", "{refused}");
        assert!(refused["hint"].to_string().contains("`confirm`"), "{refused}");
    }
    assert_eq!(state(), "needs-decision");
    daemon.tell(&with(&["--accept-missing", "--yes"]));
    let events = daemon.tell(&["events", "--severity", "critical"]);
    let is_lost = show(&daemon)["usage"]["lost_bytes"].as_u64().unwrap() > 0;
    assert!(is_lost && events.contains("accept-lost fast/vm"), "{events}");
    daemon.stop();
}

#[test]
fn a_device_where_a_lost_one_was_is_erased_and_not_called_absent() {
    let mut daemon = served("destroy-place");
    daemon.tell(&["export", "remove", "fast/vm"]);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    daemon.stop();
    let ssds = ["ssd-0", "ssd-1"].map(|name| daemon.dir.path(name));
    std::fs::remove_file(&ssds[1]).unwrap();
    daemon.start();
    until("the pool goes on", || show(&daemon)["usage"].is_object());
    daemon.ssd("ssd-1");
    daemon.tell(&["pool", "device", "add", "fast", ssds[1].to_str().unwrap()]);
    let plan = planned(&daemon, &["pool", "destroy", "fast"]);
    assert_eq!(plan["erased"], json!(ssds), "{plan}");
    assert!(!plan["steps"].to_string().contains("absent"), "{plan}");
    daemon.stop();
}

#[test]
fn a_plan_of_settings_says_what_is_before_and_what_comes() {
    let mut daemon = served("plan-set");
    let before = show(&daemon)["usage"]["scrub"].clone();
    let settings = ["ram=4M", "scrub_rate=1M", "clean_copies=2", "write_budget=24M"];
    let plan = planned(&daemon, &[&["pool", "set", "fast"][..], &settings].concat());
    assert_eq!(plan["what"], "pool \"fast\" would be set");
    let steps = plan["steps"].to_string();
    for said in [
        "the RAM tier has 4 MiB and takes",
        "a scrub reads at most 1 MiB a second, before 8 MiB",
        "clean data that comes gets 2 copies, before 1",
        "of clean data in 2 copies",
        "the write budget of a day is 24 MiB, before none",
    ] {
        assert!(steps.contains(said), "{said}: {steps}");
    }
    let fewer = ["dirty_copies=1", "accept_data_loss_on_ssd_failure=true"];
    let plan = planned(&daemon, &["pool", "set", "fast", fewer[0], fewer[1]]);
    let steps = plan["steps"].to_string();
    assert!(steps.contains("dirty data has 1 copy from then on, before 2"), "{steps}");
    let now = show(&daemon)["usage"].clone();
    assert_eq!(now["scrub"]["rate_bytes_per_s"], before["rate_bytes_per_s"]);
    assert_eq!((&now["dirty_copies"], &now["clean_copies"]), (&json!(2), &json!(1)));
    // It fails as the change would.
    for how in [&[][..], &["--dry-run"]] {
        let set = |setting: &'static str| [&["pool", "set", "fast", setting][..], how].concat();
        daemon.refused(&set("segment_bytes=1"), "fixed when it is made", "another pool");
        daemon.refused(&set("dirty_copies=3"), "3 dirty copies on 2", "as many devices");
        daemon.refused(&set("scrub_rate=1"), "1 B a second", "64 KiB");
    }
    daemon.stop();
}

#[test]
fn what_cannot_be_understood_is_an_error_of_usage() {
    let mut daemon = served("misused");
    for (setting, error, hint) in [
        ("dirty_copy=2", "no setting \"dirty_copy\"", "did you mean dirty_copies?"),
        ("dirty_copies=x", "cannot be set", "dirty_copies=1..3"),
        ("scrub_rate=abc", "is no size", "scrub_rate=8M"),
        ("write_budget=abc", "is no budget", "1200TBW/5y"),
        ("ram=1K", "cannot be made", "multiple of 2 MiB"),
        ("ram", "sets nothing", "KEY=VALUE"),
    ] {
        daemon.misused(&["pool", "set", "fast", setting], error, hint);
        daemon.misused(&["pool", "set", "fast", setting, "--dry-run"], error, hint);
    }
    let create = ["pool", "create", "other", "--ssd", "/nowhere"];
    let with = |option, value| [&create[..], &[option, value]].concat();
    daemon.misused(&with("--write-budget", "abc"), "is no budget", "1200TBW/5y");
    daemon.misused(&with("--ram", "1K"), "cannot be made", "multiple of 2 MiB");
    // What only the daemon knows is none.
    daemon.refused(&["pool", "set", "none", "scrub_rate=8M"], "no pool", "pool list");
    daemon.stop();
}

/// Copies a directory with all that is in it.
fn copied(from: &std::path::Path, to: &std::path::Path) {
    let _ = std::fs::remove_dir_all(to);
    let copy = std::process::Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(copy.success());
}

#[test]
fn what_no_acceptance_can_open_is_not_offered_to_be_accepted() {
    let mut daemon = served("forked");
    let path = |name: &str| daemon.dir.path(name);
    let [state, before] = ["state", "before"].map(path);
    let [first, second, away] = ["ssd-0", "ssd-1", "away"].map(path);
    daemon.stop();
    copied(&state, &before);
    // Each goes on without the other one, and nobody knows of both.
    for gone in [&second, &first] {
        std::fs::rename(gone, &away).unwrap();
        copied(&before, &state);
        daemon.start();
        until("it is open", || show(&daemon)["usage"].is_object());
        daemon.stop();
        std::fs::rename(&away, gone).unwrap();
    }
    copied(&before, &state);
    daemon.start();
    until("somebody has to decide", || show(&daemon)["state"] == "needs-decision");
    for more in [&[][..], &["--accept-missing", "--yes"]] {
        let import = [&["pool", "import", "fast"][..], more].concat();
        daemon.refused(&import, "has gone on in two ways", "offer only the cache devices");
        let output = daemon.ask(&import);
        assert!(!crate::common::stderr(&output).contains("--accept-missing"), "{output:?}");
    }
    let action = show(&daemon)["action"].to_string();
    assert!(!action.contains("--accept-missing"), "{action}");
    daemon.stop();
}
