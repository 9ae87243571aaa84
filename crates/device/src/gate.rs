//! Whether requests may go out at all: a time that runs out, in front of devices.
//!
//! * Who shares devices with another host may use them for a time only ([`Gate::open_until`]). The clock is
//!   read for each request, right before the device gets it: a process that was stopped, or a machine that
//!   slept, does not go on with what it was about to do.
//! * What comes later waits here, in its order, for more time, or ends with an error once there is none
//!   ([`Gate::shut`]). What a device had before is not called back.
//! * Where nobody sets a time it costs one comparison, and no clock is read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::device::{BlockDevice, Geometry, Request};
use crate::io::{Completer, IoErrorKind};
use crate::runtime::{Nanos, Runtime};

/// The time that a gate is open for, as other reactors see it.
#[derive(Clone)]
pub struct Until(Arc<Term>);

struct Term {
    until: AtomicU64,
    is_last: AtomicBool,
}

impl Until {
    /// Whether it is not over yet.
    #[inline(always)]
    pub fn holds(&self, now: impl FnOnce() -> Nanos) -> bool {
        let until = self.0.until.load(Ordering::Acquire);
        until == Nanos::MAX || now() < until
    }

    /// Whether there will be no more of it.
    pub fn is_last(&self) -> bool {
        self.0.is_last.load(Ordering::Acquire)
    }
}

/// A request that waits.
struct Held {
    device: Rc<dyn BlockDevice>,
    request: Request,
    completer: Completer,
}

/// See the head of the file.
pub struct Gate {
    runtime: Rc<dyn Runtime>,
    until: Until,
    is_shut: Cell<bool>,
    held: RefCell<Vec<Held>>,
}

impl Gate {
    /// Open, as long as nobody says until when.
    pub fn new(runtime: Rc<dyn Runtime>) -> Rc<Gate> {
        let term = Term { until: Nanos::MAX.into(), is_last: false.into() };
        let until = Until(Arc::new(term));
        let (is_shut, held) = (Cell::new(false), RefCell::default());
        Rc::new(Gate { runtime, until, is_shut, held })
    }

    /// The time, for other reactors.
    pub fn until(&self) -> Until {
        self.until.clone()
    }

    /// Whether requests may go out at this moment.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.until.holds(|| self.runtime.now())
    }

    /// Whether they might have at `now`, which is not long ago.
    #[inline(always)]
    pub fn was_open(&self, now: Nanos) -> bool {
        self.until.holds(|| now)
    }

    /// Lets requests out until then; those that waited go first.
    pub fn open_until(&self, until: Nanos) {
        if self.is_shut.get() {
            return;
        }
        self.until.0.until.store(until, Ordering::Release);
        for Held { device, request, completer } in self.held.take() {
            self.pass(&device, request, completer);
        }
    }

    /// Lets nothing out any more; what waited fails.
    pub fn shut(&self) {
        self.until.0.until.store(0, Ordering::Release);
        self.end();
    }

    /// Whether there will be no more time than there is.
    pub fn is_shut(&self) -> bool {
        self.is_shut.get()
    }

    /// What waits fails; there may be more time later.
    pub fn refuse(&self) {
        for Held { request, completer, .. } in self.held.take() {
            request.finish(Err(IoErrorKind::Vanished.into()), completer);
        }
    }

    /// There will be no more time than there is: what comes behind it fails, and nothing waits.
    pub fn end(&self) {
        self.is_shut.set(true);
        self.until.0.is_last.store(true, Ordering::Release);
        self.refuse();
    }

    /// Gives a request to its device, now or later.
    fn pass(&self, device: &Rc<dyn BlockDevice>, request: Request, completer: Completer) {
        if self.is_open() {
            device.submit(request, completer);
        } else {
            self.hold(device, request, completer);
        }
    }

    /// Keeps a request until there is more time.
    #[cold]
    pub(crate) fn hold(
        &self,
        device: &Rc<dyn BlockDevice>,
        request: Request,
        completer: Completer,
    ) {
        if self.is_shut.get() {
            return request.finish(Err(IoErrorKind::Vanished.into()), completer);
        }
        let device = Rc::clone(device);
        self.held.borrow_mut().push(Held { device, request, completer });
    }
}

/// A device behind a gate.
pub struct Gated {
    /// The device.
    pub inner: Rc<dyn BlockDevice>,
    /// What is in front of it.
    pub gate: Rc<Gate>,
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.inner.identity()
    }

    fn submit(&self, request: Request, completer: Completer) {
        self.gate.pass(&self.inner, request, completer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on_ready;
    use crate::io::Io;
    use crate::model::disk::{DiskSettings, SimDisk};
    use crate::model::world::World;

    #[test]
    fn what_comes_too_late_waits_for_more_time_or_fails() {
        let world = World::new(1);
        let disk = SimDisk::new(&world, DiskSettings::ssd(1 << 20, 512), 1);
        let gate = Gate::new(Rc::clone(&world) as Rc<dyn Runtime>);
        let device: Rc<dyn BlockDevice> = Rc::new(Gated { inner: disk, gate: Rc::clone(&gate) });
        let ended = |io: Io| world.run_until(io).unwrap().result;
        assert_eq!(ended(device.flush()), Ok(()), "nobody has said until when");
        gate.open_until(world.now() + 1_000_000_000);
        assert_eq!(ended(device.flush()), Ok(()));
        gate.open_until(world.now());
        let ios = world.io_count();
        let (first, second) = (device.flush(), device.flush());
        world.run_for(1_000_000_000).unwrap();
        assert_eq!(world.io_count(), ios, "the device has seen neither");
        gate.open_until(world.now() + 1_000_000_000);
        assert_eq!((ended(first), ended(second)), (Ok(()), Ok(())));
        gate.open_until(world.now());
        let third = device.flush();
        gate.shut();
        assert_eq!(block_on_ready(third.done()), Err(IoErrorKind::Vanished.into()));
        gate.open_until(Nanos::MAX);
        let late = device.flush();
        assert_eq!(block_on_ready(late.done()), Err(IoErrorKind::Vanished.into()));
    }
}
