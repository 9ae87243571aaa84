//! Real clients under TLS.

use std::path::Path;

use crate::support::real_server::{RealServer, SIZE, client, installed, run};
use crate::support::tls::Certificates;
use forebay_export::nbd::TlsMode;

/// QEMU's way to name an export under TLS.
fn qemu(server: &RealServer, certificates: &Path) -> [String; 3] {
    let directory = certificates.display();
    [
        format!("--object=tls-creds-x509,id=tls,endpoint=client,dir={directory}"),
        "--image-opts".to_owned(),
        format!(
            "driver=raw,file.driver=nbd,file.host=localhost,file.port={},file.export=plain,\
             file.tls-creds=tls",
            server.tcp.port()
        ),
    ]
}

fn bytes() -> Vec<u8> {
    (0..SIZE as u32).map(|n| (n >> 9) as u8 ^ n as u8).collect()
}

#[test]
fn libnbd_copies_in_and_out_under_tls() {
    if !installed(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    let certificates = Certificates::new();
    let server = RealServer::start_with(Some(certificates.tls(TlsMode::Forced)));
    let uri = server.tls_uri("plain", &certificates.path("good"));
    let text = run("nbdinfo", &[&uri]);
    assert!(text.contains("protocol: newstyle-fixed with TLS"), "{text}");
    let (input, output) = (server.file("input"), server.file("output"));
    std::fs::write(&input, bytes()).unwrap();
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    run("nbdcopy", &["--connections=4", "--requests=64", "--flush", input, &uri]);
    run("nbdcopy", &["--connections=4", "--requests=64", &uri, output]);
    assert!(std::fs::read(output).unwrap() == bytes());
    run("nbdcopy", &["--connections=1", "--request-size=33554432", &uri, output]);
    assert!(std::fs::read(output).unwrap() == bytes());
    assert!(server.complaints.try_recv().is_err(), "there is nothing to complain of");
    assert!(server.stop() == bytes());
}

#[test]
fn qemu_converts_and_compares_under_tls() {
    if !installed(&["qemu-img", "qemu-io"]) {
        return;
    }
    let certificates = Certificates::new();
    let server = RealServer::start_with(Some(certificates.tls(TlsMode::Forced)));
    let [creds, opts, image] = qemu(&server, &certificates.path("good"));
    let fill = ["-c", "write -P 7 1M 3M", "-c", "write -f -z 2M 64k", "-c", "flush"];
    let read = ["-c", "read -P 7 1M 1M", "-c", "read -P 0 2M 64k", "-c", "read -P 7 2112k 960k"];
    let text = run("qemu-io", &[&[&*creds, &opts][..], &fill, &read, &[&image]].concat());
    assert!(!text.contains("verification failed"), "{text}");
    let output = server.file("output");
    let output = output.to_str().unwrap();
    run("qemu-img", &["convert", &creds, &opts, &image, "-O", "raw", output]);
    let copied = std::fs::read(output).unwrap();
    assert!(copied[1 << 20] == 7 && copied == server.stop());
}

#[test]
fn real_clients_with_wrong_certificates_are_refused_and_told_of() {
    if !installed(&["nbdinfo", "qemu-img"]) {
        return;
    }
    let certificates = Certificates::new();
    let server = RealServer::start_with(Some(certificates.tls(TlsMode::Forced)));
    for (directory, words) in [
        ("none", "TLS: peer sent no certificates"),
        ("expired", "TLS: invalid peer certificate"),
        // Such a client is told which roots there are, and keeps its certificate to itself.
        ("stranger", "TLS: peer sent no certificates"),
    ] {
        let uri = server.tls_uri("plain", &certificates.path(directory));
        assert!(!client("nbdinfo", &[&uri]).output().unwrap().status.success(), "{directory}");
        let told = server.complaint();
        assert!(told.contains(words), "{told}");
    }
    let [creds, opts, image] = qemu(&server, &certificates.path("stranger"));
    let refused = client("qemu-img", &["info", &creds, &opts, &image]).output().unwrap();
    assert!(!refused.status.success());
    // Nor is anybody served in the clear.
    let refused = client("nbdinfo", &[&server.tcp_uri("plain")]).output().unwrap();
    assert!(!refused.status.success());
    let list = client("nbdinfo", &["--list", &server.tcp_uri("")]).output().unwrap();
    assert!(!list.status.success());
    server.stop();
}

#[test]
fn a_client_that_trusts_another_root_leaves_by_itself() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let certificates = Certificates::new();
    let server = RealServer::start_with(Some(certificates.tls(TlsMode::Forced)));
    let other = Certificates::new();
    let uri = server.tls_uri("plain", &other.path("good"));
    assert!(!client("nbdinfo", &[&uri]).output().unwrap().status.success());
    let told = server.complaint();
    assert!(told.contains("TLS: it left within the handshake"), "{told}");
    server.stop();
}

#[test]
fn where_tls_is_offered_both_kinds_of_clients_are_served() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let certificates = Certificates::new();
    let server = RealServer::start_with(Some(certificates.tls(TlsMode::Offered)));
    run("nbdinfo", &[&server.tls_uri("plain", &certificates.path("good"))]);
    let text = run("nbdinfo", &[&server.unix_uri("plain")]);
    assert!(text.contains("without TLS"), "{text}");
    server.stop();
}
