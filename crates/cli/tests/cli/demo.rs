//! The demo itself, small and short: it measures, keeps its state, and cleans up when told to end.

use std::process::Stdio;

use crate::common::{Dir, forebay, run, signal, stderr};

fn demo(dir: &Dir) -> std::process::Command {
    let mut command = forebay();
    command.args(["demo", "--cache-size", "512M", "--size", "16M", "--seconds", "1"]);
    command.env("XDG_STATE_HOME", &dir.0);
    command
}

#[test]
fn a_second_demo_on_a_directory_opens_the_same_pool() {
    let dir = Dir::new("demo");
    let kept = dir.path("kept");
    for start in 0..2 {
        let ram = ["--ram", ["0", "16M"][start]];
        let output = run(demo(&dir).args(ram).arg("--once").arg("--dir").arg(&kept));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", stderr(&output));
        for row in ["origin alone", "cold", "warming", "warm "] {
            assert!(text.lines().any(|line| line.starts_with(row)), "{row}: {text}");
        }
        assert_eq!(stderr(&output).contains("opened again: "), start == 1, "{}", stderr(&output));
        let told = stderr(&output).contains("RAM tier: 16 MiB");
        assert_eq!((told, text.contains("of RAM")), (start == 1, start == 1), "{text}");
    }
    assert!(kept.join("cache-0").exists(), "a directory that was given is kept");
}

#[test]
fn an_interrupted_demo_fails_and_removes_the_default_directory() {
    let dir = Dir::new("interrupted");
    let child = demo(&dir).stderr(Stdio::piped()).spawn().unwrap();
    let cache = dir.path("forebay/demo/cache-0");
    let pid = child.id();
    let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
    while !cache.exists() && !waiter.is_finished() {
        std::thread::yield_now();
    }
    signal(pid, "INT");
    let output = waiter.join().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("error: interrupted"), "{}", stderr(&output));
    assert!(!dir.path("forebay").exists(), "nothing is left");
}

#[test]
fn a_demo_whose_reader_has_left_goes_on_without_it() {
    let dir = Dir::new("unread");
    let mut command = demo(&dir);
    command.arg("--once").stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!dir.path("forebay").exists(), "it came to its end, and nothing is left");
}

/// Runs a demo on `dir/mine`, which must be refused with these words.
fn refused(dir: &Dir, words: &str) {
    let output = run(demo(dir).arg("--once").arg("--dir").arg(dir.path("mine")));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(words) && text.contains("hint: "), "{words}: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn a_demo_removes_no_file_that_it_did_not_make() {
    let dir = Dir::new("mine");
    std::fs::create_dir(dir.path("mine")).unwrap();
    let names = ["cache-0", "cache-1", "origin", "witness"];
    for count in 1..=names.len() {
        names[..count].iter().for_each(|name| {
            std::fs::write(dir.path("mine").join(name), [7; 8192]).unwrap();
        });
        let words = ["no complete demo", "no readable superblock", "no witness of a pool"];
        refused(&dir, words[count.saturating_sub(2)]);
        for name in &names[..count] {
            let bytes = std::fs::read(dir.path("mine").join(name)).unwrap();
            assert!(bytes == [7; 8192], "{name}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path("mine")).unwrap().count(), names.len());
}

#[test]
fn a_creation_that_was_cut_off_is_made_again() {
    let dir = Dir::new("cut-off");
    let kept = dir.path("kept");
    std::fs::create_dir(&kept).unwrap();
    for name in ["forebay-demo.creating", "cache-0", "origin"] {
        std::fs::write(kept.join(name), "half").unwrap();
    }
    let output = run(demo(&dir).arg("--once").arg("--dir").arg(&kept));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!kept.join("forebay-demo.creating").exists(), "it is complete");
    // What lacks a file now is a pool that somebody wanted to keep.
    std::fs::remove_file(kept.join("origin")).unwrap();
    std::fs::rename(&kept, dir.path("mine")).unwrap();
    refused(&dir, "no complete demo");
    assert!(dir.path("mine").join("cache-1").exists());
}

#[test]
fn a_second_demo_at_the_same_time_is_refused_and_leaves_the_first_alone() {
    let dir = Dir::new("twice");
    let first = demo(&dir).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let cache = dir.path("forebay/demo/cache-0");
    let pid = first.id();
    let waiter = std::thread::spawn(move || first.wait_with_output().unwrap());
    while !cache.exists() && !waiter.is_finished() {
        std::thread::yield_now();
    }
    let output = run(demo(&dir).arg("--once"));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("another demo is running in"), "{}", stderr(&output));
    assert!(cache.exists(), "the first one's files are there");
    signal(pid, "INT");
    waiter.join().unwrap();
}
