//! Every command that answers has `--json`, with the version of the form; a new one has to be added here.

use std::collections::BTreeSet;
use std::io::Write;

use crate::common::daemon::{Daemon, VOLUME_BYTES, until};
use crate::common::{forebay, leaves, run, stderr};
use serde_json::Value;

/// Commands whose output is no answer: the daemon, and files for shells and `man`.
const WITHOUT: [&str; 3] = ["serve", "completion", "man"];

#[test]
fn every_command_answers_in_json_with_the_version_of_its_form() {
    let daemon = Daemon::new("json");
    let (ssd, dir) = (daemon.ssd("ssd-0"), daemon.dir.path("demo"));
    let more = daemon.ssd("ssd-1");
    let third = daemon.ssd("ssd-2");
    let third = third.to_str().unwrap();
    let origin = daemon.dir.sparse("origin", VOLUME_BYTES as u64);
    let (ssd, origin, dir) =
        (ssd.to_str().unwrap(), origin.to_str().unwrap(), dir.to_str().unwrap());
    let more = more.to_str().unwrap();
    let two = ["--ssd", ssd, "--ssd", more, "--dirty-copies", "1", "--clean-copies", "1"];
    let create = [&["pool", "create"][..], &two, &["--accept-data-loss-on-ssd-failure", "fast"]];
    // In an order in which each can be done; what begins with "--" ends the command's name.
    let asked: Vec<Vec<&str>> = vec![
        vec!["pool", "create", "--ssd", ssd, "--dry-run", "fast"],
        create.concat(),
        vec!["pool", "list", "--"],
        vec!["pool", "show", "--", "fast"],
        vec!["pool", "set", "--", "fast", "write_amplification_max_percent=200"],
        vec!["volume", "add", "--origin", origin, "fast/vm"],
        vec!["volume", "list", "--"],
        vec!["volume", "show", "--", "fast/vm"],
        vec!["volume", "set", "--dry-run", "fast/vm", "readonly"],
        vec!["volume", "set", "--", "fast/vm", "readonly"],
        vec!["volume", "flush", "--", "fast/vm"],
        vec!["volume", "grow", "--", "fast/vm"],
        vec!["volume", "accept-lost", "--", "fast/vm"],
        vec!["export", "add", "--", "fast/vm"],
        vec!["export", "list", "--"],
        vec!["status", "--"],
        vec!["stats", "--", "1", "1"],
        vec!["events", "--"],
        vec!["job", "list", "--"],
        vec!["job", "show", "--", "1"],
        vec!["scrub", "start", "--", "fast"],
        vec!["scrub", "status", "--", "fast"],
        vec!["scrub", "stop", "--", "fast"],
        vec!["advisor", "start", "--dry-run", "fast/vm"],
        vec!["advisor", "start", "--", "fast/vm"],
        vec!["advisor", "show", "--"],
        vec!["advisor", "stop", "--", "fast/vm"],
        vec!["export", "remove", "--", "fast/vm"],
        vec!["pool", "device", "grow", "--dry-run", "fast", more],
        vec!["pool", "device", "grow", "--", "fast", more],
        vec!["pool", "device", "remove", "--yes", "fast", more],
        vec!["pool", "device", "spare", "--dry-run", "fast", more],
        vec!["pool", "device", "spare", "--", "fast", more],
        vec!["pool", "device", "add", "--dry-run", "fast", more],
        vec!["pool", "device", "add", "--", "fast", more],
        vec!["pool", "device", "replace", "--dry-run", "fast", more, third],
        vec!["pool", "device", "replace", "--yes", "fast", more, third],
        vec!["pool", "device", "can-i-pull", "--", "fast", third],
        vec!["volume", "remove", "--yes", "fast/vm"],
        vec!["pool", "export", "--", "fast"],
        vec!["pool", "import", "--"],
        vec!["pool", "import", "--", "fast"],
        vec!["pool", "destroy", "--yes", "fast"],
        vec!["explain", "--"],
        vec!["explain", "--", "busy"],
        vec!["doctor", "--", ssd],
        vec!["stop", "--yes"],
    ];
    let mut seen = BTreeSet::new();
    for words in &asked {
        if words.starts_with(&["pool", "device", "grow"]) {
            let file = std::fs::File::options().append(true).open(more);
            file.unwrap().write_all(&vec![0; 8 << 20]).unwrap();
        }
        let end = words.iter().position(|word| word.starts_with("--")).unwrap();
        seen.insert(words[..end].join(" "));
        let mut arguments = words.clone();
        arguments.insert(end, "--json");
        let output = daemon.ask(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        check(&arguments, &output.stdout);
    }
    // A job that can still be cancelled is another test's.
    assert!(stderr(&run(forebay().args(["job", "cancel", "--help"]))).is_empty());
    seen.insert("job cancel".to_owned());
    // So is an origin that asks for a decision.
    seen.insert("volume accept-origin".to_owned());
    // And a pool without its cache devices.
    seen.insert("pool bypass".to_owned());
    // Recorded traces, papers, growth and fio's loads are, too.
    seen.extend(["lab trace", "lab papers", "lab scale", "bench"].map(str::to_owned));
    until("the daemon has ended", || !daemon.dir.path("control.sock").exists());
    let sizes = ["--size", "16M", "--cache-size", "512M", "--seconds", "1"];
    let demo = [&["demo", "--json", "--once", "--dir", dir][..], &sizes].concat();
    let output = run(forebay().args(&demo));
    assert!(output.status.success(), "{}", stderr(&output));
    check(&demo, &output.stdout);
    let cache = format!("{dir}/cache-0");
    for more in [&[][..], &["--images"], &["--segment", "0"]] {
        let inspect = [&["inspect", "--json", cache.as_str()][..], more].concat();
        let output = run(forebay().args(&inspect));
        assert!(output.status.success(), "{}", stderr(&output));
        check(&inspect, &output.stdout);
    }
    seen.extend(["demo", "inspect"].map(str::to_owned));
    let wanted: BTreeSet<String> =
        leaves().into_iter().filter(|name| !WITHOUT.contains(&name.as_str())).collect();
    assert_eq!(seen, wanted);
}

fn check(arguments: &[&str], stdout: &[u8]) {
    let answer: Value = serde_json::from_slice(stdout).unwrap_or_else(|error| {
        panic!("{arguments:?}: {error}: {}", String::from_utf8_lossy(stdout));
    });
    assert_eq!(answer["schema"], 1, "{arguments:?}: {answer}");
    assert!(answer.as_object().unwrap().len() > 1, "{arguments:?}: {answer}");
}

/// What a failed command says on standard error, of which the failure is the last line.
fn failure(output: &std::process::Output) -> Value {
    let text = stderr(output);
    let answer: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(answer["schema"], 1, "{answer}");
    answer["error"].clone()
}

#[test]
fn a_failure_is_told_in_json_where_the_answer_would_be() {
    let daemon = Daemon::new("json-failure");
    let output = daemon.ask(&["pool", "show", "none", "--json"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let error = failure(&output);
    assert_eq!(error["code"], "not-found", "{error}");
    assert!(error["message"].to_string().contains("there is no pool"), "{error}");
    assert!(error["hint"].to_string().contains("forebay pool list"), "{error}");
    // What cannot be understood, whether it is clap that finds out or the command.
    for wrong in [
        &["volume", "set", "fast/vm", "cache_block=5K", "--json"][..],
        &["volume", "add", "fast/vm", "--origin", "/x", "--cache-block", "5K", "--json"],
        &["pool", "set", "fast", "dirty_copise=2", "--json"],
        &["pool", "lst", "--json"],
    ] {
        let output = daemon.ask(wrong);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{wrong:?}");
        let error = failure(&output);
        let is_told = |name: &str| error[name].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_told("message") && is_told("hint"), "{wrong:?}: {error}");
    }
    let nobody = run(forebay().args(["status", "--json", "--control", "/nowhere"]));
    assert!(failure(&nobody)["message"].to_string().contains("no daemon answers"));
}
