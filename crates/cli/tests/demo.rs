//! The demo itself, small and short: it measures, keeps its state, and cleans up when told to end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Dir, forebay, run, signal, stderr};

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
        let output = run(demo(&dir).arg("--once").arg("--dir").arg(&kept));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", stderr(&output));
        for row in ["origin alone", "cold", "warming", "warm "] {
            assert!(text.lines().any(|line| line.starts_with(row)), "{row}: {text}");
        }
        assert_eq!(stderr(&output).contains("opened again: "), start == 1, "{}", stderr(&output));
    }
    assert!(kept.join("cache-0").exists(), "a directory that was given is kept");
}

#[test]
fn an_interrupted_demo_fails_and_removes_the_default_directory() {
    let dir = Dir::new("interrupted");
    let child = demo(&dir).stderr(std::process::Stdio::piped()).spawn().unwrap();
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
    assert!(!dir.path("forebay/demo").exists(), "nothing is left");
}

#[test]
fn a_demo_whose_reader_has_left_goes_on_without_it() {
    let dir = Dir::new("unread");
    let mut command = demo(&dir);
    command.arg("--once").stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!dir.path("forebay/demo").exists(), "it came to its end");
}
