//! The preflight check: what it says, and that it changes nothing.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Dir, Server, create, forebay, have, run, stderr};
use serde_json::Value;

fn doctor(paths: &[&Path]) -> Output {
    run(forebay().arg("doctor").args(paths))
}

/// The findings as JSON, and the exit code.
fn findings(paths: &[&Path]) -> (Vec<Value>, i32) {
    let output = run(forebay().args(["doctor", "--json"]).args(paths));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], 1);
    let findings = report["findings"].as_array().unwrap().clone();
    let worst = if findings.iter().any(|f| f["verdict"] == "problem") { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(worst), "{report}");
    (findings, worst)
}

/// The finding of a check, as "verdict: what; hint".
fn finding(findings: &[Value], subject: &Path, check: &str) -> String {
    let of = |f: &&Value| f["subject"] == subject.to_str().unwrap() && f["check"] == check;
    let found = findings.iter().find(of).unwrap_or_else(|| panic!("{check}: {findings:?}"));
    let text = |name: &str| found[name].as_str().unwrap().to_owned();
    format!("{}: {}; {}", text("verdict"), text("what"), text("hint"))
}

#[test]
fn the_machine_is_looked_at_without_devices() {
    let (findings, code) = findings(&[]);
    assert_eq!(code, 0, "the other tests need io_uring, too: {findings:?}");
    let (machine, disks): (Vec<_>, Vec<_>) =
        findings.iter().partition(|f| f["subject"] == "machine");
    let checks: Vec<_> = machine.iter().map(|f| f["check"].as_str().unwrap()).collect();
    assert_eq!(checks, ["kernel", "io_uring", "memory", "memlock", "open files"]);
    // What the machine has, whether it may be read or not.
    let sized = |disk: std::fs::DirEntry| {
        let size = std::fs::read_to_string(disk.path().join("size")).unwrap_or_default();
        let name = disk.file_name().to_str().unwrap().replace('!', "/");
        (size.trim() != "0" && !size.is_empty()).then(|| format!("/dev/{name}"))
    };
    let there = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    for path in there.filter_map(sized) {
        let is_it = |f: &&&Value| f["subject"] == path.as_str() && f["check"] == "disk";
        let found = disks.iter().find(is_it).unwrap_or_else(|| panic!("{path}: {disks:?}"));
        assert!(found["what"].as_str().is_some_and(|what| what.contains("iB; ")), "{found}");
    }
    let text = String::from_utf8(doctor(&[]).stdout).unwrap();
    assert!(text.starts_with("machine\n  ok       kernel       Linux "), "{text}");
    assert!(text.contains("Name disks, files or directories"), "{text}");
}

#[test]
fn what_is_not_there_or_no_device_is_a_problem() {
    let dir = Dir::new("doctor-none");
    let (missing, null) = (dir.path("missing"), Path::new("/dev/null"));
    let empty = dir.sparse("empty", 0);
    let (findings, code) = findings(&[&missing, null, &empty]);
    assert_eq!(code, 1);
    let open = finding(&findings, &missing, "open");
    assert!(open.starts_with("problem: No such file") && open.contains("check the path"), "{open}");
    assert!(finding(&findings, null, "open").starts_with("problem: neither a disk"));
    assert!(finding(&findings, &empty, "size").starts_with("problem: it is empty"));
    let output = doctor(&[&missing]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error: there is a problem\nhint: "), "{}", stderr(&output));
}

#[test]
fn a_file_is_only_read() {
    let dir = Dir::new("doctor-file");
    let disk = dir.sparse("disk", 600 << 20);
    let whole = dir.full("whole", 1 << 20);
    let (found, code) = findings(&[&disk, &whole]);
    assert_eq!(code, 0);
    assert!(finding(&found, &disk, "free").starts_with("ok: "));
    assert!(
        finding(&found, &disk, "size")
            .contains("600 MiB; as a cache device it takes 293.0 KiB of RAM when full of")
    );
    assert!(finding(&found, &whole, "size").starts_with("warn: 1 MiB: large enough as an origin"));
    let holes = finding(&found, &disk, "holes");
    assert!(holes.starts_with("warn: ") && holes.contains("bs=1M count=600"), "{holes}");
    assert!(finding(&found, &whole, "holes").starts_with("ok: none"));
    assert!(finding(&found, &disk, "content").starts_with("ok: nothing that is known"));
    let fsync = finding(&found, &disk, "fsync");
    assert!(fsync.starts_with("skipped: not measured: that would write"), "{fsync}");
    assert!(std::fs::read(&whole).unwrap().iter().all(|&byte| byte == 0));
    if have("mkfs.ext4") {
        let made = Command::new("mkfs.ext4").arg("-q").arg(&disk).status().unwrap();
        assert!(made.success());
        let before = std::fs::metadata(&disk).unwrap().modified().unwrap();
        let (found, _) = findings(&[&disk]);
        let content = finding(&found, &disk, "content");
        assert!(content.starts_with("ok: ext4 file system (at byte 1080)"), "{content}");
        let holes = finding(&found, &disk, "holes");
        assert!(holes.contains("it holds: ext4") && holes.contains("use another one"), "{holes}");
        assert!(!holes.contains("dd if="), "to fill it would cost the file system: {holes}");
        assert_eq!(std::fs::metadata(&disk).unwrap().modified().unwrap(), before);
    }
}

#[test]
fn a_cache_device_is_recognised_also_while_its_pool_is_served() {
    let dir = Dir::new("doctor-member");
    let server = Server::start(create(&dir), &dir);
    let member = dir.path("cache-0");
    let (found, code) = findings(&[&member]);
    assert_eq!(code, 0);
    let free = finding(&found, &member, "free");
    assert!(free.starts_with("warn: ") && free.contains("in use by process"), "{free}");
    assert!(finding(&found, &member, "content").starts_with("ok: a cache device of pool \"dev\""));
    server.stop();
    let (found, _) = findings(&[&member]);
    assert!(finding(&found, &member, "free").starts_with("ok: nobody uses it"));
}

#[test]
fn durable_writes_are_measured_in_a_directory_and_nothing_is_left() {
    let dir = Dir::new("doctor-dir");
    let (found, code) = findings(&[&dir.0]);
    assert_eq!(code, 0);
    let fsync = finding(&found, &dir.0, "fsync");
    assert!(fsync.contains("durable writes of 4 KiB to a file"), "{fsync}");
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
}
