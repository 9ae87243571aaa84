//! The rows.

use serde_json::{Value, json};

use super::server::{Figure, Files, Ours, Server, sync_file, write_file};
use super::{NbdOptions, PLAN};
use crate::bench::{Bench, Result, Sizes};
use crate::fio::Job;
use crate::verdict::{Bar, Row, median, rate};

/// Whose turn it is; the order of `PLAN.sides`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Qemu,
    File,
    Null,
    Memory,
    /// Ours again, with one connection in place of several.
    Single,
}

use Side::{File, Memory, Null, Ours as Our, Qemu, Single};

/// The figures of one round.
struct Round(Vec<(Side, Figure)>);

impl Round {
    fn of(&self, side: Side) -> Option<Figure> {
        self.0.iter().find(|(known, _)| *known == side).map(|(_, figure)| *figure)
    }

    /// What `value` makes of ours and of another side's figure.
    fn against(&self, side: Side, value: impl Fn(Figure, Figure) -> f64) -> f64 {
        match (self.of(Our), self.of(side)) {
            (Some(ours), Some(theirs)) => value(ours, theirs),
            _ => f64::NAN,
        }
    }

    fn rate_to(&self, side: Side) -> f64 {
        self.against(side, |ours, theirs| ours.rate / theirs.rate)
    }

    /// Our rate beside the faster one of qemu-nbd and nbdkit.
    fn rate_to_better(&self) -> f64 {
        self.rate_to(Qemu).min(self.rate_to(File))
    }
}

/// One bar, over the rounds of its case.
struct Bound {
    what: &'static str,
    bar: Bar,
    value: fn(&Round) -> f64,
    /// What the table tells of each side, and how.
    shown: fn(Figure) -> f64,
    text: fn(f64) -> String,
}

impl Bound {
    fn rate(what: &'static str, bar: f64, value: fn(&Round) -> f64) -> Self {
        Self { what, bar: Bar::AtLeast(bar), value, shown: |figure| figure.rate, text: rate }
    }
}

/// A load, who carries it, and the bars.
struct Case {
    name: &'static str,
    job: Job,
    /// Whether ours is the server that has all in RAM.
    ram: bool,
    sides: &'static [Side],
    bounds: Vec<Bound>,
}

const K4: u64 = 4 << 10;
const M1: u64 = 1 << 20;
const ALL: &[Side] = &[Our, Qemu, File, Null, Memory];

fn random(rw: &'static str, depth: u32, jobs: u32) -> Job {
    Job { rw, block_bytes: K4, depth, jobs, sync: false }
}

/// A queue holds no order, so synchronous writers are jobs of their own.
fn synchronous(jobs: u32) -> Job {
    Job { rw: "randwrite", block_bytes: K4, depth: 1, jobs, sync: true }
}

fn sequential(rw: &'static str) -> Job {
    Job { rw, block_bytes: M1, depth: 4, jobs: 1, sync: false }
}

fn cases() -> Vec<Case> {
    let better: fn(&Round) -> f64 = Round::rate_to_better;
    vec![
        Case {
            name: "read",
            job: random("randread", 32, 1),
            ram: false,
            sides: ALL,
            bounds: vec![
                Bound::rate("4K random read, SSD hits, queue 32", 0.95, better),
                Bound {
                    what: "server CPU per I/O of that, to qemu-nbd's",
                    bar: Bar::AtMost(1.0),
                    value: |round| round.against(Qemu, |ours, qemu| ours.cpu_us / qemu.cpu_us),
                    shown: |figure| figure.cpu_us,
                    text: |us| format!("{us:.1} us"),
                },
            ],
        },
        Case {
            name: "ram",
            job: random("randread", 32, 1),
            ram: true,
            sides: ALL,
            bounds: vec![Bound::rate("4K random read, RAM tier, to nbdkit memory", 0.9, |r| {
                r.rate_to(Memory)
            })],
        },
        Case {
            name: "write",
            job: random("randwrite", 32, 1),
            ram: false,
            sides: ALL,
            bounds: vec![Bound::rate("4K random write, write-back, queue 32", 3.0, better)],
        },
        Case {
            name: "flush1",
            job: synchronous(1),
            ram: false,
            sides: ALL,
            bounds: vec![
                Bound::rate("4K write + flush, 1 client, to nbdkit", 0.9, |r| r.rate_to(File)),
                Bound::rate("4K write + flush, 1 client, to qemu-nbd", 1.5, |r| r.rate_to(Qemu)),
            ],
        },
        Case {
            name: "flush16",
            job: synchronous(16),
            ram: false,
            sides: ALL,
            bounds: vec![Bound::rate("4K write + flush, 16 clients", 2.0, better)],
        },
        Case {
            name: "seqread",
            job: sequential("read"),
            ram: false,
            sides: ALL,
            bounds: vec![Bound::rate("1M sequential read, queue 4", 0.9, better)],
        },
        Case {
            name: "seqwrite",
            job: sequential("write"),
            ram: false,
            sides: ALL,
            bounds: vec![Bound::rate("1M sequential write, queue 4", 0.9, better)],
        },
        Case {
            name: "four",
            job: random("randread", 32, 4),
            ram: false,
            sides: &[Our, Qemu, File, Null, Memory, Single],
            bounds: vec![
                Bound::rate("4 connections, queue 32 each, to 1 connection", 1.0, |round| {
                    round.rate_to(Single)
                }),
                Bound {
                    what: "the slowest of 4 connections, to the fastest",
                    bar: Bar::AtLeast(0.8),
                    value: |round| round.of(Our).map_or(f64::NAN, |ours| ours.fairness),
                    shown: |figure| figure.fairness,
                    text: |share| format!("{share:.2}"),
                },
            ],
        },
    ]
}

/// All servers, and the files that they serve.
struct Servers {
    ours: Ours,
    /// With the whole volume in its RAM tier, if a case wants that.
    ours_ram: Option<Ours>,
    qemu: Server,
    file: Server,
    null: Server,
    memory: Server,
    file_path: std::path::PathBuf,
    _files: Files,
}

impl Servers {
    fn start(bench: &Bench, options: &NbdOptions, sizes: &Sizes, with_ram: bool) -> Result<Self> {
        let (clock, dir) = (&bench.clock, &options.bench.dir);
        // One file each: what one does must not change what the page cache holds of the other's.
        let (qemu_path, file_path) = (dir.join("qemu.bin"), dir.join("nbdkit.bin"));
        let files = Files::new(&[&qemu_path, &file_path]);
        write_file(clock, &qemu_path, sizes.volume)?;
        write_file(clock, &file_path, sizes.volume)?;
        let size = sizes.volume.to_string();
        let path = file_path.display().to_string();
        let mut servers = Self {
            ours: Ours::start(clock, options, sizes, "ours", 0)?,
            ours_ram: None,
            qemu: Server::qemu(clock, dir, &qemu_path)?,
            file: Server::nbdkit(clock, dir, "file", &path)?,
            null: Server::nbdkit(clock, dir, "null", &size)?,
            memory: Server::nbdkit(clock, dir, "memory", &size)?,
            file_path,
            _files: files,
        };
        // Memory that was never written is not read.
        servers.memory.fio(sizes.volume).lap(sequential("write"))?;
        for _ in 0..sizes.cache.div_ceil(sizes.volume) + 1 {
            servers.ours.server.fio(sizes.volume).lap(sequential("write"))?;
        }
        servers.ours.settle()?;
        if with_ram {
            let ram_bytes = sizes.volume.next_multiple_of(2 << 20);
            let mut ours = Ours::start(clock, options, sizes, "ours-ram", ram_bytes)?;
            ours.server.fio(sizes.volume).lap(sequential("write"))?;
            ours.settle()?;
            // Neither longer reads nor a scan would be guests of RAM.
            let lap = Job { block_bytes: 16 * K4, ..sequential("randread") };
            ours.server.fio(sizes.volume).lap(lap)?;
            servers.ours_ram = Some(ours);
        }
        Ok(servers)
    }

    /// The server of ours that a case is about.
    fn ours(&mut self, case: &Case) -> &mut Ours {
        match &mut self.ours_ram {
            Some(ours) if case.ram => ours,
            _ => &mut self.ours,
        }
    }

    fn measure(&mut self, case: &Case, side: Side, sizes: &Sizes, span_ms: u64) -> Result<Figure> {
        let reads = case.job.rw.ends_with("read");
        let bytes = if case.job.rw == "randwrite" { sizes.written } else { sizes.volume };
        let peer = match side {
            Our | Single => {
                let jobs = if side == Single { 1 } else { case.job.jobs };
                let ours = self.ours(case);
                ours.settle()?;
                let missed = ours.misses(case.ram)?;
                let job = Job { jobs, ..case.job };
                let figure = ours.server.measure(job, bytes, span_ms)?;
                let missed = ours.misses(case.ram)? - missed;
                if reads && missed > 0 {
                    return Err(format!("{missed} reads were no hits"));
                }
                ours.settle()?;
                return Ok(figure);
            }
            Qemu => &self.qemu,
            File => &self.file,
            Null => &self.null,
            Memory => &self.memory,
        };
        let figure = peer.measure(case.job, bytes, span_ms)?;
        if side == File && !reads {
            sync_file(&self.file_path)?;
        }
        Ok(figure)
    }

    /// Brings everything into our cache and nbdkit's page cache.
    fn warm(&mut self, sizes: &Sizes) -> Result<()> {
        self.ours.server.fio(sizes.volume).lap(sequential("write"))?;
        self.ours.settle()?;
        self.file.fio(sizes.volume).lap(sequential("read"))?;
        Ok(())
    }
}

/// Measures all rows that are asked for.
pub(super) fn run(bench: &mut Bench, options: &NbdOptions) -> Result<()> {
    let cases: Vec<Case> = cases().into_iter().filter(|case| bench.wants(&[case.name])).collect();
    let sizes = bench.sizes();
    if !cases.is_empty() {
        eprintln!("writing the files and a lap of the log ...");
        let with_ram = cases.iter().any(|case| case.ram);
        match Servers::start(bench, options, &sizes, with_ram) {
            Ok(mut servers) => {
                for case in &cases {
                    let measured = rounds(bench, &mut servers, &sizes, case);
                    finish(bench, case, measured)?;
                }
            }
            Err(error) => {
                for case in &cases {
                    finish(bench, case, Err(error.clone()))?;
                }
            }
        }
    }
    Ok(())
}

/// Rounds of a case until each of its bars has enough.
fn rounds(
    bench: &mut Bench,
    servers: &mut Servers,
    sizes: &Sizes,
    case: &Case,
) -> Result<Vec<Round>> {
    if case.job.rw.ends_with("read") {
        servers.warm(sizes)?;
    }
    let mut rounds: Vec<Round> = Vec::new();
    while case.bounds.iter().any(|b| bench.wants_round(&values(&rounds, b), b.bar)) {
        let mut order = case.sides.to_vec();
        if !rounds.len().is_multiple_of(2) {
            order.reverse();
        }
        let mut figures = Vec::new();
        for side in order {
            let figure = servers.measure(case, side, sizes, bench.span_ms());
            let figure = figure.map_err(|error| format!("{}: {error}", name(side)))?;
            figures.push((side, figure));
        }
        let raw: serde_json::Map<String, Value> = figures
            .iter()
            .map(|(side, f)| {
                let value = json!({ "rate": f.rate, "cpu_us": f.cpu_us, "fairness": f.fairness });
                (name(*side).to_owned(), value)
            })
            .collect();
        bench.keep(&json!({ "row": case.name, "round": rounds.len(), "sides": raw }))?;
        rounds.push(Round(figures));
    }
    Ok(rounds)
}

fn name(side: Side) -> &'static str {
    PLAN.sides.get(side as usize).copied().unwrap_or("ours, 1 connection")
}

fn values(rounds: &[Round], bound: &Bound) -> Vec<f64> {
    rounds.iter().map(bound.value).collect()
}

fn middle(rounds: &[Round], side: Side, shown: fn(Figure) -> f64) -> Option<f64> {
    let values: Vec<f64> = rounds.iter().filter_map(|round| round.of(side).map(shown)).collect();
    (!values.is_empty()).then(|| median(&values))
}

/// The rows of one case.
fn finish(bench: &mut Bench, case: &Case, measured: Result<Vec<Round>>) -> Result<()> {
    for bound in &case.bounds {
        let rounds = match &measured {
            Ok(rounds) => rounds,
            Err(error) => {
                bench.finish(Row::failed(case.name, bound.what, bound.bar, error))?;
                continue;
            }
        };
        let values = values(rounds, bound);
        let quick = bench.options.quick;
        let mut row = Row::judged(case.name, bound.what, &values, bound.bar, "", quick);
        let text =
            |side| middle(rounds, side, bound.shown).map_or_else(String::new, |v| (bound.text)(v));
        row.figures = ALL.iter().map(|&side| text(side)).collect();
        let alone =
            |side| median(&rounds.iter().map(|round| round.rate_to(side)).collect::<Vec<_>>());
        row.note = if case.sides.contains(&Single) {
            format!("1 connection: {}", text(Single))
        } else {
            format!("rate to qemu-nbd {:.2}, to nbdkit file {:.2}", alone(Qemu), alone(File))
        };
        bench.finish(row)?;
    }
    Ok(())
}
