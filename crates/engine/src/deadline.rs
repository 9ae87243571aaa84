//! Members that do not answer.
//!
//! * Every request to a member is watched ([`forebay_device::watched`]), from the first look at its
//!   superblock on. A member that lets one wait for the pool's `device_deadline` has failed like one that
//!   answers with an error ([`crate::failure`]), and all that it has of ours is given up at once: who
//!   waits for it goes on, from another copy, from the origin, or with the copies that are left.
//! * What was given up stays with the device, buffer and all, until that answers, and the answer counts
//!   for nothing (INV-60). It is no more than was under way at that instant, for nothing further is sent.
//! * The same goes for what other reactors read by themselves: they are told of a member that is used no
//!   more, give up what they wait for, and do not believe what arrives afterwards (INV-61).
//! * A pool that has latched goes on reading from all members. One that does not answer is asked again
//!   only when it has answered all that it had; what would be read from it fails at once until then.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use forebay_device::watched::{LOOKS, Late};
use forebay_device::{BlockDevice, Gate, IoErrorKind, Nanos, Runtime, Watched};

use crate::core::Core;
use crate::creation::invalid;
use crate::error::Result;
use crate::event::EventKind;
use crate::format::Superblock;
use crate::ids::DeviceId;
use crate::limits::{DEVICE_DEADLINE_DEFAULT, DEVICE_DEADLINE_MAX, DEVICE_DEADLINE_MIN, MILLIS};
use crate::member::Member;
use crate::planted;
use crate::start::Attempts;
use crate::wait::WaitQueue;

/// A cache device that is watched, with all that it does behind the gate.
fn behind(gate: &Rc<Gate>, device: Rc<dyn BlockDevice>) -> Rc<Watched> {
    device.fence(gate);
    Watched::behind(Some(Rc::clone(gate)), device)
}

/// Watches the cache devices that a pool was given.
pub(crate) struct Deadline {
    /// In the order in which they were given.
    devices: RefCell<Vec<Rc<Watched>>>,
    /// What all of them are behind.
    gate: Rc<Gate>,
    span: Cell<Nanos>,
    /// Nothing until it is known which of them are members.
    core: RefCell<Weak<Core>>,
    attempts: Rc<Attempts>,
    over: Cell<bool>,
    /// Whether the task that looks has ended.
    ended: Cell<bool>,
    /// Woken when something of the above changes.
    changed: WaitQueue,
}

impl Deadline {
    /// Watches from now on.
    pub(crate) fn begin(
        rt: &Rc<dyn Runtime>,
        devices: Vec<Rc<dyn BlockDevice>>,
        attempts: &Rc<Attempts>,
    ) -> Rc<Deadline> {
        let gate = Gate::new(Rc::clone(rt));
        let behind = |device| behind(&gate, device);
        let it = Rc::new(Deadline {
            devices: RefCell::new(devices.into_iter().map(behind).collect()),
            gate: Rc::clone(&gate),
            span: Cell::new(DEVICE_DEADLINE_DEFAULT),
            core: RefCell::default(),
            attempts: Rc::clone(attempts),
            over: Cell::new(false),
            ended: Cell::new(false),
            changed: WaitQueue::default(),
        });
        rt.spawn(Box::pin(watch(Rc::clone(&it), Rc::clone(rt))));
        it
    }

    /// The devices, watched.
    pub(crate) fn devices(&self) -> Vec<Rc<Watched>> {
        self.devices.borrow().clone()
    }

    /// What all of them are behind.
    pub(crate) fn gate(&self) -> Rc<Gate> {
        Rc::clone(&self.gate)
    }

    /// Watches another one.
    pub(crate) fn add(&self, device: Rc<dyn BlockDevice>) -> Rc<Watched> {
        let watched = behind(&self.gate, device);
        self.devices.borrow_mut().push(Rc::clone(&watched));
        watched
    }

    /// Watches it no more.
    pub(crate) fn forget(&self, watched: &Rc<Watched>) {
        self.devices.borrow_mut().retain(|it| !Rc::ptr_eq(it, watched));
    }

    /// The place among those given of one of [`Deadline::devices`], and its watch.
    ///
    /// # Panics
    /// If it is none of them.
    pub(crate) fn find(&self, device: &Rc<dyn BlockDevice>) -> (usize, Rc<Watched>) {
        let same = |it: &Rc<Watched>| std::ptr::addr_eq(Rc::as_ptr(it), Rc::as_ptr(device));
        let devices = self.devices.borrow();
        let place = devices.iter().position(same).expect("a member is one of the devices given");
        (place, Rc::clone(&devices[place]))
    }

    /// What the start that they were given to has come to.
    pub(crate) fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// Tells a pool from now on. Devices that are no members of it are let go of: whoever gave them may use them for
    /// something else.
    pub(crate) fn tell(&self, core: &Rc<Core>) {
        *self.core.borrow_mut() = Rc::downgrade(core);
        let is_used = |it: &Rc<Watched>| core.members.iter().any(|m| Rc::ptr_eq(&m.watched, it));
        self.devices.borrow_mut().retain(is_used);
        self.set(core.superblock.borrow().device_deadline());
    }

    /// Changes how long a device may take.
    pub(crate) fn set(&self, span: Nanos) {
        self.span.set(span);
        self.changed.wake_all();
    }

    /// Ends the watch; nothing of it has the devices any more when this returns.
    pub(crate) async fn end(&self) {
        self.over.set(true);
        self.changed.wake_all();
        self.changed.until(|| self.ended.get()).await;
    }
}

fn not_answered(id: DeviceId, span: Nanos) -> String {
    format!("cache device {id} has not answered for {} ms", span / MILLIS)
}

async fn watch(it: Rc<Deadline>, rt: Rc<dyn Runtime>) {
    while !it.over.get() {
        let span = it.span.get();
        let changed = || it.over.get() || it.span.get() != span;
        it.changed.until_or(changed, rt.sleep(span / LOOKS as Nanos)).await;
        if changed() {
            // What is under way has the new time, all of it.
            it.devices.borrow().iter().for_each(|device| device.start_over());
            continue;
        }
        for (place, device) in it.devices().into_iter().enumerate() {
            let (late, core) = (device.look(), it.core.borrow().upgrade());
            match (late, core) {
                (Some(Late::Here), Some(core)) => core.note_hung(&device),
                (Some(Late::Here), None) => {
                    it.attempts.fail(place, |id| not_answered(id, span));
                    device.give_up(IoErrorKind::TimedOut.into());
                }
                (Some(Late::Elsewhere), Some(core)) => core.note_stalled(&device),
                (Some(Late::Elsewhere), None) | (None, _) => {}
            }
            if let Some(question) = device.question() {
                rt.spawn(Box::pin(question));
            }
        }
    }
    it.ended.set(true);
    it.changed.wake_all();
}

impl Superblock {
    /// How long a member may take to answer.
    pub fn device_deadline(&self) -> Nanos {
        match self.device_deadline_ms {
            0 => DEVICE_DEADLINE_DEFAULT,
            ms => Nanos::from(ms) * MILLIS,
        }
    }
}

/// Whether a pool may have this deadline, in milliseconds.
///
/// # Errors
/// [`crate::ErrorKind::Invalid`].
pub(crate) fn check_device_deadline(ms: u32) -> Result<()> {
    if (DEVICE_DEADLINE_MIN..=DEVICE_DEADLINE_MAX).contains(&(Nanos::from(ms) * MILLIS)) {
        return Ok(());
    }
    Err(invalid(
        format!("a device deadline of {ms} ms"),
        "use 100ms to 10m; SSDs pause for tens of milliseconds by themselves",
    ))
}

impl Core {
    /// The device has not answered in time.
    fn note_hung(&self, device: &Rc<Watched>) {
        let own = |member: &Member| Rc::ptr_eq(&member.watched, device);
        let Some(index) = self.members.iter().position(own) else {
            // One that the pool does not use, or not yet.
            return device.give_up(IoErrorKind::TimedOut.into());
        };
        let member = &self.members[index];
        let what = not_answered(member.id, self.deadline.span.get());
        if self.is_recovering()
            && !self.lease.is_lost()
            && let Some(place) = member.place.get()
        {
            // Whoever else has ended the start: what it has of this may still arrive.
            self.deadline.attempts.fail(place, |_| what.clone());
        }
        if member.is_serving() && !self.latched.get() {
            planted::seen("member did not answer");
            self.member_event(EventKind::MemberHung, member.id, what);
            self.fail_member(index, "waiting for", IoErrorKind::TimedOut.into());
        }
        self.give_up(index, IoErrorKind::TimedOut);
    }

    /// The device answers, and another reactor has not told of an answer in time: it stands still, or the device has
    /// lost that request alone. Whoever waits there asks here as soon as the reactor goes on.
    fn note_stalled(&self, device: &Rc<Watched>) {
        planted::seen("a reactor stands still");
        let own = self.members.iter().find(|member| Rc::ptr_eq(&member.watched, device));
        if let Some(place) = own.and_then(|member| member.place.get()) {
            self.elsewhere.give_up(place, false);
        }
    }

    /// Ends all requests that a member has not answered, on all reactors.
    pub(crate) fn give_up(&self, index: usize, error: IoErrorKind) {
        let member = &self.members[index];
        member.watched.give_up(error.into());
        // One that is only to be a member is read by nobody else.
        if let Some(place) = member.place.get() {
            self.elsewhere.give_up(place, !member.is_serving());
        }
    }

    /// Changes how long a member may take to answer.
    pub(crate) async fn set_device_deadline(&self, ms: u32) -> Result<()> {
        let _control = self.control.lock().await;
        self.write_superblocks(|superblock| superblock.device_deadline_ms = ms).await?;
        self.deadline.set(self.superblock.borrow().device_deadline());
        Ok(())
    }
}
