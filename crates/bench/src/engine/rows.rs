//! The rows that compare with fio.

use forebay_engine::Tuning;
use serde_json::json;

use super::cpu::cpu_ns;
use super::load::{self, Kind, Load};
use super::rig::{Origin, Rig, write_file};
use crate::bench::{Bench, Result, Sizes};
use crate::fio::{Fio, Job};
use crate::verdict::{Bar, Row, median, rate};

/// One row: our load, fio's, and the bar.
struct Case {
    name: &'static str,
    what: &'static str,
    kind: Kind,
    block_bytes: u64,
    clients: usize,
    job: Job,
    bar: f64,
}

const K4: u64 = 4 << 10;
const M1: u64 = 1 << 20;

impl Case {
    /// The same number of requests in flight on both sides.
    fn new(name: &'static str, what: &'static str, kind: Kind, clients: u32, bar: f64) -> Self {
        let sequential = matches!(kind, Kind::ReadSequential | Kind::WriteSequential);
        let block_bytes = if sequential { M1 } else { K4 };
        let sync = kind == Kind::WriteFlush;
        let rw = match kind {
            Kind::ReadRandom => "randread",
            Kind::WriteRandom | Kind::WriteFlush => "randwrite",
            Kind::ReadSequential => "read",
            Kind::WriteSequential => "write",
        };
        // A queue holds no order, so synchronous writers are jobs of their own.
        let (depth, jobs) = if sync { (1, clients) } else { (clients, 1) };
        let job = Job { rw, block_bytes, depth, jobs, sync };
        Self { name, what, kind, block_bytes, clients: clients as usize, job, bar }
    }
}

fn cases() -> Vec<Case> {
    use Kind::{ReadRandom, ReadSequential, WriteFlush, WriteRandom, WriteSequential};
    vec![
        Case::new("read", "4K random read, hits, queue 32", ReadRandom, 32, 0.95),
        Case::new("seqread", "1M sequential read, hits, queue 4", ReadSequential, 4, 0.9),
        Case::new("write", "4K random write, queue 32", WriteRandom, 32, 2.0),
        Case::new("flush1", "4K write + flush, 1 writer", WriteFlush, 1, 1.0),
        Case::new("flush16", "4K write + flush, 16 writers", WriteFlush, 16, 4.0),
        Case::new("seqwrite", "1M sequential write, queue 4", WriteSequential, 4, 0.8),
    ]
}

/// A row of what the SSD takes for each byte that clients write.
struct Amplification {
    name: &'static str,
    what: &'static str,
    bar: Bar,
    /// Whether the volume holds nothing but what is written, so that sets empty by themselves.
    alone: bool,
}

/// With half of the cache live, reclaim in the order of age moves a fifth of what it admits
/// (docs/internals/performance.md, "What moving costs"); the engine's own bound is the bar then.
const AMPLIFICATIONS: [Amplification; 2] = [
    Amplification {
        name: "moved",
        what: "SSD bytes per client byte, 4K random write, queue 32, half of the cache live",
        bar: Bar::AtMost(1.5),
        alone: false,
    },
    Amplification {
        name: "amplification",
        what: "SSD bytes per client byte, 4K random write, queue 32, nothing live to move",
        bar: Bar::AtMost(1.1),
        alone: true,
    },
];

impl Amplification {
    fn failed(&self, error: &str) -> Row {
        Row::failed(self.name, self.what, self.bar, error)
    }
}

/// Runs the rows of this module that are asked for.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let cases: Vec<Case> = cases().into_iter().filter(|case| bench.wants(&[case.name])).collect();
    let amplifications: Vec<&Amplification> =
        AMPLIFICATIONS.iter().filter(|row| bench.wants(&[row.name])).collect();
    if cases.is_empty() && amplifications.is_empty() {
        return Ok(());
    }
    let sizes = bench.sizes();
    let bare = bench.options.dir.join("bare.bin");
    let cache = bench.options.dir.join("cache.bin");
    eprintln!("writing the files and a lap of the log ...");
    let ready = write_file(&bare, sizes.volume).and_then(|()| {
        // A cache file of an aborted run is worth nothing.
        let _ = std::fs::remove_file(&cache);
        Rig::new(&cache, sizes.cache, sizes.volume, Origin::Memory, Tuning::default())
    });
    let result = match ready {
        Ok(rig) => run_on(bench, &rig, &sizes, &cases, &amplifications),
        Err(error) => {
            for case in &cases {
                bench.finish(Row::failed(case.name, case.what, Bar::AtLeast(case.bar), &error))?;
            }
            for row in amplifications {
                bench.finish(row.failed(&error))?;
            }
            Ok(())
        }
    };
    let _ = std::fs::remove_file(&bare);
    result
}

fn run_on(
    bench: &mut Bench,
    rig: &Rig,
    sizes: &Sizes,
    cases: &[Case],
    amplifications: &[&Amplification],
) -> Result<()> {
    let fio = Fio::bare(&bench.options.dir.join("bare.bin"), sizes.volume);
    for case in cases {
        let row = match compare(bench, rig, &fio, sizes, case) {
            Ok(row) => row,
            Err(error) => Row::failed(case.name, case.what, Bar::AtLeast(case.bar), &error),
        };
        bench.finish(row)?;
    }
    for row in amplifications {
        let result = amplify(bench, rig, sizes, row);
        bench.finish(result.unwrap_or_else(|error| row.failed(&error)))?;
    }
    Ok(())
}

/// One side of a round: ours, from an engine that owes nothing.
fn ours(bench: &mut Bench, rig: &Rig, sizes: &Sizes, case: &Case) -> Result<f64> {
    rig.settle()?;
    let counters = rig.pool.counters().list();
    let reads = matches!(case.kind, Kind::ReadRandom | Kind::ReadSequential);
    let span_bytes = match case.kind {
        Kind::WriteRandom | Kind::WriteFlush => sizes.written,
        _ => sizes.volume,
    };
    let load =
        Load { kind: case.kind, block_bytes: case.block_bytes, clients: case.clients, span_bytes };
    let before = (rig.counter("read_misses"), rig.counter("read_partial_hits"));
    let throttled = rig.counter("throttled_writes");
    let cpu = cpu_ns()?;
    let done = rig.run(load, bench.span_ms())?;
    let cpu = (cpu_ns()? - cpu) as f64 / done.requests as f64;
    let missed =
        rig.counter("read_misses") + rig.counter("read_partial_hits") - before.0 - before.1;
    if reads && missed > 0 {
        return Err(format!("{missed} of {} reads were no hits", done.requests));
    }
    let waited = rig.counter("throttled_writes") - throttled;
    if waited > 0 {
        eprintln!("  {}: {waited} writes waited for room", case.name);
    }
    let now = rig.pool.counters().list();
    let grown: serde_json::Map<_, _> = now
        .iter()
        .zip(&counters)
        .filter(|(now, before)| now.1 != before.1)
        .map(|(now, before)| (now.0.to_owned(), json!(now.1 - before.1)))
        .collect();
    bench.keep(&json!({
        "row": case.name, "free": rig.pool.segments(), "cpu_ns_per_request": cpu, "counters": grown,
    }))?;
    Ok(done.rate())
}

fn compare(bench: &mut Bench, rig: &Rig, fio: &Fio, sizes: &Sizes, case: &Case) -> Result<Row> {
    if matches!(case.kind, Kind::ReadRandom | Kind::ReadSequential) {
        rig.reactor.block_on(load::fill(&rig.runtime, &rig.volume, sizes.volume))?;
    }
    let bar = Bar::AtLeast(case.bar);
    let (mut our_rates, mut fio_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    while bench.wants_round(&ratios, bar) {
        let round = ratios.len();
        let (our, their);
        if round.is_multiple_of(2) {
            our = ours(bench, rig, sizes, case)?;
            their = fio.run(case.job, bench.span_ms())?.rate();
        } else {
            their = fio.run(case.job, bench.span_ms())?.rate();
            our = ours(bench, rig, sizes, case)?;
        }
        bench.keep(&json!({
            "row": case.name, "round": round, "ours": our, "fio": their, "ratio": our / their,
        }))?;
        our_rates.push(our);
        fio_rates.push(their);
        ratios.push(our / their);
    }
    let mut row = Row::judged(case.name, case.what, &ratios, bar, "", bench.options.quick);
    row.figures = vec![rate(median(&our_rates)), rate(median(&fio_rates))];
    Ok(row)
}

/// Everything that goes to the SSD, facts and checkpoints of the destaging that follows included.
fn amplify(bench: &mut Bench, rig: &Rig, sizes: &Sizes, row: &Amplification) -> Result<Row> {
    let span_bytes = if row.alone { sizes.cache / 16 } else { sizes.written };
    let load = Load { kind: Kind::WriteRandom, block_bytes: 4096, clients: 32, span_bytes };
    if row.alone {
        rig.forget(span_bytes, sizes.volume)?;
        rig.append(load, sizes.cache)?;
    }
    let (mut values, mut note) = (Vec::new(), String::new());
    while bench.wants_round(&values, row.bar) {
        rig.settle()?;
        let before = (rig.ssd_bytes(), rig.counter("write_bytes"));
        let parts = rig.pool.counters().list();
        rig.run(load, bench.span_ms())?;
        rig.settle()?;
        let client = (rig.counter("write_bytes") - before.1) as f64;
        let share = |name: &str| {
            let was = parts.iter().find(|(known, _)| *known == name).map_or(0, |part| part.1);
            (rig.counter(name) - was) as f64 / client
        };
        let value = (rig.ssd_bytes() - before.0) as f64 / client;
        let shares = [
            ("headers and footers", share("ssd_header_bytes")),
            ("facts", share("ssd_fact_bytes")),
            ("moves", share("ssd_move_bytes")),
            ("checkpoints", share("ssd_checkpoint_bytes")),
        ];
        let round = values.len();
        bench
            .keep(&json!({ "row": row.name, "round": round, "value": value, "shares": shares }))?;
        let shares: Vec<String> =
            shares.iter().map(|(what, share)| format!("{what} {share:.3}")).collect();
        note = format!("last round: {}", shares.join(", "));
        values.push(value);
    }
    let quick = bench.options.quick;
    Ok(Row { note, ..Row::judged(row.name, row.what, &values, row.bar, "", quick) })
}
