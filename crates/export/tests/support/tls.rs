//! Certificates, right and wrong ones, and clients that use them.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_device::{Buf, Data, IoError, IoErrorKind};
use forebay_export::Transport;
use forebay_export::nbd::{Settings, Tls, TlsFiles, TlsMode};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::pipe::Pipe;
use super::protocol::option;

/// A directory with a root, a server's certificate, one (`own`) that is its own root, and clients' directories, each with the names
/// of files that libnbd and QEMU look for: `good`, and `expired`, `stranger` (of another root) and
/// `server` (not for clients), which are wrong.
pub struct Certificates(PathBuf);

fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().unwrap();
    let text = params.self_signed(&key).unwrap().pem();
    (text, Issuer::new(params, key))
}

/// A certificate and its key.
fn issue(
    issuer: &Issuer<'static, KeyPair>,
    purpose: ExtendedKeyUsagePurpose,
    year_last: i32,
) -> (String, String) {
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![purpose];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(year_last, 1, 1);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

impl Certificates {
    pub fn new() -> Self {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-certificates-{}-{number}", std::process::id());
        let all = Self(std::env::temp_dir().join(name));
        let ((root, ours), (_, theirs)) = (authority("ours"), authority("theirs"));
        let write = |place: &str, text: &str| std::fs::write(all.path(place), text).unwrap();
        for (client, issuer, purpose, year_last) in [
            ("good", &ours, ClientAuth, 4000),
            ("expired", &ours, ClientAuth, 2021),
            ("stranger", &theirs, ClientAuth, 4000),
            ("server", &ours, ServerAuth, 4000),
        ] {
            std::fs::create_dir_all(all.path(client)).unwrap();
            let (certificate, key) = issue(issuer, purpose, year_last);
            write(&format!("{client}/ca-cert.pem"), &root);
            write(&format!("{client}/client-cert.pem"), &certificate);
            write(&format!("{client}/client-key.pem"), &key);
        }
        std::fs::create_dir_all(all.path("none")).unwrap();
        write("none/ca-cert.pem", &root);
        write("ca-cert.pem", &root);
        let (certificate, key) = issue(&ours, ServerAuth, 4000);
        write("server-cert.pem", &certificate);
        write("server-key.pem", &key);
        let (key, names) = (KeyPair::generate().unwrap(), ["localhost".to_owned()]);
        let own = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        write("own-cert.pem", &own.pem());
        write("own-key.pem", &key.serialize_pem());
        all
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn files(&self, checks_clients: bool) -> TlsFiles {
        TlsFiles {
            certificate: self.path("server-cert.pem"),
            key: self.path("server-key.pem"),
            client_ca: checks_clients.then(|| self.path("ca-cert.pem")),
        }
    }

    pub fn tls(&self, mode: TlsMode) -> Tls {
        Tls::load(&self.files(true), mode).expect("the certificates are right")
    }

    pub fn settings(&self, mode: TlsMode) -> Settings {
        let tls = self.tls(mode);
        Settings { tls: Some(tls), ..Settings::default() }
    }

    /// What a client of one of the directories begins with.
    pub fn client(&self, client: &str) -> ClientConnection {
        begin(&self.client_config(client))
    }

    pub fn client_config(&self, client: &str) -> Arc<ClientConfig> {
        let certificates = |path: &Path| {
            CertificateDer::pem_file_iter(path).map(|all| all.map(Result::unwrap).collect())
        };
        let mut roots = RootCertStore::empty();
        let root: Vec<_> = certificates(&self.path("ca-cert.pem")).unwrap();
        roots.add(root.into_iter().next().unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let directory = self.path(client);
        Arc::new(match certificates(&directory.join("client-cert.pem")) {
            Ok(chain) => {
                let key = PrivateKeyDer::from_pem_file(directory.join("client-key.pem")).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
            Err(_) => config.with_no_client_auth(),
        })
    }
}

/// A client's part of a connection.
pub fn begin(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap()
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What goes over the wire for `bytes`.
pub fn encrypt(connection: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in bytes.chunks(10_000) {
        connection.writer().write_all(piece).unwrap();
        while connection.wants_write() {
            connection.write_tls(&mut out).unwrap();
        }
    }
    out
}

/// A client's stream under TLS.
pub struct Encrypted {
    pub stream: Pipe,
    pub connection: RefCell<ClientConnection>,
}

/// Begins as an NBD client and asks for TLS. The server takes nothing in the clear from here on.
pub async fn ask_for_tls(stream: &Pipe) {
    stream.recv_exact(Buf::new(18)).await.1.unwrap();
    let flags = Buf::copy_of(&3_u32.to_be_bytes());
    stream.send_all(flags.freeze()).await.unwrap();
    ask(stream).await;
}

async fn ask(stream: &Pipe) {
    stream.send_all(Buf::copy_of(&option(5, b"")).freeze()).await.unwrap();
    let (reply, result) = stream.recv_exact(Buf::new(20)).await;
    result.unwrap();
    assert_eq!(reply[8..], [0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0]);
}

impl Encrypted {
    /// Does the handshake; an error if the server does not take it.
    pub async fn open(stream: Pipe, connection: ClientConnection) -> Result<Self, IoError> {
        stream.recv_exact(Buf::new(18)).await.1?;
        stream.send_all(Buf::copy_of(&3_u32.to_be_bytes()).freeze()).await?;
        Self::upgrade(stream, connection).await
    }

    /// Asks for TLS and does the handshake.
    pub async fn upgrade(stream: Pipe, connection: ClientConnection) -> Result<Self, IoError> {
        ask(&stream).await;
        let it = Self { stream, connection: RefCell::new(connection) };
        it.flush().await?;
        while it.connection.borrow().is_handshaking() {
            it.more().await?;
            it.flush().await?;
        }
        Ok(it)
    }

    /// Sends what is encrypted.
    pub async fn flush(&self) -> Result<(), IoError> {
        let mut out = Vec::new();
        while self.connection.borrow().wants_write() {
            self.connection.borrow_mut().write_tls(&mut out).unwrap();
        }
        if out.is_empty() {
            return Ok(());
        }
        self.stream.send_all(Buf::copy_of(&out).freeze()).await
    }

    /// Receives something.
    async fn more(&self) -> Result<(), IoError> {
        let (buf, count) = self.stream.recv(Buf::new(1000)).await;
        let mut bytes = &buf[..count?];
        if bytes.is_empty() {
            return Err(IoErrorKind::Vanished.into());
        }
        let mut connection = self.connection.borrow_mut();
        while !bytes.is_empty() {
            if connection.read_tls(&mut bytes).unwrap() == 0 {
                return Err(IoErrorKind::Vanished.into());
            }
            let failed = |_| IoError::new(IoErrorKind::Invalid);
            connection.process_new_packets().map_err(failed)?;
        }
        Ok(())
    }
}

impl Transport for Encrypted {
    async fn recv_exact(&self, mut buf: Buf) -> (Buf, Result<(), IoError>) {
        let mut filled = 0;
        while filled < buf.len() {
            let read = self.connection.borrow_mut().reader().read(&mut buf[filled..]);
            match read {
                Ok(0) => return (buf, Err(IoErrorKind::Vanished.into())),
                Ok(count) => filled += count,
                Err(_) => {
                    if let Err(error) = self.more().await {
                        return (buf, Err(error));
                    }
                }
            }
        }
        (buf, Ok(()))
    }

    async fn recv(&self, buf: Buf) -> (Buf, Result<usize, IoError>) {
        let (buf, result) = self.recv_exact(buf).await;
        let len = buf.len();
        (buf, result.map(|()| len))
    }

    async fn send_all(&self, data: Data) -> Result<(), IoError> {
        for piece in data.chunks(10_000) {
            self.connection.borrow_mut().writer().write_all(piece).unwrap();
            self.flush().await?;
        }
        Ok(())
    }

    fn peer(&self) -> String {
        self.stream.peer()
    }

    fn shutdown(&self) {
        self.stream.shutdown();
    }
}
