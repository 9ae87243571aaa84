//! Every help page, table and error as a person reads it, on a terminal of 80 columns without
//! colour. After a change that is meant: `INSTA_UPDATE=always cargo test -p forebay-cli --test
//! snapshots`, and read what `git diff` shows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::daemon::Daemon;
use common::{Dir, commands, forebay, run};

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

fn assert_narrow(text: &str) {
    let told = |line: &&str| !line.starts_with("$ ");
    let long = text.lines().filter(told).find(|line| line.chars().count() > COLUMNS);
    assert_eq!(long, None, "no room for this line");
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
}

#[test]
fn configuration_errors() {
    let wrong = [
        "state_dri = \"/x\"\n",
        "[devices]\nscan = \"/dev/sdb\"\n",
        "[devices]\n  wait = 3\n",
        "[controls]\n",
        "[control]\nmode = \"rw\"\n",
        "reactors = 0\n",
        "state_dir = /x\n",
        "[devices]\nhealth_s = 0\nreplace_failing = true\n",
    ];
    let dir = Dir::new("configuration");
    let (path, mut all) = (dir.path("forebay.toml"), String::new());
    for text in wrong {
        std::fs::write(&path, text).unwrap();
        let output = run(narrow(forebay().args(["serve", "--config"]).arg(&path)));
        assert_eq!(output.status.code(), Some(1), "{text}");
        let shown = shown(&["serve", "--config", "forebay.toml"], &output);
        all.push_str(text);
        all.push_str(&shown.replace(path.to_str().unwrap(), "forebay.toml"));
    }
    check("configuration_errors", &all);
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
        let link = PathBuf::from(format!("/tmp/fb-{:07}", std::process::id()));
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

    /// Runs a command and keeps what it shows.
    fn show(&mut self, arguments: &[&str]) {
        let mut command = forebay();
        narrow(command.args(arguments));
        command.env("FOREBAY_CONTROL", self.daemon.dir.path("control.sock"));
        let output = run(&mut command);
        let mut text = without_machine(&shown(arguments, &output));
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
    let stays = |line: &&str| !named(line) && !line.contains("  daemon-memory  ");
    text.lines().filter(stays).map(|line| format!("{line}\n")).collect()
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
    let pool = world.daemon.json(&["pool", "show", "fast"]);
    world.know_id(&pool["id"], "a");
    world.know_id(&pool["members"][0]["id"], "b");
    world.know_id(&pool["members"][1]["id"], "c");
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
    assert_narrow(&world.all);
    // Longer than a line: one fact or one sentence each, whatever the terminal.
    world.show(&["status"]);
    world.show(&["events"]);
    let tables = without_dates(&std::mem::take(&mut world.all));
    check("tables", &tables);

    let absent = world.path("absent");
    world.show(&["pool", "create", "fast", "--ssd", &absent]);
    world.show(&["pool", "create", "other", "--ssd", &absent]);
    world.show(&["pool", "create", "other", "--ssd", &disk]);
    world.show(&["pool", "create", "other", "--ssd", "/dev/null"]);
    world.show(&["pool", "show", "fats"]);
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
}

#[test]
fn a_stand_in_for_a_date_is_as_long() {
    let line = "   1  2026-11-21T14:58:50Z  pool-created      what";
    let text = without_dates(line);
    assert_eq!(text.len(), line.len() + 1);
    assert!(text.contains("2026-01-01T00:00:00Z  pool-created"));
    assert!(Path::new("/tmp").is_dir());
}
