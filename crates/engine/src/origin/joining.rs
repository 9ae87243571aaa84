//! Writes of streams that go straight to an array with parity, joined to whole stripes: of one that gets only a part
//! its disks have to read what is there, or the parity, before they can write it.
//!
//! * What follows each other without a gap is a chain. It is written up to the last border of a stripe in it, by
//!   whichever of its requests finds that first; what is behind the border waits for what follows it.
//! * A chain waits while what it follows is on its way. So long chains come together, and a client that has one
//!   request at a time waits for nobody.
//! * Clients with several requests at a time that were answered have a moment to go on, and so has what lies between a
//!   chain and another one shortly before it: requests do not come in order. After that a chain is written as it is.
//! * Requests that are here never overlap: each holds the range lock of its blocks (INV-9).
//! * Where a chain cannot be written, each of its requests is tried alone: they do not share an error.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;
use forebay_device::{BlockDevice, Buf, Data, IoError, Nanos, Runtime};

use crate::limits::ORIGIN_STRIPE_BYTES_MAX;
use crate::planted::{self, Bug};
use crate::wait::{WaitQueue, all_of};

/// Longest chain that is one write, in bytes (8 MiB): any stripe, and enough for the disks of usual ones.
const JOINED_BYTES_MAX: u64 = ORIGIN_STRIPE_BYTES_MAX;

/// How long what is expected of clients is waited for: some trips through a network.
const GO_ON_SPAN: Nanos = MILLISECOND;

/// A request, of which parts wait or are on their way.
struct Request {
    left_bytes: Cell<u64>,
    result: Cell<Result<(), IoError>>,
}

impl Request {
    fn end_part(&self, bytes: u64, result: Result<(), IoError>) {
        let early = planted::is(Bug::JoinedAnsweredEarly);
        let bytes = if early { self.left_bytes.get() } else { bytes };
        self.left_bytes.set(self.left_bytes.get() - bytes);
        if result.is_err() {
            self.result.set(result);
        }
    }

    fn has_ended(&self) -> bool {
        self.left_bytes.get() == 0
    }
}

/// What of a request waits.
struct Part {
    data: Data,
    request: Rc<Request>,
    since: Nanos,
}

impl Part {
    fn len(&self) -> u64 {
        self.data.len() as u64
    }
}

/// What a request finds that looks at its chain.
enum Turn {
    /// It is to be written: these parts, from there.
    Write(u64, Vec<Part>),
    /// Somebody else has it, or what it follows.
    Wait,
    /// What follows may still come.
    WaitUntil(Nanos),
}

/// Not when it is asked first, but from then on.
fn once_woken() -> impl FnMut() -> bool {
    let mut asked = false;
    move || std::mem::replace(&mut asked, true)
}

/// The writes of an origin that are joined.
pub(super) struct Joining {
    stripe_bytes: u64,
    /// By offset.
    waiting: RefCell<BTreeMap<u64, Part>>,
    /// Ends of the chains that are on their way.
    under_way: RefCell<Vec<u64>>,
    /// Where clients with several requests at a time may go on that were answered, and until when.
    expected: RefCell<Vec<(u64, Nanos)>>,
    /// Woken when something has been written.
    written: WaitQueue,
}

impl Joining {
    pub(super) fn new(stripe_bytes: u64) -> Self {
        Self {
            stripe_bytes,
            waiting: RefCell::default(),
            under_way: RefCell::default(),
            expected: RefCell::default(),
            written: WaitQueue::default(),
        }
    }

    /// Writes whole sectors, alone or with others.
    pub(super) async fn write(
        &self,
        device: &dyn BlockDevice,
        rt: &dyn Runtime,
        offset: u64,
        data: Data,
    ) -> Result<(), IoError> {
        let bytes = offset..offset + data.len() as u64;
        let left_bytes = Cell::new(data.len() as u64);
        let request = Rc::new(Request { left_bytes, result: Cell::new(Ok(())) });
        let part = Part { data, request: Rc::clone(&request), since: rt.now() };
        self.waiting.borrow_mut().insert(offset, part);
        while !request.has_ended() {
            let now = rt.now();
            match self.turn(&bytes, now) {
                Turn::Write(start, parts) => self.write_parts(device, rt, start, parts).await,
                Turn::Wait => self.written.until(once_woken()).await,
                Turn::WaitUntil(at) => {
                    self.written.until_or(once_woken(), rt.sleep(at - now)).await;
                }
            }
        }
        request.result.get()
    }

    /// What becomes of the chain that what waits of these bytes belongs to.
    fn turn(&self, bytes: &Range<u64>, now: Nanos) -> Turn {
        let mut waiting = self.waiting.borrow_mut();
        let Some((&own, _)) = waiting.range(bytes.clone()).next() else { return Turn::Wait };
        let mut start = own;
        for (&offset, part) in waiting.range(..own).rev() {
            if offset + part.len() != start {
                break;
            }
            start = offset;
        }
        if self.under_way.borrow().contains(&start) {
            return Turn::Wait;
        }
        let (mut end, mut count) = (start, 0);
        for (&offset, part) in waiting.range(start..) {
            if offset != end || end - start >= JOINED_BYTES_MAX {
                break;
            }
            (end, count) = (end + part.len(), count + 1);
        }
        let end = end.min(start + JOINED_BYTES_MAX);
        let border = end / self.stripe_bytes * self.stripe_bytes;
        let expected = self.expected.borrow().iter().find(|(at, _)| *at == start).map(|it| it.1);
        let cut = match expected.filter(|&until| now < until) {
            Some(until) if border <= start => return Turn::WaitUntil(until),
            Some(_) => border,
            None => {
                let until = waiting[&start].since + GO_ON_SPAN;
                if now < until && self.is_near(&waiting, start, now) {
                    return Turn::WaitUntil(until);
                }
                if border > start && count > 1 { border } else { end }
            }
        };
        let mut rest = waiting.split_off(&cut);
        let mut parts = waiting.split_off(&start);
        if let Some((&offset, last)) = parts.iter_mut().next_back()
            && offset + last.len() > cut
        {
            let within = (cut - offset) as usize;
            let data = last.data.slice(within..last.data.len());
            let part = Part { data, request: Rc::clone(&last.request), since: last.since };
            last.data = last.data.slice(0..within);
            rest.insert(cut, part);
        }
        waiting.append(&mut rest);
        self.under_way.borrow_mut().push(cut);
        Turn::Write(start, parts.into_values().collect())
    }

    /// Whether something that waits, is on its way or is expected lies shortly before a chain.
    fn is_near(&self, waiting: &BTreeMap<u64, Part>, start: u64, now: Nanos) -> bool {
        let before = start.saturating_sub(JOINED_BYTES_MAX)..start;
        waiting.range(before.clone()).next().is_some()
            || self.under_way.borrow().iter().any(|end| before.contains(end))
            || self.expected.borrow().iter().any(|(at, until)| now < *until && before.contains(at))
    }

    async fn write_parts(
        &self,
        device: &dyn BlockDevice,
        rt: &dyn Runtime,
        start: u64,
        parts: Vec<Part>,
    ) {
        let len: u64 = parts.iter().map(Part::len).sum();
        let result = match &parts[..] {
            [part] => device.write(start, part.data.clone()).done().await,
            _ => {
                planted::seen("writes of a stream joined");
                let mut joined = Buf::new(len as usize);
                let mut at = 0;
                for part in &parts {
                    joined[at..at + part.data.len()].copy_from_slice(&part.data);
                    at += part.data.len();
                }
                device.write(start, joined.freeze()).done().await
            }
        };
        let results = match result.is_err() && parts.len() > 1 {
            true => {
                let mut at = start;
                let alone = parts.iter().map(|part| {
                    let offset = at;
                    at += part.len();
                    device.write(offset, part.data.clone()).done()
                });
                all_of(alone).await
            }
            false => vec![result; parts.len()],
        };
        let mut answered = false;
        for (part, result) in parts.iter().zip(results) {
            part.request.end_part(part.len(), result);
            answered |= part.request.has_ended();
        }
        let now = rt.now();
        self.under_way.borrow_mut().retain(|end| *end != start + len);
        let mut expected = self.expected.borrow_mut();
        expected.retain(|(_, until)| now < *until);
        if answered && parts.len() > 1 {
            expected.push((start + len, now + GO_ON_SPAN));
        }
        drop(expected);
        self.written.wake_all();
    }
}
