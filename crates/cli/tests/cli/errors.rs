//! What a person reads when something is wrong, from the real binary.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::daemon::{Daemon, content, served, until, until_served};
use crate::common::{Client, Dir, Server, create, forebay, have, run, serve, serve_at, stderr};
use forebay_engine::format::{Superblock, checksum};

const SLOT_BYTES: usize = 128 << 10;

/// Runs a command that must fail with code 1, an `error:` and a `hint:` that hold these words.
fn refused(command: &mut Command, error: &str, hint: &str) {
    let output = run(command);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    assert!(line("error: ").is_some_and(|line| line.contains(error)), "{error}: {text}");
    assert!(line("hint: ").is_some_and(|line| line.contains(hint)), "{hint}: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// A pool that was made and stopped.
fn pool(name: &str) -> Dir {
    let dir = Dir::new(name);
    Server::start(create(&dir), &dir).stop();
    dir
}

fn edit(dir: &Dir, file: &str, slot: usize, change: impl Fn(&mut [u8])) {
    let options = std::fs::OpenOptions::new().read(true).write(true).open(dir.path(file));
    let file = options.unwrap();
    let mut bytes = vec![0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, (slot * SLOT_BYTES) as u64).unwrap();
    change(&mut bytes);
    file.write_all_at(&bytes, (slot * SLOT_BYTES) as u64).unwrap();
}

#[test]
fn what_is_mistyped_or_taken_is_said_in_the_words_of_the_command() {
    let mut daemon = served("mistyped");
    let set = |setting: &'static str| ["pool", "set", "fast", setting];
    daemon.misused(&set("rma_bytes=1G"), "no setting \"rma_bytes\"", "did you mean ram_bytes?");
    daemon.tell(&["pool", "set", "fast", "ram_bytes=2M", "--dry-run"]);
    let origin = daemon.dir.path("origin");
    let again = ["volume", "add", "fast/again", "--origin", origin.to_str().unwrap()];
    daemon.refused(&again, "is the origin of volume \"fast/vm\"", "another disk");
    let listen = ["export", "add", "fast/vm", "--listen", "localhost:10809"];
    let output = daemon.ask(&listen);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("write numbers, as in 192.0.2.1:10809"),
        "{}",
        stderr(&output)
    );
    daemon.stop();
}

#[test]
fn usage_errors_have_their_own_exit_code() {
    for arguments in [&["demo", "--nonsense"][..], &["inspect"], &["nonsense"]] {
        let output = run(forebay().args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains("error: "));
    }
    let output = run(forebay().args(["demo", "--help"]));
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn cache_devices_are_refused_with_reason_and_remedy() {
    let dir = Dir::new("refused");
    dir.full("cache-0", 64 << 20);
    dir.full("cache-1", 64 << 20);
    refused(serve(&dir).arg("--create"), "is too small", "at least 512 MiB");
    let twice = dir.path("cache-0");
    refused(serve(&dir).arg("--cache").arg(&twice), "given twice", "name each device once");
    refused(&mut serve(&dir), "not a Forebay cache device", "check the path");
    let mut missing = forebay();
    missing.args(["dev", "serve", "--cache", "/nonexistent/cache", "--origin", "/dev/null"]);
    missing.arg("--witness").arg(dir.path("w")).arg("--socket").arg(dir.path("s"));
    refused(&mut missing, "does not exist", "check the path");
}

#[test]
fn an_origin_that_is_a_cache_device_or_has_shrunk_is_refused() {
    let dir = pool("origin");
    let mut command = forebay();
    command.args(["dev", "serve", "--socket"]).arg(dir.path("s"));
    command.arg("--witness").arg(dir.path("witness"));
    command.arg("--cache").arg(dir.path("cache-0")).arg("--cache").arg(dir.path("cache-1"));
    std::os::unix::fs::symlink(dir.path("cache-1"), dir.path("link")).unwrap();
    command.arg("--origin").arg(dir.path("link"));
    refused(&mut command, "is one of the cache devices", "another file or disk");
    dir.sparse("origin", 16 << 20);
    let hint = "make the origin at least 33554432 B again; nothing was written to it";
    refused(&mut serve(&dir), "has 16777216 B, the volume 33554432 B", hint);
}

#[test]
fn a_cache_device_in_use_or_of_another_pool_is_refused() {
    let dir = pool("in-use");
    let server = Server::start(serve(&dir), &dir);
    refused(&mut serve(&dir), "another process listens on", "--socket");
    refused(&mut serve_at(&dir, "other"), "is in use by", "stop who uses it");
    let inspected = run(forebay().arg("inspect").arg(dir.path("cache-0")));
    assert!(inspected.status.success(), "inspect works beside a running pool");
    server.stop();
    refused(&mut create(&dir), "it belongs to pool \"dev\"", "open that pool");
    let other = pool("other");
    std::fs::rename(other.path("cache-1"), dir.path("cache-1")).unwrap();
    refused(&mut serve(&dir), "are of two pools", "one pool at a time");
    std::fs::copy(dir.path("cache-0"), dir.path("cache-1")).unwrap();
    refused(&mut serve(&dir), "two cache devices claim", "copy");
}

#[test]
fn one_damaged_superblock_is_noted_and_two_are_refused() {
    for slot in 0..2 {
        let dir = pool("slot");
        edit(&dir, "cache-0", slot, |bytes| bytes[60] ^= 1);
        let log = dir.path("log");
        let mut command = serve(&dir);
        command.stderr(std::fs::File::create(&log).unwrap());
        let server = Server::start(command, &dir);
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains(&format!("superblock slot {slot} is damaged")), "{text}");
        server.stop();
    }
    let dir = pool("slots");
    (0..2).for_each(|slot| edit(&dir, "cache-0", slot, |bytes| bytes[60] ^= 1));
    refused(&mut serve(&dir), "checksum does not match", "inspect");
    let inspected = run(forebay().arg("inspect").arg(dir.path("cache-0")));
    assert_eq!(inspected.status.code(), Some(1));
    let text = String::from_utf8_lossy(&inspected.stdout).into_owned();
    assert!(text.contains("slot 0: damaged: checksum does not match"), "{text}");
}

#[test]
fn a_later_format_is_refused_and_left_alone() {
    let dir = pool("future");
    edit(&dir, "cache-0", 1, |bytes| {
        bytes[8..12].copy_from_slice(&9u32.to_le_bytes());
        bytes[16..20].fill(0);
        let sum = checksum(bytes);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    });
    let before = std::fs::read(dir.path("cache-0")).unwrap();
    refused(&mut serve(&dir), "format version 9", "the Forebay version that wrote it");
    refused(&mut create(&dir), "format version 9", "the Forebay version that wrote it");
    assert!(before == std::fs::read(dir.path("cache-0")).unwrap(), "nothing was written");
}

#[test]
fn write_back_on_one_cache_device_needs_an_agreement() {
    let dir = Dir::new("single");
    let one = || {
        let mut command = forebay();
        command.args(["dev", "serve", "--create", "--cache-bytes", "64M"]);
        command.args(["--segment-bytes", "256K", "--dirty-copies", "1"]);
        command.arg("--cache").arg(dir.path("cache-0")).arg("--origin").arg(dir.path("origin"));
        command.arg("--witness").arg(dir.path("witness")).arg("--socket").arg(dir.path("sock"));
        command
    };
    dir.sparse("origin", 32 << 20);
    refused(&mut one(), "loses data when the SSD dies", "--accept-data-loss-on-ssd-failure");
    std::fs::remove_file(dir.path("cache-0")).unwrap();
    let mut command = one();
    command.arg("--accept-data-loss-on-ssd-failure");
    Server::start(command, &dir).stop();
}

#[test]
fn a_file_that_may_not_be_opened_is_named() {
    let dir = pool("permission");
    let cache = dir.path("cache-0");
    std::fs::set_permissions(&cache, PermissionsExt::from_mode(0o000)).unwrap();
    let mut command = serve(&dir);
    if std::fs::File::open(&cache).is_ok() {
        // This user may open everything; nobody may not.
        if !have("setpriv") {
            return;
        }
        let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        if !run(&mut by("setpriv", &ids, forebay().arg("--version"))).status.success() {
            println!("skipped: nobody may not run {}", env!("CARGO_BIN_EXE_forebay"));
            return;
        }
        std::fs::set_permissions(&dir.0, PermissionsExt::from_mode(0o777)).unwrap();
        command = by("setpriv", &ids, &command);
    }
    refused(&mut command, "refuses access", "run as a user who may open it");
}

/// The same command, run by a program that has these arguments before it.
fn by(program: &str, arguments: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(program);
    outer.args(arguments).arg(command.get_program()).args(command.get_args());
    outer
}

/// A tmpfs refuses at once what it has no room for.
#[test]
fn a_lack_of_space_shows_before_anything_is_written() {
    let dir = Dir::new("space");
    dir.full("cache-0", 64 << 20);
    dir.full("cache-1", 64 << 20);
    let create = |cache: &Path| {
        let mut command = serve(&dir);
        command.args(["--create", "--cache-bytes", "64T", "--cache"]).arg(cache);
        command
    };
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let (mut command, cache) = if mounts.lines().any(|line| line.starts_with("tmpfs /dev/shm ")) {
        let cache = PathBuf::from(format!("/dev/shm/forebay-space-{}", std::process::id()));
        (create(&cache), cache)
    } else if run(Command::new("unshare").args(["-m", "true"])).status.success() {
        let small = dir.path("small");
        std::fs::create_dir(&small).unwrap();
        let mount = format!("mount -t tmpfs -o size=16M none {} && exec \"$@\"", small.display());
        let cache = small.join("cache");
        (by("unshare", &["-m", "sh", "-c", &mount, "sh"], &create(&cache)), cache)
    } else {
        println!("skipped: /dev/shm is no tmpfs, and to mount one takes root");
        return;
    };
    refused(&mut command, "there is no space for", "free some space");
    assert!(!cache.exists(), "what was begun is removed again");
}

/// Without io_uring, by what strace answers in the kernel's place, whoever needs it says so, and what to do.
fn without_ring(errno: &str, hint: &str) {
    if !have("strace") {
        return;
    }
    let inject = format!("inject=io_uring_setup:error={errno}");
    let strace = ["-f", "-q", "-o", "/dev/null", "-e", &inject];
    let dir = Dir::new("ring");
    refused(&mut by("strace", &strace, &create(&dir)), "io_uring", hint);
    assert!(!dir.path("cache-0").exists(), "nothing was begun");
    let output = run(&mut by("strace", &strace, forebay().arg("doctor")));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("io_uring") && text.contains(hint), "{hint}: {text}");
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}

#[test]
fn where_io_uring_is_forbidden_the_setting_of_the_kernel_is_named() {
    without_ring("EPERM", "kernel.io_uring_disabled");
}

#[test]
fn where_there_is_no_io_uring_the_kernel_that_has_it_is_named() {
    without_ring("ENOSYS", "CONFIG_IO_URING");
}

/// What a server has written to standard error, as soon as it holds `words`.
fn log_with(path: &std::path::Path, words: &str) {
    until(words, || std::fs::read_to_string(path).unwrap().contains(words));
}

#[test]
fn what_a_pool_reports_is_told_as_it_comes() {
    let dir = pool("notes");
    std::fs::write(dir.path("origin"), vec![9; 32 << 20]).unwrap();
    std::fs::create_dir(dir.path("folder")).unwrap();
    std::fs::rename(dir.path("witness"), dir.path("folder/witness")).unwrap();
    let log = dir.path("log");
    let mut command = forebay();
    command.args(["dev", "serve", "--socket"]).arg(dir.path("sock"));
    command.arg("--cache").arg(dir.path("cache-0")).arg("--cache").arg(dir.path("cache-1"));
    command.arg("--origin").arg(dir.path("origin"));
    command.arg("--witness").arg(dir.path("folder/witness"));
    command.stderr(std::fs::File::create(&log).unwrap());
    let server = Server::start(command, &dir);
    log_with(&log, "note: the origin of \"dev\" was changed while the pool was stopped");
    std::fs::remove_dir_all(dir.path("folder")).unwrap();
    // Without a witness that says so, no volume becomes dirty: what is written goes through to the origin.
    Client::connect(&server.socket).write(0, &[1; 4096]).unwrap();
    assert_eq!(std::fs::read(dir.path("origin")).unwrap()[..4096], [1; 4096]);
    log_with(&log, "note: the witness cannot be written");
    server.stop();
}

#[test]
fn no_pool_is_made_over_one_whose_superblocks_are_damaged() {
    let dir = pool("over");
    for file in ["cache-0", "cache-1"] {
        (0..2).for_each(|slot| edit(&dir, file, slot, |bytes| bytes[60] ^= 1));
    }
    let before = std::fs::read(dir.path("cache-0")).unwrap();
    refused(&mut create(&dir), "it holds: Forebay pool member", "use another one");
    assert!(before == std::fs::read(dir.path("cache-0")).unwrap(), "nothing was written");
}

#[test]
fn a_witness_replaces_nothing_but_a_witness() {
    let dir = pool("witness");
    let damage = |bytes: &[u8]| std::fs::write(dir.path("witness"), bytes).unwrap();
    let whole = std::fs::read(dir.path("witness")).unwrap();
    damage(b"my novel");
    refused(&mut serve(&dir), "is no witness of a pool", "--witness");
    assert_eq!(std::fs::read(dir.path("witness")).unwrap(), b"my novel");
    damage(&whole[..100]);
    std::fs::write(dir.path("witness.new"), b"my novel").unwrap();
    refused(&mut serve(&dir), "is no witness of a pool", "--witness");
    std::fs::remove_file(dir.path("witness.new")).unwrap();
    for name in ["origin", "cache-1"] {
        std::fs::remove_file(dir.path("witness")).unwrap();
        std::fs::hard_link(dir.path(name), dir.path("witness")).unwrap();
        refused(&mut serve(&dir), "is a cache device or the origin", "--witness");
    }
    std::fs::remove_file(dir.path("witness")).unwrap();
    damage(&whole[..100]);
    Server::start(serve(&dir), &dir).stop();
}

#[test]
fn a_file_with_holes_does_not_become_a_cache_device() {
    let dir = Dir::new("holes");
    dir.full("cache-0", 64 << 20);
    dir.sparse("cache-1", 64 << 20);
    refused(&mut create(&dir), "cache-1 has holes: 0 B of 64 MiB", "--cache-bytes 67108864");
}

#[test]
fn a_signal_cuts_the_writing_of_cache_files() {
    let dir = Dir::new("cut");
    let mut command = serve(&dir);
    command.args(["--create", "--cache-bytes", "1G"]).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    while !dir.path("cache-0").exists() {
        std::thread::yield_now();
    }
    crate::common::signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error: interrupted"), "{}", stderr(&output));
    assert!(!dir.path("cache-0").exists(), "what was begun is removed again");
}

#[test]
fn an_address_that_is_taken_is_refused_before_anything_is_written() {
    let dir = Dir::new("taken");
    std::fs::write(dir.path("sock"), "no socket").unwrap();
    refused(&mut create(&dir), "is not a socket", "--socket");
    assert!(!dir.path("cache-0").exists());
}

#[test]
fn a_pool_is_stopped_cleanly_when_its_volume_cannot_be_served() {
    let dir = pool("unserved");
    dir.sparse("origin", 16 << 20);
    let output = run(&mut serve(&dir));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("stopped: "), "{}", stderr(&output));
    dir.sparse("origin", 32 << 20);
    let server = Server::start(serve(&dir), &dir);
    assert!(server.summary.contains("clean stop"), "{}", server.summary);
    server.stop();
}

#[test]
fn inspect_says_what_can_be_done_about_what_it_cannot_read() {
    let dir = pool("inspected");
    let inspect = |more: &[&str]| {
        let mut command = forebay();
        command.arg("inspect").arg(dir.path("cache-0")).args(more);
        command
    };
    refused(&mut inspect(&["--segment", "4000000"]), "on none of the devices given", "members");
    refused(forebay().arg("inspect").arg(dir.path("origin")), "no superblock", "an origin holds");
    std::fs::write(dir.path("empty"), b"").unwrap();
    std::fs::write(dir.path("noise"), content(7, 100_000)).unwrap();
    for name in ["empty", "noise"] {
        let mut it = forebay();
        refused(it.arg("inspect").arg(dir.path(name)), "no superblock", "a cache device of a pool");
    }
    assert!(Command::new("mkfifo").arg(dir.path("pipe")).status().unwrap().success());
    std::fs::create_dir(dir.path("folder")).unwrap();
    for name in ["pipe", "folder"] {
        let mut it = forebay();
        refused(
            it.arg("inspect").arg(dir.path(name)),
            "neither a file nor a block device",
            "image",
        );
    }
    (0..2).for_each(|slot| edit(&dir, "cache-0", slot, |bytes| bytes[60] ^= 1));
    refused(&mut inspect(&[]), "both superblocks", "a copy of its first 256 KiB");
    for slot in 0..2 {
        edit(&dir, "cache-0", slot, |bytes| {
            bytes[60] ^= 1;
            bytes[8..12].copy_from_slice(&9u32.to_le_bytes());
            bytes[16..20].fill(0);
            let sum = checksum(bytes);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        });
    }
    refused(&mut inspect(&[]), "format version 9", "the Forebay version that wrote it");
    let shown = String::from_utf8(run(&mut inspect(&[])).stdout).unwrap();
    assert!(shown.contains("slot 1: of a later version") && !shown.contains("damaged"), "{shown}");
}

#[test]
fn a_pool_without_a_readable_root_is_refused_and_inspect_shows_what_is_there() {
    let dir = pool("rootless");
    let bytes = |file: &str| std::fs::read(dir.path(file)).unwrap();
    let root_bytes = Superblock::decode(&bytes("cache-0")[..SLOT_BYTES]).unwrap().root_bytes;
    let damage = |file: &str, slot: u64| {
        let options = std::fs::OpenOptions::new().write(true).open(dir.path(file)).unwrap();
        let at = 2 * SLOT_BYTES as u64 + slot * u64::from(root_bytes);
        options.write_all_at(&[0xA5; 64], at).unwrap();
    };
    // One that is whole is enough, on any of them.
    damage("cache-0", 0);
    damage("cache-0", 1);
    damage("cache-1", 0);
    Server::start(serve(&dir), &dir).stop();
    for file in ["cache-0", "cache-1"] {
        (0..2).for_each(|slot| damage(file, slot));
    }
    // Superblocks count the openings.
    let logs = || ["cache-0", "cache-1"].map(|file| bytes(file).split_off(2 * SLOT_BYTES));
    let before = logs();
    refused(&mut serve(&dir), "no readable root on any cache device", "no data has been changed");
    assert!(logs() == before, "no data has been changed");
    for file in ["cache-0", "cache-1"] {
        let output = run(forebay().arg("inspect").arg(dir.path(file)));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", stderr(&output));
        let damaged = text.lines().filter(|l| l.starts_with("root slot ") && l.contains("damaged"));
        assert_eq!(damaged.count(), 2, "{text}");
        assert!(text.contains("superblock") && text.contains("\"dev\""), "{text}");
    }
}

#[test]
fn what_an_origin_has_behind_its_volume_is_told() {
    let dir = pool("larger");
    dir.sparse("origin", 48 << 20);
    let log = dir.path("log");
    let mut command = serve(&dir);
    command.stderr(std::fs::File::create(&log).unwrap());
    let server = Server::start(command, &dir);
    log_with(&log, "has 48 MiB, the volume 32 MiB: what lies behind is not served");
    server.stop();
    dir.sparse("origin", 32 << 20);
    let mut command = serve(&dir);
    command.stderr(std::fs::File::create(&log).unwrap());
    Server::start(command, &dir).stop();
    assert!(!std::fs::read_to_string(&log).unwrap().contains("is not served"));
}

#[test]
fn what_cannot_be_written_is_not_taken_for_said() {
    let mut daemon = served("full");
    let asked: [&[&str]; 6] = [
        &["explain"],
        &["explain", "pool-latched", "--json"],
        &["completion", "bash"],
        &["--help"],
        &["status"],
        &["events", "--json"],
    ];
    for arguments in asked {
        let mut command = daemon.command_of(arguments);
        command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("cannot write the output"), "{arguments:?}");
        // Who has read enough may close it.
        let mut command = daemon.command_of(arguments);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(command.stdout(writer).status().unwrap().success(), "{arguments:?}");
    }
    daemon.stop();
}

#[test]
fn a_command_in_a_hint_can_be_pasted_whatever_the_path() {
    let mut daemon = served("pasted");
    let odd = daemon.dir.sparse("an ssd; it's\u{1b}[2J", 1 << 20);
    let add = daemon.ask(&["pool", "device", "add", "fast", odd.to_str().unwrap()]);
    let text = stderr(&add);
    assert!(!text.contains('\u{1b}') && text.contains("it's\\u001b[2J has holes"), "{text}");
    // As large as a cache device has to be.
    let quoted = shlex::try_quote(odd.to_str().unwrap()).unwrap().replace('\u{1b}', "\\u001b");
    let command = format!("`dd if=/dev/zero of={quoted} bs=1M count=512`");
    assert!(text.contains(&command), "{command}: {text}");
    daemon.stop();
}

#[test]
fn an_export_that_could_not_be_served_is_not_planned() {
    let mut daemon = served("planned");
    daemon.tell(&["export", "remove", "fast/vm"]);
    let file = daemon.dir.full("file", 1);
    let taken = daemon.dir.path("taken");
    let listener = std::os::unix::net::UnixListener::bind(&taken).unwrap();
    let long = daemon.dir.path(&"x".repeat(120));
    let nowhere = daemon.dir.path("nowhere/nbd");
    for socket in [&file, &taken, &daemon.dir.0, &nowhere, &long] {
        let socket = socket.to_str().unwrap();
        let add = ["export", "add", "fast/vm", "--socket", socket, "--dry-run"];
        daemon.refused(&add, "cannot listen on", "--socket");
    }
    drop(listener);
    assert_eq!(std::fs::read(&file).unwrap(), [0]);
    let free = daemon.dir.path("free");
    daemon.tell(&["export", "add", "fast/vm", "--socket", free.to_str().unwrap(), "--dry-run"]);
    assert!(!free.exists());
    daemon.stop();
}

#[test]
fn one_copy_that_is_agreed_to_for_the_pool_holds_for_its_volumes() {
    let mut daemon = crate::common::daemon::Daemon::new("agreed");
    let (ssd, origin) = (daemon.ssd("ssd-0"), daemon.dir.sparse("origin", 32 << 20));
    daemon.tell(&["pool", "create", "one", "--ssd", ssd.to_str().unwrap()]);
    daemon.tell(&["volume", "add", "one/vm", "--origin", origin.to_str().unwrap()]);
    let set = ["volume", "set", "one/vm", "writeback"];
    let agreement = "accept_data_loss_on_ssd_failure=true";
    for set in [&set[..], &[&set[..], &["--dry-run"]].concat()] {
        daemon.refused(set, "loses data when the SSD dies", agreement);
    }
    daemon.tell(&["pool", "set", "one", agreement]);
    daemon.tell(&[&set[..], &["--dry-run"]].concat());
    daemon.tell(&set);
    daemon.stop();
    daemon.start();
    let mode = || daemon.json(&["volume", "show", "one/vm"])["mode"].to_string();
    until("it is still written back", || mode() == "\"writeback\"");
    daemon.stop();
}

/// Keeps the witness of a pool from being written until the folder is removed.
fn obstruct_witness(daemon: &Daemon) -> std::path::PathBuf {
    let id = daemon.json(&["pool", "show", "fast"])["id"].as_str().unwrap().to_owned();
    let obstacle = daemon.dir.path(&format!("state/pools/{id}/witness.new"));
    std::fs::create_dir(&obstacle).unwrap();
    obstacle
}

#[test]
fn what_is_written_through_for_want_of_a_witness_is_not_said_to_be_written_back() {
    let mut daemon = served("unwitnessed-mode");
    daemon.tell(&["volume", "set", "fast/vm", "writethrough"]);
    let obstacle = obstruct_witness(&daemon);
    let until_when =
        "written through until the pool's witness, in `state_dir`, can be written: make room there";
    for mode in ["writeback", "writeonly"] {
        let output = daemon.ask(&["volume", "set", "fast/vm", mode]);
        let said = stderr(&output);
        assert!(output.status.success() && !said.contains("is written back"), "{said}");
        assert!(said.contains(&format!("is now {mode}, and {until_when}")), "{said}");
        for words in [&["volume", "show", "fast/vm"][..], &["events"]] {
            let text = daemon.tell(words);
            assert!(text.contains(until_when), "{text}");
        }
        let plan = daemon.tell(&["volume", "set", "fast/vm", mode, "--dry-run"]);
        assert!(plan.contains(&format!("it is {until_when}")), "{plan}");
    }
    // Also where something else is wrong with the pool.
    std::fs::remove_dir(&obstacle).unwrap();
    until("it is well again", || daemon.json(&["pool", "show", "fast"])["health"] == "good");
    daemon.stop();
    std::fs::rename(daemon.dir.path("ssd-1"), daemon.dir.path("away")).unwrap();
    daemon.start();
    until_served(&daemon);
    obstruct_witness(&daemon);
    daemon.tell(&["volume", "set", "fast/vm", "writethrough"]);
    let status = daemon.tell(&["status"]);
    assert!(status.contains("It has gone on without 1 cache device."), "{status}");
    assert!(status.contains("Its witness, in `state_dir`, cannot be written"), "{status}");
    std::fs::remove_dir(&obstacle).unwrap();
    until("it is told", || !daemon.tell(&["status"]).contains("Its witness"));
    daemon.stop();
}

#[test]
fn a_witness_that_cannot_be_written_is_no_good_health() {
    let mut daemon = served("unwitnessed");
    daemon.tell(&["volume", "flush", "fast/vm"]);
    let obstacle = obstruct_witness(&daemon);
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    client.write(0, &[7; 4096]).unwrap();
    until("it is told", || daemon.json(&["pool", "show", "fast"])["health"] == "degraded");
    let status = daemon.tell(&["status"]);
    assert!(status.contains("cannot be written: clean volumes are written through"), "{status}");
    assert!(
        status.contains("explain witness-unwritable") && !status.contains("Healthy"),
        "{status}"
    );
    std::fs::remove_dir(&obstacle).unwrap();
    until("it is well again", || daemon.json(&["pool", "show", "fast"])["health"] == "good");
    drop(client);
    daemon.stop();
}
