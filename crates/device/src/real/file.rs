//! A regular file or block device as a [`BlockDevice`], over the ring.
//!
//! * O_DIRECT wherever the file system has it; [`FileDevice::is_direct`] tells.
//! * Exclusive: a block device is claimed as a mount would, a file is locked.
//! * A regular file without `punch` stays fully written: no holes, zeroes are written as bytes.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use crate::buf::{Buf, Data};
use crate::device::{BlockDevice, Geometry, Request};
use crate::gate::{Gate, Until};
use crate::io::{Completer, Io, IoError, IoErrorKind, pair};
use crate::real::discard::Discarder;
use crate::real::errno::io_error;
use crate::real::op::{Handle, Kind, Op};
use crate::real::open::{self, OpenError, OpenOptions, Opened};
use crate::real::place::{Displaced, Identity, Placed};
use crate::real::reactor::{Reactor, boot_now};
use crate::runtime::{MILLISECOND, Nanos, Runtime};

/// Zeroes written at once where the system has no shortcut.
const ZEROES_CHUNK_BYTES: u64 = 1 << 20;

/// Zero chunks in flight per request: keeps a disk busy without flooding its queue.
const ZEROES_INFLIGHT_MAX: usize = 4;

/// How often it is looked whether the fence is open again.
const FENCE_RETRY: Nanos = 10 * MILLISECOND;

/// How often a device in use is tried again: a claim that ends by itself ends in milliseconds.
const OPEN_RETRY: Nanos = 20 * MILLISECOND;

struct Inner {
    reactor: Rc<Reactor>,
    handle: Rc<Handle>,
    geometry: Cell<Geometry>,
    /// A hash of what names it, if anything does.
    identity: Option<[u8; 32]>,
    is_block: bool,
    place: Identity,
    direct: bool,
    read_only: bool,
    /// What a short read must be a multiple of, unless the file ends there.
    align_bytes: usize,
    memory_align_bytes: usize,
    /// Whether `fallocate` may zero a range; cleared by the first "unsupported".
    zero_range: Cell<bool>,
    /// Whether discards are worth trying; cleared by the first "unsupported".
    punch: Cell<bool>,
    /// Of a block device, from its first discard on.
    discarder: OnceCell<Discarder>,
    /// The time that discards and zeroes may begin in, for these go to the system in parts and later than they were
    /// submitted.
    fence: RefCell<Option<Until>>,
    /// What became of it, as far as somebody has looked; looks that have begun, and the last one that was noted.
    displaced: Cell<Option<Displaced>>,
    looks: Cell<u64>,
    noted: Cell<u64>,
    /// What of the file is holes, by the last look.
    hole_bytes: Cell<u64>,
    /// Whether it takes nothing more, for nobody would find it there, and whether the flush of what it took last has
    /// failed.
    is_lost: Cell<bool>,
    is_told: Cell<bool>,
}

/// See the head of the file.
pub struct FileDevice(Rc<Inner>);

impl FileDevice {
    /// Opens the file or block device at `path` for this process alone.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        reactor: &Rc<Reactor>,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<FileDevice, OpenError> {
        Ok(FileDevice::of(reactor, open::open(path, options)?))
    }

    /// Gives a device that is open to a reactor.
    pub fn of(reactor: &Rc<Reactor>, opened: Opened) -> FileDevice {
        let handle = match opened.is_block {
            true => Handle::new(opened.fd),
            false => Handle::new_locked(opened.fd, opened.may_block),
        };
        FileDevice(Rc::new(Inner {
            reactor: Rc::clone(reactor),
            handle,
            geometry: Cell::new(Geometry {
                size_bytes: opened.size_bytes,
                sector_bytes: opened.sector_bytes,
                discard: opened.discard,
                stripe: opened.stripe,
                controller: opened.controller,
                durable_writes: opened.durable_writes,
            }),
            identity: opened.identity,
            is_block: opened.is_block,
            place: opened.place,
            direct: opened.direct,
            read_only: opened.read_only,
            align_bytes: if opened.direct { opened.sector_bytes as usize } else { 1 },
            memory_align_bytes: if opened.direct { opened.memory_align_bytes } else { 1 },
            zero_range: Cell::new(opened.is_block || opened.punch),
            punch: Cell::new(opened.discard),
            discarder: OnceCell::new(),
            fence: RefCell::default(),
            displaced: Cell::new(None),
            looks: Cell::new(0),
            noted: Cell::new(0),
            hole_bytes: Cell::new(0),
            is_lost: Cell::new(false),
            is_told: Cell::new(false),
        }))
    }

    /// Like [`FileDevice::open`], but waits up to `patience` while the device is in use. For
    /// starts after a crash: the kernel ends a killed process's ring, and with it the claim on
    /// its devices, a moment after the process is gone.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_when_free(
        reactor: &Rc<Reactor>,
        path: &Path,
        options: &OpenOptions,
        patience: Nanos,
    ) -> Result<FileDevice, OpenError> {
        let give_up = reactor.now().saturating_add(patience);
        let runtime: &dyn Runtime = &**reactor;
        loop {
            match FileDevice::open(reactor, path, options) {
                Err(OpenError::InUse { .. }) if runtime.now() < give_up => {
                    let _ = runtime.sleep(OPEN_RETRY).done().await;
                }
                other => return other,
            }
        }
    }

    /// Which file or block device it is.
    pub fn place(&self) -> Identity {
        self.0.place
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.0.direct
    }

    /// Whether this is a block device, not a regular file.
    pub fn is_block(&self) -> bool {
        self.0.is_block
    }

    /// A way for another reactor to read the device, past the claim that this one holds.
    ///
    /// # Errors
    /// What the system says: no descriptors left.
    pub fn reader(&self) -> std::io::Result<Reader> {
        let inner = &self.0;
        Ok(Reader {
            fd: inner.handle.try_clone()?,
            geometry: inner.geometry.get(),
            is_block: inner.is_block,
            place: inner.place,
            direct: inner.direct,
            align_bytes: inner.align_bytes,
            memory_align_bytes: inner.memory_align_bytes,
        })
    }

    /// What asks the open device how large it is now; to be called on another thread, for it may
    /// take its time. The answer is in bytes.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn sizer(&self) -> std::io::Result<impl FnOnce() -> std::io::Result<u64> + Send + 'static> {
        let (file, is_block) = (File::from(self.0.handle.try_clone()?), self.0.is_block);
        Ok(move || open::size_of(&file, is_block))
    }

    /// The open device for a look whether its path leads to it still, on another thread: that may take its
    /// time. What that finds is to be noted: [`FileDevice::note_displaced`].
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn placed(&self) -> std::io::Result<Placed> {
        self.0.looks.set(self.0.looks.get() + 1);
        Ok(Placed {
            number: self.0.looks.get(),
            file: File::from(self.0.handle.try_clone()?),
            is_block: self.0.is_block,
            size_bytes: self.0.geometry.get().size_bytes,
        })
    }

    /// What became of the device, as the last look found.
    pub fn displaced(&self) -> Option<Displaced> {
        self.0.displaced.get()
    }

    /// Notes what a look has found, unless a later one was noted already. One that has become shorter stays so
    /// whatever its size is later: what it has there is not what it had.
    pub fn note_displaced(&self, look: u64, displaced: Option<Displaced>) {
        let was_cut = matches!(self.0.displaced.get(), Some(Displaced::Shrunk { .. }));
        if look > self.0.noted.replace(self.0.noted.get().max(look)) {
            let stays = was_cut && displaced.is_none();
            self.0.displaced.set(if stays { self.0.displaced.get() } else { displaced });
        }
    }

    /// Bytes of the file that are holes, as the last look found.
    pub fn hole_bytes(&self) -> u64 {
        self.0.hole_bytes.get()
    }

    /// Notes what a look has found of holes; how much it was before.
    pub fn note_holes(&self, bytes: u64) -> u64 {
        self.0.hole_bytes.replace(bytes)
    }

    /// Has writes fail as those of a device that is gone, and the flush of what it took before, or no more.
    pub fn refuse_writes(&self, refuse: bool) {
        if self.0.is_lost.replace(refuse) != refuse {
            self.0.is_told.set(false);
        }
    }

    /// Goes on with a larger size, in whole sectors. Never with a smaller one.
    pub fn grow(&self, size_bytes: u64) {
        let geometry = self.0.geometry.get();
        let whole =
            size_bytes / u64::from(geometry.sector_bytes) * u64::from(geometry.sector_bytes);
        let size_bytes = whole.max(geometry.size_bytes);
        self.0.geometry.set(Geometry { size_bytes, ..geometry });
    }

    /// Allocates space for the whole file, so that a lack of it shows now.
    pub(super) async fn reserve(&self) -> Result<(), IoError> {
        self.0.allocate(0, 0, self.0.geometry.get().size_bytes).await
    }
}

/// An open device on its way to another reactor, where it can be read. The lock on a file ends with
/// the device that it came from; the claim on a block device belongs to all descriptors of the open
/// device and ends with the last of them, so readers must end before somebody else can open it.
pub struct Reader {
    fd: OwnedFd,
    geometry: Geometry,
    is_block: bool,
    place: Identity,
    direct: bool,
    align_bytes: usize,
    memory_align_bytes: usize,
}

impl Reader {
    /// The device for `reactor`; it refuses everything but reads and flushes.
    pub fn open(self, reactor: &Rc<Reactor>) -> FileDevice {
        FileDevice(Rc::new(Inner {
            reactor: Rc::clone(reactor),
            handle: Handle::new(self.fd),
            geometry: Cell::new(self.geometry),
            identity: None,
            is_block: self.is_block,
            place: self.place,
            direct: self.direct,
            read_only: true,
            align_bytes: self.align_bytes,
            memory_align_bytes: self.memory_align_bytes,
            zero_range: Cell::new(false),
            punch: Cell::new(false),
            discarder: OnceCell::new(),
            fence: RefCell::default(),
            displaced: Cell::new(None),
            looks: Cell::new(0),
            noted: Cell::new(0),
            hole_bytes: Cell::new(0),
            is_lost: Cell::new(false),
            is_told: Cell::new(false),
        }))
    }
}

impl Inner {
    fn start(&self, kind: Kind, completer: Completer) {
        self.reactor.start(Op::new(Rc::clone(&self.handle), kind, Some(completer)));
    }

    fn is_aligned(&self, bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(self.memory_align_bytes)
    }

    fn check(&self, request: &Request) -> Result<(), IoError> {
        request.check(&self.geometry.get())?;
        match request {
            Request::Read { .. } => Ok(()),
            // Only once: behind it there is nothing to be made durable.
            Request::Flush if !self.is_lost.get() || self.is_told.replace(true) => Ok(()),
            _ if self.is_lost.get() => Err(IoErrorKind::Vanished.into()),
            _ if self.read_only => Err(IoErrorKind::Permission.into()),
            _ => Ok(()),
        }
    }

    fn read(&self, offset: u64, buf: Buf, completer: Completer) {
        self.start(Kind::Read { offset, align_bytes: self.align_bytes, buf }, completer);
    }

    fn write(&self, offset: u64, data: Data) -> Io {
        let (completer, io) = pair();
        self.start(Kind::Write { offset, data, durable: false }, completer);
        io
    }

    /// Reads to memory that O_DIRECT cannot use.
    async fn read_through_copy(&self, offset: u64, mut buf: Buf, completer: Completer) {
        let (inner, io) = pair();
        self.read(offset, Buf::new(buf.len()), inner);
        let outcome = io.await;
        if let (Ok(()), Some(read)) = (outcome.result, &outcome.buf) {
            buf.copy_from_slice(read);
        }
        completer.complete(outcome.result, Some(buf));
    }

    async fn allocate(&self, mode: i32, offset: u64, len: u64) -> Result<(), IoError> {
        let (completer, io) = pair();
        self.start(Kind::Allocate { mode, offset, len }, completer);
        io.done().await
    }

    /// Waits until what goes to the system next may go; an error if there will be no more time for it.
    async fn until_open(&self) -> Result<(), IoError> {
        loop {
            let fence = self.fence.borrow().clone();
            match fence {
                Some(until) if !until.holds(boot_now) => {
                    if until.is_last() {
                        return Err(IoErrorKind::Vanished.into());
                    }
                    (&*self.reactor as &dyn Runtime).sleep(FENCE_RETRY).await.result?;
                }
                _ => return Ok(()),
            }
        }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if !self.punch.get() {
            return Ok(());
        }
        let outcome = match self.is_block {
            true => loop {
                self.until_open().await?;
                let until = self.fence.borrow().clone();
                if let Some(outcome) = self.discarder()?.discard(offset, len, until).await {
                    break outcome;
                }
            },
            false => {
                self.until_open().await?;
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                self.allocate(mode, offset, len).await
            }
        };
        unless_unsupported(&self.punch, outcome).map(|_| ())
    }

    fn discarder(&self) -> Result<&Discarder, IoError> {
        if self.discarder.get().is_none() {
            let started = self.handle.try_clone().and_then(Discarder::start);
            let started = started.map_err(|e| io_error(e.raw_os_error().unwrap_or(libc::EIO)))?;
            // Nothing else runs between the look and this.
            let _ = self.discarder.set(started);
        }
        self.discarder.get().ok_or(IoErrorKind::Other.into())
    }

    /// Zeroes a range by `fallocate`, unless that is known not to work here; false if it does not.
    async fn zero_range(&self, offset: u64, len: u64) -> Result<bool, IoError> {
        if !self.zero_range.get() {
            return Ok(false);
        }
        self.until_open().await?;
        let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let outcome = self.allocate(mode, offset, len).await;
        unless_unsupported(&self.zero_range, outcome)
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.zero_range(offset, len).await? {
            return Ok(());
        }
        let zeroes = Buf::zeroed(len.min(ZEROES_CHUNK_BYTES) as usize).freeze();
        let end = offset + len;
        let mut at = offset;
        let mut inflight = VecDeque::with_capacity(ZEROES_INFLIGHT_MAX);
        let mut result = Ok(());
        while result.is_ok() && (at < end || !inflight.is_empty()) {
            while at < end && inflight.len() < ZEROES_INFLIGHT_MAX && result.is_ok() {
                result = self.until_open().await;
                if result.is_ok() {
                    let chunk = (end - at).min(ZEROES_CHUNK_BYTES);
                    inflight.push_back(self.write(at, zeroes.slice(0..chunk as usize)));
                    at += chunk;
                }
            }
            if let Some(oldest) = inflight.pop_front() {
                result = result.and(oldest.done().await);
            }
        }
        // A failed request has ended only when nothing of it can reach the disk any more.
        for io in inflight {
            let _ = io.await;
        }
        result
    }
}

/// Whether a request was done; one that the device does not have is not tried again.
fn unless_unsupported(works: &Cell<bool>, outcome: Result<(), IoError>) -> Result<bool, IoError> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind == IoErrorKind::Unsupported => {
            works.set(false);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry.get()
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.0.identity
    }

    fn fence(&self, gate: &Rc<Gate>) {
        *self.0.fence.borrow_mut() = Some(gate.until());
    }

    fn submit(&self, request: Request, completer: Completer) {
        if let Err(error) = self.0.check(&request) {
            return request.finish(Err(error), completer);
        }
        let inner = &self.0;
        match request {
            Request::Read { offset, buf } if inner.is_aligned(&buf) => {
                inner.read(offset, buf, completer);
            }
            Request::Read { offset, buf } => {
                let inner = Rc::clone(inner);
                self.0.reactor.spawn(Box::pin(async move {
                    inner.read_through_copy(offset, buf, completer).await;
                }));
            }
            Request::Write { offset, data, durable } => {
                let data =
                    if inner.is_aligned(&data) { data } else { Buf::copy_of(&data).freeze() };
                inner.start(Kind::Write { offset, data, durable }, completer);
            }
            Request::Flush => inner.start(Kind::Sync { data_only: true }, completer),
            Request::Discard { offset, len } => {
                let inner = Rc::clone(inner);
                self.0.reactor.spawn(Box::pin(async move {
                    completer.done(inner.discard(offset, len).await);
                }));
            }
            Request::WriteZeroes { offset, len } => {
                let inner = Rc::clone(inner);
                self.0.reactor.spawn(Box::pin(async move {
                    completer.done(inner.write_zeroes(offset, len).await);
                }));
            }
        }
    }
}
