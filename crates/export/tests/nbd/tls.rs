//! TLS, in virtual time.

use std::rc::Rc;

use crate::support::memory_export::MemoryExport;
use crate::support::pipe::Pipe;
use crate::support::protocol::{Client, errors, option, request, words};
use crate::support::rig::{Rig, SIZE};
use crate::support::tls::{Certificates, Encrypted, ask_for_tls};
use forebay_device::{Buf, Runtime};
use forebay_export::Transport;
use forebay_export::nbd::{CertificateFault, Fault, Tls, TlsError, TlsFiles, TlsMode, limits};

/// Begins anew under TLS: a client without its greeting.
async fn open(stream: Encrypted, structured: bool) -> Client<Encrypted> {
    let mut client = Client::bare(stream, structured);
    if structured {
        client.send(&option(8, b"")).await;
        client.receive(20).await.unwrap();
    }
    client.send(&option(1, b"")).await;
    client.receive(10).await.unwrap();
    client
}

fn connect(rig: &Rig, certificates: &Certificates, client: &str) -> Result<Encrypted, ()> {
    let connection = certificates.client(client);
    let stream = rig.door.connect_with_window(3000);
    rig.world.run(async move { Encrypted::open(stream, connection).await.map_err(|_| ()) })
}

#[test]
fn an_encrypted_client_reads_what_it_wrote() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Forced), |export| export.delayed());
    let stream = connect(&rig, &certificates, "good").unwrap();
    let len = 600_000 / 512 * 512;
    let noise: Vec<u8> = (0..len).map(|n: u32| (n * 7 + n / 251) as u8).collect();
    let expected = noise.clone();
    rig.world.run(async move {
        let mut client = open(stream, true).await;
        client.send(&[request(1, 1, 1, 512, len), noise].concat()).await;
        assert_eq!(client.reply(|_| 0).await.unwrap().error, 0);
        let asked: Vec<_> = (0..40).map(|n| request(0, 0, n, 512 * n, 512 * 5)).collect();
        client.send(&asked.concat()).await;
        // Keys may change at any time.
        client.stream.connection.borrow_mut().refresh_traffic_keys().unwrap();
        client.send(&request(0, 0, 99, 512, len)).await;
        let mut seen = 0;
        for _ in 0..41 {
            let reply = client.reply(|_| 0).await.unwrap();
            seen += 1;
            if reply.cookie == 99 {
                assert!(reply.data == expected);
            }
        }
        assert_eq!(seen, 41);
        client.send(&request(2, 0, 0, 0, 0)).await;
        // The server takes its leave.
        assert!(client.receive(1).await.is_err());
        client.stream.connection.borrow_mut().process_new_packets().unwrap();
    });
    assert_eq!(rig.faults(), []);
}

#[test]
fn what_was_agreed_on_in_the_clear_is_forgotten() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Offered), |export| export);
    let connection = certificates.client("good");
    let stream = rig.door.connect();
    rig.world.run(async move {
        stream.recv_exact(Buf::new(18)).await.1.unwrap();
        let hello = [3_u32.to_be_bytes().to_vec(), option(8, b"")].concat();
        stream.send_all(Buf::copy_of(&hello).freeze()).await.unwrap();
        stream.recv_exact(Buf::new(20)).await.1.unwrap();
        let stream = Encrypted::upgrade(stream, connection).await.unwrap();
        let mut client = open(stream, false).await;
        client.send(&request(0, 0, 1, 0, 512)).await;
        assert_eq!(client.reply(|_| 512).await.unwrap().data, [0; 512]);
    });
    assert_eq!(rig.faults(), []);
}

/// Plays `bytes` right behind the wish for TLS, in the same packet; what comes back.
fn behind_the_wish(rig: &Rig, bytes: Vec<u8>) -> Vec<u8> {
    let stream = rig.door.connect();
    rig.world.run(async move {
        let all = [3_u32.to_be_bytes().to_vec(), option(5, b""), bytes].concat();
        // The server may have left before all of it is taken.
        let _ = stream.send_all(Buf::copy_of(&all).freeze()).await;
        stream.finish();
        stream.drain().await.split_off(18 + 20)
    })
}

#[test]
fn nothing_in_the_clear_counts_after_the_wish_for_tls() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Offered), |export| export);
    for bytes in [option(1, b"disk"), option(3, b""), option(2, b""), vec![0x16; 70_000]] {
        let answer = behind_the_wish(&rig, bytes);
        // An alert of TLS, not a word of NBD.
        assert_eq!(answer.first(), Some(&21), "{answer:?}");
        assert_eq!(answer.len(), 7, "{answer:?}");
    }
    let faults = rig.faults();
    assert!(faults.iter().all(|fault| matches!(fault, Fault::Tls(_))), "{faults:?}");
    assert_eq!(faults.len(), 4);
}

#[test]
fn who_takes_his_leave_has_no_say_any_more() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Forced), |export| export);
    // A warning that the connection is being closed, and then more than is taken at a time.
    behind_the_wish(&rig, [&[21, 3, 3, 0, 2, 1, 0][..], &[0; 20_000]].concat());
    assert_eq!(rig.faults().len(), 1);
    let stream = connect(&rig, &certificates, "good").unwrap();
    rig.world.run(async move {
        let mut client = open(stream, true).await;
        client.stream.connection.borrow_mut().send_close_notify();
        client.stream.flush().await.unwrap();
        let junk = Buf::copy_of(&[0; 2000]).freeze();
        client.stream.stream.send_all(junk).await.unwrap();
        assert!(client.receive(1).await.is_err());
    });
    assert_eq!(rig.faults().len(), 1, "nothing is to be said of that");
}

#[test]
fn a_slow_handshake_ends_with_the_time_for_negotiating() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Forced), |export| export);
    let stream = rig.door.connect();
    rig.world.run(async move {
        ask_for_tls(&stream).await;
        stream.drain().await
    });
    assert_eq!(rig.world.now(), limits::NEGOTIATION_TIME_MAX);
    assert_eq!(rig.faults(), [Fault::SlowNegotiation]);
}

#[test]
fn a_client_with_a_wrong_certificate_is_refused_and_told_of() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Forced), |export| export);
    let table = [
        ("none", "TLS: peer sent no certificates"),
        ("expired", "TLS: invalid peer certificate: certificate expired"),
        ("stranger", "TLS: invalid peer certificate: UnknownIssuer"),
        ("server", "TLS: invalid peer certificate: certificate does not allow extended key usage"),
    ];
    for (client, words) in table {
        let connected = connect(&rig, &certificates, client);
        // With TLS 1.3 a client learns of it only when it receives something.
        if let Ok(stream) = connected {
            let (_, result) = rig.world.run(async move { stream.recv_exact(Buf::new(1)).await });
            assert!(result.is_err());
        }
        let faults = rig.faults();
        let said = faults.last().unwrap().to_string();
        assert!(said.starts_with(words), "{client}: {said}");
    }
    assert_eq!(rig.faults().len(), table.len());
}

#[test]
fn a_record_that_was_tampered_with_ends_the_connection() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Forced), |export| export);
    let stream = connect(&rig, &certificates, "good").unwrap();
    rig.world.run(async move {
        let mut client = open(stream, true).await;
        let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
        let raw: &Pipe = &client.stream.stream;
        raw.send_all(Buf::copy_of(&forged).freeze()).await.unwrap();
        assert!(client.receive(1).await.is_err());
    });
    assert_eq!(rig.faults(), [Fault::Tls("cannot decrypt peer's message".into())]);
}

#[test]
fn replies_that_an_encrypted_client_does_not_take_are_bounded_and_end_with_the_stop() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Forced), |export| export);
    let stream = connect(&rig, &certificates, "good").unwrap();
    let client = rig.world.run(async move {
        let mut client = open(stream, true).await;
        // A few more than may be in progress.
        let asked: Vec<_> = (0..70).map(|n| request(0, 0, n, 0, SIZE as u32)).collect();
        client.send(&asked.concat()).await;
        client
    });
    while rig.world.tasks.run_one(|_| 0) {}
    let bytes = rig.server.inflight_bytes();
    assert!(bytes > SIZE as u64 && bytes <= limits::BYTES_INFLIGHT_MAX, "{bytes}");
    rig.server.stop();
    rig.world.settle();
    assert_eq!(rig.complaints.borrow()[0].fault, Fault::RepliesNotTaken);
    drop(client);
    assert_eq!((rig.server.connection_count(), rig.server.inflight_bytes()), (0, 0));
}

#[test]
fn requests_are_refused_alike_with_tls_and_without() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Offered), |export| export.read_only());
    let stream = connect(&rig, &certificates, "good").unwrap();
    let asked =
        [request(1, 0, 0, 0, 512), vec![1; 512], request(0, 0, 1, 1, 512), request(9, 0, 2, 0, 0)]
            .concat();
    let again = asked.clone();
    let encrypted = rig.world.run(async move {
        let mut client = open(stream, true).await;
        client.send(&asked).await;
        let mut replies = Vec::new();
        for _ in 0..3 {
            replies.push(client.reply(|_| 0).await.unwrap());
        }
        replies
    });
    let client = rig.open(true);
    let (client, plain) = rig.ask(client, again, 3, |_| 0);
    drop(client);
    assert_eq!(errors(&encrypted), [1, 22, 22]);
    assert_eq!(encrypted, plain);
    assert_eq!(rig.faults(), []);
}

#[test]
fn an_export_that_needs_tls_is_there_for_encrypted_clients_only() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Offered), |export| export.needing_tls());
    let stream = Rc::new(rig.door.connect());
    let sender = Rc::clone(&stream);
    let answer = rig.world.run(async move {
        let hello = [3_u32.to_be_bytes().to_vec(), option(3, b""), option(1, b"disk")].concat();
        sender.send_all(Buf::copy_of(&hello).freeze()).await.unwrap();
        sender.drain().await
    });
    assert_eq!(answer.len(), 18 + 20, "an empty list, and the end");
    let stream = connect(&rig, &certificates, "good").unwrap();
    rig.world.run(async move { drop(open(stream, true).await) });
    assert_eq!(rig.faults(), [Fault::NeedsTls]);
}

/// The kinds of the replies to options, each to one of them.
async fn kinds<T: Transport>(client: &mut Client<T>, options: &[(u32, &[u8])]) -> Vec<u32> {
    let mut kinds = Vec::new();
    for (number, payload) in options {
        client.send(&option(*number, payload)).await;
        let head = client.receive(20).await.unwrap();
        let words = words(&head);
        assert_eq!(words[2], *number);
        client.receive(words[4] as usize).await.unwrap();
        kinds.push(words[3]);
    }
    kinds
}

const TLS_REQUIRED: u32 = (1 << 31) + 5;

#[test]
fn without_tls_a_server_that_forces_it_answers_nothing_and_with_it_as_ever() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Forced), |export| export);
    let stream = rig.door.connect();
    let connection = certificates.client("good");
    rig.world.run(async move {
        stream.recv_exact(Buf::new(18)).await.1.unwrap();
        stream.send_all(Buf::copy_of(&3_u32.to_be_bytes()).freeze()).await.unwrap();
        let mut client = Client::bare(stream, false);
        let go = b"\0\0\0\x04disk\0\0";
        let every: [(u32, &[u8]); 8] =
            [(3, b""), (6, go), (7, go), (8, b""), (9, b""), (10, b""), (11, b""), (77, b"?")];
        assert_eq!(kinds(&mut client, &every).await, [TLS_REQUIRED; 8]);
        assert_eq!(kinds(&mut client, &[(5, b"data")]).await, [(1 << 31) + 3]);
        let stream = Encrypted::upgrade(client.stream, connection).await.unwrap();
        let mut client = Client::bare(stream, false);
        let invalid = (1 << 31) + 3;
        let answers = kinds(&mut client, &[(5, b""), (8, b""), (9, b""), (77, b"")]).await;
        assert_eq!(answers, [invalid, 1, invalid, (1 << 31) + 1]);
        assert_eq!(kinds(&mut client, &[(2, b"")]).await, [1]);
        assert!(client.receive(1).await.is_err());
    });
    let stream = rig.door.connect();
    rig.world.run(async move {
        let hello = [3_u32.to_be_bytes().to_vec(), option(1, b"disk")].concat();
        stream.send_all(Buf::copy_of(&hello).freeze()).await.unwrap();
        assert_eq!(stream.drain().await.len(), 18);
    });
    assert_eq!(rig.faults(), [Fault::NeedsTls]);
}

#[test]
fn names_cannot_be_tried_out_where_one_needs_tls() {
    let certificates = Certificates::new();
    let rig = Rig::with(certificates.settings(TlsMode::Offered), |export| export.needing_tls());
    let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
    let open = Rc::new(MemoryExport::new(runtime, "open", SIZE));
    rig.server.exports().add(open).unwrap();
    let stream = rig.door.connect();
    rig.world.run(async move {
        stream.recv_exact(Buf::new(18)).await.1.unwrap();
        stream.send_all(Buf::copy_of(&3_u32.to_be_bytes()).freeze()).await.unwrap();
        let mut client = Client::bare(stream, false);
        let go = |name: &str| [b"\0\0\0\x04", name.as_bytes(), b"\0\0"].concat();
        for name in ["disk", "none"] {
            assert_eq!(kinds(&mut client, &[(7, &go(name))]).await, [TLS_REQUIRED], "{name}");
        }
        assert_eq!(kinds(&mut client, &[(7, &go("open"))]).await, [3], "information about it");
    });
    rig.world.settle();
    assert!(rig.complaints.borrow().is_empty());
}

#[test]
fn files_that_cannot_be_used_are_refused_with_their_names() {
    let certificates = Certificates::new();
    let good = certificates.files(true);
    let load = |files: &TlsFiles| Tls::load(files, TlsMode::Forced).map(|_| ());
    assert!(load(&good).is_ok() && load(&certificates.files(false)).is_ok());
    let junk = certificates.path("junk.pem");
    std::fs::write(&junk, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    let gone = certificates.path("gone.pem");
    let other_key = certificates.path("good/client-key.pem");
    let table = [
        TlsFiles { certificate: gone.clone(), ..good.clone() },
        TlsFiles { key: gone.clone(), ..good.clone() },
        TlsFiles { client_ca: Some(gone), ..good.clone() },
        TlsFiles { certificate: good.key.clone(), ..good.clone() },
        TlsFiles { key: good.certificate.clone(), ..good.clone() },
        TlsFiles { client_ca: Some(good.key.clone()), ..good.clone() },
        TlsFiles { certificate: junk.clone(), ..good.clone() },
        TlsFiles { client_ca: Some(junk), ..good.clone() },
        TlsFiles { key: other_key, ..good.clone() },
    ];
    let mut said = Vec::new();
    for files in &table {
        let error = load(files).expect_err("refused");
        assert!(!error.hint().is_empty());
        said.push((error.to_string(), error));
    }
    assert!(said[..3].iter().all(|(_, error)| matches!(error, TlsError::Read(..))));
    assert!(said[3..6].iter().all(|(_, error)| matches!(error, TlsError::NotPem(..))));
    assert!(said[6..8].iter().all(|(_, error)| matches!(error, TlsError::Unusable(..))));
    assert!(matches!(said[8].1, TlsError::Mismatch(_)), "{}", said[8].0);
    assert!(said[0].0.contains("gone.pem") && said[6].0.contains("junk.pem"));
}

#[test]
fn what_clients_would_refuse_of_the_servers_certificate_is_known() {
    let certificates = Certificates::new();
    let load = |name: &str| {
        let certificate = certificates.path(&format!("{name}-cert.pem"));
        let files = TlsFiles {
            key: certificates.path(&format!("{name}-key.pem")),
            certificate,
            client_ca: None,
        };
        Tls::load(&files, TlsMode::Forced).unwrap()
    };
    let of_year = |year: u64| (year - 1970) * 31_556_952;
    let good = load("server");
    assert_eq!(good.fault_at(of_year(2026)), None);
    assert_eq!(good.fault_at(of_year(2019)), Some(CertificateFault::NotYetValid));
    assert_eq!(good.fault_at(of_year(4001)), Some(CertificateFault::Expired));
    assert_eq!(load("good/client").fault_at(of_year(2026)), Some(CertificateFault::NotForServers));
    // Its own root, and without a purpose.
    assert_eq!(load("own").fault_at(of_year(2026)), None);
    assert_eq!(load("own").fault_at(of_year(5001)), Some(CertificateFault::Expired));
}
