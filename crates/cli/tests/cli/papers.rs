//! `forebay lab papers` from the command line to the page: a tiny part of two tests, each played twice.

use std::process::{Output, Stdio};
use std::time::Duration;

use crate::common::page::{is_well_formed, needs_nothing_else};
use crate::common::{Dir, forebay, run, signal, stderr};
use serde_json::Value;

/// A hundredth part of a read cache and of a mixed load whose cache was filled before.
const TINY: [&str; 6] = ["lab", "papers", "--scale", "100", "qsan-1/2", "synology-a/mix"];

fn play(more: &[&str]) -> Output {
    let output = run(forebay().args(TINY).args(more));
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

#[test]
fn two_runs_give_the_same_bytes_and_a_page_that_needs_nothing_else() {
    let dir = Dir::new("papers");
    let pages = ["one.html", "two.html"].map(|name| dir.path(name));
    let answers = pages.each_ref().map(|page| {
        // One at a time and two at a time: the order in which they end changes nothing.
        let jobs = if page.ends_with("one.html") { "1" } else { "2" };
        play(&["--json", "--jobs", jobs, "--html", page.to_str().unwrap()]).stdout
    });
    assert_eq!(answers[0], answers[1]);
    let pages = pages.map(|page| std::fs::read_to_string(page).unwrap());
    assert_eq!(pages[0], pages[1]);

    let answer: Value = serde_json::from_slice(&answers[0]).unwrap();
    assert_eq!((&answer["schema"], &answer["scale"]), (&1.into(), &100.into()));
    let tests = answer["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|test| test["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["synology-a/mix", "qsan-1/2"], "in the order of the papers");
    for test in tests {
        let (paper, ours) = (&test["paper"], &test["ours"]);
        assert!(ours["factor"].as_f64() > paper["factor"].as_f64(), "{test}");
        assert!(ours["hit_ratio"].as_f64() > Some(0.99), "{test}");
        assert_eq!(test["verdict"], "met");
        assert!(test["curve"].as_array().unwrap().len() >= 6);
    }

    let page = &pages[0];
    assert!(is_well_formed(page), "{page}");
    assert!(!is_well_formed("<!DOCTYPE html><p><b></p></b>"));
    assert_eq!(page.matches("<svg ").count(), 2, "one drawing for each row");
    assert!(needs_nothing_else(page));
}

#[test]
fn the_table_has_both_figures_and_says_what_is_assumed() {
    let output = play(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("qsan-1/2 ")).unwrap();
    assert!(
        line.contains(" 4512 ") && line.contains(" 192374 ") && line.ends_with("met"),
        "{line}"
    );
    assert!(text.contains("QSAN: assumed\n- 128 requests at a time"), "{text}");
    assert!(text.contains("Synology: assumed\n- 100 GB of hot data"), "{text}");
}

#[test]
fn of_an_unknown_row_the_nearest_name_is_shown() {
    let output = run(forebay().args(["lab", "papers", "qnas-2/4"]));
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("no row \"qnas-2/4\"") && text.contains("did you mean qsan-2/4?"),
        "{text}"
    );
}

#[test]
fn a_page_that_cannot_be_written_is_said_before_anything_is_played() {
    let dir = Dir::new("papers-page");
    let page = dir.path("missing").join("page.html");
    // At the papers' sizes: hours.
    let output = run(forebay().args(["lab", "papers", "--full", "--html", page.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("cannot write") && text.contains("missing/page.html"), "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn an_interrupted_run_leaves_no_page() {
    let dir = Dir::new("papers-interrupted");
    let page = dir.path("page.html");
    let mut command = forebay();
    command.args(["lab", "papers", "--full", "--html"]).arg(&page).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    // Whoever runs tests in the background may have SIGINT ignored.
    signal(child.id(), "TERM");
    assert!(!child.wait().unwrap().success());
    assert!(!page.exists());
}
