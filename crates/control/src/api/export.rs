//! How clients reach a volume.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::name::VolumeName;

/// Where an export listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Place {
    /// A Unix socket; an absolute path.
    Socket(PathBuf),
    /// A TCP port of the loopback address; 0 takes a free one.
    Port(u16),
    /// A TCP address. One that other machines can reach needs TLS with clients' certificates.
    Address(SocketAddr),
}

/// `POST /api/v1/exports`: let clients use a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddExport {
    /// The volume.
    pub volume: VolumeName,
    /// Where; without it a socket in the daemon's directory.
    #[serde(default)]
    pub place: Option<Place>,
    /// Whether clients' writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether clients have to use TLS, even if the daemon only offers it.
    #[serde(default)]
    pub require_tls: bool,
}

/// Whether clients use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsUse {
    /// They cannot.
    None,
    /// They may.
    Offered,
    /// They have to.
    Required,
}

/// One export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Export {
    /// The volume.
    pub volume: VolumeName,
    /// Where clients reach it.
    pub uri: String,
    /// Clients that are connected.
    pub clients: usize,
    /// Whether clients' writes are refused.
    pub read_only: bool,
    /// Whether clients use TLS.
    pub tls: TlsUse,
    /// Why it does not serve; empty if it does.
    pub reason: String,
}
