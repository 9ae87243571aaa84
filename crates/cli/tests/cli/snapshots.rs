//! Every help page, table and error as a person reads it, on a terminal of 80 columns without
//! colour. After a change that is meant: `INSTA_UPDATE=always cargo test -p forebay-cli --test
//! cli snapshots::`, and read what `git diff` shows.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::daemon::{Daemon, until};
use crate::common::{Dir, commands, forebay, have, run};

const COLUMNS: usize = 80;

fn check(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// What a person sees of a command: its line, both outputs, and its exit code if it is not 0.
fn shown(arguments: &[&str], output: &Output) -> String {
    let quoted = |argument: &&str| match argument.contains([' ', '"']) || argument.is_empty() {
        true => format!("'{argument}'"),
        false => (*argument).to_owned(),
    };
    let arguments: Vec<_> = arguments.iter().map(quoted).collect();
    let mut text = format!("$ forebay {}\n", arguments.join(" "));
    for bytes in [&output.stdout, &output.stderr] {
        text.push_str(std::str::from_utf8(bytes).unwrap());
    }
    match output.status.code() {
        Some(0) => {}
        code => text.push_str(&format!("[exit code {}]\n", code.unwrap())),
    }
    text.push('\n');
    assert!(!text.contains('\x1b'), "colour without a terminal: {text}");
    text
}

fn narrow(command: &mut Command) -> &mut Command {
    command.env("COLUMNS", COLUMNS.to_string()).env_remove("FOREBAY_CONTROL")
}

/// No line is longer than the terminal, but for what cannot be broken: a path, or a command in backquotes.
fn assert_narrow(text: &str) {
    let told = |line: &&str| !line.starts_with("$ ");
    let whole = |line: &str| {
        let (line, quotes) = (line.trim(), line.matches('`').count());
        !line.contains(' ') || (quotes == 2 && line.starts_with('`'))
    };
    let mut long = text.lines().filter(told).filter(|line| line.chars().count() > COLUMNS);
    assert_eq!(long.find(|line| !whole(line)), None, "no room for this line");
}

#[test]
fn help() {
    let mut all = String::new();
    for path in commands() {
        let mut arguments: Vec<_> = path.iter().map(String::as_str).collect();
        arguments.push("--help");
        let output = run(narrow(forebay().args(&arguments)));
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}");
        all.push_str(&shown(&arguments, &output));
    }
    assert_narrow(&all);
    check("help", &all);
}

#[test]
fn usage_errors() {
    let long = "x".repeat(64);
    let wrong: &[&[&str]] = &[
        &["pol"],
        &["pool"],
        &["pool", "lst"],
        &["pool", "create", "fast"],
        &["pool", "create", "fast", "--sdd", "/dev/sdb"],
        &["pool", "create", "my pool", "--ssd", "/dev/sdb"],
        &["pool", "create", "", "--ssd", "/dev/sdb"],
        &["pool", "create", "..", "--ssd", "/dev/sdb"],
        &["pool", "create", &long, "--ssd", "/dev/sdb"],
        &["pool", "create", "fast", "--ssd", "/dev/sdb", "--dirty-copies", "two"],
        &["pool", "create", "fast", "--ssd", "/dev/sdb", "--dirty-copies", "4"],
        &["export", "add", "fast/vm", "--port", "http"],
        &["stats", "0.5"],
        &["job", "cancel", "first"],
        &["pool", "create", "fast", "--ssd", "/dev/sdb", "--profile", "raid7"],
        &["pool", "import", "--ssd", "/dev/sdb"],
        &["pool", "destroy"],
        &["volume", "show", "vm"],
        &["volume", "add", "fast/vm"],
        &["volume", "add", "fast/vm", "--origin", "/dev/sdb", "--mode", "writeboth"],
        &["volume", "add", "fast/vm", "--origin", "/dev/sdb", "--cache-block", "64Q"],
        &["volume", "set", "fast/vm", "writethru"],
        &["volume", "set", "fast/vm"],
        &["volume", "set", "fast/vm", "destage-hours=1-6"],
        &["volume", "set", "fast/vm", "dirty-age-max=10"],
        &["volume", "set", "fast/vm", "sequential-cutoff=1Q"],
        &["volume", "set", "fast/vm", "dirty-age=10m"],
        &["volume", "set", "fast/vm", "profile=fast"],
        &["volume", "set", "fast/vm", "populate_on_read=5"],
        &["volume", "set", "fast/vm", "populate_on_write=-1"],
        &["volume", "set", "fast/vm", "cache_block=64Q"],
        &["volume", "add", "fast/vm", "--origin", "/dev/sdb", "--profile", "mail"],
        &["lab", "trace", "trace.csv", "--populate-on-read", "0"],
        &["lab", "trace", "trace.csv", "--cache-block", "8M"],
        &["lab", "papers", "--scale", "0"],
        &["lab", "papers", "--scale", "4", "--full"],
        &["export", "add", "fast/vm", "--port", "65536"],
        &["export", "add", "fast/vm", "--port", "1", "--socket", "/s"],
        &["stats", "0"],
        &["events", "--after", "-1"],
        &["completion", "tcsh"],
        &["inspect"],
        &["inspect", "/dev/sdb", "--segment", "1", "--images"],
        &["bench"],
        &["bench", "slq"],
        &["bench", "sql", "--cache", "1M"],
        &["bench", "sql", "--distribution", "normal"],
        &["bench", "sql", "--origin", "model:tape"],
        &["bench", "sql", "--working-set", "0"],
        &["bench", "sql", "--ab", "/forebay", "--rounds", "5"],
        &["demo", "--seconds", "0"],
        &["demo", "--jsno"],
    ];
    let mut all = String::new();
    for arguments in wrong {
        let output = run(narrow(forebay().args(*arguments)));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        all.push_str(&shown(arguments, &output));
    }
    check("usage_errors", &all);
    assert_narrow(&all);
}

#[test]
fn configuration_errors() {
    let wrong = [
        "state_dri = \"/x\"\n",
        "[devices]\nscan = \"/dev/sdb\"\n",
        "[devices]\n  wait = 3\n",
        "[devices]\nwait_s = \"soon\"\n",
        "devices = 3\n",
        "[controls]\n",
        "[control]\nmode = \"rw\"\n",
        "reactors = 0\n",
        "state_dir = /x\n",
        "[devices]\nhealth_s = 0\nreplace_failing = true\n",
    ];
    let dir = Dir::new("configuration");
    let mut all = String::new();
    for text in wrong {
        std::fs::write(dir.path("forebay.toml"), text).unwrap();
        let arguments = ["serve", "--config", "forebay.toml"];
        let output = run(narrow(forebay().current_dir(&dir.0).args(arguments)));
        assert_eq!(output.status.code(), Some(1), "{text}");
        all.push_str(text);
        all.push_str(&shown(&arguments, &output));
    }
    check("configuration_errors", &all);
    assert_narrow(&all);
}

/// A daemon whose paths have the same length in every run, so that tables are as wide.
struct World {
    daemon: Daemon,
    link: PathBuf,
    all: String,
    /// Texts that are different in each run, and what stands for them: as long.
    known: Vec<(String, String)>,
}

impl World {
    fn new() -> World {
        let daemon = Daemon::new("tables");
        // One of a few of this process.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let number = (std::process::id() % 1_000_000) * 10 + number % 10;
        let link = PathBuf::from(format!("/tmp/fb-{number:07}"));
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&daemon.dir.0, &link).unwrap();
        let known = vec![
            (link.to_str().unwrap().to_owned(), "/tmp/fb-0000000".to_owned()),
            (daemon.dir.0.to_str().unwrap().to_owned(), "/DIR".to_owned()),
        ];
        World { daemon, link, all: String::new(), known }
    }

    fn path(&self, name: &str) -> String {
        self.link.join(name).to_str().unwrap().to_owned()
    }

    /// From now on stands for an identity.
    fn know_id(&mut self, id: &serde_json::Value, digit: &str) {
        let id = id.as_str().unwrap().to_owned();
        let stands: String = id.chars().map(|c| if c == '-' { "-" } else { digit }).collect();
        self.known.push((id, stands));
    }

    /// A pool "fast" on these cache devices, whose identities are known.
    fn pool(&mut self, ssds: &[&str]) {
        let mut create = vec!["pool", "create", "fast"];
        create.extend(ssds.iter().flat_map(|ssd| ["--ssd", ssd]));
        self.daemon.tell(&create);
        self.know_pool();
    }

    /// From now on stands for the identities of the pool "fast" and its cache devices.
    fn know_pool(&mut self) {
        let pool = self.daemon.json(&["pool", "show", "fast"]);
        self.know_id(&pool["id"], "a");
        for (member, digit) in pool["members"].as_array().unwrap().iter().zip(["b", "c", "d"]) {
            self.know_id(&member["id"], digit);
        }
    }

    /// A command of somebody who asks this daemon.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = forebay();
        narrow(command.args(arguments));
        command.env("FOREBAY_CONTROL", self.path("control.sock"));
        command
    }

    /// Runs a command and keeps what it shows.
    fn show(&mut self, arguments: &[&str]) {
        let output = run(&mut self.command(arguments));
        self.keep(&shown(arguments, &output));
    }

    /// The same on a terminal, on which this is typed; needs `script`.
    fn show_typed(&mut self, arguments: &str, typed: &str) {
        let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_forebay"));
        let mut script = Command::new("script");
        narrow(script.args(["-qec", &line, "/dev/null"])).env("TERM", "dumb");
        script.env("FOREBAY_CONTROL", self.daemon.dir.path("control.sock"));
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        // The terminal shows what is typed at once, so nobody types before the question stands there.
        let (mut text, mut byte) = (Vec::new(), [0]);
        while !text.ends_with(b"go on: ") && stdout.read(&mut byte).unwrap() == 1 {
            text.push(byte[0]);
        }
        writeln!(stdin, "{typed}").ok();
        stdout.read_to_end(&mut text).unwrap();
        let status = child.wait().unwrap();
        drop(stdin);
        let stdout = String::from_utf8(text).unwrap().replace("\r\n", "\n").into_bytes();
        let output = Output { status, stdout, stderr: Vec::new() };
        let arguments: Vec<_> = arguments.split(' ').collect();
        let shown = shown(&arguments, &output);
        self.keep(&shown);
    }

    fn keep(&mut self, text: &str) {
        let mut text = without_machine(text);
        for (known, stands) in &self.known {
            text = text.replace(known, stands);
        }
        self.all.push_str(&text);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.link);
    }
}

/// Without what depends on the machine's memory and its limits, and without its name.
fn without_machine(text: &str) -> String {
    let named = |line: &str| line.starts_with("memory   ") || line.starts_with("host     ");
    let mut kept = String::new();
    let mut is_left_out = false;
    for line in text.lines() {
        // It goes on further in; an event has its number there, or its date.
        let goes_on = line.starts_with("      ") && !line.starts_with("      20");
        is_left_out = (is_left_out && goes_on) || named(line) || line.contains("  daemon-memory  ");
        if !is_left_out {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Without the lines that begin like this, and what they go on with: lines that are further in. What is left of such a
/// line is its begin.
fn without(text: &str, begins: &[&str]) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut kept, mut left_out) = (String::new(), None);
    for line in text.lines() {
        if left_out.is_some_and(|depth| indent(line) > depth && !line.is_empty()) {
            continue;
        }
        let begin = begins.iter().find(|begin| line.starts_with(**begin));
        left_out = begin.map(|_| indent(line));
        kept.push_str(&begin.map_or(line.to_owned(), |begin| format!("{begin} [...]")));
        kept.push('\n');
    }
    kept
}

/// Numbers behind these words, as long.
fn without_numbers(text: &str, words: &[&str]) -> String {
    let mut text = text.to_owned();
    for word in words {
        let mut parts = text.split(word);
        let mut all = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            all.push_str(word);
            all.push_str(&"0".repeat(digits));
            all.push_str(&part[digits..]);
        }
        text = all;
    }
    text
}

/// The dates of events, as long; and without how long a start took.
fn without_dates(text: &str) -> String {
    let timeless = |line: &str| match line.rsplit_once("recovery read ") {
        Some((rest, read)) => {
            let read = read.split(" in ").next().unwrap_or_default();
            format!("{rest}recovery read {read} in TIME")
        }
        None => line.to_owned(),
    };
    let dated = |line: &str| {
        let (number, rest) = line.split_at_checked(6)?;
        let (date, rest) = rest.split_at_checked(20)?;
        (date.ends_with('Z') && date.starts_with("20"))
            .then(|| format!("{}2026-01-01T00:00:00Z{rest}", " ".repeat(number.len())))
    };
    let lines = text.lines().map(|line| dated(line).unwrap_or_else(|| line.to_owned()));
    lines.map(|line| timeless(&line) + "\n").collect()
}

#[test]
fn tables_and_errors() {
    let mut world = World::new();
    for name in ["ssd-0", "ssd-1"] {
        world.daemon.ssd(name);
    }
    for name in ["disk", "other"] {
        world.daemon.dir.sparse(name, 64 << 20);
    }
    let names = ["ssd-0", "ssd-1", "disk", "other"];
    let [first, second, disk, other] = names.map(|name| world.path(name));
    let socket = world.path("nbd");
    world.show(&["status"]);
    world.show(&["pool", "list"]);
    let create = ["pool", "create", "fast", "--ssd", &first, "--ssd", &second];
    world.show(&[&create[..], &["--dry-run"]].concat());
    world.show(&create);
    world.know_pool();
    world.show(&["pool", "show", "fast"]);
    world.show(&["volume", "add", "fast/vm", "--origin", &disk, "--dry-run"]);
    world.show(&["volume", "add", "fast/vm", "--origin", &disk]);
    world.show(&["export", "add", "fast/vm", "--socket", &socket]);
    world.show(&["export", "list"]);
    world.show(&["volume", "list"]);
    world.show(&["volume", "show", "fast/vm"]);
    world.show(&["volume", "set", "fast/vm", "readonly", "--dry-run"]);
    world.show(&["volume", "set", "fast/vm", "profile=database", "--dry-run"]);
    world.show(&["volume", "set", "fast/vm", "populate_on_read=3", "cache_block=16K"]);
    world.show(&["volume", "set", "fast/vm", "profile=auto"]);
    world.show(&["volume", "set", "fast/vm", "writeonly", "--dry-run"]);
    world.show(&["pool", "list"]);
    world.show(&["pool", "import"]);
    world.show(&["volume", "flush", "fast/vm"]);
    world.show(&["job", "list"]);
    world.show(&["job", "show", "1"]);
    world.show(&["pool", "device", "can-i-pull", "fast", &first]);
    world.show(&["explain", "origin-missing"]);
    world.show(&["status"]);
    world.show(&["events"]);
    let tables = without_dates(&std::mem::take(&mut world.all));
    check("tables", &tables);
    assert_narrow(&tables);

    let absent = world.path("absent");
    world.show(&["pool", "create", "fast", "--ssd", &absent]);
    world.show(&["pool", "create", "other", "--ssd", &absent]);
    world.show(&["pool", "create", "other", "--ssd", &disk]);
    world.show(&["pool", "create", "other", "--ssd", "/dev/null"]);
    world.show(&["pool", "show", "fats"]);
    world.show(&["pool", "set", "fast", "dirty_copise=2"]);
    world.show(&["pool", "device", "can-i-pull", "fast", &format!("{first}0")]);
    world.show(&["pool", "import", "slow"]);
    world.show(&["pool", "destroy", "fast"]);
    world.show(&["pool", "destroy", "fast", "--yes"]);
    world.show(&["volume", "add", "fast/vm", "--origin", &disk]);
    world.show(&["volume", "add", "fast/vm2", "--origin", &absent]);
    world.show(&["volume", "add", "fast/vm2", "--origin", &other, "--cache-block", "3K"]);
    let zero = ["--populate-on-write", "0", "--mode", "writeback"];
    world.show(&[&["volume", "add", "fast/vm2", "--origin", &other][..], &zero].concat());
    let two = ["--profile", "web", "--populate-on-read", "3"];
    world.show(&[&["volume", "add", "fast/vm2", "--origin", &other][..], &two].concat());
    world.show(&["volume", "set", "fast/vm", "populate_on_read=0"]);
    world.show(&["volume", "set", "fast/vm", "cache_block=3K"]);
    world.show(&["volume", "add", "none/vm", "--origin", &disk]);
    world.show(&["volume", "show", "fast/none"]);
    world.show(&["volume", "remove", "fast/vm", "--yes"]);
    world.show(&["job", "show", "77"]);
    world.show(&["job", "cancel", "1"]);
    world.show(&["export", "add", "fast/vm"]);
    world.show(&["export", "add", "fast/none"]);
    world.show(&["export", "remove", "fast/none"]);
    world.show(&["explain", "orign-missing"]);
    world.show(&["inspect", &disk]);
    world.daemon.stop();
    world.show(&["status"]);
    check("errors", &world.all);
    assert_narrow(&world.all);
}

/// Rates, scrubs, and what changes of cache devices would do.
#[test]
fn plans_and_reports() {
    let mut world = World::new();
    for name in ["ssd-0", "ssd-1", "ssd-2", "ssd-3"] {
        world.daemon.ssd(name);
    }
    world.daemon.dir.sparse("disk", 64 << 20);
    let names = ["ssd-0", "ssd-1", "ssd-2", "ssd-3", "disk"];
    let [first, second, third, new, disk] = names.map(|name| world.path(name));
    world.pool(&[&first, &second, &third]);
    world.daemon.tell(&["volume", "add", "fast/vm", "--origin", &disk]);
    world.show(&["stats", "1", "2"]);
    world.show(&["stats", "--bypass"]);
    world.show(&["scrub", "start", "fast", "--dry-run"]);
    world.show(&["scrub", "status", "fast"]);
    world.show(&["scrub", "start", "fast", "--wait"]);
    world.show(&["pool", "device", "add", "fast", &new, "--dry-run"]);
    world.show(&["pool", "device", "spare", "fast", &new, "--dry-run"]);
    world.show(&["pool", "device", "replace", "fast", &first, &new, "--dry-run"]);
    world.show(&["pool", "device", "remove", "fast", &first, "--dry-run"]);
    world.show(&["volume", "remove", "fast/vm", "--dry-run"]);
    world.show(&["pool", "export", "fast", "--dry-run"]);
    world.show(&["pool", "destroy", "fast", "--dry-run"]);
    world.show(&["pool", "export", "fast"]);
    world.show(&["pool", "import"]);
    world.show(&["pool", "import", "fast", "--dry-run"]);
    world.daemon.tell(&["pool", "import", "fast"]);
    let plans = without(&std::mem::take(&mut world.all), &["  - that takes", "  - taking a place"]);
    // Progress is told of what is not done at the first look.
    let plans: String =
        plans.split_inclusive('\n').filter(|it| !it.starts_with("scrub of pool")).collect();
    check("plans", &plans);
    assert_narrow(&plans);
    world.daemon.stop();

    world.show(&["doctor", &new, &disk]);
    let measured = ["kernel", "io_uring", "memory", "memlock", "open files", "health", "reading"];
    let measured = measured.iter().flat_map(|check| {
        ["ok", "warn", "problem", "skipped"].map(|verdict| format!("  {verdict:7}  {check:11} "))
    });
    let measured: Vec<_> = measured.collect();
    let measured: Vec<_> = measured.iter().map(String::as_str).collect();
    let doctor = without(&std::mem::take(&mut world.all), &measured);
    // How a check of the machine ends is the machine's matter.
    let judged = |line: &str| match line.split_once("[...]") {
        Some((found, _)) => format!("  VERDICT{}[...]\n", &found[9..]),
        None => format!("{line}\n"),
    };
    let doctor: String = doctor.lines().map(judged).collect();
    let (doctor, counted) = doctor.rsplit_once("\n\n").map(|(a, b)| (a.to_owned(), b)).unwrap();
    assert!(counted.is_empty() || counted.contains("warning"), "{counted}");
    check("doctor", &doctor);
    assert_narrow(&doctor);

    world.show(&["inspect", &first, &second]);
    let inspect = without(&std::mem::take(&mut world.all), &["claim: "]);
    check("inspect", &without_numbers(&inspect, &["unix_s ", "generation "]));
    assert_narrow(&inspect);
}

/// A cache device and an origin are missing.
#[test]
fn what_is_missing() {
    let mut world = World::new();
    for name in ["ssd-0", "ssd-1"] {
        world.daemon.ssd(name);
    }
    world.daemon.dir.sparse("disk", 64 << 20);
    world.daemon.dir.sparse("other", 64 << 20);
    let names = ["ssd-0", "ssd-1", "disk", "other"];
    let [first, second, disk, other] = names.map(|name| world.path(name));
    world.pool(&[&first, &second]);
    world.daemon.tell(&["volume", "add", "fast/other", "--origin", &other]);
    world.daemon.tell(&["volume", "add", "fast/vm", "--origin", &disk]);
    world.daemon.stop();
    for name in ["ssd-1", "disk"] {
        let gone = world.daemon.dir.path(&format!("gone-{name}"));
        std::fs::rename(world.daemon.dir.path(name), gone).unwrap();
    }
    world.daemon.start();
    until("the pool goes on", || {
        let shown = world.daemon.json(&["pool", "show", "fast"]);
        let is_known = |volume: &serde_json::Value| volume["state"] != "offline";
        let volumes = shown["volumes"].as_array().unwrap();
        shown["state"] == "protected" && volumes.len() == 2 && volumes.iter().all(is_known)
    });
    world.show(&["status"]);
    world.show(&["volume", "list"]);
    world.show(&["volume", "show", "fast/vm"]);
    world.show(&["pool", "device", "can-i-pull", "fast", &first]);
    world.show(&["pool", "device", "replace", "fast", &second, &disk, "--dry-run"]);
    check("missing", &world.all);
    assert_narrow(&world.all);
    world.daemon.stop();
}

/// What a script reads has one line for each event, error and hint, and each volume.
#[test]
fn lines_are_whole_where_nobody_has_a_terminal() {
    let mut world = World::new();
    world.daemon.ssd("ssd-0");
    world.daemon.dir.sparse("disk", 64 << 20);
    let [first, disk] = ["ssd-0", "disk"].map(|name| world.path(name));
    world.pool(&[&first]);
    world.daemon.tell(&["volume", "add", "fast/vm", "--origin", &disk]);
    let lines = |arguments: &[&str]| {
        let output = run(world.command(arguments).env_remove("COLUMNS"));
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat()
    };
    let events = lines(&["events"]);
    assert!(events.lines().all(|line| line.contains("  info  ")), "{events}");
    let opened = events.lines().find(|line| line.contains("pool-opened")).unwrap();
    assert!(opened.contains("recovery read") && opened.len() > COLUMNS, "{events}");
    let status = lines(&["status"]);
    assert!(status.lines().any(|line| line.contains("fast/vm") && line.ends_with("disk")));
    let errors = lines(&["pool", "show", "fats"]);
    assert_eq!(errors.lines().count(), 2, "{errors}");
    world.daemon.stop();
}

#[test]
fn prompts() {
    if !have("script") {
        return;
    }
    let mut world = World::new();
    world.daemon.ssd("ssd-0");
    world.daemon.ssd("ssd-1");
    world.daemon.dir.sparse("disk", 64 << 20);
    let [first, second, disk] = ["ssd-0", "ssd-1", "disk"].map(|name| world.path(name));
    world.pool(&[&first]);
    world.daemon.tell(&["volume", "add", "fast/vm", "--origin", &disk]);
    world.show_typed("volume remove fast/vm", "vm");
    world.show_typed(&format!("pool device remove fast {first}"), "no");
    world.show_typed(&format!("pool device replace fast {first} {second}"), "yes");
    world.show_typed("pool destroy fast", "fats");
    world.show_typed("volume remove fast/vm", "fast/vm");
    world.show_typed("pool destroy fast", "fast");
    check("prompts", &world.all);
    assert_narrow(&world.all);
    world.daemon.stop();
}

#[test]
fn a_stand_in_for_a_date_is_as_long() {
    let line = "   1  2026-11-21T14:58:50Z  pool-created      what";
    let text = without_dates(line);
    assert_eq!(text.len(), line.len() + 1);
    assert!(text.contains("2026-01-01T00:00:00Z  pool-created"));
    assert!(Path::new("/tmp").is_dir());
}
