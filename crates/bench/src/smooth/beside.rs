//! Loads beside each other: reads beside destaging, hits beside a stream and beside uploads, fifteen volumes
//! beside one.

use forebay_device::model::array::ArrayParameters;
use forebay_device::model::world::Rng;
use forebay_device::runtime::SECOND;
use forebay_engine::VolumeSettings;
use forebay_engine::bypass::Reason;
use serde_json::json;

use std::rc::Rc;

use super::measure::{Raw as _, span};
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row, rate};
use forebay_lab::scene::Seen;
use forebay_lab::scene::load::{BLOCK, Kind, Load, Order, Orders, filling, scattered, writes};
use forebay_lab::scene::{Scene, Setting};

/// One line of the table: what, its bar, its unit.
type Part = (&'static str, &'static str, Bar);

const FOREGROUND: [Part; 2] = [
    ("foreground", "4K random read misses while destaging: p99, to undisturbed", Bar::AtMost(2.0)),
    (
        "foreground",
        "destaging beside 4K random read misses: rate, to undisturbed",
        Bar::AtLeast(0.4),
    ),
];

/// Random reads of one block each, of blocks `from..to`.
fn random_reads(kind: Kind, from: u64, to: u64, seed: u64) -> Orders {
    let mut rng = Rng::new(seed);
    Box::new(move || {
        let offset = (from + rng.below(to - from)) * BLOCK;
        Some(Order { kind, offset, len: BLOCK })
    })
}

/// Dirty blocks of the destaging that is disturbed: as dense as in the row `destage16`, a quarter of
/// it.
const FOREGROUND_DIRTY: usize = 256 << 10;

/// Clients that read beside it: fewer than the array has disks, so that undisturbed they hardly wait
/// for each other. A closed loop that fills the disks by itself has no p99 to protect.
const FOREGROUND_READERS: usize = 8;

/// Eight clients read single blocks at random from a volume of 1 TiB, where nothing was ever written
/// or read before, so that each read is a read of the array (of the cache block around it, as
/// always); meanwhile a quarter of a million dirty blocks at the volume's beginning are destaged
/// because somebody asked for it. The latencies count from the beginning of that to its end, and the
/// blocks destaged per second. Undisturbed: the same reads for a minute without anything dirty, and
/// the same destaging without reads.
///
/// Costs half a minute of CPU and 150 MiB of memory.
fn foreground(bench: &mut Bench, disks: &ArrayParameters) -> Result<[(f64, [String; 2]); 2]> {
    let count = if bench.options.quick { FOREGROUND_DIRTY / 8 } else { FOREGROUND_DIRTY };
    let span_blocks = 4 * count as u64;
    let volume_blocks = (1_u64 << 40) / BLOCK;
    let dirty = Rc::new(scattered(count, span_blocks as u32, 1));
    let scene = || {
        Scene::new(&Setting {
            disks,
            pool_bytes: 12 << 30,
            ram_bytes: 0,
            volumes: &[1 << 40],
            ssds: Default::default(),
            serving: Default::default(),
        })
    };
    let reads = || random_reads(Kind::ReadBlank, span_blocks, volume_blocks, 5);

    let quiet = scene()?;
    let load = quiet.load(0, FOREGROUND_READERS, reads());
    quiet.pass(5 * SECOND)?;
    load.look();
    quiet.pass(60 * SECOND)?;
    let undisturbed = load.seen()?;
    quiet.run(load.stop())?;
    drop(quiet);

    let per_second = |(owed, took): (u64, u64)| owed as f64 / (took as f64 / SECOND as f64);
    let alone = scene()?;
    alone.play(0, 32, writes(Rc::clone(&dirty)))?;
    let destage_alone = per_second((alone.owed_blocks(), alone.destage(0)?));
    drop(alone);

    let both = scene()?;
    both.play(0, 32, writes(dirty))?;
    let load = both.load(0, FOREGROUND_READERS, reads());
    load.look();
    let destage_beside = per_second((both.owed_blocks(), both.destage(0)?));
    let disturbed = load.seen()?;
    both.run(load.stop())?;

    bench.keep(&json!({
        "row": "foreground", "undisturbed": undisturbed.to_json(),
        "disturbed": disturbed.to_json(), "destage_alone": destage_alone,
        "destage_beside": destage_beside, "counters": both.pool.counters().list(),
    }))?;
    let (before, after) = (undisturbed.percentile(99.0)?, disturbed.percentile(99.0)?);
    let text = |seen: &Seen, p99| format!("{}, {}", span(p99), rate(seen.rate()));
    Ok([
        (after as f64 / before as f64, [text(&disturbed, after), text(&undisturbed, before)]),
        (destage_beside / destage_alone, [rate(destage_beside), rate(destage_alone)]),
    ])
}

const SEQUENTIAL: [Part; 1] = [(
    "sequential",
    "hot 4K random reads beside a stream of 1M reads: p99, to undisturbed",
    Bar::AtMost(1.5),
)];

/// Four clients read single blocks at random from 1 GiB that the SSD has (a third of what the drive
/// can do): 10 s alone, and then 20 s beside a stream of 1 MiB reads, four in flight, of places that
/// nobody has read before. The pool has 4 GiB, so that a stream that is cached would turn it over.
///
/// Costs a quarter of a minute of CPU and 50 MiB of memory.
fn sequential(bench: &mut Bench, disks: &ArrayParameters) -> Result<[(f64, [String; 2]); 1]> {
    let hot_bytes = 1 << 30;
    let scene = Scene::new(&Setting {
        disks,
        pool_bytes: 4 << 30,
        ram_bytes: 0,
        volumes: &[1 << 40],
        ssds: Default::default(),
        serving: Default::default(),
    })?;
    scene.play(0, 4, filling(hot_bytes, 1 << 20))?;
    scene.destage(0)?;
    let spans = if bench.options.quick { [2, 4] } else { [10, 20] };
    let hot = scene.load(0, 4, random_reads(Kind::Read, 0, hot_bytes / BLOCK, 5));
    scene.pass(SECOND)?;
    hot.look();
    scene.pass(spans[0] * SECOND)?;
    let undisturbed = hot.seen()?;
    let populated = scene.pool.counters().populate_bytes.get();
    let mut at = hot_bytes;
    let stream = Box::new(move || {
        at += 1 << 20;
        Some(Order { kind: Kind::ReadBlank, offset: at - (1 << 20), len: 1 << 20 })
    });
    let stream = scene.load(0, 4, stream);
    hot.look();
    scene.pass(spans[1] * SECOND)?;
    let disturbed = hot.seen()?;
    let streamed = stream.seen()?;
    let populated = scene.pool.counters().populate_bytes.get() - populated;
    scene.run(async move { hot.stop().await.and(stream.stop().await) })?;
    bench.keep(&json!({
        "row": "sequential", "undisturbed": undisturbed.to_json(), "disturbed": disturbed.to_json(),
        "stream": streamed.to_json(), "populated_bytes": populated,
    }))?;
    let (before, after) = (undisturbed.percentile(99.0)?, disturbed.percentile(99.0)?);
    let figures = [
        format!(
            "{}, {}; stream {}, {} % cached",
            span(after),
            rate(disturbed.rate()),
            rate(streamed.rate()),
            populated * 100 / streamed.bytes.max(1)
        ),
        format!("{}, {}", span(before), rate(undisturbed.rate())),
    ];
    Ok([(after as f64 / before as f64, figures)])
}

const UPLOADS: [Part; 2] = [
    (
        "uploads",
        "editors' 64K reads beside two uploads past the cache: p99, to undisturbed",
        Bar::AtMost(1.3),
    ),
    (
        "uploads",
        "the same beside uploads that are cached, as usual: p99, to undisturbed",
        Bar::AtMost(1.3),
    ),
];

/// Bytes of an editor's read.
const EDIT_BYTES: u64 = 64 << 10;

/// What editors read beside uploads, what the uploads wrote, and what of that went past the cache.
struct Edited {
    undisturbed: Seen,
    disturbed: Seen,
    uploads: Seen,
    past_bytes: u64,
}

/// After QNAP's white paper on over-provisioning (2018), section 6: editors who read at random beside
/// two uploads at a time, whose blocks lie side by side in the cache, which is full. Two clients read
/// 64 KiB each at random from 1 GiB that the SSD has, a pool of 4 GiB that has been written over once: 10 s
/// alone, and then 20 s beside two streams of 1 MiB writes, two of each in flight.
fn edit(bench: &Bench, disks: &ArrayParameters, sequential_writes: bool) -> Result<Edited> {
    let (hot_bytes, pool_bytes) = (1 << 30, 4 << 30);
    let scene = Scene::new(&Setting {
        disks,
        pool_bytes,
        ram_bytes: 0,
        volumes: &[1 << 40],
        ssds: Default::default(),
        serving: Default::default(),
    })?;
    let mut at = 2 * pool_bytes;
    let other = Box::new(move || {
        at += 1 << 20;
        (at <= 3 * pool_bytes).then(|| Order {
            kind: Kind::Write,
            offset: at - (1 << 20),
            len: 1 << 20,
        })
    });
    scene.play(0, 4, other)?;
    scene.destage(0)?;
    scene.play(0, 4, filling(hot_bytes, 1 << 20))?;
    scene.destage(0)?;
    scene.set(0, VolumeSettings { sequential_writes, ..VolumeSettings::default() })?;
    let spans = if bench.options.quick { [2, 4] } else { [10, 20] };
    let mut rng = Rng::new(5);
    let editing = Box::new(move || {
        let offset = rng.below(hot_bytes / EDIT_BYTES) * EDIT_BYTES;
        Some(Order { kind: Kind::Read, offset, len: EDIT_BYTES })
    });
    let editors = scene.load(0, 2, editing);
    scene.pass(SECOND)?;
    editors.look();
    scene.pass(spans[0] * SECOND)?;
    let undisturbed = editors.seen()?;
    let mut next = [1_u64 << 38, 1 << 39];
    let uploads = Box::new(move || {
        next.swap(0, 1);
        next[0] += 1 << 20;
        Some(Order { kind: Kind::Write, offset: next[0] - (1 << 20), len: 1 << 20 })
    });
    let uploads = scene.load(0, 4, uploads);
    editors.look();
    scene.pass(spans[1] * SECOND)?;
    let (disturbed, uploaded) = (editors.seen()?, uploads.seen()?);
    scene.run(async move { editors.stop().await.and(uploads.stop().await) })?;
    let past = scene.pool.bypass().of(Reason::Sequential).write_bytes.get();
    Ok(Edited { undisturbed, disturbed, uploads: uploaded, past_bytes: past })
}

/// See [`edit`]; with uploads that go past the cache, and with some that are cached.
///
/// Costs half a minute of CPU and 100 MiB of memory.
fn uploads(bench: &mut Bench, disks: &ArrayParameters) -> Result<[(f64, [String; 2]); 2]> {
    let (past, cached) = (edit(bench, disks, true)?, edit(bench, disks, false)?);
    let json = |it: &Edited| {
        json!({
            "undisturbed": it.undisturbed.to_json(), "disturbed": it.disturbed.to_json(),
            "uploads": it.uploads.to_json(), "past_bytes": it.past_bytes,
        })
    };
    bench.keep(&json!({ "row": "uploads", "past": json(&past), "cached": json(&cached) }))?;
    let text = |seen: &Seen| -> Result<String> {
        Ok(format!("{}, {}", span(seen.percentile(99.0)?), rate(seen.rate())))
    };
    let beside = |it: &Edited| -> Result<String> {
        let of_it = it.past_bytes * 100 / it.uploads.bytes.max(1);
        Ok(format!("{}; uploads {}, {of_it} % past", text(&it.disturbed)?, rate(it.uploads.rate())))
    };
    let p99 = |seen: &Seen| -> Result<f64> { Ok(seen.percentile(99.0)? as f64) };
    let line = |it: &Edited| -> Result<(f64, [String; 2])> {
        let ratio = p99(&it.disturbed)? / p99(&it.undisturbed)?;
        Ok((ratio, [beside(it)?, text(&it.undisturbed)?]))
    };
    Ok([line(&past)?, line(&cached)?])
}

const FAIR: [Part; 1] = [(
    "fair",
    "15 volumes beside one abusive writer: the slowest, to undisturbed",
    Bar::AtLeast(0.8),
)];

/// Volumes that behave.
const GOOD: usize = 15;

/// Fifteen volumes have one client each that reads and writes single blocks at random, 7 to 3, in
/// 32 MiB of its own that the SSD has: an eighth of the pool of 4 GiB together, and a drive that is
/// busy but not full. After 10 s alone the sixteenth volume gets 128 clients that write 64 KiB each at
/// random over four times the pool. 10 s later, when they have had the time to fill it, the 10 s
/// begin that count. The volume that kept the least of its rate is the one to judge.
///
/// Costs half a minute of CPU and 50 MiB of memory.
fn fair(bench: &mut Bench, disks: &ArrayParameters) -> Result<[(f64, [String; 2]); 1]> {
    let (pool_bytes, own_bytes) = (4 << 30, 32 << 20);
    let mut sizes = vec![own_bytes; GOOD];
    sizes.push(4 * pool_bytes);
    let scene = Scene::new(&Setting {
        disks,
        pool_bytes,
        ram_bytes: 0,
        volumes: &sizes,
        ssds: Default::default(),
        serving: Default::default(),
    })?;
    for volume in 0..GOOD {
        scene.play(volume, 4, filling(own_bytes, 1 << 20))?;
        scene.destage(volume)?;
    }
    let mixed = |volume: usize| {
        let mut rng = Rng::new(volume as u64);
        scene.load(
            volume,
            1,
            Box::new(move || {
                let kind = if rng.below(10) < 7 { Kind::Read } else { Kind::Write };
                Some(Order { kind, offset: rng.below(own_bytes / BLOCK) * BLOCK, len: BLOCK })
            }),
        )
    };
    let loads: Vec<Load> = (0..GOOD).map(mixed).collect();
    let counted = if bench.options.quick { 3 * SECOND } else { 10 * SECOND };
    let watch = || -> Result<Vec<Seen>> {
        loads.iter().for_each(Load::look);
        scene.pass(counted)?;
        loads.iter().map(Load::seen).collect()
    };
    scene.pass(SECOND)?;
    let undisturbed = watch()?;
    let (mut rng, places) = (Rng::new(99), 4 * pool_bytes / (64 << 10));
    let abuse = Box::new(move || {
        Some(Order { kind: Kind::Write, offset: rng.below(places) * (64 << 10), len: 64 << 10 })
    });
    let abuser = scene.load(GOOD, 128, abuse);
    scene.pass(10 * SECOND)?;
    abuser.look();
    let disturbed = watch()?;
    let abused = abuser.seen()?;
    let json = |all: &[Seen]| all.iter().map(Seen::to_json).collect::<Vec<_>>();
    bench.keep(&json!({
        "row": "fair", "undisturbed": json(&undisturbed), "disturbed": json(&disturbed),
        "abuser": abused.to_json(), "counters": scene.pool.counters().list(),
    }))?;
    let kept = |(before, after): (&Seen, &Seen)| after.rate() / before.rate();
    let pairs = undisturbed.iter().zip(&disturbed);
    let least = pairs.map(kept).fold(f64::INFINITY, f64::min);
    let sum = |all: &[Seen]| rate(all.iter().map(Seen::rate).sum());
    let longest = disturbed.iter().map(Seen::longest).max().unwrap_or(0);
    let figures = [
        format!(
            "{} together, longest {}; abuser {}",
            sum(&disturbed),
            span(longest),
            rate(abused.rate())
        ),
        format!("{} together", sum(&undisturbed)),
    ];
    Ok([(least, figures)])
}

/// Adds the lines that come of one run.
fn finish<const N: usize>(
    bench: &mut Bench,
    parts: &[Part; N],
    result: Result<[(f64, [String; 2]); N]>,
) -> Result<()> {
    for (i, &(name, what, bar)) in parts.iter().enumerate() {
        let row = match &result {
            Ok(lines) => Row {
                figures: lines[i].1.to_vec(),
                ..Row::judged(name, what, &[lines[i].0], bar, "", bench.options.quick)
            },
            Err(error) => Row::failed(name, what, bar, error),
        };
        bench.finish(row)?;
    }
    Ok(())
}

/// Runs the rows of this module that are asked for.
pub(super) fn run(bench: &mut Bench, disks: &ArrayParameters) -> Result<()> {
    if bench.wants(&["foreground"]) {
        let result = foreground(bench, disks);
        finish(bench, &FOREGROUND, result)?;
    }
    if bench.wants(&["sequential"]) {
        let result = sequential(bench, disks);
        finish(bench, &SEQUENTIAL, result)?;
    }
    if bench.wants(&["uploads"]) {
        let result = uploads(bench, disks);
        finish(bench, &UPLOADS, result)?;
    }
    if bench.wants(&["fair"]) {
        let result = fair(bench, disks);
        finish(bench, &FAIR, result)?;
    }
    Ok(())
}
