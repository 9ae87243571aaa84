//! `forebay-bench peers`: caches that run as a program, each in front of a slow NBD export of its own.
//!
//! * The exports are alike: the disks of the demo, modelled, in real time, with their bytes in memory, served by
//!   our program in mode `bypass`.
//! * Ours caches one in a file on the disk below the directory, written in full. nbdkit's cache filter does
//!   so in a file of its own there, through the page cache: it has no other way. It runs twice,
//!   writing back and writing through, and keeps what it has read.
//! * qemu-nbd and nbdkit's file plugin serve bare, written files of the same disk: what is there to be had.
//! * All that nbdkit caches is in RAM as well, by the page cache. Ours runs a second time with a RAM tier of
//!   that size, into which what is hot was read: the bars are that one's, the first shows the SSD by itself.
//! * Before a round everybody is brought to the same state: all that is hot is cached, nothing is dirty.
//! * Ours is a log: before the rows of reads it is written in order, as `bench-nbd` does, but for the row
//!   "scattered", before which all of it is overwritten at random.
//! * nbdkit's writes are in memory until a FLUSH, and a FLUSH of its takes all of them to the slow disks, block by block:
//!   the rows of durable writes are those that say what a database would feel. After a round that is not waited for: a
//!   new process reads in what is hot.
//! * The first rows are of caches that hold all there is, the others of small ones ([`super::small`]).

use serde_json::json;

use super::sides::{self, K4, Memory, OURS, SSD, Shape, Sides, sequential};
use super::table::{self, Kind, Shown, Told, Values, values};
use super::{NbdOptions, small};
use crate::bench::{Bench, Plan, Result};
use crate::fio::{Job, MIXED};
use crate::verdict::{Bar, Row};

/// The rows and the sides.
pub(crate) const PLAN: Plan = Plan {
    rows: &[
        "read",
        "seqread",
        "write",
        "mixed",
        "flush1",
        "flush16",
        "scattered",
        "seqwrite",
        "ram",
        "zipf",
        "overwrite",
        "destage",
        "restart",
    ],
    sides: &sides::NAMES,
    tools: &["fio", "qemu-nbd", "nbdkit"],
};

const SIDES: table::Sides = table::Sides {
    names: &sides::NAMES,
    ours: OURS,
    peers: sides::BACK..sides::QEMU,
    bare: sides::QEMU,
};

/// What the table does not have, and why.
const NOT_RUN: &str = "\
not run, because
- destage, nbdkit through: it has nothing to write back. nbdkit back writes back when a client flushes, and
  only then, so a second client sends one FLUSH to everybody when the reads begin
- restart, nbdkit's hits: its cache is a file without a name, which goes with the process (TMPDIR in
  nbdkit-cache-filter(1)), so both come back empty; what they answer then is shown
- destage, restart and ram of the bare files: they are no caches
- CPU of the kernel's: what writes nbdkit's page cache to the SSD is no thread of its
- SSD bytes of nbdkit: counted when a page becomes dirty, so what is overwritten before it is written is missing
- qemu-nbd with a cache of its own: it has none on an SSD. bcache, dm-cache, dm-writecache: `make bench-kernel`";

/// What of the sizes the volume has: all of it is read, and written through, at the speed of the slow disks.
const SHARE: u64 = 16;

/// What of a span a side of a round lasts: all rows take half an hour and more as it is.
const SPAN_QUARTERS: u64 = 3;

/// How often what is hot is read until all of it is in RAM.
const RAM_LAPS_MAX: u32 = 5;

/// A load on what is cached: its row, what it is, and how.
type Case = (&'static str, &'static str, Job);

fn cases() -> [Case; 8] {
    let random = |rw, depth| Job { rw, block_bytes: K4, depth, jobs: 1, sync: false };
    let synchronous = |jobs| Job { jobs, sync: true, ..random("randwrite", 1) };
    [
        ("read", "4K random read, hits, queue 32", random("randread", 32)),
        ("seqread", "1M sequential read, hits, queue 4", sequential("read")),
        ("write", "4K random write, queue 32", random("randwrite", 32)),
        ("mixed", "4K random, 70 % reads, queue 32", random(MIXED, 32)),
        ("flush1", "4K write + flush, 1 client", synchronous(1)),
        ("flush16", "4K write + flush, 16 clients", synchronous(16)),
        ("scattered", "the same reads after random overwriting", sequential("read")),
        ("seqwrite", "1M sequential write, queue 4", sequential("write")),
    ]
}

/// The rows of the table that come of a load; the first decides how many rounds it gets.
fn shown(row: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = cases()
        .iter()
        .map(|(row, what, _)| Shown::rate(row, what, Bar::AtLeast(1.0)))
        .chain(small::shown())
        .collect();
    let cost = |row, what, key, unit| Shown::other(row, what, key, Kind::Cost(unit));
    shown.extend([
        cost("read", "CPU of the server for a 4K read", "cpu", " us"),
        cost("write", "CPU of the server for a 4K write", "cpu", " us"),
        cost("write", "SSD bytes for a client's byte, 4K writes", "ssd", ""),
        cost("flush1", "CPU of the server for a 4K durable write", "cpu", " us"),
        cost("flush1", "SSD bytes for a client's byte, durable", "ssd", ""),
        cost("seqwrite", "SSD bytes for a client's byte, 1M writes", "ssd", ""),
        cost("ram", "RAM of the server for a GiB that it holds", "ram", " MiB"),
        cost("ram", "RAM of the server besides", "besides", " MiB"),
        cost("ram", "page cache of its files, for a GiB that it holds", "pages", " MiB"),
    ]);
    shown.retain(|shown| shown.row == row);
    shown
}

/// Lays out what ours has as the row says, and brings it into RAM. The others have it in place, whatever was written.
fn lay_out(sides: &mut Sides, name: &str) -> Result<()> {
    let job = match name {
        "read" | "seqread" => Some(sequential("write")),
        "scattered" => Some(Job { block_bytes: K4, depth: 32, ..sequential("randwrite") }),
        _ => None,
    };
    let hot = sides.shape.hot;
    for ours in &mut sides.ours {
        if let Some(job) = job {
            ours.server.fio(hot).lap(job)?;
            ours.settle()?;
        }
    }
    for _ in 0..RAM_LAPS_MAX {
        let before = sides.ours[OURS].misses(true)?;
        sides.read_hot(OURS)?;
        if sides.ours[OURS].misses(true)? == before {
            return Ok(());
        }
    }
    Err(format!("reads leave some out of RAM, {RAM_LAPS_MAX} times over"))
}

/// One side of a round.
fn measure(sides: &mut Sides, side: usize, job: Job, span_ms: u64) -> Result<Values> {
    let misses = |sides: &mut Sides| match side {
        // What is being written is read from the log meanwhile.
        SSD | OURS => sides.ours[side].misses(side == OURS && job.rw.ends_with("read")),
        _ => Ok(0),
    };
    let (missed, hot) = (misses(sides)?, sides.shape.hot);
    let written = sides.server(side).disk_bytes()?;
    let figure = sides.server(side).measure(job, hot, span_ms)?;
    let missed = misses(sides)? - missed;
    if missed > 0 {
        return Err(format!("{missed} reads were no hits"));
    }
    let written = sides.settle(side)? - written;
    let client = figure.rate * span_ms as f64 / 1e3 * job.block_bytes as f64;
    let ssd = written / client;
    Ok(values([("rate", figure.rate), ("cpu", figure.cpu_us), ("ssd", ssd)]))
}

/// What a cache takes of memory, in MiB: for each GiB that it holds, and besides.
fn memory(memory: Memory, hot: u64) -> Values {
    let of_a_gib = |bytes: f64, held: u64| bytes / held as f64 * 1024.0;
    values([
        ("ram", of_a_gib(memory.full - memory.half, hot / 2)),
        ("besides", (2.0 * memory.half - memory.full) / f64::from(1 << 20)),
        ("pages", of_a_gib(memory.pages, hot)),
    ])
}

/// The loads that are wanted, as far as they are measured.
pub(super) struct Progress<'a> {
    pub bench: &'a mut Bench,
    told: Told,
    all: usize,
    done: usize,
}

impl Progress<'_> {
    pub(super) fn wants(&self, rows: &[&str]) -> bool {
        self.bench.wants(rows)
    }

    /// Measures a load round by round, in alternating order, and adds its rows. Who fails has no further part.
    ///
    /// # Errors
    /// If the raw results cannot be written.
    pub(super) fn rounds(
        &mut self,
        row: &'static str,
        who: &[usize],
        rounds_max: usize,
        mut measure: impl FnMut(usize) -> Result<Values>,
    ) -> Result<()> {
        let (shown, mut round, rounds) = (shown(row), 0, self.bench.options.rounds);
        let mut who = who.to_vec();
        who.retain(|&side| !self.told.is_missing(row, side));
        while who.contains(&OURS) && round < rounds_max {
            let ratios = SIDES.to_best(&self.told, &shown[0]);
            if round >= rounds && !self.bench.wants_round(&ratios, shown[0].bar) {
                break;
            }
            let mut order = who.clone();
            if !round.is_multiple_of(2) {
                order.reverse();
            }
            for side in order {
                let name = sides::NAMES[side];
                match measure(side) {
                    Ok(values) => {
                        let raw =
                            json!({ "row": row, "round": round, "side": name, "values": values });
                        self.bench.keep(&raw)?;
                        self.told.add(row, side, values);
                    }
                    Err(reason) => {
                        self.miss(row, side, &reason);
                        who.retain(|&known| known != side);
                    }
                }
            }
            round += 1;
        }
        self.finish(row)
    }

    /// A side has no part in a load, and why.
    pub(super) fn miss(&mut self, row: &'static str, side: usize, reason: &str) {
        eprintln!("  {row}: {} failed: {reason}", sides::NAMES[side]);
        self.told.miss(row, side, reason);
    }

    /// Adds rows of the table that none of the sides has, and why.
    ///
    /// # Errors
    /// If the raw results cannot be written.
    pub(super) fn fail(&mut self, row: &'static str, reason: &str) -> Result<()> {
        self.told.miss(row, OURS, reason);
        self.finish(row)
    }

    fn finish(&mut self, row: &'static str) -> Result<()> {
        let quick = self.bench.options.quick;
        for shown in shown(row) {
            let row: Row = SIDES.row(&self.told, &shown, quick);
            self.bench.finish(row)?;
        }
        self.done += 1;
        self.bench.tell_progress(self.done, self.all);
        Ok(())
    }
}

/// The rows of caches that hold all there is.
fn run_held(progress: &mut Progress, options: &NbdOptions) -> Result<()> {
    let wanted: Vec<Case> = cases().into_iter().filter(|case| progress.wants(&[case.0])).collect();
    let wants_ram = progress.wants(&["ram"]);
    if wanted.is_empty() && !wants_ram {
        return Ok(());
    }
    let sizes = progress.bench.sizes();
    let volume = sizes.volume / SHARE;
    let shape = Shape { cache: sizes.cache, volume, hot: volume, is_limited: false };
    let started = Sides::start(progress.bench, options, shape);
    let rows = wants_ram.then_some("ram").into_iter().chain(wanted.iter().map(|case| case.0));
    let mut sides = match started {
        Ok(sides) => sides,
        Err(error) => return rows.into_iter().try_for_each(|row| progress.fail(row, &error)),
    };
    if wants_ram {
        let (caches, hot) = (sides::CACHES.collect::<Vec<_>>(), sides.shape.hot);
        progress.rounds("ram", &caches, 1, |side| Ok(memory(sides.memory[side], hot)))?;
    }
    let everybody: Vec<usize> = (0..sides::NAMES.len()).collect();
    let span_ms = progress.bench.span_ms() / 4 * SPAN_QUARTERS;
    let asked = &progress.bench.options;
    let rounds_max = asked.rounds_max.max(asked.rounds);
    for (row, _, job) in wanted {
        match lay_out(&mut sides, row) {
            Ok(()) => progress.rounds(row, &everybody, rounds_max, |side| {
                measure(&mut sides, side, job, span_ms)
            })?,
            Err(error) => progress.fail(row, &error)?,
        }
    }
    Ok(())
}

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no ring, no directory.
pub(crate) fn run(options: &NbdOptions) -> Result<bool> {
    Bench::run(&options.bench, &PLAN, |bench| {
        let (options, _place) = options.of_this_run(bench)?;
        let all = PLAN.rows.iter().filter(|row| bench.wants(&[row])).count();
        let rounds = bench.options.rounds;
        eprintln!("{all} loads of {} sides, {rounds} rounds each", sides::NAMES.len());
        let mut progress = Progress { bench, told: Told::default(), all, done: 0 };
        run_held(&mut progress, &options)?;
        small::run(&mut progress, &options)?;
        println!("{NOT_RUN}\n");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_does_not_grow_is_not_the_caches() {
        const MIB: f64 = 1_048_576.0;
        let filled = Memory { half: 12.0 * MIB, full: 14.0 * MIB, pages: 128.0 * MIB };
        let expected = values([("ram", 32.0), ("besides", 10.0), ("pages", 1024.0)]);
        assert_eq!(memory(filled, 128 << 20), expected);
    }

    #[test]
    fn every_load_has_rows_and_a_bar_on_what_it_is_about() {
        for row in PLAN.rows {
            let shown = shown(row);
            assert!(!shown.is_empty(), "{row}");
            let has_bar = !matches!(shown[0].bar, Bar::None);
            assert_eq!(has_bar, *row != "ram", "{row}");
        }
    }
}
