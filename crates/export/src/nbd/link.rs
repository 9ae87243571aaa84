//! A client's stream, and the two ways to take it away from the tasks that use it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

use forebay_device::runtime::Nanos;
use forebay_device::{Buf, Data, Runtime};

use crate::Transport;
use crate::nbd::channel::Channel;
use crate::nbd::complaint::{End, Fault};
use crate::nbd::limits::{STALL_TIME_MAX, TLS_CLOSE_TIME_MAX, WATCH_INTERVAL};
use crate::nbd::signal::{Signal, within};
use crate::nbd::tls::Tls;

/// Bytes that are thrown away at a time.
const DISCARD_BYTES: u64 = 64 << 10;

/// What is said of a client that leaves within the handshake: many do that without a word.
const LEFT: &str = "it left within the handshake; perhaps it does not trust this server";

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// Messages that have begun or ended.
    steps: Cell<u64>,
    /// Messages that the client has begun to send or to take.
    begun: Cell<u32>,
    /// The last look at `steps`, and how many looks have found the same.
    looked: Cell<(u64, u64)>,
}

impl Way {
    fn count_step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// For how long nothing has begun or ended.
    fn look(&self) -> Nanos {
        let ((before, looks), steps) = (self.looked.get(), self.steps.get());
        let looks = if steps == before { looks + 1 } else { 0 };
        self.looked.set((steps, looks));
        looks.saturating_mul(WATCH_INTERVAL)
    }

    /// Counts a message from its beginning to its end.
    async fn step<T>(&self, message: impl Future<Output = T>) -> T {
        self.count_step();
        let result = self.during(message).await;
        self.count_step();
        result
    }

    /// The same of a part of one.
    async fn during<T>(&self, part: impl Future<Output = T>) -> T {
        self.begun.set(self.begun.get() + 1);
        let result = part.await;
        self.begun.set(self.begun.get() - 1);
        result
    }
}

/// What a server holds of each connection.
#[derive(Default)]
pub(crate) struct Control {
    /// Read nothing more; finish what has been read, then close.
    pub(crate) stop: Signal,
    /// Send nothing more; discard the replies.
    pub(crate) abort: Signal,
    /// Requests in progress, with those whose replies are not sent.
    pub(crate) requests: Rc<Cell<usize>>,
    received: Way,
    sent: Way,
    /// Why the server has closed the connection.
    cause: RefCell<End>,
}

impl Control {
    /// Closes the connection of a client that does nothing for too long. This is called every
    /// [`WATCH_INTERVAL`], or not for a while.
    pub(crate) fn look(&self, is_short: bool, idle_max: Option<Nanos>) {
        let ways = [&self.received, &self.sent].map(|way| (way.begun.get() > 0, way.look()));
        let is_stalled = ways.iter().any(|(begun, span)| *begun && *span >= STALL_TIME_MAX);
        let idle_for = ways.iter().map(|(_, span)| *span).min();
        if ways.iter().any(|(begun, _)| *begun) {
            if is_short && is_stalled {
                self.end(Fault::Stalled);
            }
        } else if self.requests.get() == 0 && idle_max.is_some_and(|most| idle_for >= Some(most)) {
            self.end(Fault::Idle);
        }
    }

    fn end(&self, cause: Fault) {
        *self.cause.borrow_mut() = Some(cause);
        self.stop.raise();
        self.abort.raise();
    }
}

/// What has been received and not been looked at.
pub(crate) struct Ahead {
    buf: Buf,
    range: Range<usize>,
}

impl Ahead {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { buf: Buf::new(capacity), range: 0..0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.range.clone()]
    }

    pub(crate) fn skip(&mut self, count: usize) {
        self.range.start += count;
        assert!(self.range.start <= self.range.end, "only what is there is skipped");
    }

    /// The memory behind what there is: what more makes it `most` bytes, and the rest.
    pub(crate) fn split(&mut self, most: usize) -> (Buf, Buf) {
        if self.buf.len() < most {
            let mut larger = Buf::new(most);
            larger[..self.range.len()].copy_from_slice(self.bytes());
            self.buf = larger;
        } else {
            self.buf.copy_within(self.range.clone(), 0);
        }
        self.range = 0..self.range.len();
        let mut room = self.buf.split_off(self.range.end);
        let rest = room.split_off(most - self.range.end);
        (room, rest)
    }

    /// Undoes the split, with `count` bytes more; false if the memory did not come back.
    #[must_use]
    pub(crate) fn join(&mut self, room: Buf, rest: Buf, count: usize) -> bool {
        self.range.end += count;
        self.buf.join(room).and_then(|()| self.buf.join(rest)).is_ok()
    }
}

pub(crate) struct Link<T> {
    stream: Channel<T>,
    control: Rc<Control>,
    cut_off: Cell<bool>,
}

impl<T: Transport> Link<T> {
    pub(crate) fn new(stream: T, control: Rc<Control>) -> Self {
        Self { stream: Channel::new(stream), control, cut_off: Cell::new(false) }
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
            Some((buf, Ok(()))) => {
                self.control.received.count_step();
                Ok(buf)
            }
            Some((buf, Err(_))) => {
                let has_begun = buf.first().is_some_and(|&byte| byte != 0);
                Err(self.tls_fault().or(has_begun.then_some(Fault::BrokenOff)))
            }
            None => Err(None),
        }
    }

    /// Fills `buf` with what belongs to a message that has begun.
    pub(crate) async fn receive_rest(&self, buf: Buf) -> Result<Buf, End> {
        let received = self.control.received.step(self.receive(buf)).await;
        // A server that stops does not wait for the rest.
        let broken_off = || (!self.is_stopped()).then_some(Fault::BrokenOff);
        received.ok_or_else(|| self.tls_fault().or_else(broken_off))
    }

    fn tls_fault(&self) -> End {
        self.stream.take_fault().map(Fault::Tls)
    }

    /// Encrypts everything from here on.
    pub(crate) async fn start_tls(&self, tls: &Tls) -> Result<(), End> {
        match self.control.stop.cut(self.stream.start_tls(tls)).await {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(self.tls_fault().or_else(|| Some(Fault::Tls(LEFT.to_owned())))),
            None => Err(None),
        }
    }

    /// Why the server has closed the connection, if it has.
    pub(crate) fn take_cause(&self) -> End {
        self.control.cause.take()
    }

    /// The number of requests in progress.
    pub(crate) fn requests(&self) -> &Rc<Cell<usize>> {
        &self.control.requests
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Says that nothing more is sent, if the client cares, and ends both directions. Nobody sends
    /// any more.
    pub(crate) async fn finish(&self, runtime: &dyn Runtime) {
        if self.is_encrypted() && !self.is_dead() {
            let goodbye = self.control.abort.cut(self.stream.send_close());
            within(runtime, TLS_CLOSE_TIME_MAX, goodbye).await;
        }
        self.close();
    }

    /// Receives until `ahead` has `len` bytes, and up to `most` if they are there. Unless they belong
    /// to a message that has `begun`, a client that leaves before the first of them may do so; else it
    /// has broken off. A server that stops receives no more, and still uses what it has.
    pub(crate) async fn receive_ahead(
        &self,
        ahead: &mut Ahead,
        len: usize,
        most: usize,
        begun: bool,
    ) -> Result<(), End> {
        let way = &self.control.received;
        while ahead.bytes().len() < len {
            let begun = begun || !ahead.bytes().is_empty();
            let (room, rest) = ahead.split(most);
            let received = self.control.stop.cut(self.stream.recv(room));
            let received = if begun { way.during(received).await } else { received.await };
            match received {
                Some((room, Ok(count))) => {
                    if count == 0 || !ahead.join(room, rest, count) {
                        return Err(begun.then_some(Fault::BrokenOff));
                    }
                    // Not for each byte: who sends one now and then is no further.
                    if !begun || ahead.bytes().len() >= len {
                        way.count_step();
                    }
                }
                Some((_, Err(_))) => {
                    return Err(self.tls_fault().or(begun.then_some(Fault::BrokenOff)));
                }
                None => return Err(None),
            }
        }
        if self.is_dead() { Err(None) } else { Ok(()) }
    }

    /// Fills `buf` with what belongs to a message that has begun, and of which `ahead` may hold the
    /// first bytes.
    pub(crate) async fn receive_behind(&self, ahead: &mut Ahead, mut buf: Buf) -> Result<Buf, End> {
        let have = ahead.bytes().len().min(buf.len());
        buf[..have].copy_from_slice(&ahead.bytes()[..have]);
        ahead.skip(have);
        if have == buf.len() {
            return Ok(buf);
        }
        let rest = self.receive_rest(buf.split_off(have)).await?;
        buf.join(rest).map_err(|_| Some(Fault::BrokenOff))?;
        Ok(buf)
    }

    /// Whether the server has waited in vain for the client to take its replies.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.get()
    }

    /// Skips `bytes` of a message that has begun, and of which `ahead` may hold the first.
    pub(crate) async fn discard_behind(&self, ahead: &mut Ahead, bytes: u64) -> Result<(), End> {
        let have = bytes.min(ahead.bytes().len() as u64);
        ahead.skip(have as usize);
        self.discard(bytes - have).await
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
        let sent = self.control.abort.cut(self.stream.send_all(data));
        let sent = self.control.sent.step(sent).await;
        self.cut_off.set(self.cut_off.get() || sent.is_none());
        if sent != Some(Ok(())) && !self.is_dead() {
            self.close();
        }
    }

    /// Like [`Link::send`], for several pieces.
    pub(crate) async fn send_parts(&self, parts: &mut Vec<Data>) {
        let sent = self.control.abort.cut(self.stream.send_parts(parts));
        let sent = self.control.sent.step(sent).await;
        self.cut_off.set(self.cut_off.get() || sent.is_none());
        if sent != Some(Ok(())) && !self.is_dead() {
            self.close();
        }
        parts.clear();
    }

    /// Waits until the export has `drained`; who is cut off meanwhile is told so at once.
    pub(crate) async fn drain(&self, drained: impl Future<Output = ()>) {
        let mut drained = pin!(drained);
        if self.control.abort.cut(drained.as_mut()).await.is_none() {
            self.close();
            drained.await;
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
