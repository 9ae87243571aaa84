//! `forebay demo`: what a cache in front of a slow array does, measured on this machine.
//!
//! * The array is modelled (eight disks, RAID 5, in real time); cache devices are files; every
//!   figure is measured by a load in this process.
//! * The origin alone is measured on an array of its own with its data in memory, so that the
//!   volume's origin is only ever written through the cache. It has the model's timing and not even
//!   a file's overhead.

mod load;

mod report;
mod state;

use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use forebay_device::model::store::MemoryStore;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime, SECOND};
use forebay_engine::limits::RAM_STEP_BYTES;
use forebay_engine::{Pool, Volume};

use self::load::{Load, READ_PERCENT, REQUEST_BYTES, Target, WORKERS};

use self::report::{Hits, Row, measured, table};
use self::state::{NAME, State};
use crate::Result;
use crate::admin::say_json;
use crate::crew::{Crew, reactors_default};
use crate::export::Access;
use crate::failure::Failure;
use crate::flag::Flag;
use crate::host::{Doors, Host, Places, end_on_signals, loopback};
use crate::members::Opened;
use crate::origin;
use crate::progress::Progress;
use crate::text::{self, parse_bytes, percent, say, tell, whole};

/// Bytes of a 4 KiB block, the engine's unit.
const BLOCK_BYTES: u64 = 4096;

/// How often the display is renewed.
const LOOK_INTERVAL: Nanos = 250 * MILLISECOND;

/// The first moments with an empty cache.
const COLD_TIME: Nanos = 2 * SECOND;

/// Warming ends when this share of a second's reads are hits, or after [`WARMING_TIME_MAX`].
const WARM_HIT_RATIO: f64 = 0.99;
const WARMING_TIME_MAX: Nanos = 60 * SECOND;

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// End after the table, with exit code 0 if all of it could be measured
    #[arg(long)]
    once: bool,
    /// Where the files are kept; a second start on the same directory opens the same pool.
    /// Without it: $XDG_STATE_HOME/forebay/demo or /var/tmp/forebay-demo-UID, removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the default directory at the end
    #[arg(long)]
    keep: bool,
    /// Unix socket to serve on [default: nbd.sock in the directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve on this port of the loopback address too; 0 takes a free one
    #[arg(long, value_parser = whole::<u16>(..=u16::MAX))]
    port: Option<u16>,
    /// Size of a new volume
    #[arg(long, value_name = "SIZE", value_parser = volume_bytes, default_value = "256M")]
    size: u64,
    /// Size of each of the two cache files, at least 512M
    #[arg(long, value_name = "SIZE", value_parser = cache_bytes, default_value = "1G")]
    cache_size: u64,
    /// Keep what is hottest in so much RAM in front of them, in steps of 2M [default: none]
    #[arg(long, value_name = "SIZE", value_parser = ram_bytes)]
    ram: Option<u64>,
    /// How long the origin alone and the warm cache are measured
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = whole::<u64>(1..=3600))]
    seconds: u64,
    /// Print what was measured as JSON, with the version of its form as `schema`
    #[arg(long, display_order = 901)]
    json: bool,
}

fn multiple_of_4k(text: &str) -> std::result::Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES) => Ok(bytes),
        _ => Err("the size is not a multiple of 4 KiB".to_owned()),
    }
}

fn volume_bytes(text: &str) -> std::result::Result<u64, String> {
    let most = origin::array().size_bytes();
    match multiple_of_4k(text)? {
        bytes if bytes <= most => Ok(bytes),
        _ => Err(format!("the modelled array holds {}", text::bytes(most))),
    }
}

fn cache_bytes(text: &str) -> std::result::Result<u64, String> {
    match multiple_of_4k(text)? {
        bytes if bytes >= 512 << 20 => Ok(bytes),
        _ => Err("a cache device has at least 512 MiB".to_owned()),
    }
}

/// The size of a tier in RAM.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn ram_bytes(text: &str) -> std::result::Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes.is_multiple_of(RAM_STEP_BYTES) => Ok(bytes),
        _ => Err("the size is not a multiple of 2 MiB".to_owned()),
    }
}

pub(crate) fn run(options: Options) -> Result<()> {
    let reactor = Reactor::new(Config::default())?;
    let result = reactor.block_on(demo(&reactor, &options));
    reactor.close();
    result
}

fn interrupted() -> Failure {
    Failure::new("interrupted before everything was measured")
}

async fn demo(reactor: &Rc<Reactor>, options: &Options) -> Result<()> {
    let end = end_on_signals(reactor, || ())?;
    let state = State::new(options)?;
    let result = show(reactor, options, &state, &end).await;
    // After an error the files are evidence; after an interruption nobody wants them.
    if result.is_ok() || end.is_raised() {
        state.clean_up(options.keep)?;
    } else {
        state.tell_what_stays();
    }
    result
}

async fn show(
    reactor: &Rc<Reactor>,
    options: &Options,
    state: &State,
    end: &Rc<Flag>,
) -> Result<()> {
    introduce(options, state);
    // Before anything is written: an address that is taken should not cost minutes.
    let places = Places {
        socket: Some(&state.socket),
        address: options.port.map(loopback),
        ..Places::default()
    };
    let doors = Doors::open(reactor, NAME, &places).await?;
    let (opened, volume) = state.open(reactor, options, end).await?;
    let Opened { pool, members, notes, .. } = opened;
    let result = notes.beside(&**reactor, &pool, async {
        let crew = Crew::start(reactors_default())?;
        let terms = Access::ReadWrite.into();
        let readers = (pool.superblock().pool, members.readers_for(&crew)?);
        let host = Host::start(reactor, doors, readers, &volume, &terms, &crew).await?;
        let (window, json) = (options.seconds * SECOND, options.json);
        let tour = Tour { reactor, end, window, json };
        let result = tour.show(&pool, volume).await;
        if result.is_ok() && !options.once {
            match options.json {
                true => tell(format_args!("served until Ctrl-C at {}", host.uris.join(" "))),
                false => invite(&host, state),
            }
            end.wait().await;
            tell("stopping");
        }
        host.stop().await;
        result
    });
    let result = result.await;
    let stopped = pool.stop().await;
    if let Ok(dirty) = stopped {
        let dirty = text::bytes(dirty * BLOCK_BYTES);
        tell(format_args!("stopped cleanly; {dirty} dirty stay in the cache"));
    }
    result?;
    stopped?;
    Ok(())
}

fn introduce(options: &Options, state: &State) {
    let array = origin::array();
    tell(format_args!(
        "origin: a file as slow as {} x {} in RAID 5 (modelled, in real time)",
        array.disks, array.member.name
    ));
    tell(format_args!(
        "cache: 2 files of {} in {}, dirty data on both",
        text::bytes(options.cache_size),
        state.dir.display()
    ));
    if let Some(bytes) = options.ram.filter(|&bytes| bytes > 0) {
        tell(format_args!("RAM tier: {} in front of it", text::bytes(bytes)));
    }
    tell(format_args!(
        "load: {WORKERS} workers, {} at random over the whole volume, {READ_PERCENT} % reads",
        text::bytes(REQUEST_BYTES)
    ));
}

/// What the measuring needs at every step.
struct Tour<'a> {
    reactor: &'a Rc<Reactor>,
    end: &'a Rc<Flag>,
    window: Nanos,
    json: bool,
}

fn hits(pool: &Pool) -> Hits {
    let counters = pool.counters();
    let hits = counters.read_hits.get();
    Hits {
        hits,
        ram: (pool.superblock().ram_bytes > 0).then(|| counters.read_ram_hits.get()),
        all: hits + counters.read_partial_hits.get() + counters.read_misses.get(),
    }
}

impl Tour<'_> {
    /// Measures and prints the table.
    async fn show(&self, pool: &Pool, volume: Volume) -> Result<()> {
        let size_bytes = volume.size_bytes();
        let alone = self.origin_alone(size_bytes).await?;
        let rows = self.with_forebay(pool, volume, alone).await?;
        match self.json {
            true => say_json(&measured(&rows, size_bytes)),
            false => explain(&rows, size_bytes),
        }
        conclude(&rows)
    }

    async fn origin_alone(&self, size_bytes: u64) -> Result<Row> {
        let store = Rc::new(MemoryStore::new(size_bytes, 512));
        let device = origin::modelled(self.reactor, store)?;
        let load = Load::start(self.reactor, Target::Device(device));
        let row = self.watch("origin alone", &load, None, self.window, || false).await;
        load.stop().await;
        row
    }

    async fn with_forebay(&self, pool: &Pool, volume: Volume, alone: Row) -> Result<Vec<Row>> {
        let load = Load::start(self.reactor, Target::Volume(volume));
        let rows = self.three_windows(pool, &load).await;
        load.stop().await;
        let mut all = vec![alone];
        all.extend(rows?);
        Ok(all)
    }

    async fn three_windows(&self, pool: &Pool, load: &Load) -> Result<Vec<Row>> {
        let never = || false;
        let cold = self.watch("cold", load, Some(pool), COLD_TIME, never).await?;
        let second = std::cell::RefCell::new((self.reactor.now(), hits(pool)));
        let is_warm = || {
            let (since, before) = *second.borrow();
            if self.reactor.now() - since < SECOND {
                return false;
            }
            let now = hits(pool);
            second.replace((self.reactor.now(), now));
            now.since(before).ratio().is_some_and(|ratio| ratio >= WARM_HIT_RATIO)
        };
        let warming = self.watch("warming", load, Some(pool), WARMING_TIME_MAX, is_warm).await?;
        let warm = self.watch("warm", load, Some(pool), self.window, never).await?;
        Ok(vec![cold, warming, warm])
    }

    /// Looks at the load until `longest` is over or `until` holds.
    async fn watch(
        &self,
        name: &'static str,
        load: &Load,
        pool: Option<&Pool>,
        longest: Nanos,
        until: impl Fn() -> bool,
    ) -> Result<Row> {
        let runtime: &dyn Runtime = &**self.reactor;
        let progress = Progress::watch(name);
        let (first, first_hits) = (load.figures(), pool.map(hits));
        let (mut last, mut last_hits) = (first.clone(), first_hits);
        loop {
            let slept = self.end.cut(runtime.sleep(LOOK_INTERVAL)).await;
            if slept.is_none() {
                return Err(interrupted());
            }
            if let Some(error) = load.error() {
                return Err(Failure::new(error).on(format!("load \"{name}\"")));
            }
            let (now, now_hits) = (load.figures(), pool.map(hits));
            let window = now.since(&last);
            let elapsed = now.time - first.time;
            let seconds = elapsed as f64 / SECOND as f64;
            let mut message = format!(
                "{seconds:5.1} s {:>9} IOPS, read p50 {:>8}",
                text::thousands(window.iops().round() as u64),
                window.reads.percentile(50.0).map_or("-".to_owned(), text::span),
            );
            if let (Some(pool), Some(now), Some(before)) = (pool, now_hits, last_hits) {
                let ratio = now.since(before).ratio().map_or("-".to_owned(), percent);
                let dirty = text::bytes(pool.blocks().1 * BLOCK_BYTES);
                message.push_str(&format!(", hits {ratio:>7}, dirty {dirty}"));
            }
            progress.tell(elapsed, &message);
            if elapsed >= longest || until() {
                progress.finish();
                let hits = now_hits.zip(first_hits).map(|(now, first)| now.since(first));
                return Ok(Row { name, figures: now.since(&first), hits });
            }
            (last, last_hits) = (now, now_hits);
        }
    }
}

/// Prints the table.
fn explain(rows: &[Row], size_bytes: u64) {
    say(format_args!("\n{}", table(rows)));
    say(format_args!(
        "Requests of {} at random over {}, {READ_PERCENT} % reads, {WORKERS} at a time. Read hits: \
         reads\nserved from the cache alone, of all reads. Writes are volatile until a flush, with \
         Forebay\nas without; percentiles are at most 1/16 too high.",
        text::bytes(REQUEST_BYTES),
        text::bytes(size_bytes),
    ));
    if rows.iter().any(|row| row.ram_ratio().is_some()) {
        say("Of RAM: reads that the RAM tier served alone, of all reads.");
    }
}

/// An error if the table does not show what it is for.
fn conclude(rows: &[Row]) -> Result<()> {
    let base = rows.first().map_or(0.0, |row| row.figures.iops());
    let warm = rows.last().map_or(0.0, |row| row.figures.iops());
    if base > 0.0 && warm > 0.0 {
        return Ok(());
    }
    Err(Failure::new("no requests were completed, so there is nothing to compare")
        .hint("measure longer with --seconds"))
}

fn invite(host: &Host, state: &State) {
    let uri = host.uris.first().map_or("", String::as_str);
    let pid = std::process::id();
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("forebay"));
    say("\nThe volume is served until Ctrl-C at");
    host.uris.iter().for_each(|uri| say(format_args!("  {uri}")));
    say("Try next (on Debian: apt install libnbd-bin fio qemu-utils):");
    say(format_args!("  nbdinfo '{uri}'"));
    say(format_args!(
        "  fio --name=try --ioengine=nbd --uri='{uri}' --rw=randrw --bs=4k --iodepth=32 \
         --time_based --runtime=10"
    ));
    say(format_args!("  qemu-io -f raw -c 'write -P 7 0 64k' -c flush '{uri}'"));
    say(format_args!("  kill -9 {pid}      # then start the demo again: same data, warm cache"));
    let cache = state.dir.join("cache-0");
    say(format_args!("  {} inspect {}", program.display(), cache.display()));
}
