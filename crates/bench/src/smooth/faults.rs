//! `forebay-bench faults`: what clients feel of an SSD that hangs, dies, is copied anew, is taken out, or is
//! scrubbed; and how soon a pool with too few SSDs is safe. In virtual time, as the rest of this module.
//!
//! All rows but the last have the same load: 4 clients in a closed loop, single blocks at random, 7 reads to 3
//! writes, of 512 MiB that the SSDs have: busy drives, not full ones. Undisturbed is the same run, over the same
//! span of it, to which nothing happens. There are two copies of clean data, too: with one, a third of it is read
//! from the disks again once an SSD is gone, and that is all that one sees.

use std::rc::Rc;

use forebay_device::Nanos;
use forebay_device::model::array::ArrayParameters;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Rng;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::EventKind;
use serde_json::json;

use super::FULL_DEPTH;
use super::measure::{Raw as _, span};
use super::overwrite::joined;
use crate::bench::{self, Bench, Plan, Result};
use crate::verdict::{Bar, Row, rate};
use forebay_lab::scene::Seen;
use forebay_lab::scene::load::{BLOCK, Kind, Load, Order, filling, scattered, writes};
use forebay_lab::scene::{Scene, Setting, Ssds, array_alone};

/// The rows.
pub(crate) const PLAN: Plan = Plan {
    rows: &["hang", "loss", "rebuild", "evacuation", "scrub", "protection"],
    sides: &["ours", "compared with"],
    tools: &[],
};

/// Clients of the load.
const CLIENTS: usize = 4;

/// Longer than anything here takes; a row that is not done by then has failed.
const PATIENCE: Nanos = 3_600 * SECOND;

const LONGEST: &str = "an SSD of three hangs, deadline 1 s: longest request";
const LOSS: &str = "an SSD of three is pulled out: longest request";
const REBUILD: &str =
    "while what it held is copied again (clean data in two copies): p99, to undisturbed";
const EVACUATION: &str = "while an SSD of three is taken out: p99, to undisturbed";
const SCRUB: &str = "beside a scrub: p99, to undisturbed";
const PROTECTION: &str = "an SSD of two dies, 1 GiB is dirty: time to clean, to the ideal elevator";

/// A pool of three SSDs with two copies, and the load on it.
struct Stage {
    scene: Scene,
    load: Load,
}

/// Sizes of a row.
struct Sizes {
    ssd_bytes: u64,
    /// What the load asks for.
    hot_bytes: u64,
    /// Dirty data beside what the load writes.
    dirty_bytes: u64,
    /// How long a scrub is watched.
    watched: Nanos,
}

impl Sizes {
    fn of(bench: &Bench) -> Self {
        let unit = if bench.options.quick { 1 << 27 } else { 1 << 30 };
        let watched = if bench.options.quick { 3 * SECOND } else { 10 * SECOND };
        Self { ssd_bytes: 4 * unit, hot_bytes: unit / 2, dirty_bytes: unit, watched }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The p99 of both, and how they compare.
fn compared(before: &Seen, after: &Seen) -> Result<(f64, Vec<String>)> {
    let figures = |seen: &Seen, p99| format!("{}, {}", span(p99), rate(seen.rate()));
    let (then, now) = (before.percentile(99.0)?, after.percentile(99.0)?);
    Ok((now as f64 / then as f64, vec![figures(after, now), figures(before, then)]))
}

impl Stage {
    fn new(disks: &ArrayParameters, sizes: &Sizes, deadline_ms: u32) -> Result<Self> {
        let ssds = Ssds {
            count: 3,
            dirty_copies: 2,
            clean_copies: 2,
            device_deadline_ms: deadline_ms,
            ..Ssds::default()
        };
        let (pool_bytes, volume) = (sizes.ssd_bytes, sizes.hot_bytes + 4 * sizes.dirty_bytes);
        let scene = Scene::new(&Setting {
            disks,
            pool_bytes,
            ram_bytes: 0,
            volumes: &[volume],
            ssds,
            serving: Default::default(),
        })?;
        scene.play(0, 4, filling(sizes.hot_bytes, 1 << 20))?;
        scene.destage(0)?;
        let (mut rng, places) = (Rng::new(5), sizes.hot_bytes / BLOCK);
        let mixed = Box::new(move || {
            let kind = if rng.below(10) < 7 { Kind::Read } else { Kind::Write };
            Some(Order { kind, offset: rng.below(places) * BLOCK, len: BLOCK })
        });
        let load = scene.load(0, CLIENTS, mixed);
        scene.pass(SECOND)?;
        Ok(Self { scene, load })
    }

    /// What another one, with as much dirty, feels of nothing over so long.
    fn undisturbed(
        disks: &ArrayParameters,
        sizes: &Sizes,
        soiled: bool,
        span: Nanos,
    ) -> Result<Seen> {
        let it = Self::new(disks, sizes, 0)?;
        if soiled {
            it.soil(sizes)?;
        }
        it.load.look();
        it.scene.pass(span)?;
        let seen = it.load.seen()?;
        it.end().map(|()| seen)
    }

    /// Makes data dirty beside the load, once each, at random places behind what the load asks for.
    fn soil(&self, sizes: &Sizes) -> Result<()> {
        let count = (sizes.dirty_bytes / (64 << 10)) as usize;
        let places = scattered(count, 4 * count as u32, 7);
        let (mut places, behind) = (places.into_iter(), sizes.hot_bytes);
        let orders = Box::new(move || {
            let offset = behind + u64::from(places.next()?) * (64 << 10);
            Some(Order { kind: Kind::Write, offset, len: 64 << 10 })
        });
        self.scene.play(0, 8, orders).map(drop)
    }

    /// Lets time pass until `is_done`, and for a second at least; what the load felt meanwhile.
    fn watch(&self, is_done: impl Fn(&Scene) -> bool) -> Result<Seen> {
        let since = self.scene.now();
        loop {
            self.scene.pass(100 * MILLISECOND)?;
            let passed = self.scene.now() - since;
            if passed >= PATIENCE {
                return Err(format!("not done after {}", span(passed)));
            }
            if passed >= SECOND && is_done(&self.scene) {
                return self.load.seen();
            }
        }
    }

    fn told(&self, kind: EventKind) -> bool {
        told(&self.scene, kind)
    }

    fn keep(&self, bench: &mut Bench, name: &str, before: &Seen, seen: &Seen) -> Result<()> {
        bench.keep(&json!({
            "row": name, "undisturbed": before.to_json(), "disturbed": seen.to_json(),
            "counters": self.scene.pool.counters().list(),
        }))
    }

    /// Ends the load; an error if a request of it has failed.
    fn end(self) -> Result<()> {
        self.scene.run(self.load.stop()).map(drop)
    }
}

fn told(scene: &Scene, kind: EventKind) -> bool {
    scene.pool.events().iter().any(|event| event.kind == kind)
}

/// What clients waited for, in seconds; beside it what all but the slowest hundredth took at the most.
fn longest(
    name: &'static str,
    what: &str,
    seen: &Seen,
    before: &Seen,
    bar: f64,
    quick: bool,
) -> Row {
    let seconds = seen.longest() as f64 / SECOND as f64;
    let mut row = Row::judged(name, what, &[seconds], Bar::AtMost(bar), " s", quick);
    let figures = |seen: &Seen| format!("{}, {}", span(seen.longest()), rate(seen.rate()));
    row.figures = vec![figures(seen), figures(before)];
    let p99 = |seen: &Seen| seen.percentile(99.0).map_or("unknown".to_owned(), span);
    row.note = format!("p99 {}, undisturbed {}", p99(seen), p99(before));
    row
}

/// From one instant on one of the SSDs answers nothing; it is left behind when its second has passed.
fn hang(bench: &mut Bench, disks: &ArrayParameters) -> Result<Row> {
    let sizes = Sizes::of(bench);
    let stage = Stage::new(disks, &sizes, 1_000)?;
    stage.load.look();
    stage.scene.broken[1].hanging.arm(Trigger::every(Ops::All));
    let seen = stage.watch(|scene| told(scene, EventKind::CopiesRestored))?;
    if !stage.told(EventKind::MemberHung) {
        return Err("nobody noticed".into());
    }
    let before = Stage::undisturbed(disks, &sizes, false, seen.span)?;
    stage.keep(bench, "hang", &before, &seen)?;
    let row = longest("hang", LONGEST, &seen, &before, 2.0, bench.options.quick);
    stage.end().map(|()| row)
}

/// One of the SSDs is gone at once; then what it held is copied again to the two that are left, until there
/// are two copies of everything dirty.
fn loss(bench: &mut Bench, disks: &ArrayParameters) -> Result<[Row; 2]> {
    let sizes = Sizes::of(bench);
    let stage = Stage::new(disks, &sizes, 0)?;
    stage.soil(&sizes)?;
    stage.load.look();
    let (short, since) = (stage.scene.owed_blocks() * BLOCK, stage.scene.now());
    stage.scene.broken[1].gone.set(true);
    while !stage.told(EventKind::MemberFailed) {
        stage.scene.pass(10 * MILLISECOND)?;
    }
    let first = stage.load.seen()?;
    stage.load.look();
    let seen = stage.watch(|scene| told(scene, EventKind::CopiesRestored))?;
    let took = stage.scene.now() - since;
    let before = Stage::undisturbed(disks, &sizes, true, seen.span)?;
    stage.keep(bench, "rebuild", &before, &seen)?;
    let quick = bench.options.quick;
    let mut loss = longest("loss", LOSS, &first, &before, 1.0, quick);
    loss.note += "; until the pool had gone on without it";
    let (ratio, figures) = compared(&before, &seen)?;
    let mut rebuild = Row::judged("rebuild", REBUILD, &[ratio], Bar::AtMost(3.0), "", quick);
    rebuild.figures = figures;
    rebuild.note = format!(
        "{:.2} GiB dirty, all copies again after {}",
        short as f64 / (1_u64 << 30) as f64,
        span(took)
    );
    stage.end().map(|()| [loss, rebuild])
}

/// One of the SSDs is taken out, with what is dirty on it and what is worth keeping.
fn evacuation(bench: &mut Bench, disks: &ArrayParameters) -> Result<Row> {
    let sizes = Sizes::of(bench);
    let stage = Stage::new(disks, &sizes, 0)?;
    stage.soil(&sizes)?;
    let pool = Rc::clone(&stage.scene.pool);
    let leaving = pool.superblock().members.get(1).map(|member| member.device);
    let departure = pool.begin_departure(leaving.ok_or("no second SSD")?).map_err(text)?;
    stage.load.look();
    let since = stage.scene.now();
    let ended: Rc<std::cell::Cell<Option<Nanos>>> = Rc::default();
    let (told, clock) = (Rc::clone(&ended), stage.scene.runtime());
    stage.scene.runtime().spawn(Box::pin(async move {
        if departure.end().await.is_ok() {
            told.set(Some(clock.now()));
        }
    }));
    let seen = stage.watch(|_| ended.get().is_some())?;
    let took = ended.get().unwrap_or(since) - since;
    let before = Stage::undisturbed(disks, &sizes, true, seen.span)?;
    stage.keep(bench, "evacuation", &before, &seen)?;
    let (ratio, figures) = compared(&before, &seen)?;
    let quick = bench.options.quick;
    let mut row = Row::judged("evacuation", EVACUATION, &[ratio], Bar::AtMost(3.0), "", quick);
    row.figures = figures;
    row.note = format!("taken out after {}", span(took));
    stage.end().map(|()| row)
}

/// A lap of the scrub at its usual rate, or as much of it as the watch sees.
fn scrub(bench: &mut Bench, disks: &ArrayParameters) -> Result<Row> {
    let sizes = Sizes::of(bench);
    let stage = Stage::new(disks, &sizes, 0)?;
    stage.scene.pool.start_scrub().map_err(text)?;
    stage.load.look();
    stage.scene.pass(sizes.watched)?;
    let seen = stage.load.seen()?;
    let read = stage.scene.pool.scrub().read_bytes;
    let before = Stage::undisturbed(disks, &sizes, false, seen.span)?;
    stage.keep(bench, "scrub", &before, &seen)?;
    let (ratio, figures) = compared(&before, &seen)?;
    let quick = bench.options.quick;
    let mut row = Row::judged("scrub", SCRUB, &[ratio], Bar::AtMost(1.5), "", quick);
    row.figures = figures;
    row.note = format!("{} MiB read", read >> 20);
    stage.end().map(|()| row)
}

/// Two SSDs with two copies; 1 GiB of single blocks at random places in four times as much is dirty when one of
/// them dies. Nobody writes any more; the clock runs until the origin durably has everything. The ideal elevator
/// writes the same once, in the order of addresses, neighbours together, at the array's full queue.
fn protection(bench: &mut Bench, disks: &ArrayParameters) -> Result<Row> {
    let sizes = Sizes::of(bench);
    let count = (sizes.dirty_bytes / BLOCK) as usize;
    let blocks = Rc::new(scattered(count, 4 * count as u32, 3));
    let ssds = Ssds { count: 2, dirty_copies: 2, clean_copies: 1, ..Ssds::default() };
    let (pool_bytes, volume) = (sizes.ssd_bytes, 4 * sizes.dirty_bytes);
    let scene = Scene::new(&Setting {
        disks,
        pool_bytes,
        ram_bytes: 0,
        volumes: &[volume],
        ssds,
        serving: Default::default(),
    })?;
    scene.play(0, 32, writes(Rc::clone(&blocks)))?;
    scene.broken[1].gone.set(true);
    // Whoever uses it next finds out.
    let flushed = Rc::clone(&scene.volumes[0]);
    scene.run(async move { flushed.flush().await.map_err(text) })?;
    while !told(&scene, EventKind::MemberFailed) {
        scene.pass(10 * MILLISECOND)?;
    }
    let (dirty, since) = (scene.dirty(0)?, scene.now());
    let owed = scene.owed_blocks();
    while scene.pool.unproven_blocks() > 0 {
        if scene.now() - since > PATIENCE {
            return Err(format!("not clean after {}", span(PATIENCE)));
        }
        scene.pass(50 * MILLISECOND)?;
    }
    let took = scene.now() - since;
    drop(scene);
    let dirty = dirty.iter().flat_map(|&(at, len)| at / BLOCK..(at + len) / BLOCK);
    let mut ordered = joined(dirty).into_iter();
    let ideal = array_alone(disks, volume, FULL_DEPTH, Box::new(move || ordered.next()))?;
    bench.keep(&json!({ "row": "protection", "owed": owed, "ns": took, "ideal_ns": ideal }))?;
    let ratio = took as f64 / ideal as f64;
    let quick = bench.options.quick;
    let mut row = Row::judged("protection", PROTECTION, &[ratio], Bar::AtMost(1.3), "", quick);
    row.figures = vec![span(took), span(ideal)];
    row.note = format!("{:.2} GiB dirty", (owed * BLOCK) as f64 / (1_u64 << 30) as f64);
    Ok(row)
}

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no directory.
pub(crate) fn run(options: &bench::Options) -> Result<bool> {
    let disks = super::disks(false);
    Bench::run(options, &PLAN, |bench| {
        let failed =
            |name, what, bar, error: &str| Row::failed(name, what, Bar::AtMost(bar), error);
        if bench.wants(&["hang"]) {
            let row = hang(bench, &disks).unwrap_or_else(|e| failed("hang", LONGEST, 2.0, &e));
            bench.finish(row)?;
        }
        if bench.wants(&["loss", "rebuild"]) {
            let rows = loss(bench, &disks).unwrap_or_else(|e| {
                [failed("loss", LOSS, 1.0, &e), failed("rebuild", REBUILD, 3.0, &e)]
            });
            rows.into_iter().try_for_each(|row| bench.finish(row))?;
        }
        if bench.wants(&["evacuation"]) {
            let row = evacuation(bench, &disks)
                .unwrap_or_else(|e| failed("evacuation", EVACUATION, 3.0, &e));
            bench.finish(row)?;
        }
        if bench.wants(&["scrub"]) {
            let row = scrub(bench, &disks).unwrap_or_else(|e| failed("scrub", SCRUB, 1.5, &e));
            bench.finish(row)?;
        }
        if bench.wants(&["protection"]) {
            let row = protection(bench, &disks)
                .unwrap_or_else(|e| failed("protection", PROTECTION, 1.3, &e));
            bench.finish(row)?;
        }
        Ok(())
    })
}
