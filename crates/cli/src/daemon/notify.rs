//! Telling systemd how the daemon is: one datagram to the socket that it names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state, as `READY=1`; nothing happens where nobody listens.
pub(super) fn notify(state: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = place.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&place),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!("cannot tell the service manager {state}: {error}");
    }
}
