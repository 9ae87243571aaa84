//! How exports are served: read-only, under TLS, and where.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use crate::common::daemon::{Daemon, until};
use crate::common::{Client, Dir, have, run, stderr};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A pool "fast" on one SSD with a volume "vm" of 32 MiB, not exported.
fn with_volume(name: &str, more: impl FnOnce(&Dir) -> String) -> Daemon {
    let daemon = Daemon::with(name, more);
    let ssd = daemon.ssd("ssd-0");
    let origin = daemon.dir.path("origin");
    std::fs::write(&origin, vec![7; 32 << 20]).unwrap();
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon
}

/// Files for a server and, with the names that libnbd looks for, for its clients.
fn certificates(dir: &Dir) {
    let write = |name: &str, text: String| std::fs::write(dir.path(name), text).unwrap();
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    root.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().unwrap();
    write("ca-cert.pem", root.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(root, key);
    for name in ["server", "client"] {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}-cert.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}-key.pem"), key.serialize_pem());
    }
    std::fs::create_dir(dir.path("nobody")).unwrap();
    std::fs::copy(dir.path("ca-cert.pem"), dir.path("nobody/ca-cert.pem")).unwrap();
}

/// The section of the configuration.
fn tls(dir: &Dir, mode: &str, key: &str) -> String {
    let root = dir.0.display();
    format!(
        "[tls]\ncertificate = \"{root}/server-cert.pem\"\nkey = \"{root}/{key}\"\n\
         client_ca = \"{root}/ca-cert.pem\"\nmode = \"{mode}\"\n"
    )
}

fn client(program: &str, arguments: &[&str]) -> Output {
    run(Command::new("timeout").args(["60", program]).args(arguments))
}

fn info(uri: &str, certificates: &Path) -> Output {
    // The name in the certificate; libnbd 1.14 does not compare addresses.
    let uri = uri.replace("127.0.0.1", "localhost");
    let and = if uri.contains('?') { '&' } else { '?' };
    client("nbdinfo", &[&format!("{uri}{and}tls-certificates={}", certificates.display())])
}

#[test]
fn a_read_only_export_stays_read_only() {
    let mut daemon = with_volume("read-only", |_| String::new());
    let uri = daemon.tell(&["export", "add", "fast/vm", "--read-only"]);
    let uri = uri.trim();
    for round in 0..2 {
        let export = &daemon.json(&["export", "list"])["items"][0];
        assert_eq!((&export["read_only"], &export["tls"]), (&true.into(), &"none".into()));
        assert!(daemon.tell(&["export", "list"]).contains("read-only"));
        if have("qemu-io") {
            let read = client("qemu-io", &["-r", "-f", "raw", "-c", "read -P 7 0 1M", uri]);
            let text = String::from_utf8_lossy(&read.stdout);
            assert!(read.status.success() && !text.contains("failed"), "{text}");
            let write = client("qemu-io", &["-f", "raw", "-c", "write 0 4k", uri]);
            assert!(!write.status.success(), "{}", stderr(&write));
        }
        if round == 0 {
            daemon.stop();
            daemon.start();
            daemon.until("it is served at the same place", |status| status.contains(uri));
        }
    }
    daemon.tell(&["export", "remove", "fast/vm"]);
    daemon.tell(&["export", "add", "fast/vm"]);
    assert_eq!(daemon.json(&["export", "list"])["items"][0]["read_only"], false);
    daemon.stop();
}

#[test]
fn a_complaint_about_a_client_names_the_pool_and_the_volume() {
    let mut daemon = with_volume("complaint", |_| String::new());
    let (socket, log) = (daemon.dir.path("nbd"), daemon.dir.path("log"));
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    daemon.stop();
    daemon.spawn_logged(&log);
    until("it listens", || UnixStream::connect(&socket).is_ok());
    let mut stranger = UnixStream::connect(&socket).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // The server closes.
    let _ = stranger.read_to_end(&mut Vec::new());
    daemon.stop();
    let log = std::fs::read_to_string(log).unwrap();
    let complaint = log.lines().find(|line| line.contains("connection of unix")).expect("one");
    assert!(complaint.ends_with(" to \"fast/vm\" closed: it does not speak NBD"), "{log}");
}

#[test]
fn with_tls_forced_nobody_is_served_without_a_certificate() {
    let mut daemon = with_volume("tls-forced", |dir| {
        certificates(dir);
        tls(dir, "forced", "server-key.pem")
    });
    for place in [&["--port", "0"][..], &["--listen", "[::1]:0"], &[]] {
        let uri = daemon.tell(&[&["export", "add", "fast/vm"][..], place].concat());
        let uri = uri.trim().to_owned();
        assert!(uri.starts_with("nbds"), "{uri}");
        assert_eq!(daemon.json(&["export", "list"])["items"][0]["tls"], "required");
        daemon.stop();
        daemon.start();
        daemon.until("it is served at the same place", |status| status.contains(&uri));
        if have("nbdinfo") {
            if place == ["--port", "0"] {
                let good = info(&uri, &daemon.dir.0);
                assert!(good.status.success(), "{}", stderr(&good));
                let text = String::from_utf8_lossy(&good.stdout).into_owned();
                assert!(text.contains("newstyle-fixed with TLS"), "{text}");
                assert!(!info(&uri, &daemon.dir.path("nobody")).status.success());
            }
            let clear = client("nbdinfo", &[&uri.replacen("nbds", "nbd", 1)]);
            assert!(!clear.status.success(), "{uri}");
        }
        daemon.tell(&["export", "remove", "fast/vm"]);
    }
    daemon.stop();
}

#[test]
fn where_tls_is_offered_an_export_may_need_it() {
    let mut daemon = with_volume("tls-offered", |dir| {
        certificates(dir);
        tls(dir, "offered", "server-key.pem")
    });
    let anywhere = ["export", "add", "fast/vm", "--listen", "0.0.0.0:0"];
    daemon.refused(&anywhere, "can be reached from other machines", "--require-tls");
    let uri = daemon.tell(&["export", "add", "fast/vm", "--port", "0"]);
    assert!(uri.starts_with("nbd://"), "{uri}");
    assert_eq!(daemon.json(&["export", "list"])["items"][0]["tls"], "offered");
    if have("nbdinfo") {
        let good = info(&uri.trim().replacen("nbd", "nbds", 1), &daemon.dir.0);
        assert!(good.status.success(), "{}", stderr(&good));
        let clear = client("nbdinfo", &[uri.trim()]);
        assert!(clear.status.success(), "{}", stderr(&clear));
    }
    daemon.tell(&["export", "remove", "fast/vm"]);
    let added = daemon.ask(&["export", "add", "fast/vm", "--port", "0", "--require-tls"]);
    let uri = String::from_utf8(added.stdout.clone()).unwrap();
    let next = format!("next: `nbdinfo '{}?tls-certificates=DIR'`", uri.trim());
    assert!(stderr(&added).contains(&next), "{}", stderr(&added));
    let uri = uri.trim();
    assert!(uri.starts_with("nbds://"), "{uri}");
    if have("nbdinfo") {
        let good = info(uri, &daemon.dir.0);
        assert!(good.status.success(), "{}", stderr(&good));
        assert!(!client("nbdinfo", &[&uri.replacen("nbds", "nbd", 1)]).status.success());
    }
    daemon.stop();
}

#[test]
fn without_certificates_there_is_no_tls_and_no_way_from_outside() {
    let mut daemon = with_volume("tls-none", |_| String::new());
    let add = ["export", "add", "fast/vm"];
    let needs = [&add[..], &["--require-tls"]].concat();
    daemon.refused(&needs, "the daemon has no certificate", "tls.certificate");
    let anywhere = [&add[..], &["--listen", "0.0.0.0:0"]].concat();
    daemon.refused(&anywhere, "can be reached from other machines", "tls.client_ca");
    daemon.tell(&add);
    daemon.stop();
}

#[test]
fn a_daemon_whose_certificates_cannot_be_used_says_which_and_does_not_start() {
    let dir = Dir::new("tls-wrong");
    certificates(&dir);
    for (key, words) in [
        ("nowhere.pem", "cannot read"),
        ("server-cert.pem", "there is no private key in"),
        ("client-key.pem", "is not that of the certificate"),
    ] {
        let root = dir.0.display();
        let config = format!(
            "state_dir = \"{root}/state\"\nrun_dir = \"{root}/run\"\n\
             [control]\nsocket = \"{root}/control.sock\"\n{}",
            tls(&dir, "forced", key)
        );
        std::fs::write(dir.path("forebay.toml"), config).unwrap();
        let mut command = crate::common::forebay();
        let output = run(command.arg("serve").arg("--config").arg(dir.path("forebay.toml")));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(words) && text.contains(key) && text.contains("hint: "), "{text}");
        assert!(!dir.path("state").exists(), "nothing is begun");
    }
}

#[test]
fn a_certificate_that_clients_will_refuse_is_told_of() {
    let now = SystemTime::now();
    let (over, ends) = (now - 3 * DAY, now + 3 * DAY);
    for (name, end, code) in
        [("over", over, "certificate-refused"), ("ends", ends, "certificate-expires")]
    {
        let mut daemon = Daemon::with(&format!("tls-{name}"), |dir| {
            certificates(dir);
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = end.into();
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap().pem();
            std::fs::write(dir.path("server-cert.pem"), certificate).unwrap();
            std::fs::write(dir.path("server-key.pem"), key.serialize_pem()).unwrap();
            tls(dir, "offered", "server-key.pem")
        });
        let events = daemon.json(&["events"]);
        let told = events["items"].as_array().unwrap().iter().find(|event| event["code"] == code);
        assert!(told.unwrap()["what"].as_str().unwrap().contains("server-cert.pem"), "{events}");
        daemon.stop();
    }
}

/// Whether a client gets an export, or its connection is closed.
fn is_let_in(socket: &Path) -> Option<Client> {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut answer = [0; 28];
    stream.read_exact(&mut answer[..18]).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    match stream.read_exact(&mut answer[18..]) {
        Ok(()) => Some(Client::open(stream, &answer[18..])),
        Err(_) => None,
    }
}

#[test]
fn an_export_has_as_many_clients_as_the_configuration_says_on_all_reactors_together() {
    let limits = "[exports]\nconnections_max = 3\ninflight_bytes_max = 33558528\n\
                  memory_bytes_max = 67117056\n";
    let mut daemon = with_volume("clients", |_| limits.to_owned());
    let config = daemon.dir.path("forebay.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("reactors = 3\n{text}")).unwrap();
    daemon.stop();
    daemon.start();
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let mut clients: Vec<_> = (0..3).map(|_| is_let_in(&socket).expect("there is room")).collect();
    assert!(is_let_in(&socket).is_none(), "a fourth one");
    let mut buf = vec![0; 1 << 20];
    clients.iter_mut().for_each(|client| client.read(0, &mut buf).unwrap());
    clients.pop();
    until("the place is free again", || is_let_in(&socket).is_some());
    // What is set is what is said.
    let most = daemon.json(&["status"])["memory"]["buffers_bytes_max"].as_u64().unwrap();
    let set = forebay_export::nbd::limits::share_bytes_max(67_117_056);
    let usual = forebay_export::nbd::limits::SHARE_BYTES_MAX;
    let plan = {
        let ssd = daemon.ssd("ssd-1");
        daemon.json(&["pool", "create", "x", "--ssd", ssd.to_str().unwrap(), "--dry-run"])
    };
    assert_eq!(plan["buffers_bytes_max"], most, "with one volume that is exported");
    daemon.stop();
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap().replace(limits, "")).unwrap();
    daemon.start();
    until("it is served", || {
        let memory = daemon.json(&["status"])["memory"].clone();
        memory["buffers_bytes_max"].as_u64().unwrap() == most + 3 * 2 * (usual - set)
    });
    daemon.stop();
}

#[test]
fn a_socket_is_for_its_owner_unless_the_configuration_lets_others_in() {
    let group = "[exports]\nsocket_mode = \"0660\"\n";
    // To connect is to write.
    for (name, config, writers) in [("socket-own", "", 0o200), ("socket-mode", group, 0o220)] {
        let mut daemon = with_volume(name, |dir| match config {
            "" => String::new(),
            // Any group that the test may give it to: its own.
            config => {
                let group = std::fs::metadata(&dir.0).unwrap().gid();
                format!("{config}socket_group = \"{group}\"\n")
            }
        });
        let socket = daemon.dir.path("nbd");
        daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
        let is = || std::fs::metadata(&socket).unwrap().permissions().mode() & 0o222;
        assert_eq!(is(), writers, "{name}");
        // It is made anew by the next start.
        daemon.stop();
        daemon.start();
        until("it serves again", || socket.exists());
        assert_eq!(is(), writers, "{name}");
        daemon.stop();
    }
}
