//! The timing of a RAID array of modelled disks.
//!
//! * Data lives in the store behind the array; the members only tell the time.
//! * A write that does not cover its stripe reads what parity needs first: either the old data and
//!   parity (read-modify-write) or the rest of the stripe (reconstruct-write), whichever takes
//!   fewer disk commands, as Linux md decides. Its writes start when its last read has ended.
//! * Layouts are md's: left-symmetric for RAID 5 and 6, near with two copies for RAID 10.
//! * A flush goes to every member. There is no controller cache: put the member's write cache
//!   on or off, as the array that is modelled does.

use super::hdd::{HddModel, HddParameters};
use super::modelled::{Command, Model, Operation, Ticket};
use crate::device::Stripe;
use crate::runtime::{Nanos, SECOND};

/// How an array spreads and protects data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Single parity, rotating. At least three disks.
    Raid5,
    /// Double parity, rotating. At least four disks.
    Raid6,
    /// Striped mirrors of two. An even number of disks, at least two.
    Raid10,
}

impl Level {
    fn parities(self) -> u64 {
        match self {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
            Level::Raid10 => 0,
        }
    }
}

/// What makes one array differ from another.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayParameters {
    /// Layout.
    pub level: Level,
    /// Number of members.
    pub disks: usize,
    /// Contiguous bytes on one member; md's default is 512 KiB, hardware's 64 to 256 KiB.
    pub chunk_bytes: u64,
    /// The member.
    pub member: HddParameters,
}

impl ArrayParameters {
    /// Bytes of data in a stripe over all members.
    pub fn stripe_bytes(&self) -> u64 {
        self.data_disks() * self.chunk_bytes
    }

    /// Bytes that the array holds.
    pub fn size_bytes(&self) -> u64 {
        self.member.size_bytes / self.chunk_bytes * self.stripe_bytes()
    }

    fn data_disks(&self) -> u64 {
        match self.level {
            Level::Raid10 => self.disks as u64 / 2,
            level => self.disks as u64 - level.parities(),
        }
    }

    fn check(&self) {
        let enough = match self.level {
            Level::Raid5 => self.disks >= 3,
            Level::Raid6 => self.disks >= 4,
            Level::Raid10 => self.disks >= 2 && self.disks.is_multiple_of(2),
        };
        assert!(enough, "{:?} of {} disks", self.level, self.disks);
        assert!(self.chunk_bytes > 0, "a chunk holds something");
    }
}

/// A command for one member.
type Step = (usize, Command);

/// The share of one stripe in a request: reads, then writes.
#[derive(Debug, Default)]
struct Part {
    request: usize,
    outstanding: usize,
    then: Vec<Step>,
}

/// A request to the array.
#[derive(Debug)]
struct Request {
    ticket: Ticket,
    parts: usize,
}

/// The array's timing.
#[derive(Debug)]
pub struct ArrayModel {
    p: ArrayParameters,
    members: Vec<HddModel>,
    /// Each member's next event, so that an event costs one pass over the members.
    events: Vec<Option<Nanos>>,
    requests: Vec<Request>,
    requests_free: Vec<usize>,
    parts: Vec<Part>,
    parts_free: Vec<usize>,
    done: Vec<Ticket>,
    done_at: Nanos,
    answers: Vec<Ticket>,
    /// Commands sent to members so far.
    commands_count: u64,
}

impl ArrayModel {
    /// An idle array. `seed` sets the members' platters turning out of step.
    ///
    /// # Panics
    /// If the level does not work with that number of disks.
    pub fn new(parameters: ArrayParameters, seed: u64) -> Self {
        parameters.check();
        let member = |index: usize| {
            // SplitMix64's finaliser: any seed, even 0, gives unrelated phases.
            let mut z = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            HddModel::new(parameters.member.clone(), (z ^ z >> 31) % SECOND)
        };
        Self {
            members: (0..parameters.disks).map(member).collect(),
            events: vec![None; parameters.disks],
            p: parameters,
            requests: Vec::new(),
            requests_free: Vec::new(),
            parts: Vec::new(),
            parts_free: Vec::new(),
            done: Vec::new(),
            done_at: 0,
            answers: Vec::new(),
            commands_count: 0,
        }
    }

    /// The array's parameters.
    pub fn parameters(&self) -> &ArrayParameters {
        &self.p
    }

    /// Commands sent to the members since the start.
    pub fn commands_count(&self) -> u64 {
        self.commands_count
    }

    /// The member that holds data chunk `index` of `stripe` (the first of a mirror's two).
    fn data_member(&self, stripe: u64, index: u64) -> usize {
        let disks = self.p.disks as u64;
        let member = match self.p.level {
            Level::Raid10 => 2 * index,
            level => (disks - 1 - stripe % disks + level.parities() + index) % disks,
        };
        member as usize
    }

    /// The member that holds parity `index` of `stripe`.
    fn parity_member(&self, stripe: u64, index: u64) -> usize {
        let disks = self.p.disks as u64;
        ((disks - 1 - stripe % disks + index) % disks) as usize
    }

    /// Of a mirror, the less busy member; of equals, the one by turns of address.
    fn mirror(&self, first: usize, stripe: u64) -> usize {
        let (one, two) = (self.members[first].load(), self.members[first + 1].load());
        if one == two { first + (stripe % 2) as usize } else { first + usize::from(two < one) }
    }

    fn send(&mut self, now: Nanos, part: usize, steps: &[Step]) {
        self.parts[part].outstanding = steps.len();
        self.commands_count += steps.len() as u64;
        for &(member, command) in steps {
            self.members[member].submit(now, part as Ticket, command);
            self.events[member] = self.members[member].next_event();
        }
    }

    fn begin(&mut self, now: Nanos, request: usize, steps: &[Step], then: Vec<Step>) {
        let part = self.parts_free.pop().unwrap_or_else(|| {
            self.parts.push(Part::default());
            self.parts.len() - 1
        });
        self.parts[part] = Part { request, outstanding: 0, then };
        self.requests[request].parts += 1;
        if steps.is_empty() {
            let then = std::mem::take(&mut self.parts[part].then);
            self.send(now, part, &then);
        } else {
            self.send(now, part, steps);
        }
    }

    /// One member's command for part `part` of `request` has ended.
    fn ended(&mut self, now: Nanos, part: usize) {
        self.parts[part].outstanding -= 1;
        if self.parts[part].outstanding > 0 {
            return;
        }
        let then = std::mem::take(&mut self.parts[part].then);
        if !then.is_empty() {
            return self.send(now, part, &then);
        }
        self.parts_free.push(part);
        let index = self.parts[part].request;
        let request = &mut self.requests[index];
        request.parts -= 1;
        if request.parts == 0 {
            self.done.push(request.ticket);
            self.done_at = now;
            self.requests_free.push(index);
        }
    }

    /// Cuts a range at chunk ends: stripe, chunk in the stripe, first byte and bytes in the chunk.
    fn chunks(&self, command: &Command) -> Vec<(u64, u64, u64, u64)> {
        let (chunk, data) = (self.p.chunk_bytes, self.p.data_disks());
        let mut pieces = Vec::new();
        let mut offset = command.offset;
        while offset < command.end() {
            let within = offset % chunk;
            let len = (chunk - within).min(command.end() - offset);
            let number = offset / chunk;
            pieces.push((number / data, number % data, within, len));
            offset += len;
        }
        pieces
    }

    fn step(&self, operation: Operation, member: usize, stripe: u64, at: u64, len: u64) -> Step {
        (member, Command { operation, offset: stripe * self.p.chunk_bytes + at, len })
    }

    fn read(&mut self, now: Nanos, request: usize, command: &Command) {
        let mut steps: Vec<Step> = Vec::new();
        for (stripe, index, at, len) in self.chunks(command) {
            let mut member = self.data_member(stripe, index);
            if self.p.level == Level::Raid10 {
                member = self.mirror(member, stripe);
            }
            let step = self.step(Operation::Read, member, stripe, at, len);
            // Chunks that follow each other on a member go as one command, as every block layer
            // does it.
            let before = steps.iter_mut().find(|s| s.0 == member && s.1.end() == step.1.offset);
            match before {
                Some(before) => before.1.len += len,
                None => steps.push(step),
            }
        }
        self.begin(now, request, &steps, Vec::new());
    }

    fn write(&mut self, now: Nanos, request: usize, command: &Command) {
        let pieces = self.chunks(command);
        for pieces in pieces.chunk_by(|one, two| one.0 == two.0) {
            let (reads, writes) = match self.p.level {
                Level::Raid10 => (Vec::new(), self.mirrored(pieces)),
                _ => self.parity_write(pieces),
            };
            self.begin(now, request, &reads, writes);
        }
    }

    fn mirrored(&self, pieces: &[(u64, u64, u64, u64)]) -> Vec<Step> {
        let both = |&(stripe, index, at, len): &(u64, u64, u64, u64)| {
            let first = self.data_member(stripe, index);
            [first, first + 1].map(|member| self.step(Operation::Write, member, stripe, at, len))
        };
        pieces.iter().flat_map(both).collect()
    }

    /// What a write to (part of) one stripe reads first and writes then.
    fn parity_write(&self, pieces: &[(u64, u64, u64, u64)]) -> (Vec<Step>, Vec<Step>) {
        let stripe = pieces[0].0;
        let data = |operation, &(_, index, at, len): &(u64, u64, u64, u64)| {
            self.step(operation, self.data_member(stripe, index), stripe, at, len)
        };
        // Parity is touched wherever any chunk is.
        let from = pieces.iter().map(|piece| piece.2).min().unwrap_or(0);
        let to = pieces.iter().map(|piece| piece.2 + piece.3).max().unwrap_or(0);
        let parity = |operation| {
            (0..self.p.level.parities()).map(move |index| {
                let member = self.parity_member(stripe, index);
                self.step(operation, member, stripe, from, to - from)
            })
        };
        let covered = |index: u64| {
            pieces
                .iter()
                .any(|piece| piece.1 == index && piece.2 == from && piece.2 + piece.3 == to)
        };
        let rest: Vec<Step> = (0..self.p.data_disks())
            .filter(|&index| !covered(index))
            .map(|index| data(Operation::Read, &(stripe, index, from, to - from)))
            .collect();
        let modify = pieces.len() as u64 + self.p.level.parities();
        let reads = if rest.len() as u64 <= modify {
            rest
        } else {
            let old = pieces.iter().map(|piece| data(Operation::Read, piece));
            old.chain(parity(Operation::Read)).collect()
        };
        let new = pieces.iter().map(|piece| data(Operation::Write, piece));
        (reads, new.chain(parity(Operation::Write)).collect())
    }

    fn flush(&mut self, now: Nanos, request: usize) {
        let command = Command { operation: Operation::Flush, offset: 0, len: 0 };
        let steps: Vec<Step> = (0..self.p.disks).map(|member| (member, command)).collect();
        self.begin(now, request, &steps, Vec::new());
    }

    /// The member whose next event is first.
    fn first_event(&self) -> Option<(Nanos, usize)> {
        let events = self.events.iter().enumerate();
        events.filter_map(|(member, event)| event.map(|event| (event, member))).min()
    }

    /// Lets the members' time pass in the order of their events: what ends on one starts on
    /// another.
    fn run(&mut self, now: Nanos) {
        while let Some((event, member)) = self.first_event() {
            if event > now {
                break;
            }
            let mut answers = std::mem::take(&mut self.answers);
            self.members[member].advance(event, &mut answers);
            self.events[member] = self.members[member].next_event();
            for part in answers.drain(..) {
                self.ended(event, part as usize);
            }
            self.answers = answers;
        }
    }
}

impl Model for ArrayModel {
    fn size_bytes(&self) -> u64 {
        self.p.size_bytes()
    }

    fn discards(&self) -> bool {
        false
    }

    fn stripe(&self) -> Option<Stripe> {
        let parity = self.p.level.parities() > 0;
        Some(Stripe { bytes: self.p.stripe_bytes(), chunk_bytes: self.p.chunk_bytes, parity })
    }

    fn submit(&mut self, now: Nanos, ticket: Ticket, command: Command) {
        self.run(now);
        if command.operation == Operation::Discard {
            self.done.push(ticket);
            self.done_at = now;
            return;
        }
        let request = Request { ticket, parts: 0 };
        let index = match self.requests_free.pop() {
            Some(index) => {
                self.requests[index] = request;
                index
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        };
        match command.operation {
            Operation::Read => self.read(now, index, &command),
            Operation::Write => self.write(now, index, &command),
            Operation::Flush | Operation::Discard => self.flush(now, index),
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        if self.done.is_empty() {
            self.first_event().map(|first| first.0)
        } else {
            Some(self.done_at)
        }
    }

    fn advance(&mut self, now: Nanos, completed: &mut Vec<Ticket>) {
        self.run(now);
        completed.append(&mut self.done);
    }
}

#[cfg(test)]
mod tests {
    use super::super::modelled::closed_loop;
    use super::super::modelled::tests::{random_4k, sequential};
    use super::*;

    fn array(level: Level) -> ArrayModel {
        let member = HddParameters::st500nm0001().without_write_cache();
        ArrayModel::new(ArrayParameters { level, disks: 8, chunk_bytes: 64 << 10, member }, 3)
    }

    fn iops(level: Level, operation: Operation) -> f64 {
        let mut array = array(level);
        let size = array.size_bytes();
        closed_loop(&mut array, 128, 8_000, random_4k(operation, size)).iops
    }

    #[test]
    fn eight_disks_read_like_eight_disks() {
        let member = HddParameters::st500nm0001();
        let size = member.size_bytes;
        let mut one = HddModel::new(member, 0);
        let one = closed_loop(&mut one, 16, 4_000, random_4k(Operation::Read, size)).iops;
        let eight = iops(Level::Raid5, Operation::Read);
        assert!((6.5 * one..8.5 * one).contains(&eight), "{eight}, one {one}");
    }

    #[test]
    fn small_writes_cost_what_their_level_says() {
        for (level, low, high) in
            [(Level::Raid5, 0.18, 0.32), (Level::Raid6, 0.11, 0.22), (Level::Raid10, 0.38, 0.55)]
        {
            let share = iops(level, Operation::Write) / iops(level, Operation::Read);
            assert!((low..high).contains(&share), "{level:?}: {share}");
        }
    }

    fn random(operation: Operation, depth: usize) -> f64 {
        let mut array = array(Level::Raid5);
        let size = array.size_bytes();
        closed_loop(&mut array, depth, 6_000, random_4k(operation, size)).iops
    }

    #[test]
    fn random_requests_grow_with_the_queue_and_never_beyond_the_disks() {
        for (operation, commands) in [(Operation::Read, 1.0), (Operation::Write, 4.0)] {
            let mut last = 0.0;
            for depth in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
                let iops = random(operation, depth);
                assert!(iops > 1.02 * last, "{operation:?} at {depth}: {iops} after {last}");
                // No disk without a queue does more than 120/s, none with one more than 200/s.
                let bound = (depth as f64 * 120.0).min(8.0 * 200.0 / commands);
                assert!(iops < bound, "{operation:?} at {depth}: {iops} of at most {bound}");
                last = iops;
            }
        }
    }

    #[test]
    fn what_the_members_cannot_queue_is_no_slower() {
        for operation in [Operation::Read, Operation::Write] {
            let full = random(operation, 256);
            for depth in [512, 2048] {
                let iops = random(operation, depth);
                assert!(iops > 0.95 * full, "{operation:?} at {depth}: {iops}, {full} at 256");
            }
        }
    }

    /// Bytes per second of sequential requests of `len` bytes.
    fn sequential_rate(operation: Operation, len: u64, depth: usize) -> f64 {
        let mut array = array(Level::Raid5);
        closed_loop(&mut array, depth, (4 << 30) / len, sequential(operation, len)).bytes_per_s
    }

    #[test]
    fn sequential_transfers_use_all_data_disks_and_no_more() {
        let one = 150e6;
        let stripe = array(Level::Raid5).p.stripe_bytes();
        let mut last = 0.0;
        for depth in [1, 2, 4, 8] {
            let rate = sequential_rate(Operation::Read, 1 << 20, depth);
            assert!(rate > 0.98 * last, "reads at {depth}: {rate} after {last}");
            assert!(rate < 8.0 * one, "reads at {depth}: {rate}");
            last = rate;
        }
        assert!(last > 0.8 * 7.0 * one, "reads at depth 8: {last}");
        // Without a write cache each write waits a turn, so only a queue keeps the disks busy.
        let full = sequential_rate(Operation::Write, 8 * stripe, 4);
        assert!((0.3 * 7.0 * one..7.0 * one).contains(&full), "full stripes: {full}");
        let part = sequential_rate(Operation::Write, stripe / 7, 4);
        assert!(part < full / 3.0, "single chunks {part}, full stripes {full}");
    }

    /// Commands that a write of `len` bytes at `offset` sends to the members.
    fn commands(level: Level, offset: u64, len: u64) -> u64 {
        let mut array = array(level);
        let mut done = Vec::new();
        array.submit(0, 1, Command { operation: Operation::Write, offset, len });
        array.advance(SECOND, &mut done);
        assert_eq!(done, [1]);
        array.commands_count()
    }

    #[test]
    fn parity_is_computed_the_cheaper_way() {
        let chunk = 64 << 10;
        assert_eq!(commands(Level::Raid5, 0, 4096), 4, "read-modify-write");
        assert_eq!(commands(Level::Raid6, 0, 4096), 6);
        assert_eq!(commands(Level::Raid10, 0, 4096), 2);
        assert_eq!(commands(Level::Raid5, 0, 7 * chunk), 8, "a full stripe reads nothing");
        assert_eq!(commands(Level::Raid5, 0, 6 * chunk), 1 + 7, "reconstruct-write");
        assert_eq!(commands(Level::Raid5, 4096, 14 * chunk), 8 + (1 + 8) + 4, "three stripes");
    }

    #[test]
    fn every_chunk_of_a_stripe_is_on_a_member_of_its_own() {
        for level in [Level::Raid5, Level::Raid6] {
            let array = array(level);
            for stripe in 0..16 {
                let data = (0..array.p.data_disks()).map(|i| array.data_member(stripe, i));
                let parity = (0..level.parities()).map(|i| array.parity_member(stripe, i));
                let mut members: Vec<usize> = data.chain(parity).collect();
                members.sort_unstable();
                assert_eq!(members, (0..8).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_flush_reaches_every_member() {
        let mut array = array(Level::Raid5);
        array.submit(0, 9, Command { operation: Operation::Flush, offset: 0, len: 0 });
        let mut done = Vec::new();
        array.advance(SECOND, &mut done);
        assert_eq!((done, array.commands_count()), (vec![9], 8));
    }
}
