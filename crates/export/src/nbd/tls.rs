//! TLS: a server's certificate, and who has to use it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig};

/// Files of a server, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those between it and its root.
    pub certificate: PathBuf,
    /// The certificate's private key, not encrypted.
    pub key: PathBuf,
    /// Roots of clients' certificates. With them a client needs a certificate.
    pub client_ca: Option<PathBuf>,
}

/// Which clients have to use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Those of exports that [need it](crate::Export::needs_tls); the others may.
    Offered,
    /// All; nothing is told to one that does not.
    Forced,
}

/// What a server needs for TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    mode: TlsMode,
    checks_clients: bool,
    leaf: Leaf,
}

/// Why clients refuse a server's certificate, whatever roots and names they know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateFault {
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// It is made for something else than servers.
    NotForServers,
}

impl std::fmt::Display for CertificateFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expired => "it has expired",
            Self::NotYetValid => "it is not valid yet",
            Self::NotForServers => "it is not made for servers",
        })
    }
}

/// A server's certificate, as clients look at it.
#[derive(Clone, Debug)]
struct Leaf {
    certificate: CertificateDer<'static>,
    /// One that takes the certificate itself for a root: what it says of time and purpose comes before
    /// what it says of roots. `None` for a certificate that cannot stand as one.
    client: Option<Arc<WebPkiServerVerifier>>,
}

impl Leaf {
    fn new(certificate: CertificateDer<'static>, provider: Arc<CryptoProvider>) -> Leaf {
        let mut roots = RootCertStore::empty();
        let is_root = roots.add(certificate.clone()).is_ok();
        let client = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Leaf { certificate, client: client.ok().filter(|_| is_root) }
    }

    fn fault_at(&self, unix_s: u64) -> Option<CertificateFault> {
        let name = ServerName::try_from("localhost").ok()?;
        let at = UnixTime::since_unix_epoch(Duration::from_secs(unix_s));
        let client = self.client.as_ref()?;
        use CertificateError as Bad;
        match client.verify_server_cert(&self.certificate, &[], &name, &[], at).err()? {
            rustls::Error::InvalidCertificate(bad) => match bad {
                Bad::Expired | Bad::ExpiredContext { .. } => Some(CertificateFault::Expired),
                Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                    Some(CertificateFault::NotYetValid)
                }
                Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
                    Some(CertificateFault::NotForServers)
                }
                // Its names and roots are the clients' matter.
                _ => None,
            },
            _ => None,
        }
    }
}

/// Why there can be no TLS.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    Read(PathBuf, io::Error),
    /// A file is no PEM, or nothing in it is what it should have.
    NotPem(PathBuf, &'static str),
    /// The key belongs to another certificate.
    Mismatch(TlsFiles),
    /// A certificate or key that is not understood.
    Unusable(PathBuf, String),
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::NotPem(path, what) => write!(f, "there is no {what} in {}", path.display()),
            Self::Mismatch(files) => write!(
                f,
                "the key {} is not that of the certificate {}",
                files.key.display(),
                files.certificate.display()
            ),
            Self::Unusable(path, why) => write!(f, "cannot use {}: {why}", path.display()),
        }
    }
}

impl std::error::Error for TlsError {}

impl TlsError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read(..) => "check the path and who may read it",
            Self::NotPem(_, "private key") => {
                "PEM is text with a line \"-----BEGIN PRIVATE KEY-----\"; an encrypted key cannot \
                 be used: `openssl pkey` writes it in the clear"
            }
            Self::NotPem(..) => "PEM is text with a line \"-----BEGIN CERTIFICATE-----\"",
            Self::Mismatch(_) => "take both from the same request for a certificate",
            Self::Unusable(..) => "RSA of 2048 to 8192 bits, ECDSA and Ed25519 can be used",
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::Read(path.to_owned(), error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let all = all.unwrap_or_default();
    if all.is_empty() {
        return Err(TlsError::NotPem(path.to_owned(), "certificate"));
    }
    Ok(all)
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// If one of them is not there or not what it should be.
    pub fn load(files: &TlsFiles, mode: TlsMode) -> Result<Tls, TlsError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |why: &dyn std::fmt::Display| TlsError::Unusable(path, why.to_string())
        };
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
            .map_err(|_| TlsError::NotPem(files.key.clone(), "private key"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let leaf = Leaf::new(chain[0].clone(), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&files.certificate)(&error))?;
        let config = match &files.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| unusable(path)(&error))?;
                }
                let roots = Arc::new(roots);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.build().map_err(|error| unusable(path)(&error))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch(files.clone())
            }
            rustls::Error::InvalidCertificate(_) => unusable(&files.certificate)(&error),
            error => unusable(&files.key)(&error),
        })?;
        // Connections last for days: nothing is gained from resuming one, and each client's
        // certificate is looked at again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let checks_clients = files.client_ca.is_some();
        Ok(Tls { config: Arc::new(config), mode, checks_clients, leaf })
    }

    /// Whether every client has to use it.
    pub fn is_forced(&self) -> bool {
        self.mode == TlsMode::Forced
    }

    /// Whether clients need certificates.
    pub fn checks_clients(&self) -> bool {
        self.checks_clients
    }

    /// Why clients refuse the server's certificate at a time, in seconds since 1970.
    pub fn fault_at(&self, unix_s: u64) -> Option<CertificateFault> {
        self.leaf.fault_at(unix_s)
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}
