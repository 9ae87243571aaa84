//! The connection to an origin's server: sending, receiving, and the next one when it breaks.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_device::real::errno::io_error;
use forebay_device::runtime::Nanos;
use forebay_device::{Buf, Data};

use super::{Connected, Dial, Inner, ORIGIN_RECONNECT_TIME_MAX, RemoteError, connect, reply};
use crate::Transport;
use crate::nbd::limits::{
    ERROR_BYTES_MAX, GATE_LOOK_INTERVAL, ORIGIN_AHEAD_BYTES, ORIGIN_BATCH_MAX,
    ORIGIN_RECONNECT_PAUSE, ORIGIN_RECONNECT_PAUSE_MAX,
};
use crate::nbd::link::Ahead;
use crate::nbd::wire::{Errno, Fields, Form, REQUEST_HEADER_BYTES, Request, chunk, command};

/// A connection in use.
struct Line<T> {
    stream: T,
    form: Form,
    /// Why it has ended.
    end: RefCell<Option<RemoteError>>,
    /// Whether the server has answered anything.
    is_proven: Cell<bool>,
    /// Whether something is on its way that the server may not have taken.
    is_sending: Cell<bool>,
}

impl<T: Transport> Line<T> {
    fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Ends it in both directions; the first reason counts.
    fn end(&self, why: RemoteError) {
        self.end.borrow_mut().get_or_insert(why);
        self.stream.shutdown();
    }
}

/// Runs both to their ends.
async fn both(one: impl Future<Output = ()>, two: impl Future<Output = ()>) {
    let (mut one, mut two) = (pin!(one), pin!(two));
    let (mut one_ended, mut two_ended) = (false, false);
    poll_fn(|cx| {
        one_ended = one_ended || one.as_mut().poll(cx).is_ready();
        two_ended = two_ended || two.as_mut().poll(cx).is_ready();
        if one_ended && two_ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Uses a connection, and the next one when it has broken, until the device is let go of.
pub(super) async fn keep<D: Dial>(it: Rc<Inner<D>>, first: Connected<D::Stream>) {
    let mut next = Some(first);
    let mut pause = 0;
    while let Some(Connected { stream, form }) = next {
        let (end, is_proven, is_sending) = Default::default();
        let line = Line { stream, form, end, is_proven, is_sending };
        it.use_line(&line).await;
        if it.closing.is_raised() {
            break;
        }
        it.commands.borrow_mut().note_break();
        *it.trouble.borrow_mut() = line.end.take();
        if line.is_proven.get() {
            pause = 0;
        }
        drop(line);
        next = it.reconnect(&mut pause).await;
    }
    it.commands.borrow_mut().give_up();
}

/// What has been received of a line.
struct Inbox<'a, T> {
    stream: &'a T,
    ahead: Ahead,
}

impl<T: Transport> Inbox<'_, T> {
    /// Waits for so many bytes.
    async fn need(&mut self, len: usize) -> Result<(), RemoteError> {
        while self.ahead.bytes().len() < len {
            let (room, rest) = self.ahead.split(ORIGIN_AHEAD_BYTES);
            let (room, count) = self.stream.recv(room).await;
            let count = count.unwrap_or(0);
            if count == 0 || !self.ahead.join(room, rest, count) {
                return Err(RemoteError::Closed);
            }
        }
        Ok(())
    }

    /// Fills a buffer, which comes back.
    async fn fill(&mut self, mut buf: Buf) -> (Buf, Result<(), RemoteError>) {
        let have = self.ahead.bytes().len().min(buf.len());
        buf[..have].copy_from_slice(&self.ahead.bytes()[..have]);
        self.ahead.skip(have);
        if have == buf.len() {
            return (buf, Ok(()));
        }
        let (rest, result) = self.stream.recv_exact(buf.split_off(have)).await;
        let joined = buf.join(rest).map_err(|_| RemoteError::Closed);
        (buf, result.map_err(|_| RemoteError::Closed).and(joined))
    }

    async fn u32(&mut self) -> Result<u32, RemoteError> {
        self.need(4).await?;
        let value = Fields(self.ahead.bytes()).u32().ok_or(RemoteError::NotNbd)?;
        self.ahead.skip(4);
        Ok(value)
    }

    async fn u64(&mut self) -> Result<u64, RemoteError> {
        self.need(8).await?;
        let value = Fields(self.ahead.bytes()).u64().ok_or(RemoteError::NotNbd)?;
        self.ahead.skip(8);
        Ok(value)
    }

    async fn skip(&mut self, len: u32) -> Result<(), RemoteError> {
        self.need(len as usize).await?;
        self.ahead.skip(len as usize);
        Ok(())
    }
}

impl<D: Dial> Inner<D> {
    async fn use_line(&self, line: &Line<D::Stream>) {
        let sending = async {
            let why = self.send(line).await;
            line.end(why);
            self.work.wake_all();
        };
        let receiving = async {
            let why = self.receive(line).await;
            line.end(why);
            self.work.wake_all();
        };
        both(both(sending, receiving), self.watch(line)).await;
    }

    /// Ends the line if what is being sent may go out no more: a server that begins to read again would take it,
    /// however much later.
    async fn watch(&self, line: &Line<D::Stream>) {
        let is_gated = || self.gate.borrow().is_some();
        let is_open = || self.gate.borrow().as_ref().is_none_or(|gate| gate.is_open());
        loop {
            let looks = || line.is_sending.get() && is_gated();
            self.work.until(|| line.has_ended() || self.closing.is_raised() || looks()).await;
            if line.is_sending.get() && (self.closing.is_raised() || !is_open()) {
                line.end(RemoteError::Closed);
            }
            if line.has_ended() || self.closing.is_raised() {
                return;
            }
            let _ = self.runtime.sleep(GATE_LOOK_INTERVAL).await;
        }
    }

    /// The next connection; `None` if the device is let go of.
    async fn reconnect(&self, pause: &mut Nanos) -> Option<Connected<D::Stream>> {
        let since = self.runtime.now();
        loop {
            self.closing.cut(self.runtime.sleep(*pause)).await?;
            *pause = (*pause * 2).clamp(ORIGIN_RECONNECT_PAUSE, ORIGIN_RECONNECT_PAUSE_MAX);
            let attempt = connect(&*self.runtime, &self.dial, &self.name);
            let connected = self.closing.cut(attempt).await?;
            let same = |(connected, offer)| self.offer.check_same(&offer).map(|()| connected);
            match connected.and_then(same) {
                Ok(connected) => {
                    self.is_down.set(false);
                    self.trouble.take();
                    return Some(connected);
                }
                Err(why) => *self.trouble.borrow_mut() = Some(why),
            }
            let is_over = self.runtime.now() - since >= ORIGIN_RECONNECT_TIME_MAX;
            if is_over && !self.is_down.replace(true) {
                self.commands.borrow_mut().give_up();
            }
        }
    }

    /// Waits for something to send and for the time to send it; false if the line is over.
    async fn await_work(&self, line: &Line<D::Stream>) -> bool {
        let over = || line.has_ended() || self.closing.is_raised();
        loop {
            self.work.until(|| over() || self.commands.borrow().has_unsent()).await;
            let gate = self.gate.borrow().clone();
            match gate.filter(|gate| !gate.is_open()) {
                _ if over() => return false,
                None => return true,
                Some(gate) if gate.is_shut() => self.commands.borrow_mut().give_up(),
                Some(_) => {
                    let _ = self.runtime.sleep(GATE_LOOK_INTERVAL).await;
                }
            }
        }
    }

    async fn send(&self, line: &Line<D::Stream>) -> RemoteError {
        let mut parts = Vec::with_capacity(2 * ORIGIN_BATCH_MAX);
        while self.await_work(line).await {
            self.take_batch(&mut parts);
            line.is_sending.set(true);
            if self.gate.borrow().is_some() {
                self.work.wake_all();
            }
            let sent = line.stream.send_parts(&mut parts).await;
            line.is_sending.set(false);
            if sent.is_err() {
                return RemoteError::Closed;
            }
        }
        if !line.has_ended() {
            let request = Request { flags: 0, kind: command::DISC, cookie: 0, offset: 0, len: 0 };
            let goodbye = line.stream.send_all(Buf::copy_of(&request.encode()).freeze());
            let _ = super::within(&*self.runtime, ORIGIN_RECONNECT_PAUSE_MAX, goodbye).await;
        }
        RemoteError::Closed
    }

    /// Puts commands into the form in which they are sent.
    fn take_batch(&self, parts: &mut Vec<Data>) {
        let mut commands = self.commands.borrow_mut();
        let mut headers = Buf::new(ORIGIN_BATCH_MAX * REQUEST_HEADER_BYTES);
        let mut payloads: [Option<Data>; ORIGIN_BATCH_MAX] = [const { None }; ORIGIN_BATCH_MAX];
        let mut count = 0;
        while count < ORIGIN_BATCH_MAX
            && let Some((cookie, command)) = commands.next()
        {
            let (kind, offset, len) = (command.kind, command.offset, u64::from(command.len));
            let request = Request { flags: 0, kind, cookie, offset, len };
            let at = count * REQUEST_HEADER_BYTES;
            headers[at..at + REQUEST_HEADER_BYTES].copy_from_slice(&request.encode());
            payloads[count].clone_from(&command.data);
            count += 1;
        }
        let headers = headers.freeze();
        let mut from = 0;
        for (index, payload) in payloads.iter_mut().take(count).enumerate() {
            let to = (index + 1) * REQUEST_HEADER_BYTES;
            if payload.is_some() || index + 1 == count {
                parts.push(headers.slice(from..to));
                from = to;
            }
            parts.extend(payload.take());
        }
    }

    async fn receive(&self, line: &Line<D::Stream>) -> RemoteError {
        let mut inbox = Inbox { stream: &line.stream, ahead: Ahead::new(ORIGIN_AHEAD_BYTES) };
        loop {
            if let Err(why) = self.receive_one(line, &mut inbox).await {
                return why;
            }
            line.is_proven.set(true);
        }
    }

    async fn receive_one(
        &self,
        line: &Line<D::Stream>,
        inbox: &mut Inbox<'_, D::Stream>,
    ) -> Result<(), RemoteError> {
        inbox.need(reply::SIMPLE_BYTES).await?;
        let len = reply::header_bytes(inbox.ahead.bytes()).ok_or(RemoteError::NotNbd)?;
        inbox.need(len).await?;
        let header = reply::decode(inbox.ahead.bytes()).ok_or(RemoteError::NotNbd)?;
        inbox.ahead.skip(len);
        match header {
            reply::Header::Simple { cookie, errno } => {
                self.take_simple(line, inbox, cookie, errno).await
            }
            reply::Header::Chunk { .. } if line.form == Form::Simple => Err(RemoteError::NotNbd),
            reply::Header::Chunk { cookie, is_last, kind, len } => {
                self.take_chunk(inbox, cookie, kind, len).await?;
                if is_last { self.conclude(cookie) } else { Ok(()) }
            }
        }
    }

    async fn take_simple(
        &self,
        line: &Line<D::Stream>,
        inbox: &mut Inbox<'_, D::Stream>,
        cookie: u64,
        errno: u32,
    ) -> Result<(), RemoteError> {
        let (kind, offset, len) = {
            let mut commands = self.commands.borrow_mut();
            let command = commands.answered(cookie).ok_or(RemoteError::NotNbd)?;
            (command.kind, command.offset, command.len)
        };
        if errno != 0 {
            self.note_error(cookie, errno)?;
        } else if kind == command::READ {
            if line.form != Form::Simple {
                return Err(RemoteError::NotNbd);
            }
            self.take_data(inbox, cookie, offset, len).await?;
        }
        self.conclude(cookie)
    }

    async fn take_chunk(
        &self,
        inbox: &mut Inbox<'_, D::Stream>,
        cookie: u64,
        kind: u16,
        len: u32,
    ) -> Result<(), RemoteError> {
        if self.commands.borrow_mut().answered(cookie).is_none() {
            return Err(RemoteError::NotNbd);
        }
        match kind {
            chunk::NONE if len == 0 => Ok(()),
            chunk::OFFSET_DATA if len > 8 => {
                let offset = inbox.u64().await?;
                self.take_data(inbox, cookie, offset, len - 8).await
            }
            chunk::OFFSET_HOLE if len == 12 => {
                let offset = inbox.u64().await?;
                let count = inbox.u32().await?;
                self.take_hole(cookie, offset, count)
            }
            kind if kind & chunk::IS_ERROR != 0 && (4..=ERROR_BYTES_MAX).contains(&len) => {
                let errno = inbox.u32().await?;
                inbox.skip(len - 4).await?;
                self.note_error(cookie, errno)
            }
            _ => Err(RemoteError::NotNbd),
        }
    }

    /// Receives bytes of a read to where they belong. The buffer is back at its command when this
    /// returns, whatever it returns.
    async fn take_data(
        &self,
        inbox: &mut Inbox<'_, D::Stream>,
        cookie: u64,
        offset: u64,
        count: u32,
    ) -> Result<(), RemoteError> {
        let (place, mut buf) = {
            let mut commands = self.commands.borrow_mut();
            let command = commands.answered(cookie).ok_or(RemoteError::NotNbd)?;
            let place = command.place(offset, count).ok_or(RemoteError::NotNbd)?;
            (place, command.buf.take().ok_or(RemoteError::NotNbd)?)
        };
        let whole = buf.len();
        let mut part = buf.split_off(place);
        let rest = part.split_off(count as usize);
        let (part, result) = inbox.fill(part).await;
        if buf.join(part).and_then(|()| buf.join(rest)).is_err() {
            // The reactor ends, and has kept a piece of it.
            buf = Buf::zeroed(whole);
        }
        if let Some(command) = self.commands.borrow_mut().answered(cookie) {
            command.buf = Some(buf);
        }
        result
    }

    fn take_hole(&self, cookie: u64, offset: u64, count: u32) -> Result<(), RemoteError> {
        let mut commands = self.commands.borrow_mut();
        let command = commands.answered(cookie).ok_or(RemoteError::NotNbd)?;
        let place = command.place(offset, count).ok_or(RemoteError::NotNbd)?;
        let buf = command.buf.as_mut().ok_or(RemoteError::NotNbd)?;
        buf[place..place + count as usize].fill(0);
        Ok(())
    }

    /// Takes an error of the server's. One that is leaving has not done what it was asked for: that is
    /// for the next connection.
    fn note_error(&self, cookie: u64, errno: u32) -> Result<(), RemoteError> {
        if errno == Errno::Shutdown as u32 {
            return Err(RemoteError::Closed);
        }
        let error = io_error(i32::try_from(errno).unwrap_or(Errno::Io as i32));
        let mut commands = self.commands.borrow_mut();
        commands.answered(cookie).ok_or(RemoteError::NotNbd)?.note_error(error);
        Ok(())
    }

    /// The reply to a command is there as a whole.
    fn conclude(&self, cookie: u64) -> Result<(), RemoteError> {
        let mut commands = self.commands.borrow_mut();
        let command = commands.answered(cookie).ok_or(RemoteError::NotNbd)?;
        let result = command.result().ok_or(RemoteError::NotNbd)?;
        commands.end(cookie, result);
        Ok(())
    }
}
