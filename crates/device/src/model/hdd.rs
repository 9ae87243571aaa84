//! The timing of a rotating disk.
//!
//! * Place: a byte has a cylinder (seek) and an angle (rotation); outer zones have longer tracks
//!   and are faster. Skew is taken as perfect: a sequential transfer loses nothing between tracks,
//!   so it runs at the zone's sustained rate.
//! * Order: among the queued commands that it may see, the disk takes the one with the shortest
//!   positioning time (seek, then wait for the angle), unless the oldest has waited too long.
//! * Write cache: a write that fits is acknowledged from the cache and destaged in the background,
//!   by the same rule. A flush waits for what was in the cache when it came.
//! * Read-ahead: an idle head reads on behind the last read; what it passes is served from memory.
//!
//! The approach is that of Ruemmler and Wilkes, "An introduction to disk drive modeling" (1994).
//! Work per event is linear in the queue depth.

mod mechanics;
mod parameters;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use self::mechanics::{Mechanics, Place};
pub use self::parameters::{HddParameters, SeekTimes};
use super::modelled::{Command, Model, Operation, Ticket};
use crate::runtime::{MILLISECOND, Nanos, SECOND};

/// Dirty extents looked at for the next destage. Firmware looks at a bounded set too; more makes
/// cached random writes faster, and every event dearer.
const DESTAGE_WINDOW: usize = 32;

/// Longest single destage: a few tracks, so that a read never waits long behind it.
const DESTAGE_BYTES_MAX: u64 = 1 << 20;

/// How long the heads must be idle before they destage unasked: a host that reads with nothing
/// queued is back within a fraction of this, and would otherwise wait for a destage each time.
const DESTAGE_IDLE_NS: Nanos = 3 * MILLISECOND;

/// Streams whose read-ahead stays in memory.
const SEGMENTS_MAX: usize = 8;

/// A command's cost shrinks by this part of its age: aged shortest positioning time first, after
/// Jacobson and Wilkes (1991). Without it a deep queue keeps unlucky commands until the age limit,
/// and then works them off in order of age, which is slower than no queue at all.
const AGE_WEIGHT_DIVISOR: Nanos = 256;

/// A command in the disk or in the host's queue before it.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ticket: Ticket,
    command: Command,
    arrived: Nanos,
    /// When the disk can act on it.
    ready: Nanos,
    place: Place,
}

/// What the heads are doing.
#[derive(Clone, Copy, Debug)]
enum Work {
    Read(Pending),
    Write(Pending),
    Destage { len: u64, closing: bool },
}

/// Where the heads read on, and from when.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    start: u64,
    /// The first byte that was not in memory at `since`, when it passes below the head.
    from: u64,
    since: Nanos,
    /// The read-ahead stops here.
    limit: u64,
    track_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    Queue(usize),
    Destage { start: u64, closing: bool },
}

/// The volatile write cache: dirty extents by first byte.
#[derive(Debug, Default)]
struct WriteCache {
    /// Written since the last flush arrived.
    open: BTreeMap<u64, u64>,
    /// What the current flush waits for.
    closing: BTreeMap<u64, u64>,
    /// Bytes in both and in the destage under way.
    bytes: u64,
    /// Destages under way that the current flush waits for: 0 or 1.
    closing_busy: u32,
    /// The first one is current.
    flushes: VecDeque<Ticket>,
}

/// Adds a range to disjoint extents; returns the bytes that are new.
fn insert(extents: &mut BTreeMap<u64, u64>, mut start: u64, mut end: u64) -> u64 {
    let (asked, mut new) = (start..end, end - start);
    while let Some((&first, &last)) = extents.range(..=end).next_back() {
        if last < start {
            break;
        }
        extents.remove(&first);
        new -= last.min(asked.end).saturating_sub(first.max(asked.start));
        start = start.min(first);
        end = end.max(last);
    }
    extents.insert(start, end);
    new
}

fn covers(extents: &BTreeMap<u64, u64>, start: u64, end: u64) -> bool {
    extents.range(..=start).next_back().is_some_and(|(_, &last)| last >= end)
}

/// A disk's timing. Create one per disk; `phase_ns` sets the platter's angle, so that the disks
/// of an array do not turn in step.
#[derive(Debug)]
pub struct HddModel {
    p: HddParameters,
    mechanics: Mechanics,
    clock: Nanos,
    phase_ns: Nanos,
    head: Place,
    /// The disk's own queue: reads, and writes that bypass the cache.
    queue: Vec<Pending>,
    /// Writes that wait for room in the cache; they count as queued.
    waiting: VecDeque<Pending>,
    /// What the host holds back because the disk's queue is full.
    backlog: VecDeque<Pending>,
    active: Option<(Nanos, Work)>,
    /// When the heads have been idle long enough to destage unasked.
    destage_at: Nanos,
    cache: WriteCache,
    ahead: Option<Ahead>,
    segments: VecDeque<(u64, u64)>,
    /// Answers on their way to the host.
    answers: BinaryHeap<Reverse<(Nanos, u64, Ticket)>>,
    answered: u64,
    done: Vec<Ticket>,
}

impl HddModel {
    /// An idle disk with its heads at the outer edge.
    pub fn new(parameters: HddParameters, phase_ns: Nanos) -> Self {
        let mechanics = Mechanics::new(&parameters);
        let head = mechanics.place(0);
        Self {
            phase_ns: phase_ns % mechanics.revolution_ns,
            p: parameters,
            mechanics,
            clock: 0,
            head,
            queue: Vec::new(),
            waiting: VecDeque::new(),
            backlog: VecDeque::new(),
            active: None,
            destage_at: 0,
            cache: WriteCache::default(),
            ahead: None,
            segments: VecDeque::new(),
            answers: BinaryHeap::new(),
            answered: 0,
            done: Vec::new(),
        }
    }

    /// The disk's parameters.
    pub fn parameters(&self) -> &HddParameters {
        &self.p
    }

    /// Commands that wait for the heads, in the disk or before it.
    pub fn load(&self) -> usize {
        let active = usize::from(self.active.is_some());
        self.queue.len() + self.waiting.len() + self.backlog.len() + active
    }

    fn answer(&mut self, at: Nanos, ticket: Ticket) {
        self.answered += 1;
        self.answers.push(Reverse((at, self.answered, ticket)));
    }

    /// The next internal event, answers apart.
    fn next_work(&self) -> Option<Nanos> {
        match &self.active {
            Some((ends, _)) => Some(*ends),
            None => {
                let idle = self.queue.is_empty() && !self.cache.open.is_empty();
                let destage = idle.then_some(self.destage_at);
                self.queue.iter().map(|pending| pending.ready).chain(destage).min()
            }
        }
    }

    fn run(&mut self, now: Nanos) {
        assert!(now >= self.clock, "time went back from {} to {now}", self.clock);
        loop {
            let work = self.next_work().unwrap_or(Nanos::MAX);
            let answer = self.answers.peek().map_or(Nanos::MAX, |Reverse(answer)| answer.0);
            let event = work.min(answer).max(self.clock);
            if event > now || event == Nanos::MAX {
                break;
            }
            self.clock = event;
            while let Some(&Reverse((at, _, ticket))) = self.answers.peek() {
                if at > event {
                    break;
                }
                self.answers.pop();
                self.done.push(ticket);
            }
            if work <= event {
                self.finish(event);
                self.start(event);
            }
        }
        self.clock = now;
    }

    /// Commands of the host that the disk has not answered, of the `queue_depth_max` that it sees.
    fn held(&self) -> usize {
        let active = matches!(self.active, Some((_, Work::Read(_) | Work::Write(_))));
        self.queue.len() + self.waiting.len() + usize::from(active)
    }

    /// Takes what the host holds back, in its order, while the disk has room for it.
    fn refill(&mut self, now: Nanos) {
        while self.held() < self.p.queue_depth_max {
            let Some(pending) = self.backlog.pop_front() else { break };
            self.accept(now, pending);
        }
    }

    /// Takes a command into the disk's queue or the cache.
    fn accept(&mut self, now: Nanos, mut pending: Pending) {
        let command = pending.command;
        // The disk does not know how long a command waited in the host.
        pending.arrived = now;
        pending.ready = now + self.p.command_overhead_ns;
        pending.place = self.mechanics.place(command.offset);
        if command.operation == Operation::Read {
            if self.in_memory(pending.ready, command.offset, command.end()) {
                self.prolong(now, command.end());
                return self.answer(pending.ready + self.interface_ns(command.len), pending.ticket);
            }
        } else {
            self.forget(now, command.offset, command.end());
            // A write of half the cache has nothing to gain from it.
            if command.len <= self.p.write_cache_bytes / 2 {
                self.waiting.push_back(pending);
                return self.admit(now);
            }
        }
        self.queue.push(pending);
    }

    /// Moves waiting writes into the cache while there is room, in order of arrival.
    fn admit(&mut self, now: Nanos) {
        while let Some(pending) = self.waiting.front().copied() {
            let command = pending.command;
            if self.cache.bytes + command.len > self.p.write_cache_bytes {
                break;
            }
            self.waiting.pop_front();
            self.cache.bytes += insert(&mut self.cache.open, command.offset, command.end());
            let at = pending.ready.max(now) + self.interface_ns(command.len);
            self.answer(at, pending.ticket);
        }
    }

    fn interface_ns(&self, len: u64) -> Nanos {
        len * SECOND / self.p.interface_bytes_per_s
    }

    /// Whether a read can be served without the heads at `time`.
    fn in_memory(&self, time: Nanos, start: u64, end: u64) -> bool {
        let ahead = self
            .ahead
            .is_some_and(|ahead| ahead.start <= start && end <= self.passed(&ahead, time));
        ahead
            || self.segments.iter().any(|segment| segment.0 <= start && end <= segment.1)
            || covers(&self.cache.open, start, end)
            || covers(&self.cache.closing, start, end)
    }

    /// The first byte that the read-ahead has not passed at `time`.
    fn passed(&self, ahead: &Ahead, time: Nanos) -> u64 {
        let span = u128::from(time.saturating_sub(ahead.since));
        let turn = u128::from(self.mechanics.revolution_ns);
        let bytes = (span * u128::from(ahead.track_bytes) / turn) as u64;
        ahead.limit.min(ahead.from.saturating_add(bytes))
    }

    /// The read-ahead that goes at least as far as `end`, and when it will have passed it.
    fn passes(&self, now: Nanos, ahead: &Ahead, end: u64) -> (Ahead, Nanos) {
        let mut ahead = *ahead;
        if end > ahead.limit && self.passed(&ahead, now) == ahead.limit {
            // It stopped at the limit, which has to come round again.
            let place = self.mechanics.place(ahead.limit);
            let wait = self.mechanics.rotation_ns(now + self.phase_ns, place.angle_ns);
            (ahead.from, ahead.since) = (ahead.limit, now + wait);
            ahead.track_bytes = place.track_bytes;
        }
        ahead.limit = ahead.limit.max(end);
        let rest = end.saturating_sub(ahead.from);
        let at = ahead.since + self.mechanics.transfer_ns(ahead.track_bytes, rest);
        (ahead, at.max(now))
    }

    /// A read was served from what the head passes: the stream is alive, so read on further.
    fn prolong(&mut self, now: Nanos, end: u64) {
        let Some(ahead) = self.ahead else { return };
        let limit = (end + self.p.read_ahead_bytes).min(self.p.size_bytes);
        // Read-ahead of earlier serves addresses far from here, which the head does not read towards.
        let near = ahead.start <= end && end <= ahead.limit;
        if near && limit > ahead.limit && self.passed(&ahead, now) < ahead.limit {
            let start = ahead.start.max(end.saturating_sub(2 * self.p.read_ahead_bytes));
            self.ahead = Some(Ahead { start, limit, ..ahead });
        }
    }

    /// Drops from memory what a write makes old.
    fn forget(&mut self, now: Nanos, start: u64, end: u64) {
        self.segments.retain(|segment| segment.1 <= start || end <= segment.0);
        if self.ahead.is_some_and(|ahead| ahead.start < end && start < ahead.limit) {
            self.freeze(now);
            self.segments.retain(|segment| segment.1 <= start || end <= segment.0);
        }
    }

    /// Ends the read-ahead; what it has passed stays in memory.
    fn freeze(&mut self, now: Nanos) {
        if let Some(ahead) = self.ahead.take() {
            if self.segments.len() == SEGMENTS_MAX {
                self.segments.pop_front();
            }
            self.segments.push_back((ahead.start, self.passed(&ahead, now)));
        }
    }

    /// Time from `now` until a transfer at `place` can begin.
    fn position_ns(&self, now: Nanos, place: &Place, write: bool) -> Nanos {
        let turning = |moved: Nanos| {
            moved + self.mechanics.rotation_ns(now + moved + self.phase_ns, place.angle_ns)
        };
        match self.mechanics.seek_ns(&self.head, place, write) {
            // The heads follow this track already; going straight on needs no margin.
            0 => turning(0),
            seek => turning(seek + self.mechanics.margin_ns),
        }
    }

    /// Whether the head reads on towards this command.
    fn streams(&self, command: &Command) -> Option<Ahead> {
        let ahead = self.ahead.filter(|_| command.operation == Operation::Read)?;
        (ahead.start <= command.offset && command.offset <= ahead.limit).then_some(ahead)
    }

    /// Time until the command's first byte is below the head (or past it, in memory).
    fn cost_ns(&self, now: Nanos, pending: &Pending) -> Nanos {
        match self.streams(&pending.command) {
            Some(ahead) => self.passes(now, &ahead, pending.command.offset).1 - now,
            None => {
                let write = pending.command.operation == Operation::Write;
                self.position_ns(now, &pending.place, write)
            }
        }
    }

    /// The command or destage that the heads can reach first, or the one that is overdue.
    fn choose(&self, now: Nanos) -> Option<(Choice, Nanos)> {
        let mut best: Option<(Choice, Nanos)> = None;
        let mut least = i64::MAX;
        let mut overdue: Option<(Nanos, usize)> = None;
        for (index, pending) in self.queue.iter().enumerate() {
            if pending.ready > now {
                continue;
            }
            let cost = self.cost_ns(now, pending);
            let age = now - pending.arrived;
            let aged = cost as i64 - (age / AGE_WEIGHT_DIVISOR) as i64;
            if aged < least {
                (least, best) = (aged, Some((Choice::Queue(index), cost)));
            }
            let late = age > self.p.age_limit_ns;
            if late && overdue.is_none_or(|(arrived, _)| pending.arrived < arrived) {
                overdue = Some((pending.arrived, index));
            }
        }
        if let Some((_, index)) = overdue {
            return Some((Choice::Queue(index), self.cost_ns(now, &self.queue[index])));
        }
        let closing = !self.cache.closing.is_empty();
        let pressing = closing || self.cache.bytes > self.p.write_cache_bytes / 2;
        if !pressing && (!self.queue.is_empty() || now < self.destage_at) {
            return best;
        }
        let extents = if closing { &self.cache.closing } else { &self.cache.open };
        let (zone, track) = ((self.head.track >> 48) as usize, self.head.track << 16 >> 16);
        let zone = &self.mechanics.zones[zone];
        let here = zone.start + track * zone.track_bytes;
        // Behind the head first, then from the outer edge: one sweep, like an elevator.
        let window = extents.range(here..).chain(extents.range(..here)).take(DESTAGE_WINDOW);
        for (&start, _) in window {
            let cost = self.position_ns(now, &self.mechanics.place(start), true);
            if (cost as i64) < least {
                (least, best) = (cost as i64, Some((Choice::Destage { start, closing }, cost)));
            }
        }
        best
    }

    /// Gives idle heads something to do.
    fn start(&mut self, now: Nanos) {
        if self.active.is_some() {
            return;
        }
        let Some((choice, cost)) = self.choose(now) else { return };
        let (work, place, offset, len) = match choice {
            Choice::Queue(index) => {
                let pending = self.queue.swap_remove(index);
                let command = pending.command;
                if let Some(ahead) = self.streams(&command) {
                    let (ahead, ends) = self.passes(now, &ahead, command.end());
                    self.ahead = Some(ahead);
                    self.active = Some((ends, Work::Read(pending)));
                    return;
                }
                let read = command.operation == Operation::Read;
                let work = if read { Work::Read(pending) } else { Work::Write(pending) };
                (work, pending.place, command.offset, command.len)
            }
            Choice::Destage { start, closing } => {
                let len = self.take_dirty(start, closing);
                (Work::Destage { len, closing }, self.mechanics.place(start), start, len)
            }
        };
        self.freeze(now);
        let ends = now + cost + self.mechanics.transfer_ns(place.track_bytes, len);
        self.head = self.mechanics.place(offset + len);
        self.active = Some((ends, work));
    }

    /// Takes (the first part of) an extent out of the cache for a destage.
    fn take_dirty(&mut self, start: u64, closing: bool) -> u64 {
        let cache = &mut self.cache;
        let extents = if closing { &mut cache.closing } else { &mut cache.open };
        let Some(end) = extents.remove(&start) else { return 0 };
        let len = (end - start).min(DESTAGE_BYTES_MAX);
        if start + len < end {
            extents.insert(start + len, end);
        }
        cache.closing_busy += u32::from(closing);
        len
    }

    /// Ends what the heads were doing, if its time has come.
    fn finish(&mut self, now: Nanos) {
        let Some((ends, work)) = self.active else { return };
        if ends > now {
            return;
        }
        self.active = None;
        if !matches!(work, Work::Destage { .. }) {
            self.destage_at = now + DESTAGE_IDLE_NS;
        }
        match work {
            Work::Read(pending) => {
                self.done.push(pending.ticket);
                self.read_on(now, &pending.command);
            }
            Work::Write(pending) => self.done.push(pending.ticket),
            Work::Destage { len, closing } => {
                self.cache.bytes -= len;
                self.cache.closing_busy -= u32::from(closing);
                self.settle(now);
                self.admit(now);
            }
        }
        self.refill(now);
    }

    /// Continues behind a read that has just ended.
    fn read_on(&mut self, now: Nanos, command: &Command) {
        let end = command.end();
        let start = match self.ahead.take() {
            // A command inside of what is already in memory leaves the head where it is.
            Some(ahead) if self.passed(&ahead, now) > end => {
                self.ahead = Some(ahead);
                return;
            }
            Some(ahead) => ahead.start.max(end.saturating_sub(2 * self.p.read_ahead_bytes)),
            None => command.offset,
        };
        self.head = self.mechanics.place(end);
        if self.p.read_ahead_bytes > 0 {
            let limit = (end + self.p.read_ahead_bytes).min(self.p.size_bytes);
            let track_bytes = self.head.track_bytes;
            self.ahead = Some(Ahead { start, from: end, since: now, limit, track_bytes });
        }
    }

    /// Answers flushes whose extents are all on the platter, and begins the next one.
    fn settle(&mut self, now: Nanos) {
        let empty = |cache: &WriteCache| cache.closing.is_empty() && cache.closing_busy == 0;
        while !self.cache.flushes.is_empty() && empty(&self.cache) {
            if let Some(ticket) = self.cache.flushes.pop_front() {
                self.answer(now, ticket);
            }
            if !self.cache.flushes.is_empty() {
                self.close();
            }
        }
    }

    /// Makes everything that is dirty now the current flush's.
    fn close(&mut self) {
        self.cache.closing = std::mem::take(&mut self.cache.open);
        if let Some((_, Work::Destage { closing, .. })) = &mut self.active
            && !*closing
        {
            *closing = true;
            self.cache.closing_busy += 1;
        }
    }

    fn flush(&mut self, now: Nanos, ticket: Ticket) {
        self.cache.flushes.push_back(ticket);
        if self.cache.flushes.len() == 1 {
            self.close();
            if self.cache.closing.is_empty() && self.cache.closing_busy == 0 {
                self.cache.flushes.clear();
                self.answer(now + self.p.command_overhead_ns, ticket);
            }
        }
    }
}

impl Model for HddModel {
    fn size_bytes(&self) -> u64 {
        self.p.size_bytes
    }

    fn discards(&self) -> bool {
        false
    }

    fn submit(&mut self, now: Nanos, ticket: Ticket, command: Command) {
        self.run(now);
        match command.operation {
            Operation::Flush => self.flush(now, ticket),
            Operation::Discard => self.answer(now + self.p.command_overhead_ns, ticket),
            Operation::Read | Operation::Write => {
                let place = Place::default();
                let pending = Pending { ticket, command, arrived: now, ready: now, place };
                self.backlog.push_back(pending);
                self.refill(now);
            }
        }
        self.start(now);
    }

    fn next_event(&self) -> Option<Nanos> {
        if !self.done.is_empty() {
            return Some(self.clock);
        }
        let answer = self.answers.peek().map(|Reverse(answer)| answer.0);
        [self.next_work(), answer].into_iter().flatten().min()
    }

    fn advance(&mut self, now: Nanos, completed: &mut Vec<Ticket>) {
        self.run(now);
        completed.append(&mut self.done);
    }
}

#[cfg(test)]
mod tests;
