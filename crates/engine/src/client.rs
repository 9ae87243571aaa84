//! A client's view of a volume, from whichever reactor.
//!
//! * A pool lives on one reactor, which owns all of its state, so nothing in it takes a lock. The
//!   other reactors hold clients' connections and pass requests here; what they do themselves,
//!   protocols and system calls, is most of what a request costs (docs/internals/performance.md).
//! * A read that one run on a cache device holds is not carried out here: the pool pins the run's
//!   set and tells where it lies, the other reactor reads it into the client's buffer and gives the
//!   pin back. What is read was the volume's content when the pool looked it up.
//! * A request and its answer carry the client's buffers; no byte is copied on the way.
//! * The one thing that is read across reactors without asking is a volume's size, a single number
//!   that only grows.
//! * What such a read brings counts only while this host has the pool ([`crate::lease`]).
//! * A request is answered only once the pool has carried it out, so what a client may rely on is
//!   the same from every reactor.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_device::gate::Until;
use forebay_device::post::{Receiver, Sender, post};
use forebay_device::relay::{Caller, relay};
use forebay_device::{BlockDevice, Buf, Data, IoErrorKind, Runtime, Watched};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::VolumeId;
use crate::limits::REMOTE_REQUESTS_MAX;
use crate::status::Extent;
use crate::volume::{Hit, Volume};

/// Other reactors that read a pool's cache devices by themselves, and what the pool tells them.
#[derive(Default)]
pub(crate) struct Elsewhere {
    /// Each with what it is told by: the place of a device whose requests are to be given up.
    lines: RefCell<BTreeMap<u64, Sender<usize>>>,
    lines_begun: Cell<u64>,
    /// The devices that are used no more, a bit for each in the order in which the pool was given
    /// them. What comes behind the last bit is never believed.
    unused: Arc<AtomicU64>,
}

/// Devices that other reactors can be told of.
pub(crate) const PLACES_TOLD_MAX: usize = u64::BITS as usize;

fn bit_of(device: usize) -> u64 {
    1u64.checked_shl(device as u32).unwrap_or(0)
}

impl Elsewhere {
    /// Has all that wait for a device wait no longer; `unused` tells whether its answers are believed no
    /// more.
    pub(crate) fn give_up(&self, device: usize, unused: bool) {
        if unused {
            self.unused.fetch_or(bit_of(device), Ordering::Release);
        }
        self.lines.borrow().values().for_each(|line| line.send(device));
    }

    fn begin(&self) -> (u64, Receiver<usize>) {
        let number = self.lines_begun.replace(self.lines_begun.get() + 1);
        let (sender, receiver) = post();
        self.lines.borrow_mut().insert(number, sender);
        (number, receiver)
    }

    fn end(&self, number: u64) {
        self.lines.borrow_mut().remove(&number);
    }
}

/// What the pool is told of a session.
enum Passing {
    Begun(SessionId),
    /// See [`Volume::take_leave`].
    Leaving(SessionId),
    Ended(SessionId),
}

/// A client's view, as both sides name it.
#[derive(Clone, Copy)]
struct SessionId {
    /// Its place among those in use; taken again once it is free.
    place: usize,
    /// Counts the sessions of a line.
    number: u64,
}

/// A request on its way to the pool's reactor.
struct Call {
    session: SessionId,
    request: Request,
}

enum Request {
    /// With `locate` the answer may be where the data lies.
    Read {
        offset: u64,
        buf: Buf,
        locate: bool,
    },
    Write {
        offset: u64,
        data: Data,
        durable: bool,
    },
    Flush,
    Trim {
        offset: u64,
        len: u64,
        durable: bool,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
        durable: bool,
        only_if_fast: bool,
    },
    Status {
        offset: u64,
        len: u64,
        extents: Vec<Extent>,
    },
    Prefetch {
        offset: u64,
        len: u64,
    },
}

/// The outcome; of a read with its buffer, of a question with the extents.
struct Answer {
    buf: Option<Buf>,
    extents: Vec<Extent>,
    result: Result<()>,
    /// Where to read instead.
    hit: Option<Pinned>,
}

impl Answer {
    fn ended(buf: Option<Buf>, result: Result<()>) -> Self {
        Self { buf, extents: Vec::new(), result, hit: None }
    }
}

/// A place that stays as it is until this is dropped, on whichever reactor.
struct Pinned {
    hit: Hit,
    way_back: Sender<Hit>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.way_back.send(self.hit);
    }
}

/// A session on the pool's side.
struct Session {
    number: u64,
    view: Rc<Volume>,
}

/// The sessions of one reactor, by place.
#[derive(Default)]
struct Sessions(RefCell<Vec<Option<Session>>>);

impl Sessions {
    fn get(&self, volume: &Volume, id: SessionId) -> Rc<Volume> {
        let mut sessions = self.0.borrow_mut();
        if sessions.len() <= id.place {
            sessions.resize_with(id.place + 1, || None);
        }
        let place = &mut sessions[id.place];
        if let Some(session) = place.as_ref().filter(|session| session.number == id.number) {
            return Rc::clone(&session.view);
        }
        let view = Rc::new(volume.session());
        *place = Some(Session { number: id.number, view: Rc::clone(&view) });
        view
    }

    /// Begins a session that may have asked for something already, or be over.
    fn begin(&self, volume: &Volume, id: SessionId) {
        let known = self.0.borrow().get(id.place).and_then(|s| s.as_ref().map(|s| s.number));
        if known.is_none_or(|known| known < id.number) {
            self.get(volume, id);
        }
    }

    /// A session is about to end in order, if it has asked for anything.
    fn take_leave(&self, id: SessionId) {
        let sessions = self.0.borrow();
        let session = sessions.get(id.place).and_then(Option::as_ref);
        session.filter(|it| it.number == id.number).inspect(|it| it.view.take_leave());
    }

    /// Ends a session, unless its place is another one's by now.
    fn end(&self, id: SessionId) {
        let mut sessions = self.0.borrow_mut();
        let place = sessions.get_mut(id.place);
        place.and_then(|place| place.take_if(|session| session.number == id.number));
    }
}

async fn carry_out(volume: &Volume, request: Request) -> Answer {
    let result = match request {
        Request::Read { offset, buf, .. } => {
            let (buf, result) = volume.read(offset, buf).await;
            return Answer::ended(Some(buf), result);
        }
        Request::Write { offset, data, durable } => volume.write(offset, data, durable).await,
        Request::Flush => volume.flush().await,
        Request::Trim { offset, len, durable } => volume.trim(offset, len, durable).await,
        Request::WriteZeroes { offset, len, durable, only_if_fast: true } => {
            volume.write_zeroes_fast(offset, len, durable).await
        }
        Request::WriteZeroes { offset, len, durable, .. } => {
            volume.write_zeroes(offset, len, durable).await
        }
        Request::Status { offset, len, mut extents } => {
            let result = volume.status(offset, len, &mut extents);
            return Answer { extents, ..Answer::ended(None, result) };
        }
        Request::Prefetch { offset, len } => volume.prefetch(offset, len).await,
    };
    Answer::ended(None, result)
}

/// Carries a request of another reactor out, or tells it where to read.
async fn answer(volume: &Volume, request: Request, way_back: &Sender<Hit>) -> Answer {
    match request {
        Request::Read { offset, buf, locate: true } => {
            let len = buf.len() as u64;
            let passing = volume.note_read(offset, len);
            match volume.locate(offset, len, passing.is_some()) {
                Some(hit) => {
                    let hit = Some(Pinned { hit, way_back: way_back.clone() });
                    Answer { hit, ..Answer::ended(Some(buf), Ok(())) }
                }
                None => {
                    let (buf, result) = volume.read_noted(offset, buf, passing).await;
                    Answer::ended(Some(buf), result)
                }
            }
        }
        request => carry_out(volume, request).await,
    }
}

/// Cache devices that a reactor reads by itself, by the numbers that the pool knows them by: those it
/// was opened with, then those that were added.
#[derive(Default)]
pub struct Readers(RefCell<Vec<Option<Rc<Watched>>>>);

impl Readers {
    /// From now on this is the device of that number; without one the pool reads it.
    pub fn set(&self, number: usize, device: Option<Rc<dyn BlockDevice>>) {
        let mut devices = self.0.borrow_mut();
        if devices.len() <= number {
            devices.resize_with(number + 1, || None);
        }
        devices[number] = device.map(Watched::new);
    }

    fn watched(&self, number: usize) -> Option<Rc<Watched>> {
        self.0.borrow().get(number)?.clone()
    }

    fn get(&self, number: usize) -> Option<Rc<dyn BlockDevice>> {
        Some(self.watched(number)?)
    }

    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

impl FromIterator<Option<Rc<dyn BlockDevice>>> for Readers {
    fn from_iter<T: IntoIterator<Item = Option<Rc<dyn BlockDevice>>>>(devices: T) -> Self {
        let watched = |device: Option<_>| device.map(Watched::new);
        Readers(RefCell::new(devices.into_iter().map(watched).collect()))
    }
}

/// The way of one other reactor to a volume; to be sent there and opened.
pub struct Port {
    caller: Caller<Call, Answer>,
    passing: Sender<Passing>,
    given_up: Receiver<usize>,
    unused: Arc<AtomicU64>,
    lease: Until,
    id: VolumeId,
    name: String,
    size: Arc<AtomicU64>,
}

impl Port {
    /// On the reactor that shall use the volume from now on: its first client's view. `devices` are
    /// the pool's cache devices for reading, in the order in which the pool was opened with them;
    /// without any, all reads are done by the pool's reactor. `runtime` is that reactor's.
    pub fn open(self, runtime: Rc<dyn Runtime>, devices: Vec<Rc<dyn BlockDevice>>) -> Client {
        self.open_with(runtime, Rc::new(devices.into_iter().map(Some).collect()))
    }

    /// The same with devices that may become more and fewer.
    pub fn open_with(self, runtime: Rc<dyn Runtime>, devices: Rc<Readers>) -> Client {
        let (given_up, watched) = (self.given_up, Rc::downgrade(&devices));
        runtime.spawn(Box::pin(async move {
            // Until the pool has ended, or this line.
            while let Some(number) = given_up.next().await {
                let devices = watched.upgrade();
                if let Some(device) = devices.and_then(|devices| devices.watched(number)) {
                    device.give_up(IoErrorKind::TimedOut.into());
                }
            }
        }));
        let line = Rc::new(Line {
            caller: self.caller,
            passing: self.passing,
            reading: devices,
            unused: self.unused,
            lease: self.lease,
            runtime,
            id: self.id,
            name: self.name,
            size: self.size,
            sessions: Cell::new(0),
            places: Cell::new(0),
            places_free: RefCell::default(),
        });
        Client(Way::There(Remote::new(&line)))
    }
}

impl Volume {
    /// A client's view, on the pool's reactor.
    pub fn client(&self) -> Client {
        Client(Way::Here(self.session()))
    }

    /// Lets another reactor use this volume.
    pub fn share(&self) -> Port {
        let (caller, server) = relay::<Call, Answer>(REMOTE_REQUESTS_MAX);
        let volume = Rc::new(self.session());
        let (sessions, runtime) = (Rc::new(Sessions::default()), self.runtime());
        let (way_back, returned) = post();
        let (way_back, owner) = (Rc::new(way_back), self.session());
        runtime.spawn(Box::pin(async move {
            while let Some(hit) = returned.next().await {
                owner.release(&hit);
            }
        }));
        let (passing, passed) = post();
        let (first, known) = (self.session(), Rc::clone(&sessions));
        runtime.spawn(Box::pin(async move {
            while let Some(told) = passed.next().await {
                match told {
                    Passing::Begun(id) => known.begin(&first, id),
                    Passing::Leaving(id) => known.take_leave(id),
                    Passing::Ended(id) => known.end(id),
                }
            }
        }));
        let (core, spawner) = (Rc::clone(self.core()), Rc::clone(&runtime));
        let (number, given_up) = core.elsewhere.begin();
        let unused = Arc::clone(&core.elsewhere.unused);
        let lease = core.gate.until();
        spawner.spawn(Box::pin(async move {
            let handler = move |call: Call| {
                let session = sessions.get(&volume, call.session);
                let way_back = Rc::clone(&way_back);
                async move { answer(&session, call.request, &way_back).await }
            };
            server.serve(&*runtime, handler).await;
            core.elsewhere.end(number);
        }));
        let (id, name, size) = (self.id(), self.name().to_owned(), self.shared_size());
        Port { caller, passing, given_up, unused, lease, id, name, size }
    }
}

/// What all clients of one volume on one other reactor share.
struct Line {
    caller: Caller<Call, Answer>,
    /// Tells the pool of a session before its first request: from then on it is to be told of failed
    /// flushes. And of its end: what it has not been told the next one hears.
    passing: Sender<Passing>,
    /// The cache devices.
    reading: Rc<Readers>,
    /// Those that the pool uses no more.
    unused: Arc<AtomicU64>,
    /// Until when this host may use them.
    lease: Until,
    runtime: Rc<dyn Runtime>,
    id: VolumeId,
    name: String,
    size: Arc<AtomicU64>,
    /// Sessions so far.
    sessions: Cell<u64>,
    /// Most sessions at a time so far, and the places of those that have ended.
    places: Cell<usize>,
    places_free: RefCell<Vec<usize>>,
}

/// A session on another reactor than the pool's.
struct Remote {
    line: Rc<Line>,
    id: SessionId,
}

impl Remote {
    fn new(line: &Rc<Line>) -> Self {
        let free = line.places_free.borrow_mut().pop();
        let place = free.unwrap_or_else(|| line.places.replace(line.places.get() + 1));
        let number = line.sessions.replace(line.sessions.get() + 1);
        let id = SessionId { place, number };
        line.passing.send(Passing::Begun(id));
        Self { line: Rc::clone(line), id }
    }

    async fn call(&self, request: Request) -> Answer {
        let call = Call { session: self.id, request };
        self.line.caller.call(call).await.unwrap_or_else(|_| {
            Answer::ended(None, Err(Error::new(ErrorKind::Stopping, "the pool has ended")))
        })
    }

    async fn read(&self, offset: u64, buf: Buf) -> Answer {
        let (locate, len) = (!self.line.reading.is_empty(), buf.len());
        let (pinned, buf) = match self.call(Request::Read { offset, buf, locate }).await {
            Answer { hit: Some(pinned), buf: Some(buf), .. } => (pinned, buf),
            answer => return answer,
        };
        let number = pinned.hit.device;
        let Some(device) = self.line.reading.get(number) else {
            // It has just been added, or is on its way out.
            drop(pinned);
            return self.call(Request::Read { offset, buf, locate: false }).await;
        };
        let outcome = device.read(pinned.hit.at, buf).await;
        drop(pinned);
        let used = !self.line.unused.load(Ordering::Acquire);
        let holds = self.line.lease.holds(|| self.line.runtime.now());
        if outcome.result.is_ok() && used & bit_of(number) != 0 && holds {
            return Answer::ended(outcome.buf, Ok(()));
        }
        // The pool knows of other copies, and what to do without one.
        let buf = outcome.buf.unwrap_or_else(|| Buf::new(len));
        self.call(Request::Read { offset, buf, locate: false }).await
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.line.places_free.borrow_mut().push(self.id.place);
        self.line.passing.send(Passing::Ended(self.id));
    }
}

enum Way {
    Here(Volume),
    There(Remote),
}

/// A client's view of a volume. Its requests are those of [`Volume`], from any reactor.
pub struct Client(Way);

impl Client {
    /// Another client's view of the same volume, on the same reactor.
    pub fn session(&self) -> Self {
        Self(match &self.0 {
            Way::Here(volume) => Way::Here(volume.session()),
            Way::There(remote) => Way::There(Remote::new(&remote.line)),
        })
    }

    /// The volume's identity.
    pub fn id(&self) -> VolumeId {
        match &self.0 {
            Way::Here(volume) => volume.id(),
            Way::There(remote) => remote.line.id,
        }
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        match &self.0 {
            Way::Here(volume) => volume.name(),
            Way::There(remote) => &remote.line.name,
        }
    }

    /// Bytes that a client can address; it may grow.
    pub fn size_bytes(&self) -> u64 {
        match &self.0 {
            Way::Here(volume) => volume.size_bytes(),
            Way::There(remote) => remote.line.size.load(Ordering::Relaxed),
        }
    }

    async fn request(&self, request: Request) -> Answer {
        match &self.0 {
            Way::Here(volume) => carry_out(volume, request).await,
            Way::There(remote) => match request {
                Request::Read { offset, buf, .. } => remote.read(offset, buf).await,
                request => remote.call(request).await,
            },
        }
    }

    /// See [`Volume::read`]. If the pool ends meanwhile, another buffer of that length comes back.
    pub async fn read(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let len = buf.len();
        let answer = self.request(Request::Read { offset, buf, locate: false }).await;
        (answer.buf.unwrap_or_else(|| Buf::zeroed(len)), answer.result)
    }

    /// See [`Volume::write`].
    ///
    /// # Errors
    /// Afterwards each sector holds its old or its new content.
    pub async fn write(&self, offset: u64, data: Data, durable: bool) -> Result<()> {
        // The last handle is dropped here, so that the memory returns to this reactor's pool.
        let kept = data.clone();
        let answer = self.request(Request::Write { offset, data, durable }).await;
        drop(kept);
        answer.result
    }

    /// See [`Volume::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> Result<()> {
        self.request(Request::Flush).await.result
    }

    /// See [`Volume::take_leave`].
    pub fn take_leave(&self) {
        match &self.0 {
            Way::Here(volume) => volume.take_leave(),
            Way::There(remote) => remote.line.passing.send(Passing::Leaving(remote.id)),
        }
    }

    /// See [`Volume::trim`].
    ///
    /// # Errors
    /// As there.
    pub async fn trim(&self, offset: u64, len: u64, durable: bool) -> Result<()> {
        self.request(Request::Trim { offset, len, durable }).await.result
    }

    /// See [`Volume::write_zeroes`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_zeroes(&self, offset: u64, len: u64, durable: bool) -> Result<()> {
        let request = Request::WriteZeroes { offset, len, durable, only_if_fast: false };
        self.request(request).await.result
    }

    /// See [`Volume::write_zeroes_fast`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_zeroes_fast(&self, offset: u64, len: u64, durable: bool) -> Result<()> {
        let request = Request::WriteZeroes { offset, len, durable, only_if_fast: true };
        self.request(request).await.result
    }

    /// See [`Volume::status`]; `extents` comes back whatever the result, unless the pool has ended.
    pub async fn status(
        &self,
        offset: u64,
        len: u64,
        extents: Vec<Extent>,
    ) -> (Vec<Extent>, Result<()>) {
        let answer = self.request(Request::Status { offset, len, extents }).await;
        (answer.extents, answer.result)
    }

    /// See [`Volume::prefetch`].
    ///
    /// # Errors
    /// As there.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.request(Request::Prefetch { offset, len }).await.result
    }
}
