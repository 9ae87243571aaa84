//! A client of the protocol: an export of another server as a block device, for origins.
//!
//! * One connection, with as many requests in flight as there are; replies come in any order.
//! * `commands`: what has no answer yet, and what the server may still lose (INV-87).
//! * `offer`: the negotiation. `flow`: the connection, and the next one when it breaks.
//! * When the connection breaks, requests wait for the next one, for [`ORIGIN_RECONNECT_TIME_MAX`]; then they
//!   fail until the server is back. Nothing but the very same export is taken then.
//! * A server that has the connection and does not answer is like a disk that does not: requests wait.
//! * A server that outlives a connection must not carry out what is left of it behind what the next one
//!   asks for; the protocol has no word for that. Servers that were ended have nothing left, and others end
//!   what they have when they see the connection's end; behind a network that was cut they may see it late.

mod commands;
mod flow;
mod offer;
mod place;
mod reply;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Buf, Completer, Gate, Geometry, Io, IoError, Request, Runtime, io,
};

use self::commands::{Command, Commands, GONE};
pub use self::offer::RemoteError;
use self::offer::{Offer, negotiate};
pub use self::place::{Host, Place, PlaceError};
use crate::Transport;
use crate::nbd::limits::{
    ORIGIN_CONNECT_TIME_MAX, ORIGIN_RECONNECT_TIME_MAX, PARTS_INFLIGHT_MAX, ZEROES_BYTES,
};
use crate::nbd::signal::{Signal, Waiters, within};
use crate::nbd::wire::{Form, command};

/// Makes connections to one server.
pub trait Dial: 'static {
    /// A connection.
    type Stream: Transport;

    /// Connects. May be dropped before it is ready.
    fn dial(&self) -> impl Future<Output = std::io::Result<Self::Stream>>;
}

/// See the head of the file.
pub struct Remote<D: Dial>(Rc<Inner<D>>);

struct Inner<D> {
    runtime: Rc<dyn Runtime>,
    dial: D,
    name: String,
    offer: Offer,
    commands: RefCell<Commands>,
    /// Woken when there is something to send, and when a connection ends.
    work: Waiters,
    /// Why there is no connection.
    trouble: RefCell<Option<RemoteError>>,
    /// Whether it has been gone for so long that nothing waits for it any more.
    is_down: Cell<bool>,
    /// Until when this host may write.
    gate: RefCell<Option<Rc<Gate>>>,
    closing: Signal,
}

/// A connection that is agreed on.
struct Connected<T> {
    stream: T,
    form: Form,
}

async fn connect<D: Dial>(
    runtime: &dyn Runtime,
    dial: &D,
    name: &str,
) -> Result<(Connected<D::Stream>, Offer), RemoteError> {
    let attempt = async {
        let stream = dial.dial().await;
        let stream = stream.map_err(|error| RemoteError::Unreachable(error.to_string()))?;
        let (offer, form) = negotiate(&stream, name).await?;
        Ok((Connected { stream, form }, offer))
    };
    within(runtime, ORIGIN_CONNECT_TIME_MAX, attempt).await.unwrap_or(Err(RemoteError::Silent))
}

impl<D: Dial> Remote<D> {
    /// Connects to an export.
    ///
    /// # Errors
    /// If it cannot be reached, or cannot be an origin.
    pub async fn open(
        runtime: &Rc<dyn Runtime>,
        dial: D,
        name: &str,
    ) -> Result<Remote<D>, RemoteError> {
        let (connected, offer) = connect(&**runtime, &dial, name).await?;
        let inner = Rc::new(Inner {
            runtime: Rc::clone(runtime),
            dial,
            name: name.to_owned(),
            offer,
            commands: RefCell::default(),
            work: Waiters::default(),
            trouble: RefCell::default(),
            is_down: Cell::new(false),
            gate: RefCell::default(),
            closing: Signal::default(),
        });
        runtime.spawn(Box::pin(flow::keep(Rc::clone(&inner), connected)));
        Ok(Remote(inner))
    }

    /// Why the server cannot be used at present, if so.
    pub fn trouble(&self) -> Option<RemoteError> {
        self.0.trouble.borrow().clone()
    }

    /// Whether requests fail because of it; before that they wait.
    pub fn is_down(&self) -> bool {
        self.0.is_down.get()
    }
}

impl<D: Dial> Drop for Remote<D> {
    fn drop(&mut self) {
        self.0.closing.raise();
        self.0.work.wake_all();
    }
}

impl<D: Dial> BlockDevice for Remote<D> {
    fn geometry(&self) -> Geometry {
        self.0.offer.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if let Err(error) = request.check(&self.geometry()) {
            return request.finish(Err(error), completer);
        }
        if self.0.is_short(&request) {
            return self.0.give(request, completer);
        }
        let inner = Rc::clone(&self.0);
        self.0.runtime.spawn(Box::pin(async move {
            match request {
                Request::Read { offset, buf } => inner.read_parts(offset, buf, completer).await,
                request => completer.done(inner.write_parts(request).await),
            }
        }));
    }

    fn fence(&self, gate: &Rc<Gate>) {
        *self.0.gate.borrow_mut() = Some(Rc::clone(gate));
    }
}

impl<D: Dial> Inner<D> {
    /// Whether one command will do.
    fn is_short(&self, request: &Request) -> bool {
        let Some(range) = request.range() else { return true };
        let can = self.offer.can_zero || !matches!(request, Request::WriteZeroes { .. });
        can && range.end - range.start <= u64::from(self.offer.request_bytes_max)
    }

    /// Gives the server a request that one command will do for.
    fn give(&self, request: Request, completer: Completer) {
        let (offset, len) = request.range().map_or((0, 0), |r| (r.start, (r.end - r.start) as u32));
        let (kind, data, buf) = match request {
            Request::Read { buf, .. } => (command::READ, None, Some(buf)),
            Request::Write { data, .. } => (command::WRITE, Some(data), None),
            Request::Flush => (command::FLUSH, None, None),
            Request::Discard { .. } => (command::TRIM, None, None),
            Request::WriteZeroes { .. } => (command::WRITE_ZEROES, None, None),
        };
        let mut command = Command::new(kind, offset, len, completer);
        (command.data, command.buf) = (data, buf);
        let mut commands = self.commands.borrow_mut();
        if self.is_down.get() || self.closing.is_raised() {
            return commands.finish(command, Err(GONE));
        }
        commands.add(command);
        drop(commands);
        self.work.wake_all();
    }

    fn begin(&self, request: Request) -> Io {
        let (completer, io) = io::pair();
        self.give(request, completer);
        io
    }

    /// Reads more than the server takes at once.
    async fn read_parts(&self, offset: u64, mut buf: Buf, completer: Completer) {
        let (len, part) = (buf.len(), self.offer.request_bytes_max as usize);
        let mut parts = Vec::with_capacity(len.div_ceil(part));
        let mut at = offset;
        while buf.len() > part {
            let rest = buf.split_off(part);
            parts.push(self.begin(Request::Read { offset: at, buf }));
            (buf, at) = (rest, at + part as u64);
        }
        parts.push(self.begin(Request::Read { offset: at, buf }));
        let (mut whole, mut result) = (None::<Buf>, Ok(()));
        for io in parts {
            let outcome = io.await;
            result = result.and(outcome.result);
            whole = match (whole, outcome.buf) {
                (None, buf) => buf,
                (Some(mut all), Some(next)) => all.join(next).is_ok().then_some(all),
                (Some(_), None) => None,
            };
        }
        let whole = whole.filter(|all| all.len() == len);
        let result = if whole.is_none() { result.and(Err(GONE)) } else { result };
        completer.complete(result, Some(whole.unwrap_or_else(|| Buf::zeroed(len))));
    }

    /// Writes, zeroes or discards more than the server takes at once.
    async fn write_parts(&self, request: Request) -> Result<(), IoError> {
        let Some(range) = request.range() else { return Ok(()) };
        let as_data = matches!(request, Request::WriteZeroes { .. }) && !self.offer.can_zero;
        let most = self.offer.request_bytes_max;
        let most = u64::from(if as_data { most.min(ZEROES_BYTES) } else { most });
        let zeroes = as_data.then(|| Buf::zeroed(most as usize).freeze());
        let mut inflight = VecDeque::with_capacity(PARTS_INFLIGHT_MAX);
        let (mut at, mut result) = (range.start, Ok(()));
        while result.is_ok() && (at < range.end || !inflight.is_empty()) {
            while at < range.end && inflight.len() < PARTS_INFLIGHT_MAX {
                let (offset, len) = (at, (range.end - at).min(most));
                let from = (offset - range.start) as usize;
                inflight.push_back(self.begin(match (&request, &zeroes) {
                    (Request::Write { data, .. }, _) => {
                        let data = data.slice(from..from + len as usize);
                        Request::Write { offset, data, durable: false }
                    }
                    (_, Some(zeroes)) => {
                        let data = zeroes.slice(0..len as usize);
                        Request::Write { offset, data, durable: false }
                    }
                    (Request::Discard { .. }, None) => Request::Discard { offset, len },
                    _ => Request::WriteZeroes { offset, len },
                }));
                at += len;
            }
            if let Some(oldest) = inflight.pop_front() {
                result = oldest.done().await;
            }
        }
        // A failed request has ended only when nothing of it can reach the disk any more.
        for io in inflight {
            let _ = io.await;
        }
        result
    }
}
