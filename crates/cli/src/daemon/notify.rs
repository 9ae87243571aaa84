//! Telling systemd how the daemon is: datagrams to the socket that it names.
//!
//! * The watchdog is fed only while every reactor does what it is asked for: one that hangs, or a
//!   thread of ours that is stuck in the kernel, ends in a restart, which a pool survives.
//! * While the daemon starts or stops, the same sign of life asks for more time: recovery of a large
//!   pool and the end of a job may take longer than the service manager's patience.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::rc::Rc;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use forebay_device::runtime::{MICROSECOND, MILLISECOND, Nanos, SECOND};

use super::Daemon;
use crate::crew::Pulse;

/// Time between two signs of life without a watchdog.
const BEAT_INTERVAL: Nanos = 10 * SECOND;

/// What is asked for with each of them while the daemon starts or stops.
const EXTENSION: Nanos = 60 * SECOND;

/// How long the end may ask for more: clients are drained and the index is saved in less than a minute.
/// After that something does not answer, such as a request to an origin, and a machine that is to go
/// down must not wait for it; pools survive being killed.
const STOP_TIME_MAX: Nanos = 300 * SECOND;

/// Whether there is a service manager.
pub(super) fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Sends a state, as `READY=1`; nothing happens where nobody listens.
pub(super) fn notify(state: &str) {
    tell(state, None);
}

/// Gives a descriptor to the service manager, which passes it to the next process under this name.
/// Whether it was told; what is not to be stored, it closes.
pub(super) fn store(name: &str, descriptor: BorrowedFd<'_>) -> bool {
    tell(&format!("FDSTORE=1\nFDNAME={name}"), Some(descriptor))
}

/// Takes back what [`store`] has given.
pub(super) fn forget(name: &str) {
    tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None);
}

fn tell(state: &str, descriptor: Option<BorrowedFd<'_>>) -> bool {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return false };
    let sent = send(&place, state, descriptor);
    if let Err(error) = &sent {
        tracing::warn!("cannot tell the service manager {state:?}: {error}");
    }
    sent.is_ok()
}

fn send(place: &OsStr, state: &str, descriptor: Option<BorrowedFd<'_>>) -> std::io::Result<()> {
    let address = match place.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold a reactor up.
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(&socket, &[IoSlice::new(state.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
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
        if !is_managed() {
            return;
        }
        let watchdog = watchdog();
        let interval = watchdog.map_or(BEAT_INTERVAL, |span| span / 3).max(MILLISECOND);
        let pulse = Pulse::of(&self.crew);
        let is_told = Cell::new(false);
        let mut stopping = 0;
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
            let needs_time = match self.phase.get() {
                Phase::Starting => true,
                Phase::Serving => false,
                Phase::Stopping => {
                    stopping += interval;
                    stopping <= STOP_TIME_MAX
                }
            };
            if needs_time {
                notify(&format!("EXTEND_TIMEOUT_USEC={}", EXTENSION / MICROSECOND));
            }
        }
    }
}
