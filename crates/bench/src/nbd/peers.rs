//! `forebay-bench peers`: caches that run as a program, each in front of a slow NBD export of its own.
//!
//! * The exports are alike: the disks of the demo, modelled, in real time, with their bytes in memory, served by
//!   our program in mode `bypass`.
//! * Ours caches one in a file on the disk below the directory, written in full. nbdkit's cache filter does
//!   so in a file of its own there, through the page cache: it has no other way. It runs twice,
//!   writing back and writing through, and keeps what it has read.
//! * qemu-nbd and nbdkit's file plugin serve bare, written files of the same disk: what is there to be had.
//! * All that nbdkit caches is in RAM as well, by the page cache. Ours runs a second time with a RAM tier of
//!   the volume's size, into which it was read: the bars are that one's, the first shows the SSD by itself.
//! * Before a round everybody is brought to the same state: all of the volume is cached, nothing is dirty.
//! * Ours is a log: before the rows of reads it is written in order, as `bench-nbd` does, but for the row
//!   "scattered", before which all of it is overwritten at random.
//! * nbdkit's writes are in memory until a FLUSH, and a FLUSH of its takes all of them to the slow disks:
//!   the rows of durable writes are those that say what a database would feel.

use serde_json::{Map, Value, json};

use super::NbdOptions;
use super::server::{Figure, Files, Ours, Server, sync_file, write_file};
use crate::bench::{Bench, Plan, Result, Sizes};
use crate::fio::{Job, MIXED};
use crate::verdict::{Bar, Row, median, rate};

/// The rows and the sides.
pub(crate) const PLAN: Plan = Plan {
    rows: &["read", "seqread", "write", "mixed", "flush1", "flush16", "scattered", "seqwrite"],
    sides: &["ours, SSD", "ours", "nbdkit back", "nbdkit through", "bare qemu-nbd", "bare nbdkit"],
    tools: &["fio", "qemu-nbd", "nbdkit"],
};

/// What of the sizes the volume has: all sides write it in full, some at the speed of disks.
const SHARE: u64 = 4;

const K4: u64 = 4 << 10;
const M1: u64 = 1 << 20;

/// What of the sides ours are, by their places in the plan.
const SSD: usize = 0;
const OURS: usize = 1;

/// A load: its row, what it is, and how.
type Case = (&'static str, &'static str, Job);

fn cases() -> [Case; 8] {
    let random = |rw, depth| Job { rw, block_bytes: K4, depth, jobs: 1, sync: false };
    let synchronous = |jobs| Job { jobs, sync: true, ..random("randwrite", 1) };
    [
        ("read", "4K random read, hits, queue 32", random("randread", 32)),
        ("seqread", "1M sequential read, hits, queue 4", sequential("read", false)),
        ("write", "4K random write, queue 32", random("randwrite", 32)),
        ("mixed", "4K random, 70 % reads, queue 32", random(MIXED, 32)),
        ("flush1", "4K write + flush, 1 client", synchronous(1)),
        ("flush16", "4K write + flush, 16 clients", synchronous(16)),
        ("scattered", "the same after random overwriting", sequential("read", false)),
        ("seqwrite", "1M sequential write, queue 4", sequential("write", false)),
    ]
}

fn sequential(rw: &'static str, sync: bool) -> Job {
    Job { rw, block_bytes: M1, depth: 4, jobs: 1, sync }
}

/// All sides; what each caches is served by a disk of its own.
struct Sides {
    /// On the SSD alone, and with RAM in front of it.
    ours: [Ours; 2],
    back: Server,
    through: Server,
    qemu: Server,
    bare: Server,
    bare_path: std::path::PathBuf,
    _disks: [Ours; 4],
    _files: Files,
}

impl Sides {
    fn start(bench: &Bench, options: &NbdOptions, sizes: &Sizes) -> Result<Self> {
        let (clock, dir) = (&bench.clock, &options.bench.dir);
        let (qemu_path, bare_path) = (dir.join("qemu.bin"), dir.join("nbdkit.bin"));
        let files = Files::new(&[&qemu_path, &bare_path]);
        write_file(clock, &qemu_path, sizes.volume)?;
        write_file(clock, &bare_path, sizes.volume)?;
        let disk = |name| Ours::disk(clock, options, name, sizes.volume);
        let [ssd, ram] = ["disk-ssd", "disk-ram"].map(disk);
        let disks = [ssd?, ram?, disk("disk-back")?, disk("disk-through")?];
        let [ssd, ram, back, through] = disks.each_ref().map(|disk| disk.server.uri.as_str());
        let ours = |name, origin, ram_bytes: u64| {
            let sizes = [("--cache-bytes", sizes.cache), ("--ram", ram_bytes)];
            let args = sizes.map(|(flag, bytes)| [flag.to_owned(), bytes.to_string()]).concat();
            Ours::before(clock, options, name, origin, &args)
        };
        let mut sides = Self {
            ours: [ours("ours-ssd", ssd, 0)?, ours("ours", ram, sizes.volume)?],
            back: Server::cached(clock, dir, "writeback", back)?,
            through: Server::cached(clock, dir, "writethrough", through)?,
            qemu: Server::qemu(clock, dir, &qemu_path)?,
            bare: Server::nbdkit(clock, dir, "file", &bare_path.display().to_string())?,
            bare_path,
            _disks: disks,
            _files: files,
        };
        for side in 0..4 {
            eprintln!("filling the cache of {} ...", PLAN.sides[side]);
            let lap = Job { depth: 1, ..sequential("write", false) };
            sides.server(side).fio(sizes.volume).lap(lap)?;
            sides.settle(side)?;
            sides.server(side).fio(sizes.volume).lap(sequential("read", false))?;
        }
        Ok(sides)
    }

    fn server(&self, side: usize) -> &Server {
        match side {
            SSD | OURS => &self.ours[side].server,
            2 => &self.back,
            3 => &self.through,
            4 => &self.qemu,
            _ => &self.bare,
        }
    }

    /// Leaves nothing behind that would take the next one's time.
    fn settle(&mut self, side: usize) -> Result<()> {
        match side {
            SSD | OURS => self.ours[side].settle(),
            4 => Ok(()),
            5 => sync_file(&self.bare_path),
            // One write, and a flush behind it.
            _ => {
                let flush = Job { depth: 1, block_bytes: K4, ..sequential("write", true) };
                self.server(side).fio(K4).lap(flush).map(|_| ())
            }
        }
    }

    /// Lays out what ours has as the row says, and brings it into RAM. The others have it in place, whatever was written.
    fn lay_out(&mut self, name: &str, sizes: &Sizes) -> Result<()> {
        let job = match name {
            "read" | "seqread" => Some(sequential("write", false)),
            "scattered" => {
                Some(Job { block_bytes: K4, depth: 32, ..sequential("randwrite", false) })
            }
            _ => None,
        };
        for ours in &mut self.ours {
            if let Some(job) = job {
                ours.server.fio(sizes.volume).lap(job)?;
                ours.settle()?;
            }
        }
        // Neither longer reads nor a scan would be guests of RAM.
        let lap = Job { block_bytes: 16 * K4, ..sequential("randread", false) };
        self.server(OURS).fio(sizes.volume).lap(lap).map(|_| ())
    }

    fn measure(&mut self, side: usize, job: Job, sizes: &Sizes, span_ms: u64) -> Result<Figure> {
        let misses = |sides: &mut Self| match side {
            // What is being written is read from the log meanwhile.
            SSD | OURS => sides.ours[side].misses(side == OURS && job.rw.ends_with("read")),
            _ => Ok(0),
        };
        let missed = misses(self)?;
        let figure = self.server(side).measure(job, sizes.volume, span_ms)?;
        let missed = misses(self)? - missed;
        if missed > 0 {
            return Err(format!("{missed} reads were no hits"));
        }
        self.settle(side)?;
        Ok(figure)
    }
}

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no ring, no directory.
pub(crate) fn run(options: &NbdOptions) -> Result<bool> {
    Bench::run(&options.bench, &PLAN, |bench| {
        let sizes = bench.sizes();
        let sizes = Sizes { volume: sizes.volume / SHARE, ..sizes };
        let mut sides = Sides::start(bench, options, &sizes)?;
        let wanted: Vec<Case> = cases().into_iter().filter(|case| bench.wants(&[case.0])).collect();
        for case in &wanted {
            let measured = rounds(bench, &mut sides, &sizes, case);
            finish(bench, case, measured)?;
        }
        Ok(())
    })
}

/// Our rate beside that of the better cache.
fn to_best(round: &[Figure]) -> f64 {
    round[OURS].rate / round[2].rate.max(round[3].rate)
}

const BAR: Bar = Bar::AtLeast(1.0);

/// Rounds of a case until there are enough; each has the figures in the order of the sides.
fn rounds(
    bench: &mut Bench,
    sides: &mut Sides,
    sizes: &Sizes,
    case: &Case,
) -> Result<Vec<Vec<Figure>>> {
    sides.lay_out(case.0, sizes)?;
    let mut rounds: Vec<Vec<Figure>> = Vec::new();
    let values = |rounds: &[Vec<Figure>]| rounds.iter().map(|r| to_best(r)).collect::<Vec<_>>();
    while bench.wants_round(&values(&rounds), BAR) {
        let mut order: Vec<usize> = (0..PLAN.sides.len()).collect();
        if !rounds.len().is_multiple_of(2) {
            order.reverse();
        }
        let mut figures = Vec::new();
        for side in order {
            let figure = sides.measure(side, case.2, sizes, bench.span_ms());
            let named = |error| format!("{}: {error}", PLAN.sides[side]);
            figures.push((side, figure.map_err(named)?));
        }
        figures.sort_by_key(|(side, _)| *side);
        let raw: Map<String, Value> = figures
            .iter()
            .map(|(side, figure)| {
                let value = json!({ "rate": figure.rate, "cpu_us": figure.cpu_us });
                (PLAN.sides[*side].to_owned(), value)
            })
            .collect();
        bench.keep(&json!({ "row": case.0, "round": rounds.len(), "sides": raw }))?;
        rounds.push(figures.into_iter().map(|(_, figure)| figure).collect());
    }
    Ok(rounds)
}

/// The row of one case.
fn finish(bench: &mut Bench, case: &Case, measured: Result<Vec<Vec<Figure>>>) -> Result<()> {
    let (name, what, _) = *case;
    let rounds = match measured {
        Ok(rounds) => rounds,
        Err(error) => return bench.finish(Row::failed(name, what, BAR, &error)),
    };
    let of = |value: &dyn Fn(&[Figure]) -> f64| rounds.iter().map(|r| value(r)).collect::<Vec<_>>();
    let values = of(&|round| to_best(round));
    let mut row = Row::judged(name, what, &values, BAR, "", bench.options.quick);
    let sides = 0..PLAN.sides.len();
    row.figures = sides.map(|side| rate(median(&of(&|round| round[side].rate)))).collect();
    let ssd = median(&of(&|round| round[SSD].rate / round[4].rate));
    row.note = format!("ours without RAM to qemu-nbd on the bare file: {ssd:.2}");
    bench.finish(row)
}
