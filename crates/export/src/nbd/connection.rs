//! A connection in transmission.
//!
//! * One task reads requests and writes' payloads; worker tasks carry requests out, one at a
//!   time each; one task sends replies. Workers are spawned when all others are busy, and stay.
//! * [`Permits`] bound requests and their memory from before a payload is received until the
//!   reply is sent. The reader waits for them, so a client that does not take its replies is
//!   not read from.
//! * A request that was read is carried out to its end, whatever happens to the client: its
//!   reply is discarded then.
//! * All replies that are due are sent together: waking the client and a system call cost more than a
//!   reply. A read's data has room before it, where its header goes.
//! * Requests are received ahead, as many as there are: one receive brings a queue of reads or of short
//!   writes, whose payloads are copied to buffers of their own. Behind a write with a payload above
//!   [`COPIED_BYTES_MAX`] only its successor's header is: where long writes come one after the other,
//!   each payload goes straight to its own buffer.

use std::rc::Rc;

use forebay_device::{Buf, Runtime};

use crate::nbd::command::{Command, Session, plan};
use crate::nbd::complaint::{End, Fault};
use crate::nbd::contexts;
use crate::nbd::limits::{
    AHEAD_BYTES_MAX, EXTENTS_MAX, REPLY_HEADROOM_BYTES, REQUESTS_INFLIGHT_MAX, SKIPPED_BYTES_MAX,
    STEP_BYTES,
};
use crate::nbd::link::{Ahead, Link};
use crate::nbd::permits::{Budget, Permits};
use crate::nbd::queue::Queue;
use crate::nbd::wire::{
    DESCRIPTOR_BYTES_MAX, Errno, REPLY_HEADER_BYTES_MAX, ReplyHeader, Request, command,
};
use crate::{Export, ExportError, Transport};

/// Headers that are sent together at most, in bytes: what fits before a read's own header.
const BATCH_BYTES_MAX: usize = REPLY_HEADROOM_BYTES - REPLY_HEADER_BYTES_MAX;

/// Bytes that are sent together before the first client is kept waiting for the last one's data: what
/// a Unix socket holds by default. One reply may be longer.
const MESSAGE_BYTES_MAX: usize = 208 << 10;

/// Pieces that are sent together: as many as there can be replies.
const MESSAGE_PARTS_MAX: usize = REQUESTS_INFLIGHT_MAX;

/// Bytes that are received ahead where requests have no or long payloads: a deep queue of headers,
/// and not more of a payload that would have to be copied.
const AHEAD_BYTES: usize = 32 * 32;

/// Longest payload that is copied rather than received by itself. To copy a page takes 0.3 us, to
/// receive it 2 us; what matters more is that writes which arrive together reach the log together.
const COPIED_BYTES_MAX: u64 = 16 << 10;

const _: () = assert!(COPIED_BYTES_MAX <= AHEAD_BYTES_MAX as u64);

/// Memory of an answer about a range: the export's extents and two contexts' descriptors.
const STATUS_COST_BYTES: u64 = (EXTENTS_MAX * (3 * DESCRIPTOR_BYTES_MAX)) as u64;

struct Job {
    request: Request,
    command: Command,
    payload: Option<Buf>,
    cost: u64,
}

struct Reply {
    header: ReplyHeader,
    /// What follows the header, after [`REPLY_HEADROOM_BYTES`].
    data: Option<Buf>,
    cost: u64,
}

/// A client that uses an export.
pub(crate) struct Connection<T, E, G> {
    runtime: Rc<dyn Runtime>,
    link: Link<T>,
    export: Rc<E>,
    session: Session,
    jobs: Queue<Job>,
    replies: Queue<Reply>,
    permits: Permits,
    /// Dropped when the last task of the connection has ended.
    _guard: G,
}

/// Memory that a request keeps until its reply is sent, as it is allocated.
fn cost(planned: &Result<Command, Errno>) -> u64 {
    let headroom = REPLY_HEADROOM_BYTES as u64;
    let memory = |len: usize| Buf::memory_bytes(len) as u64;
    match planned {
        Ok(Command::Read { len, .. }) => memory(REPLY_HEADROOM_BYTES + *len as usize),
        Ok(Command::Write { len, .. }) => headroom + memory(*len as usize),
        Ok(Command::Status { .. }) => headroom + STATUS_COST_BYTES,
        _ => headroom,
    }
}

impl<T: Transport, E: Export, G: 'static> Connection<T, E, G> {
    pub(crate) fn new(
        runtime: Rc<dyn Runtime>,
        link: Link<T>,
        export: Rc<E>,
        session: Session,
        (budget, bytes_max): (&Rc<Budget>, u64),
        guard: G,
    ) -> Rc<Self> {
        let permits = Permits::new(budget, link.requests(), bytes_max);
        Rc::new(Self {
            runtime,
            link,
            export,
            session,
            jobs: Queue::with_capacity(REQUESTS_INFLIGHT_MAX),
            replies: Queue::with_capacity(REQUESTS_INFLIGHT_MAX),
            permits,
            _guard: guard,
        })
    }

    /// Serves the client until it leaves, breaks the protocol or is stopped, and everything it
    /// asked for is done.
    pub(crate) async fn run(self: Rc<Self>) -> End {
        self.runtime.spawn(Box::pin(Rc::clone(&self).send_replies()));
        let end = self.read_requests().await;
        self.jobs.close();
        self.link.drain(self.permits.drained()).await;
        self.replies.close();
        let cut_off = self.link.is_cut_off().then_some(Fault::RepliesNotTaken);
        let end = self.link.take_cause().or(cut_off).or(end);
        self.link.finish(&*self.runtime).await;
        end
    }

    async fn read_requests(self: &Rc<Self>) -> End {
        let form = self.session.form;
        let header_bytes = form.request_header_bytes();
        let mut ahead = Ahead::new(AHEAD_BYTES);
        let mut most = AHEAD_BYTES;
        loop {
            if let Err(end) = self.link.receive_ahead(&mut ahead, header_bytes, most, false).await {
                return end;
            }
            let Some(request) = Request::decode(&ahead.bytes()[..header_bytes], form) else {
                return Some(Fault::OutOfStep);
            };
            ahead.skip(header_bytes);
            if request.kind == command::DISC {
                // Who does not wait for an answer may not look at it either.
                if self.permits.is_idle() && !self.link.is_dead() {
                    self.export.take_leave();
                }
                return None;
            }
            let planned = plan(&request, &self.session);
            let cost = cost(&planned);
            self.permits.acquire(cost).await;
            most = match request.payload_bytes(form) {
                0 => most.max(AHEAD_BYTES),
                1..=COPIED_BYTES_MAX => AHEAD_BYTES_MAX,
                _ => header_bytes,
            };
            if let Err(end) = self.take(request, planned, cost, &mut ahead, most).await {
                self.permits.release(1, cost);
                return end;
            }
        }
    }

    /// Receives what belongs to a request and passes it on; an error if the connection ends.
    async fn take(
        self: &Rc<Self>,
        request: Request,
        planned: Result<Command, Errno>,
        cost: u64,
        ahead: &mut Ahead,
        most: usize,
    ) -> Result<(), End> {
        let result = match planned {
            Ok(Command::Nothing) => Ok(()),
            Ok(command) => {
                let payload = match command {
                    Command::Write { len, .. } => {
                        let len = len as usize;
                        if len <= most {
                            self.link.receive_ahead(ahead, len, most, true).await?;
                        }
                        Some(self.link.receive_behind(ahead, Buf::new(len)).await?)
                    }
                    _ => None,
                };
                self.dispatch(Job { request, command, payload, cost });
                return Ok(());
            }
            Err(errno) => {
                let payload_bytes = request.payload_bytes(self.session.form);
                if payload_bytes > SKIPPED_BYTES_MAX {
                    return Err(Some(Fault::PayloadTooLong));
                }
                self.link.discard_behind(ahead, payload_bytes).await?;
                Err(errno)
            }
        };
        self.replies.push(Reply { header: self.header(&request, result), data: None, cost });
        Ok(())
    }

    fn dispatch(self: &Rc<Self>, job: Job) {
        let somebody_waits = self.jobs.push(job);
        if !somebody_waits {
            // At most REQUESTS_INFLIGHT_MAX: each worker that does not wait has a permit.
            self.runtime.spawn(Box::pin(Rc::clone(self).work()));
        }
    }

    async fn work(self: Rc<Self>) {
        while let Some(job) = self.jobs.pop().await {
            let reply = self.execute(job).await;
            self.replies.push(reply);
        }
    }

    /// A reply without data.
    fn header(&self, request: &Request, result: Result<(), Errno>) -> ReplyHeader {
        ReplyHeader::result(self.session.form, request, result)
    }

    async fn execute(&self, job: Job) -> Reply {
        let Job { request, command, payload, cost } = job;
        let export = &self.export;
        let result = match command {
            Command::Read { offset, len } => {
                return self.read(request, offset, len, cost).await;
            }
            Command::Status { offset, len, only_one } => {
                return self.status(request, offset, len, only_one, cost).await;
            }
            Command::Write { offset, fua, .. } => {
                let payload = payload.expect("a write has its payload");
                export.write(offset, payload.freeze(), fua).await
            }
            Command::Flush => export.flush().await,
            Command::Trim { offset, len, fua } => {
                self.in_steps(offset, len, |at, len| export.trim(at, len, fua)).await
            }
            Command::WriteZeroes { offset, len, how } if len <= STEP_BYTES => {
                export.write_zeroes(offset, len, how).await
            }
            // Whether it is fast is known of a step at the most.
            Command::WriteZeroes { how, .. } if how.only_if_fast => Err(ExportError::Unsupported),
            Command::WriteZeroes { offset, len, how } => {
                self.in_steps(offset, len, |at, len| export.write_zeroes(at, len, how)).await
            }
            Command::Prefetch { offset, len } => export.prefetch(offset, len).await,
            Command::Nothing => Ok(()),
        };
        Reply { header: self.header(&request, result.map_err(Errno::from)), data: None, cost }
    }

    /// Carries out a long request piece by piece, until the server is stopped.
    async fn in_steps<F: Future<Output = Result<(), ExportError>>>(
        &self,
        offset: u64,
        len: u64,
        act: impl Fn(u64, u64) -> F,
    ) -> Result<(), ExportError> {
        let mut done = 0;
        while done < len {
            if done > 0 && self.link.is_stopped() {
                return Err(ExportError::ShuttingDown);
            }
            let step = (len - done).min(STEP_BYTES);
            act(offset + done, step).await?;
            done += step;
        }
        Ok(())
    }

    async fn read(&self, request: Request, offset: u64, len: u32, cost: u64) -> Reply {
        let mut message = Buf::new(REPLY_HEADROOM_BYTES + len as usize);
        let body = message.split_off(REPLY_HEADROOM_BYTES);
        let (body, result) = self.export.read(offset, body).await;
        let whole = body.len() == len as usize;
        if let Err(error) = result.and(if whole { Ok(()) } else { Err(ExportError::Io) }) {
            let header = self.header(&request, Err(error.into()));
            return Reply { header, data: None, cost };
        }
        if let Err(body) = message.join(body) {
            // A device that does not answer has kept the memory.
            message = Buf::new(REPLY_HEADROOM_BYTES + len as usize);
            message[REPLY_HEADROOM_BYTES..].copy_from_slice(&body);
        }
        let header = ReplyHeader::data(self.session.form, &request, len);
        Reply { header, data: Some(message), cost }
    }

    async fn status(
        &self,
        request: Request,
        offset: u64,
        len: u64,
        only_one: bool,
        cost: u64,
    ) -> Reply {
        let extents = match self.export.status(offset, len).await {
            Ok(extents) => extents,
            Err(error) => {
                let header = self.header(&request, Err(error.into()));
                return Reply { header, data: None, cost };
            }
        };
        let covered: u64 = extents.iter().map(|extent| extent.len).sum();
        assert!(covered > 0 && covered <= len && extents.len() <= EXTENTS_MAX, "{extents:?}");
        let Session { form, contexts, .. } = self.session;
        let (header, rest) = contexts::answer(form, &request, contexts, &extents, only_one);
        let mut data = Buf::new(REPLY_HEADROOM_BYTES + rest.len());
        data[REPLY_HEADROOM_BYTES..].copy_from_slice(&rest);
        Reply { header, data: Some(data), cost }
    }

    async fn send_replies(self: Rc<Self>) {
        let mut headers = Vec::with_capacity(BATCH_BYTES_MAX + REPLY_HEADER_BYTES_MAX);
        let mut parts = Vec::with_capacity(MESSAGE_PARTS_MAX);
        while let Some(first) = self.replies.pop().await {
            let (mut count, mut cost, mut bytes) = (0, 0, 0);
            let mut next = Some(first);
            while let Some(reply) = next {
                headers.extend_from_slice(reply.header.as_bytes());
                (count, cost) = (count + 1, cost + reply.cost);
                if reply.data.is_some() || headers.len() > BATCH_BYTES_MAX {
                    let part = message(&headers, reply.data).freeze();
                    headers.clear();
                    bytes += part.len();
                    parts.push(part);
                }
                let full = bytes >= MESSAGE_BYTES_MAX || parts.len() + 1 >= MESSAGE_PARTS_MAX;
                next = if full { None } else { self.replies.try_pop() };
            }
            if !headers.is_empty() {
                parts.push(message(&headers, None).freeze());
                headers.clear();
            }
            if self.link.is_dead() {
                parts.clear();
            } else {
                self.link.send_parts(&mut parts).await;
            }
            self.permits.release(count, cost);
        }
    }
}

/// Puts headers before the data of the last of them.
fn message(headers: &[u8], data: Option<Buf>) -> Buf {
    match data {
        Some(mut data) => {
            let start = REPLY_HEADROOM_BYTES - headers.len();
            data[start..REPLY_HEADROOM_BYTES].copy_from_slice(headers);
            data.split_off(start)
        }
        None => Buf::copy_of(headers),
    }
}
