//! Cache devices that are taken out of a pool, or added to it, while its volume is served.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::daemon::{
    Daemon, SSD_BYTES, VOLUME_BYTES, content, patient, read_all, served, show, until, until_served,
    written,
};
use crate::common::looped::LoopSsd;
use crate::common::{Client, forebay, have, run, stderr};

#[test]
fn a_cache_device_leaves_a_pool_that_serves() {
    let mut daemon = Daemon::new("devices");
    let ssds = ["ssd-0", "ssd-1", "ssd-2"].map(|name| daemon.ssd(name));
    let ssds = ssds.each_ref().map(|path| path.to_str().unwrap());
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let create = ["pool", "create", "fast", "--ssd", ssds[0], "--ssd", ssds[1], "--ssd", ssds[2]];
    daemon.tell(&create);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let newest = written(&daemon, 2);
    let members = || daemon.json(&["pool", "show", "fast"])["members"].as_array().unwrap().clone();
    assert_eq!(members().len(), 3);

    let remove = ["pool", "device", "remove", "fast"];
    let refused = |device: &str, what: &str, hint: &str| {
        for how in ["--dry-run", "--yes"] {
            daemon.refused(&[&remove[..], &[device, how]].concat(), what, hint);
        }
    };
    refused("/none", "has no cache device /none", "pool show fast");
    refused(origin.to_str().unwrap(), "has no cache device", "pool show fast");
    daemon.refused(&[&remove[..], &[ssds[1]]].concat(), "needs a confirmation", "--yes");
    let plan = daemon.json(&[&remove[..], &[ssds[1], "--dry-run"]].concat());
    assert_eq!((&plan["done"], &plan["erased"][0]), (&false.into(), &ssds[1].into()), "{plan}");
    assert!(plan["steps"].to_string().contains("at least, as fast as"), "{plan}");
    assert_eq!(members().len(), 3, "a plan changes nothing");

    let job = daemon.json(&[&remove[..], &[ssds[1], "--yes"]].concat());
    assert!(job["state"] == "done" && job["left_bytes"] == 0, "{job}");
    assert!(job["total_bytes"].as_u64().unwrap() > 0, "{job}");
    let left = members();
    assert!(left.len() == 2 && left.iter().all(|member| member["path"] != ssds[1]), "{left:?}");
    until("the event is told", || daemon.tell(&["events"]).contains("member-removed"));
    assert_eq!(daemon.json(&["pool", "show", "fast"])["state"], "online");
    assert!(read_all(&socket) == newest, "nothing is missing");
    refused(ssds[1], "has no cache device", "pool show fast");
    // Two copies were asked for.
    refused(ssds[0], "2 copies were asked for, and 1 of 2 cache devices would be left", "pool set");
    let id = left[0]["id"].as_str().unwrap();
    refused(id, "2 copies were asked for", "pool set");

    // Neither a kill nor a start with the device brings it back, and it can be used for another pool.
    let newest = {
        let newer = written(&daemon, 3);
        daemon.kill();
        newer
    };
    daemon.start();
    until_served(&daemon);
    assert_eq!(daemon.json(&["pool", "show", "fast"])["members"].as_array().unwrap().len(), 2);
    assert!(read_all(&socket) == newest);
    daemon.tell(&["pool", "create", "other", "--ssd", ssds[1]]);
    for how in ["--dry-run", "--yes"] {
        let last = ["pool", "device", "remove", "other", ssds[1], how];
        daemon.refused(&last, "is the only one of pool \"other\"", "then destroy the pool");
    }
    assert_eq!(daemon.json(&["pool", "show", "other"])["state"], "online");
    daemon.tell(&["volume", "flush", "fast/vm"]);
    assert!(std::fs::read(&origin).unwrap() == newest);
    daemon.stop();
}

/// Two ways to the same bytes.
#[test]
fn a_loop_device_is_taken_for_the_file_that_it_is_made_of() {
    let mut daemon = served("looped");
    let origin = daemon.dir.path("origin");
    let Some(of_origin) = LoopSsd::on(&origin) else { return };
    let Some(of_ssd) = LoopSsd::on(&daemon.dir.path("ssd-0")) else { return };
    let is_origin = "is the origin of volume \"fast/vm\"";
    daemon.refused(&["volume", "add", "fast/w", "--origin", of_origin.path()], is_origin, "disk");
    for how in [&["--dry-run"][..], &[]] {
        let create = ["pool", "create", "other", "--ssd", of_origin.path()];
        daemon.refused(&[&create[..], how].concat(), is_origin, "nobody needs");
        let add = ["pool", "device", "add", "fast", of_origin.path()];
        daemon.refused(&[&add[..], how].concat(), is_origin, "");
    }
    let is_ssd = "is a cache device of pool \"fast\"";
    daemon.refused(&["volume", "add", "fast/w", "--origin", of_ssd.path()], is_ssd, "");
    drop(of_ssd);
    // Nobody writes to a file that somebody else writes to by another way.
    let file = daemon.dir.full("file", 1 << 20);
    let Some(of_file) = LoopSsd::on(&file) else { return };
    let add = ["volume", "add", "fast/w", "--origin", file.to_str().unwrap()];
    let detach = format!("losetup -d {}", of_file.path());
    daemon.refused(&add, &format!("attached as {}", of_file.path()), &detach);
    // Nor is it said how to overwrite what is empty as yet.
    let sparse = daemon.dir.sparse("sparse", 600 << 20);
    let Some(of_sparse) = LoopSsd::on(&sparse) else { return };
    let create = ["pool", "create", "other", "--ssd", sparse.to_str().unwrap()];
    let detach = format!("losetup -d {}", of_sparse.path());
    daemon.refused(&create, &format!("attached as {}", of_sparse.path()), &detach);
    drop(of_sparse);
    daemon.stop();
    daemon.start();
    let shown = || daemon.tell(&["volume", "show", "fast/vm"]);
    let attached = format!("attached as {}", of_origin.path());
    until("it is told", || shown().contains(&attached));
    drop(of_origin);
    until_served(&daemon);
    daemon.stop();
}

/// A file as it is made for a file system is sparse, and to fill it or to remove it would cost that.
#[test]
fn a_file_system_in_a_sparse_file_is_named_and_nobody_is_told_to_overwrite_it() {
    if !have("mkfs.ext4") {
        return;
    }
    let mut daemon = Daemon::new("sparse-file-system");
    let image = daemon.dir.sparse("image", 600 << 20);
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let (image, other) = (image.to_str().unwrap(), daemon.ssd("other"));
    let other = other.to_str().unwrap();
    let told = |output: Output| {
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for words in ["has holes", "it holds: ext4 file system (at byte 1080)", "use another one"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("dd if=") && !text.contains("--cache-bytes"), "{text}");
    };
    let create = ["pool", "create", "fast", "--accept-data-loss-on-ssd-failure", "--ssd"];
    for how in [&["--dry-run"][..], &[]] {
        told(daemon.ask(&[&create[..], &[image], how].concat()));
    }
    daemon.tell(&[&create[..], &[other]].concat());
    told(daemon.ask(&["pool", "device", "add", "fast", image]));
    told(daemon.ask(&["pool", "device", "spare", "fast", image]));
    let mut dev = forebay();
    dev.args(["dev", "serve", "--create", "--cache-bytes", "600M", "--cache", image, "--origin"]);
    dev.arg(daemon.dir.sparse("origin", 32 << 20)).arg("--witness").arg(daemon.dir.path("witness"));
    dev.arg("--accept-data-loss-on-ssd-failure").arg("--socket").arg(daemon.dir.path("nbd"));
    told(dev.output().unwrap());
    let whole = Command::new("e2fsck").args(["-fn", image]).output();
    assert!(whole.is_ok_and(|output| output.status.success()), "it is as it was");
    daemon.stop();
}

/// Somebody may serve it as a disk, and to fill it would cost what is on it.
#[test]
fn nobody_is_told_to_overwrite_a_sparse_file_that_is_in_use_or_holds_data() {
    let mut daemon = Daemon::new("sparse-disk");
    let disk = daemon.dir.sparse("disk", 600 << 20);
    let create = ["pool", "create", "fast", "--ssd", disk.to_str().unwrap()];
    let refused = |what: &str, hint: &str| {
        for how in [&[][..], &["--dry-run"]] {
            let asked = [&create[..], how].concat();
            daemon.refused(&asked, what, hint);
            let text = stderr(&daemon.ask(&asked));
            assert!(!text.contains("dd if="), "{text}");
        }
    };
    let file = std::fs::File::options().write(true).open(&disk).unwrap();
    file.lock().unwrap();
    refused(&format!("is in use by process {}", std::process::id()), "stop who uses it");
    file.unlock().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1], 300 << 20).unwrap();
    refused("has holes", "make a new file");
    refused("and it holds data (at byte 314572800)", "make a new file");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0], 300 << 20).unwrap();
    daemon.refused(&create, "has holes", "dd if=/dev/zero");
    daemon.stop();
}

#[test]
fn a_cache_device_is_added_to_a_pool_that_serves() {
    let mut daemon = Daemon::new("more-devices");
    let ssds = ["ssd-0", "ssd-1", "ssd-2"].map(|name| daemon.ssd(name));
    let ssds = ssds.each_ref().map(|path| path.to_str().unwrap());
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let agreed = ["pool", "create", "fast", "--ssd", ssds[0], "--accept-data-loss-on-ssd-failure"];
    daemon.tell(&agreed);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let newest = written(&daemon, 2);
    let show = || daemon.json(&["pool", "show", "fast"]);

    let add = ["pool", "device", "add", "fast"];
    let refused = |device: &str, what: &str, hint: &str| {
        for how in [&[][..], &["--dry-run"]] {
            daemon.refused(&[&add[..], &[device], how].concat(), what, hint);
        }
    };
    refused("/none", "/none", "");
    refused(ssds[0], "is a cache device of pool \"fast\"", "forebay pool destroy fast");
    let other_name = daemon.dir.path("origin-too");
    std::fs::hard_link(&origin, &other_name).unwrap();
    for name in [&origin, &other_name] {
        refused(name.to_str().unwrap(), "is the origin of volume \"fast/vm\"", "nobody needs");
    }
    let small = daemon.dir.full("small", 64 << 20);
    refused(small.to_str().unwrap(), "is too small", "use one of at least");
    let holes = daemon.dir.sparse("holes", 600 << 20);
    refused(holes.to_str().unwrap(), "has holes", "dd if=");
    daemon.tell(&["pool", "create", "other", "--ssd", ssds[2]]);
    refused(ssds[2], "is a cache device of pool \"other\"", "forebay pool destroy other");
    daemon.tell(&["pool", "export", "other"]);
    refused(ssds[2], "it belongs to pool \"other\"", "pool import");

    let before = show();
    let plan = daemon.json(&[&add[..], &[ssds[1], "--dry-run"]].concat());
    assert_eq!((&plan["done"], &plan["erased"][0]), (&false.into(), &ssds[1].into()), "{plan}");
    assert_eq!(show()["members"], before["members"], "a plan changes nothing");
    let shown = daemon.json(&[&add[..], &[ssds[1]]].concat());
    assert_eq!(shown["members"].as_array().unwrap().len(), 2, "{shown}");
    assert!(shown["usage"]["segments"].as_u64() > before["usage"]["segments"].as_u64(), "{shown}");
    until("the event is told", || daemon.tell(&["events"]).contains("member-added"));
    refused(ssds[1], "is a cache device of pool \"fast\"", "pool device remove fast ");
    assert!(read_all(&socket) == newest, "nothing is missing");

    // From now on there can be two copies, and the new device is looked for at each start.
    daemon.tell(&["pool", "set", "fast", "dirty_copies=2"]);
    until("two copies are promised", || show()["usage"]["dirty_copies"] == 2);
    let newest = written(&daemon, 3);
    daemon.kill();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&socket) == newest);
    assert_eq!(daemon.json(&["pool", "show", "fast"])["members"].as_array().unwrap().len(), 2);

    // It is let go of when it leaves, and comes back as a new one.
    daemon.tell(&["pool", "set", "fast", "dirty_copies=1"]);
    for _ in 0..2 {
        daemon.tell(&["pool", "device", "remove", "fast", ssds[1], "--yes"]);
        daemon.tell(&["pool", "device", "add", "fast", ssds[1]]);
    }
    daemon.tell(&["pool", "device", "remove", "fast", ssds[0], "--yes"]);
    assert!(read_all(&socket) == newest);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    assert!(std::fs::read(&origin).unwrap() == newest);
    daemon.stop();
}

/// Makes a file so much longer, written in full or not.
fn lengthen(path: &str, bytes: usize, in_full: bool) {
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    match in_full {
        true => std::io::Write::write_all(&mut file, &vec![0; bytes]).unwrap(),
        false => file.set_len(file.metadata().unwrap().len() + bytes as u64).unwrap(),
    }
}

/// Clients go on while it does, nothing is lost by a kill, and what is not used yet is told at a start.
#[test]
fn a_cache_device_grows_while_its_pool_serves() {
    const MORE: usize = 96 << 20;
    let mut daemon = served("grown-device");
    let ssds = ["ssd-0", "ssd-1"].map(|name| daemon.dir.path(name).display().to_string());
    let socket = daemon.dir.path("nbd");
    let newest = written(&daemon, 2);
    let usage = |daemon: &Daemon, what: &str| show(daemon)["usage"][what].as_u64().unwrap();
    let unused = |daemon: &Daemon, member: usize| {
        show(daemon)["members"][member]["unused_bytes"].as_u64().unwrap()
    };
    let grow = ["pool", "device", "grow", "fast"];
    let refused = |daemon: &Daemon, device: &str, what: &str, hint: &str| {
        for how in [&[][..], &["--dry-run"]] {
            daemon.refused(&[&grow[..], &[device], how].concat(), what, hint);
        }
    };
    refused(&daemon, "/none", "has no cache device /none", "pool show fast");
    refused(&daemon, &ssds[0], "has no room for a further segment", "make the device larger");

    // With holes it is refused; what the hint says fills them, and nothing else.
    lengthen(&ssds[0], MORE, false);
    refused(&daemon, &ssds[0], "has holes", "and nothing before it: `dd if=/dev/zero");
    let hint = stderr(&daemon.ask(&[&grow[..], &[&ssds[0]]].concat()));
    let fill = hint.split('`').nth(1).unwrap();
    let filled = std::process::Command::new("sh").args(["-c", fill]).output().unwrap();
    assert!(filled.status.success(), "{fill}: {}", stderr(&filled));
    assert!(read_all(&socket) == newest, "what it held is there");
    let before = usage(&daemon, "segments");
    let plan = daemon.json(&[&grow[..], &[&ssds[0], "--dry-run"]].concat());
    assert!(plan["done"] == false && plan["erased"].as_array().unwrap().is_empty(), "{plan}");
    assert_eq!((usage(&daemon, "segments"), unused(&daemon, 0)), (before, 0), "nothing is noted");

    // Under load.
    let (ended, newest) = (AtomicBool::new(false), content(3, VOLUME_BYTES));
    std::thread::scope(|scope| {
        let (socket, ended, newest) = (&socket, &ended, &newest);
        let clients: Vec<_> = (0..2)
            .map(|part| {
                scope.spawn(move || {
                    let mut client = Client::connect(socket);
                    let mut rounds = 0;
                    while rounds < 2 || !ended.load(Ordering::Relaxed) {
                        let half = part * VOLUME_BYTES / 2;
                        for at in (half..half + VOLUME_BYTES / 2).step_by(64 << 10) {
                            client.write(at as u64, &newest[at..at + (64 << 10)]).unwrap();
                        }
                        client.flush().unwrap();
                        rounds += 1;
                    }
                })
            })
            .collect();
        let shown = daemon.json(&[&grow[..], &[&ssds[0]]].concat());
        assert_eq!(shown["usage"]["segments"].as_u64(), Some(before + (MORE >> 20) as u64));
        ended.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    until("the event is told", || daemon.tell(&["events"]).contains("member-grown"));
    assert_eq!(unused(&daemon, 0), 0);
    let after = usage(&daemon, "segments");
    assert!(read_all(&socket) == newest);
    daemon.kill();
    daemon.start();
    until_served(&daemon);
    assert_eq!(usage(&daemon, "segments"), after);
    assert!(read_all(&socket) == newest);

    // The other one has grown while nobody looked: the start says so, and by how much.
    daemon.stop();
    lengthen(&ssds[1], MORE, true);
    daemon.start();
    until_served(&daemon);
    assert_eq!(unused(&daemon, 1), MORE as u64);
    assert!(daemon.tell(&["events"]).contains("member-larger"));
    let shown = daemon.tell(&["pool", "show", "fast"]);
    assert!(shown.contains("96 MiB of it are not used:"), "{shown}");
    assert!(shown.contains(" `forebay pool device grow fast /"), "{shown}");
    let id = show(&daemon)["members"][1]["id"].as_str().unwrap().to_owned();
    daemon.tell(&[&grow[..], &[&id]].concat());
    assert_eq!(usage(&daemon, "segments"), after + (MORE >> 20) as u64);
    let newest = written(&daemon, 4);
    assert!(read_all(&socket) == newest);
    daemon.stop();

    // One that is smaller again is not used, and nothing is changed.
    let file = std::fs::File::options().write(true).open(&ssds[1]).unwrap();
    let whole = file.metadata().unwrap().len();
    let tail = std::fs::read(&ssds[1]).unwrap().split_off(SSD_BYTES);
    file.set_len(SSD_BYTES as u64).unwrap();
    daemon.start();
    until("the pool is refused", || show(&daemon)["state"] == "failed");
    let why = show(&daemon)["summary"].as_str().unwrap().to_owned();
    assert!(why.contains("has shrunk"), "{why}");
    lengthen(&ssds[1], tail.len(), false);
    std::os::unix::fs::FileExt::write_all_at(&file, &tail, SSD_BYTES as u64).unwrap();
    assert_eq!(file.metadata().unwrap().len(), whole);
    daemon.tell(&["pool", "import", "fast"]);
    until_served(&daemon);
    assert!(read_all(&socket) == newest);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    assert!(std::fs::read(daemon.dir.path("origin")).unwrap() == newest);
    daemon.stop();
    let said = forebay().args(["inspect", &ssds[0]]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("features own_roots, grown"), "{said}");
}

/// By the rule for a new one.
#[test]
fn a_pool_that_the_memory_has_no_room_for_is_not_made_larger() {
    let mut daemon = Daemon::new("no-larger");
    let ssds = ["ssd-0", "ssd-1", "ssd-2"].map(|name| daemon.ssd(name));
    let [fast, other, more] = ssds.each_ref().map(|path| path.to_str().unwrap());
    daemon.tell(&["pool", "create", "fast", "--ssd", fast]);
    let promised = || {
        let memory = daemon.json(&["status"])["memory"].clone();
        ["index_bytes_max", "policy_bytes", "ram_bytes_max"]
            .map(|key| memory[key].as_u64().unwrap())
    };
    // Another pool may have all that is left, but for less than what any more cache takes.
    let create = ["pool", "create", "other", "--ssd", other];
    let plan = daemon.json(&[&create[..], &["--dry-run"]].concat());
    let bytes = |key: &str| plan[key].as_u64().unwrap();
    let most = bytes("machine_bytes") - bytes("machine_bytes") / 8;
    let index = most - promised().iter().sum::<u64>() - bytes("policy_bytes") - 1024;
    daemon.tell(&[&create[..], &["--index-max", &index.to_string()]].concat());

    let error = "pool \"fast\" may take 4.1 MiB of memory then (index 4 MiB, policy";
    for how in [&[][..], &["--dry-run"]] {
        let add = [&["pool", "device", "add", "fast", more], how].concat();
        daemon.refused(&add, error, "more of cache fit; add memory");
    }
    let mut file = std::fs::File::options().append(true).open(fast).unwrap();
    std::io::Write::write_all(&mut file, &vec![0; 128 << 20]).unwrap();
    for how in [&[][..], &["--dry-run"]] {
        let grow = [&["pool", "device", "grow", "fast", fast], how].concat();
        daemon.refused(&grow, error, "more of cache fit; add memory");
    }
    assert_eq!(show(&daemon)["members"].as_array().unwrap().len(), 1);
    // Once there is room again both are done.
    daemon.tell(&["pool", "destroy", "other", "--yes"]);
    daemon.tell(&["pool", "device", "add", "fast", more]);
    daemon.tell(&["pool", "device", "grow", "fast", fast]);
    assert_eq!(show(&daemon)["members"].as_array().unwrap().len(), 2);
    daemon.stop();
}

/// Nothing of such a pool is there but what this host remembers.
#[test]
fn the_origin_of_a_pool_whose_ssds_are_away_becomes_no_cache_device() {
    let mut daemon = patient("devices-away");
    let root = daemon.dir.0.clone();
    let path = |name: &str| root.join(name);
    let (origin, alias) = (path("origin"), path("alias"));
    std::os::unix::fs::symlink(&origin, &alias).unwrap();
    let away: Vec<_> =
        ["ssd-0", "ssd-1"].iter().map(|ssd| (path(ssd), path(&format!("x-{ssd}")))).collect();
    daemon.stop();
    away.iter().for_each(|(from, to)| std::fs::rename(from, to).unwrap());
    daemon.spawn();
    daemon.until("it answers", |_| true);
    let before = std::fs::read(&origin).unwrap();
    for name in [&origin, &alias] {
        let create = ["pool", "create", "other", "--ssd", name.to_str().unwrap()];
        for dry_run in [&[][..], &["--dry-run"]] {
            let is_origin = "is the origin of volume \"fast/vm\"";
            daemon.refused(&[&create[..], dry_run].concat(), is_origin, "nobody needs");
        }
    }
    assert!(std::fs::read(&origin).unwrap() == before);
    let witness = std::fs::read_dir(path("state/pools")).unwrap().next().unwrap().unwrap().path();
    let (witness, kept) = (witness.join("witness"), path("kept"));
    std::fs::rename(&witness, &kept).unwrap();
    // As a power cut may leave it.
    std::fs::write(&witness, [0; 4096]).unwrap();
    let create = ["pool", "create", "other", "--ssd", origin.to_str().unwrap()];
    daemon.refused(&create, "cannot read the witness", "forebay pool export");
    std::fs::rename(&kept, &witness).unwrap();
    away.iter().for_each(|(from, to)| std::fs::rename(to, from).unwrap());
    until("it is open", || show(&daemon)["state"] == "online");
    until_served(&daemon);
    daemon.stop();
}

/// As a copy leaves it that was made without what is zero.
#[test]
fn holes_in_a_cache_device_are_told_with_what_fills_them() {
    let mut daemon = served("holes");
    let (all, ssd) = (written(&daemon, 2), daemon.dir.path("ssd-0"));
    let told = || daemon.tell(&["events"]).matches("member-sparse").count();
    assert_eq!(told(), 0);
    daemon.stop();
    if !run(Command::new("fallocate").arg("--dig-holes").arg(&ssd)).status.success() {
        println!("skipped: this file system makes no holes");
        return;
    }
    let doctor =
        || String::from_utf8(daemon.ask(&["doctor", ssd.to_str().unwrap()]).stdout).unwrap();
    let fill = format!("fallocate -l {SSD_BYTES} {}", ssd.display());
    assert!(doctor().contains(&format!("`{fill}`")), "{}", doctor());
    daemon.start();
    let told = || daemon.tell(&["events"]).matches("member-sparse").count();
    until("it is told", || told() == 1);
    let shown = || daemon.tell(&["pool", "show", "fast"]);
    let shown_before = shown();
    assert!(shown_before.contains(" of its file are holes, "), "{shown_before}");
    assert!(shown_before.contains(&format!("`{fill}`")), "{shown_before}");
    assert!(run(Command::new("sh").args(["-c", &fill])).status.success(), "{fill}");
    until("it is filled", || !shown().contains("fallocate"));
    assert_eq!(told(), 1);
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == all);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    daemon.stop();
    let doctor = String::from_utf8(daemon.ask(&["doctor", ssd.to_str().unwrap()]).stdout).unwrap();
    assert!(!doctor.contains("fallocate") && !doctor.contains("dd if="), "{doctor}");
}

/// What fills holes would hide what was lost.
#[test]
fn what_was_cut_off_from_a_cache_device_is_not_told_as_holes() {
    let mut daemon = served("cut-off");
    let [cut, holed] = ["ssd-0", "ssd-1"].map(|name| daemon.dir.path(name));
    written(&daemon, 2);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    let told = |code: &str, of: &Path| {
        let events = daemon.json(&["events"]);
        let events = events["items"].as_array().unwrap().iter();
        let of = of.to_str().unwrap();
        events.filter(|it| it["code"] == code && it["what"].as_str().unwrap().contains(of)).count()
    };
    let file = std::fs::File::options().write(true).open(&cut).unwrap();
    file.set_len(SSD_BYTES as u64 - (1 << 20)).unwrap();
    until("it is told", || told("member-displaced", &cut) == 1);
    let shown = || daemon.tell(&["pool", "show", "fast"]);
    assert!(shown().contains("has become shorter"), "{}", shown());
    assert_eq!(told("member-sparse", &cut), 0);
    // Nor once it has its size again, which is all a hole then.
    file.set_len(SSD_BYTES as u64).unwrap();
    assert_eq!(told("member-sparse", &holed), 0);
    // Where the log has not come to.
    let at = (SSD_BYTES - (1 << 20)).to_string();
    let mut dig = Command::new("fallocate");
    dig.args(["--punch-hole", "--offset", &at, "--length", "1MiB"]).arg(&holed);
    if !run(&mut dig).status.success() {
        println!("skipped: this file system makes no holes");
        return;
    }
    let fill = format!("fallocate -l {SSD_BYTES} {}", holed.display());
    until("both were looked at", || told("member-sparse", &holed) == 1);
    assert!(shown().contains(&fill), "{}", shown());
    assert!(run(Command::new("sh").args(["-c", &fill])).status.success(), "{fill}");
    until("both were looked at again", || !shown().contains(&fill));
    assert_eq!(told("member-sparse", &cut), 0);
    assert!(!shown().contains("fallocate"), "{}", shown());
    daemon.stop();
}
