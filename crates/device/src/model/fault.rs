//! Faults as layers: each wraps a device and breaks one thing about it.
//!
//! * Layers stack in any order. What a layer does is decided by its [`Faults`] handle, which the
//!   test keeps a clone of and arms and disarms while the device is in use.
//! * A request that no trigger matches passes through untouched.
//! * Everything is drawn from a seed, so a run with faults repeats exactly.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::disk::TEAR_BYTES;
use super::world::Rng;
use crate::buf::{Buf, Data};
use crate::device::{BlockDevice, Geometry, Request};
use crate::io::{Completer, IoError, IoErrorKind, Outcome, pair};
use crate::runtime::{Nanos, Runtime};

/// Kinds of request that a trigger matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ops {
    /// Every request.
    All,
    /// `Read`.
    Reads,
    /// `Write`, `WriteZeroes` and `Discard`.
    Writes,
    /// `Flush`.
    Flushes,
}

/// Which requests a fault hits.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// Kinds of request.
    pub ops: Ops,
    /// Bytes of the device; a request is hit if it overlaps them. `None` is the whole device, and
    /// the only one that matches flushes.
    pub range: Option<Range<u64>>,
    /// One of so many matching requests is hit, at random; 1 is every one.
    pub one_in: u64,
    /// Hits left.
    pub hits_max: u64,
    /// Matching requests that pass before the first hit.
    pub spared: u64,
}

impl Trigger {
    /// Hits every request of these kinds.
    pub fn every(ops: Ops) -> Self {
        Self { ops, range: None, one_in: 1, hits_max: u64::MAX, spared: 0 }
    }

    /// Hits about one in `one_in` requests of these kinds.
    pub fn one_in(ops: Ops, one_in: u64) -> Self {
        Self { one_in, ..Self::every(ops) }
    }

    /// Only requests that overlap `range`.
    pub fn within(self, range: Range<u64>) -> Self {
        Self { range: Some(range), ..self }
    }

    /// At most `hits` times.
    pub fn times(self, hits: u64) -> Self {
        Self { hits_max: hits, ..self }
    }

    /// Only after `count` matching requests.
    pub fn after(self, count: u64) -> Self {
        Self { spared: count, ..self }
    }

    fn matches(&self, request: &Request) -> bool {
        let op = match self.ops {
            Ops::All => true,
            Ops::Reads => matches!(request, Request::Read { .. }),
            Ops::Flushes => matches!(request, Request::Flush),
            Ops::Writes => !matches!(request, Request::Read { .. } | Request::Flush),
        };
        let overlaps = match (&self.range, request.range()) {
            (None, _) => true,
            (Some(ours), Some(theirs)) => ours.start < theirs.end && theirs.start < ours.end,
            (Some(_), None) => false,
        };
        op && overlaps && self.hits_max > 0
    }
}

/// The handle of one or more fault layers.
pub struct Faults {
    triggers: RefCell<Vec<Trigger>>,
    hits: Cell<u64>,
    rng: RefCell<Rng>,
    /// What else happens when a flush fails.
    at_failed_flush: RefCell<Option<Box<dyn Fn()>>>,
}

impl Faults {
    /// A handle with nothing armed.
    pub fn new(seed: u64) -> Rc<Faults> {
        let rng = RefCell::new(Rng::new(seed));
        let (triggers, at_failed_flush) = (RefCell::default(), RefCell::default());
        Rc::new(Faults { triggers, hits: Cell::new(0), rng, at_failed_flush })
    }

    /// Has something else happen with each flush that a [`Failing`] layer fails: the disk below
    /// loses writes, say.
    pub fn at_failed_flush(&self, action: Box<dyn Fn()>) {
        self.at_failed_flush.replace(Some(action));
    }

    /// Adds a trigger.
    pub fn arm(&self, trigger: Trigger) {
        self.triggers.borrow_mut().push(trigger);
    }

    /// Removes all triggers.
    pub fn disarm(&self) {
        self.triggers.borrow_mut().clear();
    }

    /// Requests hit so far.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    fn hit(&self, request: &Request) -> bool {
        let mut rng = self.rng.borrow_mut();
        for trigger in self.triggers.borrow_mut().iter_mut() {
            if !trigger.matches(request) {
                continue;
            }
            if trigger.spared > 0 {
                trigger.spared -= 1;
            } else if rng.one_in(trigger.one_in) {
                trigger.hits_max -= 1;
                self.hits.set(self.hits.get() + 1);
                return true;
            }
        }
        false
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }
}

/// A device to wrap.
pub type Inner = Rc<dyn BlockDevice>;

/// Submits `request` and hands its outcome to `then`, which ends the outer request.
fn submit_then(
    runtime: &Rc<dyn Runtime>,
    inner: &Inner,
    request: Request,
    then: impl FnOnce(Outcome) + 'static,
) {
    let (completer, io) = pair();
    inner.submit(request, completer);
    runtime.spawn(Box::pin(async move { then(io.await) }));
}

/// Reports an error for what it hits; half of the writes are performed all the same.
pub struct Failing {
    /// The device below.
    pub inner: Inner,
    /// What is hit.
    pub faults: Rc<Faults>,
    /// The error reported.
    pub error: IoErrorKind,
    /// For waiting.
    pub runtime: Rc<dyn Runtime>,
}

impl BlockDevice for Failing {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if !self.faults.hit(&request) {
            return self.inner.submit(request, completer);
        }
        let error: IoError = self.error.into();
        if let (Request::Flush, Some(action)) = (&request, &*self.faults.at_failed_flush.borrow()) {
            action();
        }
        let performed = !matches!(request, Request::Read { .. }) && self.faults.below(2) == 0;
        if performed {
            let then = move |outcome: Outcome| completer.complete(Err(error), outcome.buf);
            submit_then(&self.runtime, &self.inner, request, then);
        } else {
            request.finish(Err(error), completer);
        }
    }
}

/// Holds back what it hits before the device sees it.
pub struct Delaying {
    /// The device below.
    pub inner: Inner,
    /// What is hit.
    pub faults: Rc<Faults>,
    /// Longest delay.
    pub delay_max: Nanos,
    /// For waiting.
    pub runtime: Rc<dyn Runtime>,
}

impl BlockDevice for Delaying {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if !self.faults.hit(&request) {
            return self.inner.submit(request, completer);
        }
        let delay = self.runtime.sleep(self.faults.below(self.delay_max));
        let inner = Rc::clone(&self.inner);
        self.runtime.spawn(Box::pin(async move {
            delay.await;
            inner.submit(request, completer);
        }));
    }
}

/// What a [`Hanging`] layer has not answered.
#[derive(Default)]
pub struct Stuck {
    /// Requests that the device below has not seen.
    unseen: RefCell<Vec<(Request, Completer)>>,
    /// Requests that it has carried out.
    done: RefCell<Vec<(Completer, Outcome)>>,
}

impl Stuck {
    /// Requests without an answer.
    pub fn count(&self) -> usize {
        self.unseen.borrow().len() + self.done.borrow().len()
    }

    /// Answers all of them after all, `inner` being the device below.
    pub fn release(&self, inner: &Inner) {
        for (completer, outcome) in self.done.take() {
            completer.complete(outcome.result, outcome.buf);
        }
        for (request, completer) in self.unseen.take() {
            inner.submit(request, completer);
        }
    }

    /// Drops them, after a crash.
    pub fn forget(&self) {
        self.unseen.take();
        self.done.take();
    }
}

/// Does not answer what it hits; half of that is performed all the same.
pub struct Hanging {
    /// The device below.
    pub inner: Inner,
    /// What is hit.
    pub faults: Rc<Faults>,
    /// What it has not answered; shared with the test.
    pub stuck: Rc<Stuck>,
    /// For waiting.
    pub runtime: Rc<dyn Runtime>,
}

impl BlockDevice for Hanging {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if !self.faults.hit(&request) {
            return self.inner.submit(request, completer);
        }
        let stuck = Rc::clone(&self.stuck);
        if self.faults.below(2) == 0 {
            return stuck.unseen.borrow_mut().push((request, completer));
        }
        submit_then(&self.runtime, &self.inner, request, move |outcome| {
            stuck.done.borrow_mut().push((completer, outcome));
        });
    }
}

/// A device that can be pulled out: requests in hand and new ones fail until it is back.
pub struct Vanishing {
    /// The device below.
    pub inner: Inner,
    /// Gone while this is set; shared with the test.
    pub gone: Rc<Cell<bool>>,
    /// For waiting.
    pub runtime: Rc<dyn Runtime>,
}

impl BlockDevice for Vanishing {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if self.gone.get() {
            return request.finish(Err(IoErrorKind::Vanished.into()), completer);
        }
        let gone = Rc::clone(&self.gone);
        submit_then(&self.runtime, &self.inner, request, move |outcome| {
            let result =
                if gone.get() { Err(IoErrorKind::Vanished.into()) } else { outcome.result };
            completer.complete(result, outcome.buf);
        });
    }
}

/// Flips one bit: of a hit read in what is returned, of a hit write in what is stored.
pub struct Flipping {
    /// The device below.
    pub inner: Inner,
    /// What is hit.
    pub faults: Rc<Faults>,
    /// For waiting.
    pub runtime: Rc<dyn Runtime>,
}

impl Flipping {
    fn flip(faults: &Faults, bytes: &mut [u8]) {
        let bit = faults.below(bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl BlockDevice for Flipping {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if !self.faults.hit(&request) {
            return self.inner.submit(request, completer);
        }
        let faults = Rc::clone(&self.faults);
        match request {
            Request::Read { .. } => {
                submit_then(&self.runtime, &self.inner, request, move |mut outcome| {
                    if let Some(buf) = &mut outcome.buf {
                        Self::flip(&faults, buf);
                    }
                    completer.complete(outcome.result, outcome.buf);
                });
            }
            Request::Write { offset, data, durable } => {
                let mut copy = Buf::copy_of(&data);
                Self::flip(&faults, &mut copy);
                let data = copy.freeze();
                self.inner.submit(Request::Write { offset, data, durable }, completer);
            }
            other => self.inner.submit(other, completer),
        }
    }
}

/// Performs only the first sectors of a hit write, then reports an error or, as a lying device
/// would, success.
pub struct Tearing {
    /// The device below.
    pub inner: Inner,
    /// What is hit.
    pub faults: Rc<Faults>,
    /// What is reported.
    pub result: Result<(), IoErrorKind>,
    /// For waiting.
    pub runtime: Rc<dyn Runtime>,
}

impl BlockDevice for Tearing {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if !matches!(request, Request::Write { .. }) || !self.faults.hit(&request) {
            return self.inner.submit(request, completer);
        }
        let Request::Write { offset, data, durable } = request else { return };
        let result = self.result.map_err(IoError::from);
        let sector = u64::from(self.inner.geometry().sector_bytes).max(TEAR_BYTES);
        let kept = self.faults.below(data.len() as u64 / sector) * sector;
        if kept == 0 {
            return completer.done(result);
        }
        let torn = Request::Write { offset, data: data.slice(0..kept as usize), durable };
        submit_then(&self.runtime, &self.inner, torn, move |_| completer.done(result));
    }
}

/// Acknowledges hit writes, discards and flushes without performing them.
pub struct LosingWrites {
    /// The device below.
    pub inner: Inner,
    /// What is hit.
    pub faults: Rc<Faults>,
}

impl BlockDevice for LosingWrites {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if matches!(request, Request::Read { .. }) || !self.faults.hit(&request) {
            self.inner.submit(request, completer);
        } else {
            completer.done(Ok(()));
        }
    }
}

/// Puts hit writes somewhere else on the device.
pub struct Misdirecting {
    /// The device below.
    pub inner: Inner,
    /// What is hit.
    pub faults: Rc<Faults>,
    /// Bytes of the device where such writes land; `None` is anywhere.
    pub landing: Option<Range<u64>>,
}

impl BlockDevice for Misdirecting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if !matches!(request, Request::Write { .. }) || !self.faults.hit(&request) {
            return self.inner.submit(request, completer);
        }
        let Request::Write { data, durable, .. } = request else { return };
        let geometry = self.inner.geometry();
        let sector = u64::from(geometry.sector_bytes);
        let landing = self.landing.clone().unwrap_or(0..geometry.size_bytes);
        let places = (landing.end - landing.start - data.len() as u64) / sector + 1;
        let offset = landing.start + self.faults.below(places) * sector;
        let data = Data::clone(&data);
        self.inner.submit(Request::Write { offset, data, durable }, completer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::disk::{DiskSettings, SimDisk};
    use crate::model::world::World;
    use crate::runtime::SECOND;

    struct Bench {
        world: Rc<World>,
        disk: Rc<SimDisk>,
        faults: Rc<Faults>,
    }

    fn bench() -> Bench {
        let world = World::new(5);
        let disk = SimDisk::new(&world, DiskSettings::ssd(1 << 20, 512), 5);
        Bench { world, disk, faults: Faults::new(5) }
    }

    impl Bench {
        fn inner(&self) -> Inner {
            Rc::clone(&self.disk) as Inner
        }

        fn runtime(&self) -> Rc<dyn Runtime> {
            Rc::clone(&self.world) as Rc<dyn Runtime>
        }

        fn arm(&self, ops: Ops) -> Rc<Faults> {
            self.faults.arm(Trigger::every(ops));
            Rc::clone(&self.faults)
        }

        fn write(&self, device: impl BlockDevice + 'static, byte: u8) -> Result<(), IoError> {
            let device: Inner = Rc::new(device);
            let data = Buf::copy_of(&[byte; 4096]).freeze();
            self.world.run_until(async move { device.write(4096, data).done().await }).unwrap()
        }

        fn read(&self, device: impl BlockDevice + 'static) -> (Result<(), IoError>, Vec<u8>) {
            let device: Inner = Rc::new(device);
            let outcome =
                self.world.run_until(async move { device.read(4096, Buf::new(4096)).await });
            let outcome = outcome.unwrap();
            (outcome.result, outcome.buf.unwrap().to_vec())
        }
    }

    #[test]
    fn errors_come_as_often_and_where_they_were_asked_for() {
        let b = bench();
        let failing = |b: &Bench| Failing {
            inner: b.inner(),
            faults: Rc::clone(&b.faults),
            error: IoErrorKind::Media,
            runtime: b.runtime(),
        };
        assert_eq!(b.write(failing(&b), 1), Ok(()));
        b.faults.arm(Trigger::every(Ops::All).within(0..4096));
        assert_eq!(b.write(failing(&b), 2), Ok(()), "the range ends before the request");
        b.faults.arm(Trigger::every(Ops::Reads).within(8191..9000).times(1));
        assert_eq!(b.read(failing(&b)).0, Err(IoErrorKind::Media.into()));
        assert_eq!(b.read(failing(&b)).0, Ok(()), "once only");
        assert_eq!(b.faults.hits(), 1);
    }

    #[test]
    fn a_failed_write_may_have_happened() {
        let b = bench();
        b.faults.arm(Trigger::every(Ops::Writes));
        let mut performed = 0;
        for byte in 1..=50 {
            let (inner, faults) = (b.inner(), Rc::clone(&b.faults));
            let error = IoErrorKind::Media;
            let device = Failing { inner, faults, error, runtime: b.runtime() };
            assert!(b.write(device, byte).is_err());
            performed += u32::from(b.disk.peek(4096, 1)[0] == byte);
        }
        assert!((10..40).contains(&performed));
    }

    #[test]
    fn a_failed_flush_may_lose_what_was_written_before() {
        let b = bench();
        let disk = Rc::clone(&b.disk);
        b.faults.at_failed_flush(Box::new(move || disk.fail_flush()));
        b.faults.arm(Trigger::every(Ops::Flushes));
        let mut lost = 0;
        for byte in 1..=50 {
            let (inner, faults) = (b.inner(), Rc::clone(&b.faults));
            let error = IoErrorKind::Media;
            let device: Inner =
                Rc::new(Failing { inner, faults: Rc::clone(&faults), error, runtime: b.runtime() });
            assert_eq!(b.write(LosingWrites { inner: b.inner(), faults }, byte), Ok(()));
            let unflushed = b.disk.unflushed_count();
            let flushed = b.world.run_until(async move { device.flush().done().await });
            assert!(flushed.unwrap().is_err());
            lost += u32::from(b.disk.unflushed_count() < unflushed);
        }
        assert!((10..50).contains(&lost), "{lost}");
    }

    #[test]
    fn a_delayed_request_reaches_the_device_late() {
        let b = bench();
        let faults = b.arm(Ops::Writes);
        let inner = b.inner();
        let device = Delaying { inner, faults, delay_max: 100 * SECOND, runtime: b.runtime() };
        assert_eq!(b.write(device, 1), Ok(()));
        assert!(b.world.now() > SECOND);
    }

    #[test]
    fn a_vanished_device_fails_everything_until_it_is_back() {
        let b = bench();
        let gone = Rc::new(Cell::new(true));
        let device = |b: &Bench| Vanishing {
            inner: b.inner(),
            gone: Rc::clone(&gone),
            runtime: b.runtime(),
        };
        assert_eq!(b.write(device(&b), 1), Err(IoErrorKind::Vanished.into()));
        assert_eq!(b.disk.peek(4096, 1), [0]);
        gone.set(false);
        assert_eq!(b.write(device(&b), 2), Ok(()));
    }

    #[test]
    fn what_hangs_is_answered_when_it_is_released() {
        let b = bench();
        let faults = b.arm(Ops::Writes);
        let stuck = Rc::new(Stuck::default());
        let device =
            Hanging { inner: b.inner(), faults, stuck: Rc::clone(&stuck), runtime: b.runtime() };
        let device: Inner = Rc::new(device);
        let writes: Vec<_> =
            (0..20).map(|at| device.write(at * 4096, Buf::copy_of(&[7; 4096]).freeze())).collect();
        b.world.run_until_idle().unwrap();
        let performed = || (0..20).filter(|at| b.disk.peek(at * 4096, 1) == [7]).count();
        assert!(stuck.count() == 20 && (5..15).contains(&performed()));
        stuck.release(&b.inner());
        for write in writes {
            assert_eq!(b.world.run_until(write.done()).unwrap(), Ok(()));
        }
        assert_eq!((stuck.count(), performed()), (0, 20));
    }

    #[test]
    fn one_bit_flips_in_the_answer_or_on_the_disk() {
        let b = bench();
        let ones = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
        let faults = b.arm(Ops::All);
        let device = |b: &Bench| Flipping {
            inner: b.inner(),
            faults: Rc::clone(&faults),
            runtime: b.runtime(),
        };
        assert_eq!(ones(&b.read(device(&b)).1), 1);
        assert_eq!(ones(&b.disk.peek(4096, 4096)), 0, "the disk is unharmed");
        assert_eq!(b.write(device(&b), 0), Ok(()));
        assert_eq!(ones(&b.disk.peek(4096, 4096)), 1);
    }

    #[test]
    fn a_torn_write_stores_its_first_sectors() {
        let b = bench();
        let faults = b.arm(Ops::Writes);
        let result = Err(IoErrorKind::Media);
        let device = Tearing { inner: b.inner(), faults, result, runtime: b.runtime() };
        assert_eq!(b.write(device, 7), Err(IoErrorKind::Media.into()));
        let image = b.disk.peek(4096, 4096);
        let kept = image.iter().filter(|&&b| b == 7).count();
        assert!(kept < 4096 && kept % 512 == 0 && image[..kept].iter().all(|&b| b == 7));
    }

    #[test]
    fn a_lost_write_is_acknowledged_and_not_performed() {
        let b = bench();
        let faults = b.arm(Ops::Writes);
        assert_eq!(b.write(LosingWrites { inner: b.inner(), faults }, 7), Ok(()));
        assert_eq!(b.disk.peek(4096, 1), [0]);
    }

    #[test]
    fn a_misdirected_write_lands_elsewhere() {
        let b = bench();
        let faults = b.arm(Ops::Writes);
        let astray = Misdirecting { inner: b.inner(), faults, landing: None };
        assert_eq!(b.write(astray, 7), Ok(()));
        let image = b.disk.peek(0, 1 << 20);
        assert_eq!(image.iter().filter(|&&b| b == 7).count(), 4096);
        assert_ne!(image[4096], 7);
    }
}
