//! The timing of a solid-state disk.
//!
//! * Dies work in parallel, each on one page at a time; the host's link and the flash behind it
//!   cap reads and writes.
//! * A write is acknowledged from the buffer while there is room, later at the rate at which flash
//!   takes it. Small writes cost flash more than their bytes: collection makes the drive write
//!   each of them several times, which is folded into `write_iops_max`.
//! * With power-loss protection the buffer is durable, so a flush has nothing to wait for.
//! * A read that meets a busy die waits at most until the program there is suspended.
//!
//! The presets' data-sheet figures are from memory and to be checked against the sheets.
//!
//! Every completion is known at submission, so an event costs one heap operation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::modelled::{Command, Model, Operation, Ticket};
use crate::runtime::{MICROSECOND, Nanos, SECOND};

/// What makes one drive differ from another.
#[derive(Clone, Debug, PartialEq)]
pub struct SsdParameters {
    /// The model's name, for display.
    pub name: &'static str,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Units that read at the same time.
    pub dies: usize,
    /// What a die reads at once, in bytes.
    pub page_bytes: u64,
    /// Time in which a die reads a page.
    pub die_read_ns: Nanos,
    /// The rest of a read's latency: link, controller, host.
    pub read_overhead_ns: Nanos,
    /// A buffered write's latency.
    pub write_ns: Nanos,
    /// A flush's latency, beyond waiting for the buffer.
    pub flush_ns: Nanos,
    /// A discard's latency.
    pub discard_ns: Nanos,
    /// Longest wait of a read for a program to be suspended.
    pub suspend_ns: Nanos,
    /// Sustained sequential read.
    pub read_bytes_per_s: u64,
    /// Sustained sequential write.
    pub write_bytes_per_s: u64,
    /// Reads per second at most: the controller's or the link's limit.
    pub read_iops_max: u64,
    /// Sustained random 4 KiB writes per second.
    pub write_iops_max: u64,
    /// Write buffer; 0 acknowledges a write only when flash has it.
    pub write_cache_bytes: u64,
    /// Whether the buffer survives a power loss.
    pub power_loss_protection: bool,
    /// Spread of a die's time, in percent either way.
    pub jitter_percent: u64,
}

impl SsdParameters {
    /// A SATA data-centre drive: Samsung PM863a 960 GB. Data sheet: 520/480 MB/s, 97k/24k random
    /// 4 KiB IOPS, power-loss protection. Reads at depth 1 take about 110 us, writes 40 us.
    pub fn sata_data_centre() -> Self {
        Self {
            name: "PM863a 960 GB",
            size_bytes: 960_197_124_096,
            dies: 16,
            page_bytes: 16 << 10,
            die_read_ns: 70 * MICROSECOND,
            read_overhead_ns: 40 * MICROSECOND,
            write_ns: 40 * MICROSECOND,
            flush_ns: 30 * MICROSECOND,
            discard_ns: 200 * MICROSECOND,
            suspend_ns: 100 * MICROSECOND,
            read_bytes_per_s: 520_000_000,
            write_bytes_per_s: 480_000_000,
            read_iops_max: 97_000,
            write_iops_max: 24_000,
            write_cache_bytes: 8 << 20,
            power_loss_protection: true,
            jitter_percent: 10,
        }
    }

    /// An NVMe data-centre drive: Intel P4510 2 TB. Data sheet: 3200/2000 MB/s, 637k/81.5k random
    /// 4 KiB IOPS, 77/18 us at depth 1, power-loss protection.
    pub fn nvme_data_centre() -> Self {
        Self {
            name: "P4510 2 TB",
            size_bytes: 2_000_398_934_016,
            dies: 128,
            die_read_ns: 60 * MICROSECOND,
            read_overhead_ns: 17 * MICROSECOND,
            write_ns: 18 * MICROSECOND,
            flush_ns: 15 * MICROSECOND,
            discard_ns: 100 * MICROSECOND,
            read_bytes_per_s: 3_200_000_000,
            write_bytes_per_s: 2_000_000_000,
            read_iops_max: 637_000,
            write_iops_max: 81_500,
            write_cache_bytes: 32 << 20,
            ..Self::sata_data_centre()
        }
    }

    /// A consumer's NVMe drive, whose buffer a power cut empties: Samsung 970 EVO 1 TB. Data
    /// sheet: 3400/2500 MB/s, 500k random reads. Sustained writes (600 MB/s, 30k IOPS, beyond the
    /// fast part of its flash) and the flush are what reviews measure, rounded.
    pub fn nvme_consumer() -> Self {
        Self {
            name: "970 EVO 1 TB",
            size_bytes: 1_000_204_886_016,
            dies: 64,
            die_read_ns: 65 * MICROSECOND,
            flush_ns: 1_200 * MICROSECOND,
            read_bytes_per_s: 3_400_000_000,
            write_bytes_per_s: 600_000_000,
            read_iops_max: 500_000,
            write_iops_max: 30_000,
            power_loss_protection: false,
            ..Self::nvme_data_centre()
        }
    }
}

/// What one die is busy with.
#[derive(Clone, Copy, Debug, Default)]
struct Die {
    reading_until: Nanos,
    programming_until: Nanos,
}

/// A drive's timing.
#[derive(Debug)]
pub struct SsdModel {
    p: SsdParameters,
    dies: Vec<Die>,
    next_program: usize,
    /// When the read path can take the next command.
    read_free: Nanos,
    /// When flash has everything that the buffer took.
    drained: Nanos,
    random: u64,
    answers: BinaryHeap<Reverse<(Nanos, u64, Ticket)>>,
    answered: u64,
}

impl SsdModel {
    /// An idle, empty drive; `seed` gives the jitter.
    pub fn new(parameters: SsdParameters, seed: u64) -> Self {
        assert!(parameters.dies > 0 && parameters.page_bytes > 0, "a drive has flash");
        Self {
            dies: vec![Die::default(); parameters.dies],
            p: parameters,
            next_program: 0,
            read_free: 0,
            drained: 0,
            random: seed,
            answers: BinaryHeap::new(),
            answered: 0,
        }
    }

    /// The drive's parameters.
    pub fn parameters(&self) -> &SsdParameters {
        &self.p
    }

    /// `time` more or less the jitter (SplitMix64).
    fn jitter(&mut self, time: Nanos) -> Nanos {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let percent = 100 - self.p.jitter_percent + (z ^ z >> 31) % (2 * self.p.jitter_percent + 1);
        time * percent / 100
    }

    fn read(&mut self, now: Nanos, command: &Command) -> Nanos {
        let first = command.offset / self.p.page_bytes;
        let pages = (command.end().div_ceil(self.p.page_bytes) - first).max(1);
        let dies = self.p.dies as u64;
        let mut flash = now;
        for turn in 0..pages.min(dies) {
            // Page numbers are spread by a multiplier, so that strides do not meet one die.
            let spread = (first + turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let share = pages / dies + u64::from(turn < pages % dies);
            let time = self.jitter(self.p.die_read_ns * share);
            let suspend = now + self.p.suspend_ns;
            let die = &mut self.dies[(spread % dies) as usize];
            let start = now.max(die.reading_until).max(die.programming_until.min(suspend));
            die.reading_until = start + time;
            flash = flash.max(die.reading_until);
        }
        let bytes = command.len * SECOND / self.p.read_bytes_per_s;
        let path = bytes.max(SECOND / self.p.read_iops_max);
        self.read_free = self.read_free.max(now) + path;
        flash.max(self.read_free) + self.p.read_overhead_ns
    }

    fn write(&mut self, now: Nanos, command: &Command) -> Nanos {
        let bytes = command.len * SECOND / self.p.write_bytes_per_s;
        let time = bytes.max(SECOND / self.p.write_iops_max);
        let start = self.drained.max(now);
        self.drained = start + time;
        let pages = command.len.div_ceil(self.p.page_bytes).min(self.p.dies as u64);
        for _ in 0..pages {
            self.dies[self.next_program].programming_until = self.drained;
            self.next_program = (self.next_program + 1) % self.p.dies;
        }
        // The buffer holds what flash takes in this time.
        let room = self.p.write_cache_bytes * SECOND / self.p.write_bytes_per_s;
        let buffered = self.drained.saturating_sub(room).max(now);
        buffered + self.p.write_ns
    }

    fn flush(&self, now: Nanos) -> Nanos {
        let durable = if self.p.power_loss_protection { now } else { self.drained.max(now) };
        durable + self.p.flush_ns
    }
}

impl Model for SsdModel {
    fn size_bytes(&self) -> u64 {
        self.p.size_bytes
    }

    fn discards(&self) -> bool {
        true
    }

    fn submit(&mut self, now: Nanos, ticket: Ticket, command: Command) {
        let at = match command.operation {
            Operation::Read => self.read(now, &command),
            Operation::Write => self.write(now, &command),
            Operation::Flush => self.flush(now),
            Operation::Discard => now + self.p.discard_ns,
        };
        self.answered += 1;
        self.answers.push(Reverse((at, self.answered, ticket)));
    }

    fn next_event(&self) -> Option<Nanos> {
        self.answers.peek().map(|Reverse(answer)| answer.0)
    }

    fn advance(&mut self, now: Nanos, completed: &mut Vec<Ticket>) {
        while let Some(&Reverse((at, _, ticket))) = self.answers.peek() {
            if at > now {
                break;
            }
            self.answers.pop();
            completed.push(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::modelled::closed_loop;
    use super::super::modelled::tests::{random_4k, sequential};
    use super::*;

    fn presets() -> [SsdParameters; 3] {
        [
            SsdParameters::sata_data_centre(),
            SsdParameters::nvme_data_centre(),
            SsdParameters::nvme_consumer(),
        ]
    }

    #[test]
    fn reads_grow_with_the_queue_up_to_the_data_sheet() {
        for p in presets() {
            let mut last = 0.0;
            for depth in [1, 4, 16, 64, 256] {
                let mut drive = SsdModel::new(p.clone(), 1);
                let next = random_4k(Operation::Read, p.size_bytes);
                let iops = closed_loop(&mut drive, depth, 20_000, next).iops;
                assert!(iops > 0.999 * last, "{}, depth {depth}: {iops} after {last}", p.name);
                last = iops;
            }
            let limit = p.read_iops_max as f64;
            assert!((0.8 * limit..1.01 * limit).contains(&last), "{}: {last}", p.name);
        }
    }

    #[test]
    fn writes_settle_at_the_sustained_rates() {
        for p in presets() {
            let mut drive = SsdModel::new(p.clone(), 1);
            let count = 4 * p.write_cache_bytes / 4096 + 100_000;
            let next = random_4k(Operation::Write, p.size_bytes);
            let iops = closed_loop(&mut drive, 32, count, next).iops;
            let limit = p.write_iops_max as f64;
            assert!((0.9 * limit..1.3 * limit).contains(&iops), "{}: {iops}", p.name);
            let mut drive = SsdModel::new(p.clone(), 1);
            let next = sequential(Operation::Write, 1 << 20);
            let rate = closed_loop(&mut drive, 8, 2_000, next).bytes_per_s;
            let limit = p.write_bytes_per_s as f64;
            assert!((0.9 * limit..1.1 * limit).contains(&rate), "{}: {rate}", p.name);
        }
    }

    #[test]
    fn only_a_volatile_buffer_makes_a_flush_wait() {
        let after_writes = |p: SsdParameters| {
            let mut drive = SsdModel::new(p, 1);
            for ticket in 0..1000 {
                drive.submit(
                    0,
                    ticket,
                    Command { operation: Operation::Write, offset: 0, len: 4096 },
                );
            }
            drive.flush(0)
        };
        assert_eq!(after_writes(SsdParameters::nvme_data_centre()), 15 * MICROSECOND);
        assert!(after_writes(SsdParameters::nvme_consumer()) > 30_000 * MICROSECOND);
    }
}
