//! A client's stream, and the two ways to take it away from the tasks that use it.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Buf, Data};

use crate::Transport;
use crate::nbd::complaint::{End, Fault};
use crate::nbd::signal::Signal;

/// Bytes that are thrown away at a time.
const DISCARD_BYTES: u64 = 64 << 10;

/// What a server holds of each connection.
#[derive(Default)]
pub(crate) struct Control {
    /// Read nothing more; finish what has been read, then close.
    pub(crate) stop: Signal,
    /// Send nothing more; discard the replies.
    pub(crate) abort: Signal,
}

pub(crate) struct Link<T> {
    stream: T,
    control: Rc<Control>,
    cut_off: Cell<bool>,
}

impl<T: Transport> Link<T> {
    pub(crate) fn new(stream: T, control: Rc<Control>) -> Self {
        Self { stream, control, cut_off: Cell::new(false) }
    }

    /// Who the client is, in words.
    pub(crate) fn peer(&self) -> String {
        self.stream.peer()
    }

    /// Fills `buf`; `None` when nothing more is to be read.
    pub(crate) async fn receive(&self, buf: Buf) -> Option<Buf> {
        match self.control.stop.cut(self.stream.recv_exact(buf)).await {
            Some((buf, Ok(()))) => Some(buf),
            Some((_, Err(_))) | None => None,
        }
    }

    /// Fills `buf` with the header of a message, which begins with a magic number: a client that
    /// leaves before it may do so, one that leaves within it has broken off.
    pub(crate) async fn receive_header(&self, mut buf: Buf) -> Result<Buf, End> {
        buf[0] = 0;
        match self.control.stop.cut(self.stream.recv_exact(buf)).await {
            Some((buf, Ok(()))) => Ok(buf),
            Some((buf, Err(_))) => {
                let has_begun = buf.first().is_some_and(|&byte| byte != 0);
                Err(has_begun.then_some(Fault::BrokenOff))
            }
            None => Err(None),
        }
    }

    /// Fills `buf` with what belongs to a message that has begun.
    pub(crate) async fn receive_rest(&self, buf: Buf) -> Result<Buf, End> {
        let received = self.receive(buf).await;
        // A server that stops does not wait for the rest.
        received.ok_or_else(|| (!self.is_stopped()).then_some(Fault::BrokenOff))
    }

    /// Whether the server has waited in vain for the client to take its replies.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.get()
    }

    /// Skips `bytes` of a message that has begun.
    pub(crate) async fn discard(&self, mut bytes: u64) -> Result<(), End> {
        while bytes > 0 {
            let step = bytes.min(DISCARD_BYTES);
            self.receive_rest(Buf::new(step as usize)).await?;
            bytes -= step;
        }
        Ok(())
    }

    /// Sends `data`, unless the client is gone. The first failure ends the connection.
    pub(crate) async fn send(&self, data: Data) {
        let sent = self.control.abort.cut(self.stream.send_all(data)).await;
        self.cut_off.set(self.cut_off.get() || sent.is_none());
        if sent != Some(Ok(())) && !self.is_dead() {
            self.close();
        }
    }

    /// Whether nothing more is read, because the server stops or the stream is closed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.control.stop.is_raised()
    }

    /// Whether replies are discarded.
    pub(crate) fn is_dead(&self) -> bool {
        self.control.abort.is_raised() && self.control.stop.is_raised()
    }

    /// Ends both directions.
    pub(crate) fn close(&self) {
        self.control.stop.raise();
        self.control.abort.raise();
        self.stream.shutdown();
    }
}
