//! Telling systemd how the daemon is: datagrams to the socket that it names.
//!
//! * The watchdog is fed only while every reactor does what it is asked for: one that hangs, or a
//!   thread of ours that is stuck in the kernel, ends in a restart, which a pool survives.
//! * While the daemon starts or stops, the same sign of life asks for more time: recovery of a large
//!   pool and the end of a job may take longer than the service manager's patience.

use std::cell::Cell;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::rc::Rc;

use forebay_device::runtime::{MICROSECOND, MILLISECOND, Nanos, SECOND};

use super::Daemon;
use crate::crew::Pulse;

/// Time between two signs of life without a watchdog.
const BEAT_INTERVAL: Nanos = 10 * SECOND;

/// What is asked for with each of them while the daemon starts or stops.
const EXTENSION: Nanos = 60 * SECOND;

/// Sends a state, as `READY=1`; nothing happens where nobody listens.
pub(super) fn notify(state: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = place.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&place),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold a reactor up.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!("cannot tell the service manager {state}: {error}");
    }
}

/// How long systemd waits for a sign of life, if it wants any of this process.
fn watchdog() -> Option<Nanos> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let span = number("WATCHDOG_USEC")?.checked_mul(MICROSECOND)?;
    (is_ours && span > 0).then_some(span)
}

/// What the service manager waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Serving,
    Stopping,
}

impl Daemon {
    /// Tells the service manager that a phase begins.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        match phase {
            Phase::Starting => {}
            Phase::Serving => notify("READY=1"),
            Phase::Stopping => notify("STOPPING=1"),
        }
    }

    /// Gives signs of life until the reactor is closed.
    pub(super) async fn beat(self: Rc<Self>) {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return;
        }
        let watchdog = watchdog();
        let interval = watchdog.map_or(BEAT_INTERVAL, |span| span / 3).max(MILLISECOND);
        let pulse = Pulse::of(&self.crew);
        let is_told = Cell::new(false);
        while self.runtime().sleep(interval).await.result.is_ok() {
            if !pulse.take(&self.crew) {
                if watchdog.is_some() && !is_told.replace(true) {
                    tracing::error!("a reactor hangs; the watchdog is not fed");
                }
                continue;
            }
            is_told.set(false);
            if watchdog.is_some() {
                notify("WATCHDOG=1");
            }
            if self.phase.get() != Phase::Serving {
                notify(&format!("EXTEND_TIMEOUT_USEC={}", EXTENSION / MICROSECOND));
            }
        }
    }
}
