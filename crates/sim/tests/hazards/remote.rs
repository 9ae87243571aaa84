//! Hazards of clients on other reactors than the pool's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::io::Completer;
use forebay_device::{BlockDevice, Buf, Geometry, Request, Runtime};
use forebay_engine::Tuning;
use forebay_engine::planted::Bug;

use crate::rig::{BLOCK, Plan, Rig, SOON, provoke, same, survive, version};
use crate::{destaging, is_read};

/// A device of another reactor that does nothing until it is told to, or fails.
struct Late {
    inner: Rc<dyn BlockDevice>,
    is_open: Cell<bool>,
    waiting: RefCell<Vec<(Request, Completer)>>,
}

impl Late {
    fn new(rig: &Rig) -> Rc<Late> {
        let inner = Rc::clone(&rig.members[0]) as Rc<dyn BlockDevice>;
        Rc::new(Late { inner, is_open: Cell::new(false), waiting: RefCell::default() })
    }

    fn go_on(&self) {
        self.is_open.set(true);
        for (request, completer) in self.waiting.take() {
            self.inner.submit(request, completer);
        }
    }
}

impl BlockDevice for Late {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        assert!(is_read(&request), "other reactors only read");
        if self.is_open.get() {
            return self.inner.submit(request, completer);
        }
        self.waiting.borrow_mut().push((request, completer));
    }
}

#[test]
fn what_another_reactor_reads_is_not_reused_meanwhile() {
    provoke(Bug::RemoteHitUnpinned, 3, |seed| {
        let tuning = Tuning { lap_percent: 20, flush_bytes: 256 << 10, ..destaging() };
        let rig = Rig::new(seed, Plan { tuning, ..Plan::default() });
        rig.write(2, 3, 1)?;
        let device = Late::new(&rig);
        let client = rig
            .volume()
            .share()
            .open(rig.runtime(), vec![Rc::clone(&device) as Rc<dyn BlockDevice>]);
        let client = Rc::new(client);
        let read = Rc::new(RefCell::new(None));
        let (slot, reader) = (Rc::clone(&read), Rc::clone(&client));
        rig.world.spawn(Box::pin(async move {
            let (buf, result) = reader.read(3 * BLOCK as u64, Buf::new(BLOCK)).await;
            *slot.borrow_mut() = Some(result.map(|()| buf));
        }));
        rig.pause(SOON);
        assert_eq!(device.waiting.borrow().len(), 1, "it knows where to read");
        for newer in 3..500 {
            rig.write(newer, 4 * (newer % 8), 4)?;
        }
        device.go_on();
        rig.pause(SOON);
        let buf = read.take().expect("it has been read").map_err(|error| error.to_string())?;
        same("what was there when the read began", version(3, &buf)?, 2)?;
        let newest = (3..500).rev().find(|newer| newer % 8 == 0).unwrap_or(2);
        same("what is read on the pool's reactor", rig.read(3)?, newest)?;
        let (buf, result) =
            rig.run(async move { client.read(3 * BLOCK as u64, Buf::new(BLOCK)).await })?;
        result.map_err(|error| error.to_string())?;
        same("what is read next", version(3, &buf)?, newest).map(drop)
    });
}

/// A device that another reactor cannot read.
struct Broken(Rc<dyn BlockDevice>);

impl BlockDevice for Broken {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        request.finish(Err(forebay_device::IoErrorKind::Media.into()), completer);
    }
}

#[test]
fn a_reactor_that_cannot_read_a_device_asks_the_pool() {
    survive(1, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        let device = Broken(Rc::clone(&rig.members[0]) as Rc<dyn BlockDevice>);
        let client = rig.volume().share().open(rig.runtime(), vec![Rc::new(device)]);
        let (buf, result) =
            rig.run(async move { client.read(3 * BLOCK as u64, Buf::new(BLOCK)).await })?;
        result.map_err(|error| error.to_string())?;
        same("read through the pool", version(3, &buf)?, 2).map(drop)
    });
}

#[test]
fn a_read_beyond_all_ends_is_refused_on_any_reactor() {
    survive(1, |seed| {
        let rig = Rig::new(seed, Plan::default());
        let device = Rc::clone(&rig.members[0]) as Rc<dyn BlockDevice>;
        let client = rig.volume().share().open(rig.runtime(), vec![device]);
        let read = async move { client.read(u64::MAX - 511, Buf::new(1024)).await.1 };
        let refused = rig.run(read)?.unwrap_err();
        assert_eq!(refused.kind, forebay_engine::ErrorKind::OutOfRange);
        Ok(())
    });
}

#[test]
fn each_client_of_another_reactor_learns_of_a_failed_origin_flush_once() {
    survive(1, |seed| {
        let mode = forebay_engine::Mode::Readonly;
        let rig = Rig::new(seed, Plan { mode, ..Plan::default() });
        let first = Rc::new(rig.volume().share().open(rig.runtime(), Vec::new()));
        let second = Rc::new(first.session());
        let flush = |client: &Rc<forebay_engine::Client>| {
            let client = Rc::clone(client);
            rig.run(async move { client.flush().await.is_ok() })
        };
        // Both are known to the pool before anything fails.
        assert!(flush(&first)? && flush(&second)?);
        let writer = Rc::clone(&first);
        let written =
            rig.run(
                async move { writer.write(0, Buf::zeroed(BLOCK).freeze(), false).await.is_ok() },
            )?;
        assert!(written);
        rig.origin_gate.fail_next(|request| matches!(request, Request::Flush));
        assert!(!flush(&first)?, "whose flush it was");
        assert!(!flush(&second)?, "who had nothing to do with it");
        assert!(flush(&first)? && flush(&second)?, "they have been told");
        assert!(flush(&first)? && flush(&second)?, "and go on");
        // A new client takes over the place of one that has left, not what it was owed.
        drop(second);
        let third = Rc::new(first.session());
        assert!(flush(&third)?);
        Ok(())
    });
}
