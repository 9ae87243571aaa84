//! `forebay bench` from the command line to the files it keeps, with real fio, tiny and short. No figure of
//! speed is asserted.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::page::{is_well_formed, needs_nothing_else};
use crate::common::{Dir, Server, create, forebay, have, run, script, signal, stderr};
use serde_json::Value;

/// A second of everything, on a cache of the smallest size; the working set is a quarter of it.
fn bench(dir: &Dir, more: &[&str]) -> Command {
    let mut command = forebay();
    command.args(["bench", "--cache", "64M", "--working-set", "0.25", "--warm-up-max", "1s"]);
    command.arg("--dir").arg(&dir.0).args(more);
    if !more.contains(&"--duration") {
        command.args(["--duration", "1s"]);
    }
    command
}

/// Whether there is a fio that can speak NBD; says so if not.
fn is_fit() -> bool {
    have("fio")
        && Command::new("fio").arg("--enghelp=nbd").output().is_ok_and(|output| {
            let is_fit = output.status.success();
            if !is_fit {
                println!("skipped: this fio does not speak NBD");
            }
            is_fit
        })
}

fn measured(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_phase_has_figures_and_only_what_is_asked_for_stays() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("bench");
    let kept = dir.path("kept");
    let page = dir.path("page.html");
    let keep = ["--json", "--sync", "--export", "unix,tcp", "--keep", kept.to_str().unwrap()];
    let mut command = bench(&dir, &keep);
    command.args(["sql", "--depth", "3", "--distribution", "zipf", "--html"]).arg(&page);
    let answer = measured(&run(&mut command));
    assert_eq!(answer["schema"], 1);
    let rows = answer["items"].as_array().unwrap();
    let seen: Vec<_> = rows
        .iter()
        .map(|row| format!("{} {}", row["target"], row["phase"]).replace('"', ""))
        .collect();
    let phases = |name: &str| ["cold", "warming", "steady"].map(|phase| format!("{name} {phase}"));
    let mut wanted = vec!["bare SSD steady".to_owned(), "origin alone steady".to_owned()];
    wanted.extend(phases("writeback (Unix)").into_iter().chain(phases("writeback (TCP)")));
    assert_eq!(seen, wanted);
    for row in rows {
        assert_eq!(
            (&row["profile"], &row["working_set_bytes"]),
            (&"sql".into(), &(16 << 20).into())
        );
        for side in ["reads", "writes"] {
            assert!(row[side]["iops"].as_f64() > Some(0.0), "{row}");
            assert!(row[side]["p99_ns"].as_u64() >= row[side]["p50_ns"].as_u64(), "{row}");
        }
        assert!(!row["curve"].as_array().unwrap().is_empty(), "{row}");
        let has_cache = row["target"].as_str().unwrap().starts_with("writeback");
        assert_eq!(row["read_hit_ratio"].as_f64().is_some(), has_cache, "{row}");
        assert!(row["bypass_bytes"].is_object(), "{row}");
        // A durable write takes as long as the write and its flush.
        let mean = |part: &Value| part["mean_ns"].as_f64().unwrap();
        let (write, flush) = (mean(&row["writes"]), mean(&row["flushes"]));
        let durable = row["durable_write_mean_ns"].as_f64().unwrap();
        assert!((durable - write - flush).abs() < 1.0, "{row}");
        assert!(row["flushes"]["p99_ns"].as_u64() >= row["flushes"]["p50_ns"].as_u64(), "{row}");
        // Three writers, each with one request or flush in flight: charts show what these take.
        for point in row["curve"].as_array().unwrap() {
            let [iops, latency_ns] = [1, 2].map(|at| point[at].as_f64().unwrap());
            assert!((iops * latency_ns / 3e9 - 1.0).abs() < 1e-6, "{point}");
        }
    }
    assert_eq!(answer["is_complete"], true);
    assert_eq!(
        (&answer["settings"]["depth"], &answer["settings"]["duration_s"]),
        (&3.into(), &1.into())
    );
    let commands = answer["commands"].to_string();
    assert!(
        commands.contains(" dev serve --create ") && commands.contains("fio --output-format=json")
    );

    let text = std::fs::read_to_string(&page).unwrap();
    assert!(is_well_formed(&text), "{text}");
    assert_eq!(text.matches("<svg ").count(), 3, "rates, latencies, hits");
    assert_eq!(text.matches("<polyline ").count(), 3 * 4, "four targets");
    for word in ["dev serve --create", "ioengine=nbd", "ioengine=io_uring", "fio-", "Linux"] {
        assert!(text.contains(word), "{word}");
    }
    // What it was made with, what that comes to, and all that it has run.
    let given: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
    assert!(text.contains(&given.join(" ")), "{text}");
    assert!(text.contains("of memory") && text.contains("warm_up_max_s"), "{text}");
    for command in answer["commands"].as_array().unwrap() {
        assert!(text.contains(command.as_str().unwrap()), "{command}");
    }
    assert!(text.contains("by --export unix only"), "{text}");
    assert!(needs_nothing_else(&text));
    std::fs::remove_file(&page).unwrap();

    assert_eq!(names(&dir.0), ["kept"], "its own directory is gone");
    let files = names(&kept);
    let jobs = answer["jobs"].as_array().unwrap();
    let count = files.iter().filter(|name| name.ends_with(".fio")).count();
    // The origin alone has a ramp-up that is no row.
    assert_eq!((count, jobs.len()), (rows.len() + 1, rows.len() + 1));
    let name = |job: &Value| job["name"].as_str().unwrap().to_owned();
    assert!(jobs.iter().any(|job| name(job).ends_with("sql on origin alone, ramp-up")));
    for job in jobs {
        let text = job["text"].as_str().unwrap();
        // Who flushes waits for it, and what is steady is measured behind a ramp.
        assert!(text.contains("\niodepth=1\nnumjobs=3\ngroup_reporting=1\n"), "{text}");
        let phases = ["cold", "warming", "ramp-up"];
        let has_ramp = !phases.iter().any(|phase| name(job).ends_with(phase));
        assert_eq!(text.contains("\nramp_time=1000ms\n"), has_ramp, "{text}");
        assert!(text.contains("random_distribution=zipf:1.2:0.5\n"), "{text}");
        assert!(text.contains("\nfsync=1\n") != text.contains("\nfdatasync=1\n"), "{text}");
    }
    let results = std::fs::read(kept.join("results.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&results).unwrap(), answer);

    // What is there already stays as it is.
    let output = run(&mut bench(&dir, &["--keep", kept.to_str().unwrap(), "sql"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--keep makes a new directory"), "{}", stderr(&output));
    assert_eq!((names(&kept), names(&dir.0)), (files, vec!["kept".to_owned()]));
}

#[test]
fn each_load_has_new_files_that_were_written_in_full() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("new-files");
    // Small working sets are all as large as the smallest one.
    let mut command = forebay();
    command.args(["bench", "synology-read", "synology-write", "synology-read", "--json"]);
    command.args(["--cache", "64M", "--working-set", "0.25,0.01,0.2", "--warm-up-max", "1s"]);
    command.args(["--duration", "1s", "--mode", "writeback,writeback", "--dir"]).arg(&dir.0);
    let answer = measured(&run(&mut command));
    let seen: Vec<_> = answer["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| format!("{} {} {}", row["profile"], row["target"], row["phase"]))
        .map(|row| row.replace('"', ""))
        .collect();
    let of = |profile: &str| {
        let rows = [
            "bare SSD steady",
            "origin alone steady",
            "writeback cold",
            "writeback warming",
            "writeback steady",
        ];
        rows.map(|row| format!("{profile} {row}"))
    };
    assert_eq!(seen, [of("synology-read"), of("synology-write")].concat());
    let commands: Vec<_> = answer["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| command.as_str().unwrap())
        .collect();
    let written: Vec<_> = commands
        .iter()
        .filter(|command| command.starts_with("dd ") && command.contains(" count=16777216 "))
        .collect();
    let servers = commands.iter().filter(|command| command.contains(" dev serve ")).count();
    assert_eq!((written.len(), servers), (2 * 3, 2 * 2), "{commands:?}");
    let settings = &answer["settings"];
    assert_eq!(settings["working_set_bytes"], Value::from(vec![16 << 20]), "{settings}");
}

#[test]
fn a_page_that_cannot_be_written_is_found_out_before_anything_runs() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("no-page");
    let kept = dir.path("kept");
    for page in [dir.path("nowhere/page.html"), dir.0.clone()] {
        let more = ["--html", page.to_str().unwrap(), "--keep", kept.to_str().unwrap()];
        let output = run(bench(&dir, &more).arg("sql"));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("error: cannot write {}", page.display())), "{text}");
        assert!(text.contains("--html") && !text.contains("job file"), "{text}");
        assert!(names(&dir.0).is_empty(), "{:?}", names(&dir.0));
    }
    // What is there stays if nothing comes of it, and what is not there does not come to be.
    std::fs::write(dir.path("old.html"), "old").unwrap();
    let nothing = dir.path("none");
    for page in ["old.html", "new.html"] {
        let more = ["--html", page, "--dir", nothing.to_str().unwrap()];
        let mut command = forebay();
        command.current_dir(&dir.0).args(["bench", "sql", "--cache", "64M"]).args(more);
        assert_eq!(run(&mut command).status.code(), Some(1));
    }
    assert_eq!(names(&dir.0), ["old.html"]);
    // Nor does a link's, or what was to be kept of it; nobody waits for who reads a pipe.
    std::os::unix::fs::symlink("new.html", dir.path("link.html")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path("pipe")).status().unwrap().success());
    for (page, why) in [("link.html", "No such file"), ("pipe", "nobody reads it")] {
        let mut command = bench(&dir, &["sql", "--keep", "kept", "--html", page]);
        let text = stderr(&run(command.current_dir(&dir.0)));
        assert!(text.contains(&format!("cannot write {page}")) && text.contains(why), "{text}");
    }
    assert_eq!(names(&dir.0), ["link.html", "old.html", "pipe"]);
    assert_eq!(std::fs::read_to_string(dir.path("old.html")).unwrap(), "old");
}

#[test]
fn what_was_measured_until_an_error_is_not_lost() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("partly");
    let page = dir.path("page.html");
    // One that fails at its fourth job, the cold pool.
    let fio = "#!/bin/sh\nfor last; do :; done\ncase $last in */004-*) echo bad luck >&2; exit 1;; esac\n\
               PATH=$REAL exec fio \"$@\"\n";
    let tools = Dir::new("partly-tools");
    script(&tools.path("fio"), fio);
    let real = std::env::var("PATH").unwrap();
    let path = format!("{}:{real}", tools.0.display());
    let mut command = bench(&dir, &["--json", "--html", page.to_str().unwrap(), "sql"]);
    let output = run(command.env("PATH", path).env("REAL", real));
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("fio failed") && text.contains("bad luck"), "{text}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = answer["items"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[1]["target"]), (2, &"origin alone".into()));
    assert_eq!(answer["is_complete"], false);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(is_well_formed(&text) && text.contains("Not everything was measured"), "{text}");
}

#[test]
fn more_writers_than_an_export_takes_are_refused() {
    let dir = Dir::new("writers");
    let output = run(&mut bench(&dir, &["--sync", "--depth", "129", "sql"]));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("sql has 129 writers") && text.contains("at most 128"), "{text}");
    let output = run(&mut bench(&dir, &["--beside", "none,ssd", "sql"]));
    assert!(stderr(&output).contains("--beside none"), "{}", stderr(&output));
    assert!(names(&dir.0).is_empty());
}

#[test]
fn every_profile_is_one_that_fio_and_the_volume_take() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("profiles");
    // The sizes of requests differ, and where they may begin.
    let uniform = ["oltp", "fileserver", "workstation", "vdi-boot", "sysbench-rndwr"];
    // As many writers as an export takes, and parts of what is written in order.
    let durable = ["--json", "--beside", "none", "--sync"];
    let answer = measured(&run(bench(&dir, &durable).args(["synology-write", "sequential-write"])));
    for row in answer["items"].as_array().unwrap() {
        let count = |name: &str| row[name]["requests"].as_u64().unwrap();
        // The last writes of a time may have no flush any more.
        let writes = count("writes");
        assert!(count("flushes") <= writes + 128 && writes <= count("flushes") + 128, "{row}");
    }
    for (distribution, profiles) in [("uniform", &uniform[..]), ("pareto", &["web", "vdi-boot"])] {
        let more = ["--json", "--beside", "none", "--distribution", distribution];
        let answer = measured(&run(bench(&dir, &more).args(profiles)));
        assert_eq!(answer["items"].as_array().unwrap().len(), 3 * profiles.len());
    }
}

#[test]
fn the_users_origin_is_written_to_only_if_that_is_allowed() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("given");
    let origin = dir.path("origin");
    std::fs::write(&origin, vec![7; 16 << 20]).unwrap();
    let given = ["--origin", origin.to_str().unwrap(), "--json", "--beside", "origin"];
    let output = run(bench(&dir, &given).args(["synology-read", "sql"]));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("sql writes") && text.contains("--overwrite-origin"), "{text}");
    let answer = measured(&run(bench(&dir, &given).arg("synology-read")));
    assert_eq!(answer["items"].as_array().unwrap().len(), 4);
    assert_eq!(answer["settings"]["origin"], origin.to_str().unwrap());
    assert!(std::fs::read(&origin).unwrap() == vec![7; 16 << 20], "it was only read");
    let too_large = |place: &str| {
        let kept = dir.path("kept");
        let keep = ["--keep", kept.to_str().unwrap()];
        let more = ["--origin", place, "--working-set", "1", "synology-read"];
        let output = run(bench(&dir, &more).args(keep));
        assert!(!kept.exists(), "nothing ran");
        let words = "has 16 MiB, and the working set is 64 MiB";
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    };
    too_large(origin.to_str().unwrap());
    let files = Dir::new("given-export");
    std::fs::copy(&origin, files.path("origin")).unwrap();
    let server = Server::start(create(&files), &files);
    too_large(&format!("nbd+unix:///dev?socket={}", files.path("sock").display()));
    drop(server);
    run(bench(&dir, &given).args([
        "--mode",
        "writethrough",
        "--overwrite-origin",
        "synology-write",
    ]));
    assert!(std::fs::read(&origin).unwrap() != vec![7; 16 << 20], "it was allowed to");
    assert_eq!(names(&dir.0), ["origin"]);
}

#[test]
fn an_interrupted_bench_fails_and_leaves_nothing() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("interrupted-bench");
    let mut command = bench(&dir, &["--duration", "10m", "--beside", "none", "sql"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (pid, waiter) = (child.id(), child);
    let has_job = |name: &String| {
        let own = dir.path(name);
        names(&own).iter().any(|name| name.ends_with(".fio"))
    };
    let waiter = std::thread::spawn(move || waiter.wait_with_output().unwrap());
    while !names(&dir.0).iter().any(has_job) && !waiter.is_finished() {
        std::thread::yield_now();
    }
    // By then fio has begun its job.
    std::thread::sleep(Duration::from_millis(500));
    signal(pid, "INT");
    let output = waiter.join().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("error: interrupted"), "{}", stderr(&output));
    assert!(names(&dir.0).is_empty(), "nothing is left");
    let running = Command::new("pgrep").arg("-f").arg(&dir.0).output();
    assert!(running.is_ok_and(|output| output.stdout.is_empty()), "a child is left");
}

#[test]
fn warming_ends_when_the_cache_is_warm() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("warming");
    let mut command = forebay();
    command.args(["bench", "synology-read", "--cache", "64M", "--working-set", "0.25", "--json"]);
    command
        .args(["--duration", "1s", "--warm-up-max", "5m", "--beside", "none", "--dir"])
        .arg(&dir.0);
    let answer = measured(&run(&mut command));
    let warming = &answer["items"][1];
    assert_eq!((&warming["phase"], &warming["is_settled"]), (&"warming".into(), &true.into()));
    assert!(warming["time_ms"].as_u64() < Some(300_000), "fio was told to end: {warming}");
}

#[test]
fn two_builds_take_turns_and_get_a_verdict() {
    if !is_fit() {
        return;
    }
    let dir = Dir::new("builds");
    let other = env!("CARGO_BIN_EXE_forebay");
    let page = dir.path("page.html");
    let ab = ["--ab", other, "--rounds", "6", "--json", "--html", page.to_str().unwrap()];
    let answer = measured(&run(bench(&dir, &ab).arg("synology-read")));
    let pairs = answer["items"].as_array().unwrap();
    assert_eq!(pairs.len(), 1);
    assert_eq!(pairs[0]["rounds"].as_array().unwrap().len(), 6);
    let value = |name: &str| pairs[0][name].as_f64().unwrap();
    assert!(value("ratio_low") <= value("ratio") && value("ratio") <= value("ratio_high"));
    assert!((0.95..1.0).contains(&value("confidence")));
    assert!(pairs[0]["verdict"].is_string() && pairs[0]["is_settled"].is_boolean());
    // Four stretches become warm; then this one and the other, the other and this one.
    let jobs: Vec<_> = answer["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["name"].as_str().unwrap())
        .collect();
    let order: Vec<_> = jobs[4..8].iter().map(|name| name.contains(" on this, round ")).collect();
    assert_eq!((jobs.len(), order), (4 + 12, vec![true, false, false, true]), "{jobs:?}");
    assert!(is_well_formed(&std::fs::read_to_string(page).unwrap()));
    assert_eq!(names(&dir.0), ["page.html"]);
    // What is no Forebay says so itself.
    let output = run(bench(&dir, &["--ab", "/bin/false"]).arg("synology-read"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("error: /bin/false is no build of Forebay"),
        "{}",
        stderr(&output)
    );
    let output = run(bench(&dir, &["--ab", other, "--origin", other]).arg("synology-read"));
    assert!(stderr(&output).contains("two builds cannot both have"), "{}", stderr(&output));
    assert_eq!(names(&dir.0), ["page.html"]);
}

#[test]
fn without_fio_it_says_how_to_get_it() {
    let dir = Dir::new("no-fio");
    let output = run(bench(&dir, &["sql"]).env("PATH", &dir.0));
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("error: cannot run fio") && text.contains("apt-get install -y fio"),
        "{text}"
    );
    // One that speaks no NBD.
    script(&dir.path("fio"), "#!/bin/sh\n[ \"$1\" = --version ] && echo fio-9.9\n");
    let output = run(bench(&dir, &["sql"]).env("PATH", &dir.0));
    assert!(stderr(&output).contains("error: fio-9.9 lacks the engine nbd"), "{}", stderr(&output));
    assert_eq!(names(&dir.0), ["fio"]);
}
