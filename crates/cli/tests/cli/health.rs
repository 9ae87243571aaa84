//! What SSDs say of themselves, asked by the daemon and by `doctor`; the tools are scripts that print what such
//! tools print.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::daemon::{Daemon, PATIENT, SSD_BYTES, members, until};
use crate::common::looped::LoopSsd;
use crate::common::{Dir, forebay, run, script};
use serde_json::Value;

const WELL: &str = include_str!("../../src/health/fixtures/smartctl-nvme.json");

/// A smartctl that prints what is in the file "smart".
fn tool(dir: &Dir) -> String {
    let text = format!("#!/bin/sh\ncat {}\nexit 4\n", dir.path("smart").display());
    let path = dir.path("smartctl");
    script(&path, &text);
    path.display().to_string()
}

/// Whether /sys tells on which disk files here are: not in every container.
fn has_disk(path: &Path) -> bool {
    let number = std::fs::metadata(path).unwrap().dev();
    let (major, minor) = (number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00);
    Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
}

fn health(daemon: &Daemon) -> Value {
    daemon.json(&["pool", "show", "fast"])["members"][0]["health"].clone()
}

#[test]
fn an_ssd_that_is_failing_is_said_to_be_and_what_to_do() {
    let daemon = Daemon::with("health", |dir| {
        std::fs::write(dir.path("smart"), WELL).unwrap();
        let tool = tool(dir);
        format!("health_s = 1\nsmartctl = \"{tool}\"\nnvme = \"/nowhere/nvme\"\n")
    });
    let ssd = daemon.ssd("ssd-0");
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    until("it was asked", || !health(&daemon).is_null());
    if !has_disk(&ssd) {
        assert_eq!(health(&daemon)["verdict"], "unknown");
        return eprintln!("files here have no disk that /sys knows: the rest is not tested");
    }
    let told = health(&daemon);
    assert_eq!((&told["verdict"], &told["life_used_percent"]), (&"good".into(), &12.into()));
    let shown = daemon.tell(&["pool", "show", "fast"]);
    assert!(shown.contains("good: 12 % of its life used"), "{shown}");
    assert!(shown.contains("Healthy."), "{shown}");

    std::fs::write(daemon.dir.path("smart"), WELL.replace("\"passed\": true", "\"passed\": false"))
        .unwrap();
    until("it is failing", || health(&daemon)["verdict"] == "failing");
    let pool = daemon.json(&["pool", "show", "fast"]);
    assert!(pool["summary"].as_str().unwrap().contains("is failing"), "{pool}");
    assert!(pool["action"].as_str().unwrap().contains("pool device replace fast"), "{pool}");
    assert_eq!(pool["health"], "degraded");
    assert!(daemon.tell(&["status"]).starts_with("A look is needed"));

    std::fs::write(daemon.dir.path("smart"), "smartctl: something is wrong\n").unwrap();
    until("nobody knows", || health(&daemon)["verdict"] == "unknown");
    assert_eq!(health(&daemon)["summary"], "it printed: smartctl: something is wrong");
    std::fs::write(daemon.dir.path("smart"), WELL).unwrap();
    until("it is well", || health(&daemon)["verdict"] == "good");
    let events = daemon.json(&["events"]).to_string();
    assert_eq!(events.matches("\"ssd-failing\"").count(), 1, "{events}");
    assert_eq!(events.matches("\"ssd-well\"").count(), 1, "{events}");
}

#[test]
fn a_spare_takes_the_place_of_an_ssd_that_is_failing_where_that_is_wanted() {
    let daemon = Daemon::with("relief", |dir| {
        // A disk is well but for what stands beside the script under its name.
        let (path, well) = (dir.path("smartctl"), dir.path("well"));
        std::fs::write(&well, WELL).unwrap();
        let (told, well) = (dir.path("smart").display().to_string(), well.display().to_string());
        let text = format!(
            "#!/bin/sh\nfor last; do :; done\nfile={told}-${{last##*/}}\n\
             if [ -e \"$file\" ]; then cat \"$file\"; else cat {well}; fi\nexit 4\n"
        );
        script(&path, &text);
        let smartctl = format!("smartctl = \"{}\"\n", path.display());
        format!("health_s = 1\nreplace_failing = true\n{smartctl}nvme = \"/nowhere/nvme\"\n")
    });
    let Some(failing) = LoopSsd::new(&daemon.dir, "loop-0", SSD_BYTES) else { return };
    let [other, spare] = ["ssd-1", "ssd-2"].map(|name| daemon.ssd(name));
    let [other, spare] = [&other, &spare].map(|path| path.to_str().unwrap());
    daemon.tell(&["pool", "create", "fast", "--ssd", failing.path(), "--ssd", other]);
    daemon.tell(&PATIENT);
    daemon.tell(&["pool", "device", "spare", "fast", spare]);
    until("it was asked", || !health(&daemon).is_null());
    let name = failing.path.file_name().unwrap().to_str().unwrap();
    let says = WELL.replace("\"passed\": true", "\"passed\": false");
    std::fs::write(daemon.dir.path(&format!("smart-{name}")), says).unwrap();
    until("the spare is a member, and the other one is not", || members(&daemon) == [other, spare]);
    let events = daemon.json(&["events"])["items"].as_array().unwrap().clone();
    let of = |code: &str| events.iter().filter(|event| event["code"] == code).count();
    assert_eq!((of("ssd-relieved"), of("spare-failed")), (1, 0), "{events:?}");
    let relieved = events.iter().find(|event| event["code"] == "ssd-relieved").unwrap();
    assert_eq!(relieved["subject"], failing.path());
    until("it is well", || daemon.json(&["pool", "show", "fast"])["state"] == "online");
}

#[test]
fn doctor_asks_the_disk_below() {
    let dir = Dir::new("health-doctor");
    std::fs::write(
        dir.path("smart"),
        WELL.replace("\"percentage_used\": 12", "\"percentage_used\": 97"),
    )
    .unwrap();
    tool(&dir);
    let disk = dir.path("disk");
    std::fs::write(&disk, vec![1; 1 << 20]).unwrap();
    let mut command = forebay();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", dir.0.display()));
    let output = run(command.args(["doctor", "--json"]).arg(&disk));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == "health").unwrap();
    if has_disk(&disk) {
        assert_eq!(found["verdict"], "warn", "{found}");
        assert!(found["what"].as_str().unwrap().contains("97 % of its life are used"), "{found}");
    } else {
        assert_eq!(found["verdict"], "skipped", "{found}");
    }
}
