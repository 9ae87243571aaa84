//! Writers that are held back while room in the log runs short.
//!
//! * How short it is, is a number from 0 (reclaim keeps up) to [`FULL`] (the next write would wait
//!   for a segment). Between the two the rate that writers may have falls without a step from any to
//!   next to none, and where it meets the rate at which room comes back, it stays: the log fills no
//!   further, and nobody is stopped.
//! * That rate is measured: it is what writers have got while they were held back. An estimate that is
//!   wrong shifts the place where the two meet, and nothing else; every term has bounds.
//! * Each volume that has to wait gets a share of it by the weight of its priority, and each client of a
//!   volume the same share of that. Whoever asks for less than its share does not wait for those who ask for more.
//! * While several volumes write, what one of them only rewrites is neither held to what destaging makes
//!   room for nor counted in it: those sets become free by being overwritten
//!   ([`crate::format::Stream::Rewritten`]).
//! * Nothing is held while a writer waits, no range lock and no place in a queue of the log; reads do
//!   not come here.
//! * A pool that stops or has latched lets everybody go on at once.

mod forecast;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::io::{self, Completer};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Io, Nanos};

use crate::core::Core;
use crate::counters::add;
use crate::format::{Priority, Stream};
use crate::ids::BLOCK_BYTES;
use crate::limits::{
    THROTTLE_AHEAD, THROTTLE_RATE_MIN, THROTTLE_SPAN, THROTTLE_TOGETHER, THROTTLE_TOGETHER_BYTES,
};
use crate::read::blocks_of;
use crate::volume::VolumeState;
use crate::wait::WaitQueue;
use forecast::{Counts, Forecast};

/// The shortage at which the next write would wait for a segment.
pub(crate) const FULL: u64 = 1 << 10;

/// Parts of a byte in which service is counted, so that a slow rate is exact over short times.
const PARTS: u64 = 1 << 10;

/// Shortest share of the measured rate, as its inverse: what writers may have at [`FULL`], [`EARLY`] times.
const SLOWEST: u64 = 64;

/// How early writers are slowed down. With 1 they get the measured rate at a shortage of 0.62, with this
/// at 0.43: more than half of what reclaim keeps ready is there, and a root frees as much at once.
const EARLY: u64 = 3;

/// What counts as any rate, in bytes a second: 1 PiB, which leaves room for arithmetic.
const ALLOWANCE_MAX: u64 = 1 << 50;

/// Weight of a volume of which nothing else is said.
const WEIGHT_USUAL: u64 = 2;

const _: () = assert!(ALLOWANCE_MAX <= u64::MAX / WEIGHT_USUAL);

/// How long the one who waits longest sleeps at the most before it is looked again.
const LOOK_INTERVAL: Nanos = 50 * MILLISECOND;

/// A volume, or a client of one, as far as waiting is concerned.
pub(crate) struct Flow {
    /// Of a volume: its part of what all that wait get.
    weight: Cell<u64>,
    /// Where in the pool's service its writes so far end.
    finish: Cell<u64>,
    /// Of a client: its writes that wait; of a volume: its clients that do.
    waiting: Cell<u64>,
}

impl Default for Flow {
    fn default() -> Self {
        Self::of(Priority::default())
    }
}

impl Flow {
    /// That of a volume with a priority.
    pub(crate) fn of(priority: Priority) -> Self {
        let weight = Cell::new(priority.weight());
        Self { weight, finish: Cell::default(), waiting: Cell::default() }
    }

    pub(crate) fn weight(&self) -> u64 {
        self.weight.get()
    }
}

struct Waiter {
    volume: Rc<Flow>,
    client: Rc<Flow>,
    turn: Completer,
}

/// Who may go on when. It knows no clock.
struct Pacer {
    shortage: u64,
    /// Bytes a second that destaging can make room for; more than enough where it is not needed.
    limit: u64,
    /// Bytes a second that writers get in the long run.
    rate: u64,
    /// What each waiting volume has been given so far, in [`PARTS`] of a byte.
    service: u64,
    /// Where the furthest of all writes so far ends.
    furthest: u64,
    /// Since when room has been very short.
    crowded_since: Option<Nanos>,
    /// When `service` was right.
    now: Nanos,
    /// When and at what count of bytes `rate` was right.
    measured: (Nanos, u64),
    /// Whether anybody has waited since.
    held: bool,
    /// By the service at which they may go on, and in the order of their coming.
    waiters: BTreeMap<(u64, u64), Waiter>,
    arrivals: u64,
    /// Weights of the volumes with writes that wait.
    weight_waiting: u64,
}

impl Pacer {
    fn new() -> Self {
        Self {
            shortage: 0,
            limit: ALLOWANCE_MAX,
            rate: THROTTLE_RATE_MIN,
            service: 0,
            furthest: 0,
            crowded_since: None,
            now: 0,
            measured: (0, 0),
            held: false,
            waiters: BTreeMap::new(),
            arrivals: 0,
            weight_waiting: 0,
        }
    }

    /// Bytes a second that each waiting volume of [`WEIGHT_USUAL`] may write.
    fn share(&self) -> u64 {
        let all = allowance(self.rate, self.shortage).min(self.limit);
        (all * WEIGHT_USUAL / self.weight_waiting.max(WEIGHT_USUAL)).max(1)
    }

    /// What a write counts for. One that rewrites takes nothing of what origins make room for, only of
    /// the log's.
    fn charge(&self, bytes: u64, rewrites: bool) -> u64 {
        let room = allowance(self.rate, self.shortage);
        if !rewrites || self.limit >= room {
            return bytes;
        }
        let part = u128::from(bytes) * u128::from(self.limit) / u128::from(room);
        u64::try_from(part).unwrap_or(bytes)
    }

    fn is_short(&self) -> bool {
        self.shortage > 0 || self.limit < ALLOWANCE_MAX
    }

    /// Lets time pass.
    fn advance(&mut self, now: Nanos) {
        let span = now.saturating_sub(self.now);
        let gain = u128::from(self.share()) * u128::from(span) * u128::from(PARTS);
        let gain = gain / u128::from(SECOND);
        self.service = self.service.saturating_add(u64::try_from(gain).unwrap_or(u64::MAX));
        // Nobody saves up what he has not asked for.
        self.service = self.service.min(self.furthest);
        self.now = now;
    }

    /// Takes a new look at how short room is. `written` counts all bytes that writers have got.
    fn update(&mut self, now: Nanos, shortage: u64, limit: u64, written: u64) {
        self.advance(now);
        self.limit = limit;
        let (since, before) = self.measured;
        let span = now.saturating_sub(since);
        if span > 0 {
            let bytes = u128::from(written - before);
            let (rate, window) = (u128::from(self.rate), u128::from(THROTTLE_SPAN));
            let span = u128::from(span);
            let next = if span >= window {
                bytes * u128::from(SECOND) / span
            } else {
                rate - rate * span / window + bytes * u128::from(SECOND) / window
            };
            let next = u64::try_from(next).unwrap_or(u64::MAX).max(THROTTLE_RATE_MIN);
            // What nobody asked for says nothing about what there is.
            if next > self.rate || self.held {
                self.rate = next;
            }
            self.measured = (now, written);
            self.held = !self.waiters.is_empty();
        }
        self.shortage = shortage;
        let since = self.crowded_since.unwrap_or(now);
        self.crowded_since = (shortage > FULL / 2).then_some(since);
    }

    /// Whether a write may go on at once; else it is to wait.
    fn passes(
        &mut self,
        now: Nanos,
        volume: &Flow,
        client: &Flow,
        bytes: u64,
        rewrites: bool,
    ) -> Result<(), u64> {
        self.advance(now);
        let bytes = self.charge(bytes, rewrites);
        // Whoever was let go together with others was late by as much, and makes up for it.
        let behind = THROTTLE_TOGETHER_BYTES * PARTS;
        let start = client.finish.get().max(self.service.saturating_sub(behind));
        let parts = bytes * PARTS * volume.waiting.get().max(1);
        let finish = start + parts * WEIGHT_USUAL / volume.weight.get();
        client.finish.set(finish);
        self.furthest = self.furthest.max(finish);
        let ahead = u128::from(self.share()) * u128::from(THROTTLE_AHEAD) * u128::from(PARTS);
        let ahead = u64::try_from(ahead / u128::from(SECOND)).unwrap_or(u64::MAX);
        if !self.is_short() || start <= self.service.saturating_add(ahead) {
            return Ok(());
        }
        Err(start - ahead)
    }

    fn wait(&mut self, at: u64, volume: &Rc<Flow>, client: &Rc<Flow>) -> Io {
        let (turn, io) = io::pair();
        if client.waiting.replace(client.waiting.get() + 1) == 0
            && volume.waiting.replace(volume.waiting.get() + 1) == 0
        {
            self.weight_waiting += volume.weight.get();
        }
        self.held = true;
        self.arrivals += 1;
        let waiter = Waiter { volume: Rc::clone(volume), client: Rc::clone(client), turn };
        self.waiters.insert((at, self.arrivals), waiter);
        io
    }

    /// When the first of those who wait may go on; `None` if nobody waits.
    fn due(&self) -> Option<Nanos> {
        let (&(at, _), _) = self.waiters.first_key_value()?;
        let missing = u128::from(at.saturating_sub(self.service));
        let span = (missing * u128::from(SECOND)).div_ceil(u128::from(self.share() * PARTS));
        // Those who come next go on together, so that they share a record.
        let together = THROTTLE_TOGETHER_BYTES * SECOND
            / self.share().saturating_mul((self.weight_waiting / WEIGHT_USUAL).max(1)).max(1);
        let span =
            u64::try_from(span).unwrap_or(u64::MAX).saturating_add(together.min(THROTTLE_TOGETHER));
        let span = span.min(LOOK_INTERVAL);
        Some(self.now + if self.is_short() { span } else { 0 })
    }

    /// The next one who may go on now.
    fn next(&mut self, now: Nanos) -> Option<Completer> {
        self.advance(now);
        let short = self.is_short();
        let first = self.waiters.first_entry()?;
        if short && first.key().0 > self.service {
            return None;
        }
        let Waiter { volume, client, turn } = first.remove();
        client.waiting.set(client.waiting.get() - 1);
        if client.waiting.get() == 0 {
            volume.waiting.set(volume.waiting.get() - 1);
            if volume.waiting.get() == 0 {
                self.weight_waiting -= volume.weight.get();
            }
        }
        Some(turn)
    }
}

/// Bytes a second that writers may have: any where nothing is short, `rate` at 0.43 of [`FULL`], next
/// to nothing at [`FULL`].
fn allowance(rate: u64, shortage: u64) -> u64 {
    if shortage == 0 {
        return ALLOWANCE_MAX;
    }
    let shortage = shortage.min(FULL);
    let left = (FULL - shortage).max(FULL / SLOWEST);
    let allowed =
        u128::from(rate) * u128::from(left * FULL) / u128::from(EARLY * shortage * shortage);
    u64::try_from(allowed).unwrap_or(ALLOWANCE_MAX).min(ALLOWANCE_MAX)
}

/// The pool's pacer and who runs it.
pub(crate) struct Throttle {
    pacer: RefCell<Pacer>,
    forecast: RefCell<Forecast>,
    /// Whether a write has to ask.
    active: Cell<bool>,
    /// Bytes written to [`Stream::Dirty`].
    written: Cell<u64>,
    /// Segments of it that hold what an origin may lack.
    owing: Cell<u64>,
    /// Segments that become clean with an origin's next flush.
    awaiting_flush: Cell<u64>,
    work: WaitQueue,
}

impl Throttle {
    pub(crate) fn new() -> Self {
        Self {
            pacer: RefCell::new(Pacer::new()),
            forecast: RefCell::new(Forecast::new()),
            active: Cell::new(false),
            written: Cell::new(0),
            owing: Cell::new(0),
            awaiting_flush: Cell::new(0),
            work: WaitQueue::default(),
        }
    }

    /// How short room is, up to [`FULL`].
    pub(crate) fn shortage(&self) -> u64 {
        self.pacer.borrow().shortage
    }

    /// Since when room has been very short without a break.
    pub(crate) fn crowded_since(&self) -> Option<Nanos> {
        self.pacer.borrow().crowded_since
    }

    /// Whether writers are held to what destaging makes room for.
    pub(crate) fn is_limiting(&self) -> bool {
        self.pacer.borrow().limit < ALLOWANCE_MAX
    }

    /// Notes a write that origins must make room for.
    pub(crate) fn note_dirty(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
    }

    /// Segments of [`Stream::Dirty`] that hold what an origin may lack, as of late.
    pub(crate) fn owing_segments(&self) -> u64 {
        self.owing.get()
    }

    /// Segments that become clean with an origin's next flush, as of late.
    pub(crate) fn awaiting_flush(&self) -> u64 {
        self.awaiting_flush.get()
    }

    /// Whether writes are asked for their turn.
    pub(crate) fn is_active(&self) -> bool {
        self.active.get()
    }

    /// Whether a writer waits for its turn.
    pub(crate) fn is_holding(&self) -> bool {
        !self.pacer.borrow().waiters.is_empty()
    }

    /// Gives a volume another part of what all that wait get.
    pub(crate) fn set_priority(&self, volume: &Flow, priority: Priority) {
        let before = volume.weight.replace(priority.weight());
        if volume.waiting.get() > 0 {
            let mut pacer = self.pacer.borrow_mut();
            pacer.weight_waiting = pacer.weight_waiting - before + priority.weight();
        }
    }

    /// Lets the pacer look at the pool again.
    pub(crate) fn wake(&self) {
        self.work.wake_all();
    }
}

impl Core {
    /// Waits until it is a write's turn; not at all while there is room.
    pub(crate) async fn pace(&self, v: &VolumeState, client: &Rc<Flow>, offset: u64, bytes: u64) {
        if !self.throttle.active.get() || self.is_letting_go() {
            return;
        }
        let began = self.rt.now();
        let rewrites = self.rewrites(v, offset, bytes);
        let turn = {
            let mut pacer = self.throttle.pacer.borrow_mut();
            match pacer.passes(began, &v.flow, client, bytes, rewrites) {
                Ok(()) => return,
                Err(at) => pacer.wait(at, &v.flow, client),
            }
        };
        self.throttle.wake();
        turn.await.result.ok();
        self.note_throttled(v, self.rt.now() - began);
    }

    /// Counts a write that has been held back for so long.
    pub(crate) fn note_throttled(&self, v: &VolumeState, span: Nanos) {
        for (writes, nanos) in [
            (&self.counters.throttled_writes, &self.counters.throttle_delay_ns),
            (&v.counters.throttled_writes, &v.counters.throttle_delay_ns),
        ] {
            add(writes, 1);
            add(nanos, span);
        }
    }

    /// Whether a write needs nothing that origins make room for, as far as can be said before its turn: it
    /// will be kept apart as rewritten, or it stays within what is reserved for its volume.
    fn rewrites(&self, v: &VolumeState, offset: u64, bytes: u64) -> bool {
        let (first, count) = blocks_of(offset, bytes);
        let mut owed = 0;
        self.shard(v.id, first).index.borrow().lookup(v.id, first, count, |m| {
            owed += if m.state.is_owed() { m.count } else { 0 };
        });
        self.is_kept_apart(owed, count) || self.is_within_reservation(v, count)
    }

    /// Whether what may be refused is to leave the log to writers: one of them waits, or room is nearly
    /// as short as where they do.
    pub(crate) fn is_holding_back(&self) -> bool {
        self.throttle.active.get()
            && (self.throttle.is_holding() || self.throttle.shortage() > FULL / 2)
    }

    pub(crate) fn is_letting_go(&self) -> bool {
        self.is_ending() || self.log.is_retired()
    }

    /// Looks at how short room is.
    pub(crate) fn note_room(&self) {
        let now = self.rt.now();
        let written = self.counters.write_logged_bytes.get();
        let (mut shortage, mut limit) = (0, ALLOWANCE_MAX);
        if !self.is_letting_go() {
            shortage = self.shortage();
            let mut forecast = self.throttle.forecast.borrow_mut();
            limit = self.throttle.pacer.borrow().limit;
            let segments = self.sets.borrow().total_count() as u64;
            if forecast.is_due(now, segments) {
                self.apportion();
                let outlook = self.sets.borrow().outlook();
                self.throttle.owing.set(outlook.owed.iter().sum());
                self.throttle.awaiting_flush.set(outlook.awaiting_flush);
                let owed = self.owed_blocks().saturating_sub(outlook.rewritten_blocks);
                let copies = self.stream_copies(Stream::Dirty).max(1) as u64;
                let counts = Counts {
                    destaged: self.counters.destage_bytes.get(),
                    written: self.throttle.written.get(),
                    owed: owed * BLOCK_BYTES,
                    live: (outlook.live * self.segment_bytes as f64) as u64 / copies,
                };
                forecast.look(now, self.is_pressed(), counts);
                let percent = self.tuning.owed_segments_percent;
                limit = forecast.limit(&outlook, percent, self.segment_bytes as f64);
            }
        }
        let mut pacer = self.throttle.pacer.borrow_mut();
        pacer.update(now, shortage, limit, written);
        self.throttle.active.set(pacer.is_short() || !pacer.waiters.is_empty());
        if !pacer.waiters.is_empty() {
            self.throttle.wake();
        }
    }
}

/// Lets writers go on when it is their turn.
pub(crate) async fn pacer(core: Rc<Core>) {
    loop {
        let waiting = || core.throttle.is_holding();
        core.throttle.work.until(|| waiting() || core.log.is_retired()).await;
        let measured = core.throttle.pacer.borrow().measured.0;
        if core.rt.now() - measured >= MILLISECOND || core.is_letting_go() {
            core.note_room();
        }
        let due = loop {
            let mut pacer = core.throttle.pacer.borrow_mut();
            match pacer.next(core.rt.now()) {
                Some(turn) => turn.done(Ok(())),
                None => break pacer.due(),
            }
        };
        if core.log.is_retired() {
            return;
        }
        if let Some(due) = due {
            let timer = core.rt.sleep(due.saturating_sub(core.rt.now()));
            let earlier = || {
                let pacer = core.throttle.pacer.borrow();
                core.is_letting_go() || pacer.due().is_none_or(|at| at < due)
            };
            core.throttle.work.until_or(earlier, timer).await;
        }
    }
}
