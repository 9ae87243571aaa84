//! A device whose requests are watched: whether it answers, and what becomes of those that wait if it
//! does not.
//!
//! * Requests are numbered. Whoever watches looks at equal intervals and notes how far the numbers are
//!   at each; what is older than the note of [`LOOKS`] looks ago is late. So no request has a timer, and
//!   none costs more than its number.
//! * Only looks count as time. A process that was stopped, or a machine that slept, does not take a
//!   device for dead: behind the pause comes one look, and what has been answered meanwhile is taken
//!   before the next.
//! * What others carry out past this ends when they say so, and they may be kept from that by something else than the
//!   device: a reactor without a processor stands still, and its answers wait. So the device is asked for something here,
//!   too, and counts as late only if it does not answer that either.
//! * A request that is given up ends with an error for whoever waits. The device keeps its buffer until
//!   it answers; nothing comes of that answer, however late. Until it has answered all of them it gets no
//!   further request: those end with an error at once. So what it keeps is bounded by what it had.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::buf::Buf;
use crate::device::{BlockDevice, Geometry, Request};
use crate::gate::Gate;
use crate::io::{self, Completer, IoError, IoErrorKind};

/// Looks that a request may see before it is late. With more, lateness is noticed closer to the time
/// that is meant: here at most an eighth behind it.
pub const LOOKS: usize = 8;

/// Looks that others may wait for a device before it is asked for something here.
const DOUBTED_LOOKS: usize = LOOKS / 2;

/// What is read to find out whether a device answers: its first block.
const QUESTION_BYTES: usize = 4096;

/// Who has waited for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Whoever asks here: the device does not answer.
    Here,
    /// Others alone: the device answers.
    Elsewhere,
}

thread_local! {
    static WATCHERS: Cell<u32> = const { Cell::new(0) };
}

/// See the head of the file.
pub struct Watched {
    /// None once it was let go of.
    inner: RefCell<Option<Rc<dyn BlockDevice>>>,
    /// What is in front of it.
    gate: Option<Rc<Gate>>,
    me: Weak<Watched>,
    /// As it was when it was looked at last: asked several times for each request.
    geometry: Cell<Geometry>,
    /// Its number among the watched devices of the thread.
    watcher: u32,
    /// Requests so far.
    begun: Cell<u64>,
    looks: Cell<usize>,
    /// `begun` at each of the last looks.
    notes: RefCell<[u64; LOOKS]>,
    /// Requests that others carry out, by the look that they began before.
    elsewhere: RefCell<[u32; LOOKS + 1]>,
    /// Whether requests were given up, and perhaps not answered yet.
    silent: Cell<bool>,
    /// Whether it has not answered what it was asked because others wait.
    asked: Cell<bool>,
}

impl Watched {
    /// Watches what goes to `inner` through here.
    pub fn new(inner: Rc<dyn BlockDevice>) -> Rc<Watched> {
        Watched::behind(None, inner)
    }

    /// The same behind a gate.
    pub fn behind(gate: Option<Rc<Gate>>, inner: Rc<dyn BlockDevice>) -> Rc<Watched> {
        let watcher = WATCHERS.get() + 1;
        WATCHERS.set(watcher);
        Rc::new_cyclic(|me| Watched {
            geometry: Cell::new(inner.geometry()),
            inner: RefCell::new(Some(inner)),
            gate,
            me: me.clone(),
            watcher,
            begun: Cell::new(0),
            looks: Cell::new(0),
            notes: RefCell::default(),
            elsewhere: RefCell::default(),
            silent: Cell::new(false),
            asked: Cell::new(false),
        })
    }

    /// Whether this is the device that is watched.
    pub fn is(&self, device: &Rc<dyn BlockDevice>) -> bool {
        self.inner.borrow().as_ref().is_some_and(|inner| Rc::ptr_eq(inner, device))
    }

    /// Looks at the device's size again, which may have become larger; the size, in bytes.
    pub fn measure(&self) -> u64 {
        if let Some(inner) = &*self.inner.borrow() {
            self.geometry.set(inner.geometry());
        }
        self.geometry.get().size_bytes
    }

    /// Lets go of the device, so that others may have it. What is asked of it from now on fails.
    pub fn release(&self) {
        self.inner.take();
    }

    /// One look; whose request has been waiting since [`LOOKS`] looks ago, if anybody's has.
    pub fn look(&self) -> Option<Late> {
        let looks = self.looks.get();
        self.looks.set(looks + 1);
        let before =
            std::mem::replace(&mut self.notes.borrow_mut()[looks % LOOKS], self.begun.get());
        // The place of the requests that begin from now on had those of as many looks ago.
        let elsewhere = self.elsewhere.borrow()[(looks + 1) % (LOOKS + 1)];
        if io::oldest_of(self.watcher).is_some_and(|oldest| oldest <= before) {
            return Some(Late::Here);
        }
        (elsewhere > 0).then_some(if self.asked.get() { Late::Here } else { Late::Elsewhere })
    }

    /// Asks the device for something, if others have waited for it for half of the time; to be driven to its end. As it
    /// is no client's request, it does not wait at the gate.
    pub fn question(self: &Rc<Self>) -> Option<impl Future<Output = ()> + 'static> {
        let (looks, all) = (self.looks.get(), LOOKS + 1);
        let waits = |ago: usize| self.elsewhere.borrow()[(looks + all - ago) % all] > 0;
        if self.asked.get() || !(DOUBTED_LOOKS..=LOOKS).any(waits) {
            return None;
        }
        self.asked.set(true);
        let (io, me) = (self.past_gate().read(0, Buf::new(QUESTION_BYTES)), Rc::clone(self));
        Some(async move {
            // Whatever it answers.
            let _ = io.await;
            me.asked.set(false);
        })
    }

    /// Has all requests that are under way begin now, as far as they are counted here.
    pub fn start_over(&self) {
        self.notes.take();
    }

    /// Ends all requests that the device has not answered with `error`.
    pub fn give_up(&self, error: IoError) {
        self.silent.set(true);
        io::give_up(self.watcher, error);
    }

    /// Requests that were given up and that the device still has, each with its buffer.
    pub fn given_up_count(&self) -> usize {
        io::given_up_count(self.watcher)
    }

    /// The same device past its gate.
    pub fn past_gate(self: &Rc<Self>) -> Rc<dyn BlockDevice> {
        Rc::new(PastGate(Rc::clone(self)))
    }

    /// Notes a request that is carried out elsewhere, past this; to be ended by [`Watched::end`].
    pub fn begin(&self) -> u8 {
        let place = self.looks.get() % (LOOKS + 1);
        self.elsewhere.borrow_mut()[place] += 1;
        place as u8
    }

    /// Ends what [`Watched::begin`] has noted.
    pub fn end(&self, place: u8) {
        self.elsewhere.borrow_mut()[usize::from(place)] -= 1;
    }

    /// Keeps a request until there is time for it.
    #[cold]
    fn park(&self, gate: &Gate, request: Request, completer: Completer) {
        let me: Rc<dyn BlockDevice> = self.me.upgrade().expect("whoever asks has it");
        gate.hold(&me, request, completer);
    }

    // Each call that this is not copied into copies the request once more.
    #[inline(always)]
    fn pass(&self, request: Request, completer: Completer) {
        if self.silent.get() {
            if self.given_up_count() > 0 {
                return request.finish(Err(IoErrorKind::TimedOut.into()), completer);
            }
            self.silent.set(false);
        }
        let inner = self.inner.borrow();
        let Some(inner) = &*inner else {
            return request.finish(Err(IoErrorKind::Vanished.into()), completer);
        };
        let number = self.begun.get() + 1;
        self.begun.set(number);
        completer.watch(self.watcher, number);
        inner.submit(request, completer);
    }
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn submit(&self, request: Request, completer: Completer) {
        match &self.gate {
            // The device has nothing of it yet, and is not late with it.
            Some(gate) if !gate.is_open() => self.park(gate, request, completer),
            _ => self.pass(request, completer),
        }
    }
}

/// See [`Watched::past_gate`].
struct PastGate(Rc<Watched>);

impl BlockDevice for PastGate {
    fn geometry(&self) -> Geometry {
        self.0.geometry.get()
    }

    fn submit(&self, request: Request, completer: Completer) {
        self.0.pass(request, completer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Buf;
    use crate::executor::block_on_ready;
    use crate::model::world::World;
    use crate::runtime::Runtime;

    fn is_late(watched: &Watched) -> bool {
        watched.look() == Some(Late::Here)
    }

    /// Keeps all requests.
    #[derive(Default)]
    struct Silent(RefCell<Vec<(Request, Completer)>>);

    impl Silent {
        fn answer(&self, at: usize) {
            let (request, completer) = self.0.borrow_mut().remove(at);
            request.finish(Ok(()), completer);
        }
    }

    impl BlockDevice for Silent {
        fn geometry(&self) -> Geometry {
            Geometry {
                size_bytes: 1 << 20,
                sector_bytes: 512,
                discard: true,
                stripe: None,
                controller: None,
                durable_writes: false,
            }
        }

        fn submit(&self, request: Request, completer: Completer) {
            self.0.borrow_mut().push((request, completer));
        }
    }

    fn watched() -> (Rc<Silent>, Rc<Watched>, Rc<dyn BlockDevice>) {
        let silent = Rc::new(Silent::default());
        let watched = Watched::new(Rc::clone(&silent) as _);
        (silent, Rc::clone(&watched), watched)
    }

    #[test]
    fn a_request_is_late_after_so_many_whole_intervals() {
        let (silent, watched, device) = watched();
        assert!((0..20).all(|_| !is_late(&watched)));
        let first = device.flush();
        assert!((0..LOOKS).all(|_| !is_late(&watched)));
        let second = device.flush();
        assert!(is_late(&watched) && is_late(&watched));
        silent.answer(0);
        assert_eq!(block_on_ready(first.done()), Ok(()));
        assert!((0..LOOKS - 2).all(|_| !is_late(&watched)), "the second one began later");
        assert!(is_late(&watched));
        silent.answer(0);
        assert!(!is_late(&watched));
        drop(second);
    }

    #[test]
    fn what_waits_at_the_gate_is_not_late() {
        let world = World::new(1);
        let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
        let (silent, gate) = (Rc::new(Silent::default()), Gate::new(runtime));
        let watched = Watched::behind(Some(Rc::clone(&gate)), Rc::clone(&silent) as _);
        let device = Rc::clone(&watched) as Rc<dyn BlockDevice>;
        gate.open_until(world.now());
        let flush = device.flush();
        assert!((0..4 * LOOKS).all(|_| !is_late(&watched)), "the device has not seen it");
        gate.open_until(world.now() + 1);
        assert_eq!(silent.0.borrow().len(), 1);
        assert!((0..LOOKS).all(|_| !is_late(&watched)) && is_late(&watched));
        silent.answer(0);
        assert_eq!(block_on_ready(flush.done()), Ok(()));
    }

    #[test]
    fn the_time_starts_over_for_what_is_under_way() {
        let (_, watched, device) = watched();
        let flush = device.flush();
        assert!((0..LOOKS).all(|_| !is_late(&watched)));
        watched.start_over();
        assert!((0..LOOKS).all(|_| !is_late(&watched)) && is_late(&watched));
        drop(flush);
    }

    #[test]
    fn what_is_given_up_ends_once_and_its_answer_is_nobodys() {
        let (silent, watched, device) = watched();
        let (_, others, other) = self::watched();
        let (read, flush, elsewhere) =
            (device.read(0, Buf::new(512)), device.flush(), other.flush());
        watched.give_up(IoErrorKind::TimedOut.into());
        let outcome = block_on_ready(read);
        assert_eq!(outcome.result, Err(IoErrorKind::TimedOut.into()));
        assert!(outcome.buf.is_none(), "the device may still write to it");
        assert_eq!((watched.given_up_count(), others.given_up_count()), (2, 0));
        silent.answer(0);
        assert_eq!(watched.given_up_count(), 1);
        // Nothing more is sent as long as it keeps something.
        assert_eq!(block_on_ready(device.flush().done()), Err(IoErrorKind::TimedOut.into()));
        assert_eq!(silent.0.borrow().len(), 1);
        silent.answer(0);
        assert_eq!(block_on_ready(flush.done()), Err(IoErrorKind::TimedOut.into()));
        assert_eq!(watched.given_up_count(), 0);
        let next = device.flush();
        silent.answer(0);
        assert_eq!(block_on_ready(next.done()), Ok(()));
        drop(elsewhere);
    }

    #[test]
    fn a_device_that_was_let_go_of_gets_nothing_more() {
        let (silent, watched, device) = watched();
        let before = device.flush();
        watched.release();
        assert_eq!(Rc::strong_count(&silent), 1);
        assert_eq!(block_on_ready(device.flush().done()), Err(IoErrorKind::Vanished.into()));
        assert_eq!(silent.0.borrow().len(), 1);
        // What it had it still answers, or is late with.
        assert!((0..LOOKS).all(|_| !is_late(&watched)) && is_late(&watched));
        silent.answer(0);
        assert_eq!(block_on_ready(before.done()), Ok(()));
        assert!(!is_late(&watched));
    }

    #[test]
    fn a_request_that_nobody_waits_for_is_late_all_the_same() {
        let (silent, watched, device) = watched();
        drop(device.flush());
        assert!((0..LOOKS).all(|_| !is_late(&watched)) && is_late(&watched));
        watched.give_up(IoErrorKind::TimedOut.into());
        assert!(!is_late(&watched) && watched.given_up_count() == 1);
        silent.answer(0);
        assert_eq!(watched.given_up_count(), 0);
    }

    #[test]
    fn what_is_carried_out_elsewhere_is_late_as_well() {
        let (silent, watched, _) = watched();
        for skipped in 0..2 * LOOKS {
            (0..skipped).for_each(|_| assert_eq!(watched.look(), None));
            assert!(watched.question().is_none());
            let place = watched.begin();
            assert!((0..LOOKS - 1).all(|_| watched.look().is_none()));
            let mut looks = (0..2).map(|_| watched.look());
            assert!(looks.any(|late| late == Some(Late::Elsewhere)));
            watched.end(place);
            assert_eq!(watched.look(), None);
        }
        assert!(silent.0.borrow().is_empty(), "nobody has asked it");
    }

    #[test]
    fn a_device_is_late_for_others_only_if_it_does_not_answer_here_either() {
        for answers in [false, true] {
            let (silent, watched, _) = watched();
            let place = watched.begin();
            assert!((0..DOUBTED_LOOKS).all(|_| watched.look().is_none()));
            let question = watched.question().expect("half of the time is over");
            assert!(watched.question().is_none(), "it has not been answered");
            if answers {
                silent.answer(0);
                block_on_ready(question);
            }
            let late = (0..LOOKS).find_map(|_| watched.look());
            assert_eq!(late, Some(if answers { Late::Elsewhere } else { Late::Here }));
            watched.end(place);
        }
    }
}
