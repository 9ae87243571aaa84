//! What is measured, one after the other: the bare SSD, the origin alone, and caches from cold to steady.
//!
//! Each load begins on each of them with files that were written in full for it alone: what other loads have left
//! (requests not yet on the disks, heads, places written for the first time) is no part of any figure, and their order
//! on the command line changes none.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use forebay_device::BlockDevice;

use super::profile::{Profile, Stretch, Target};
use super::report::Row;
use super::served::{Counters, Origin, Served, Setup};
use super::session::{AROUND_MS, Load, Ran, Session};
use super::{Beside, ExportName, ModeName, Options};
use crate::Result;
use crate::failure::Failure;
use crate::remote;
use crate::text;

/// What the rows of the origin without a cache are called.
pub(super) const ORIGIN: &str = "origin alone";

/// The mode that goes past the cache.
pub(super) const BYPASS: &str = "bypass";

/// A cache is warm when so many of the reads of a sample are hits.
const WARM_HIT_RATIO: f64 = 0.99;

/// Or when the share of hits has risen by less than this within so many samples of a second.
const FLAT_RISE: f64 = 0.01;
const FLAT_SAMPLES: usize = 10;

/// An origin alone is settled when the later half of as many samples differs from the earlier one by less than
/// this share. Disks with a write cache are many times as fast until that is full.
const LEVEL_DRIFT: f64 = 0.1;

/// One way to reach a volume.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    mode: ModeName,
    export: ExportName,
}

/// A stretch of a pool's life.
#[derive(Clone, Copy)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// See [`Stretch::seed`].
    seed: u32,
    /// See [`Stretch::ramp_ms`].
    ramp_ms: u64,
    span_ms: u64,
    /// Whether it ends as soon as the cache is warm.
    pub(super) ends_warm: bool,
}

impl Phase {
    fn stretch(self, size_bytes: u64) -> Stretch {
        let Phase { seed, ramp_ms, span_ms, .. } = self;
        Stretch { size_bytes, ramp_ms, span_ms, seed }
    }

    fn planned_ms(self) -> u64 {
        self.ramp_ms + self.span_ms + AROUND_MS
    }

    /// The same at other places.
    pub(crate) fn seeded(self, seed: u32) -> Phase {
        Phase { seed, ..self }
    }
}

/// See the head of the file.
pub(crate) struct Measuring<'a> {
    session: &'a Session<'a>,
    options: &'a Options,
    program: PathBuf,
}

impl<'a> Measuring<'a> {
    pub(crate) fn new(session: &'a Session<'a>, options: &'a Options) -> Result<Measuring<'a>> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::system("find this program's own file", &error))?;
        Ok(Measuring { session, options, program })
    }

    /// Looks whether the user's origin has room for the largest set: fio takes what there is, and says nothing.
    async fn check_origin(&self) -> Result<()> {
        let Origin::Given(origin) = &self.options.origin else { return Ok(()) };
        let has = match remote::place(origin)? {
            Some(place) => {
                let open = remote::open(self.session.reactor(), &place);
                self.session.unless_ended(open).await??.geometry().size_bytes
            }
            None => File::open(origin)
                .and_then(|mut file| file.seek(SeekFrom::End(0)))
                .map_err(|error| Failure::system(format!("open {origin}"), &error))?,
        };
        match self.sets().into_iter().max() {
            Some(largest) if largest > has => {
                let (has, largest) = (text::bytes(has), text::bytes(largest));
                let what = format!("{origin} has {has}, and the working set is {largest}");
                Err(Failure::new(what).hint("choose a smaller --working-set or --cache"))
            }
            _ => Ok(()),
        }
    }

    /// Measures everything that was asked for. What was measured is in `rows` also after an error.
    ///
    /// # Errors
    /// If fio or a server fails, or all of it is to end.
    pub(crate) async fn all(&self, rows: &mut Vec<Row>) -> Result<()> {
        self.check_origin().await?;
        self.session.plan(self.planned_ms());
        for profile in self.profiles() {
            for set_bytes in self.sets() {
                if self.options.beside.contains(&Beside::Ssd) {
                    self.bare(profile, set_bytes, rows).await?;
                }
                if self.options.beside.contains(&Beside::Origin) {
                    self.alone(profile, set_bytes, rows).await?;
                }
                for way in self.ways() {
                    self.cached(profile, way, set_bytes, rows).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn ways(&self) -> Vec<Way> {
        let (modes, exports) = (distinct(&self.options.mode), distinct(&self.options.export));
        let ways = |mode| exports.iter().map(move |&export| Way { mode, export });
        modes.into_iter().flat_map(ways).collect()
    }

    /// The smallest one first.
    pub(super) fn sets(&self) -> Vec<u64> {
        let mut sets = self.options.sets();
        sets.sort_unstable();
        sets
    }

    pub(super) fn profiles(&self) -> Vec<&'static Profile> {
        distinct(&self.options.profiles)
    }

    pub(super) fn session(&self) -> &'a Session<'a> {
        self.session
    }

    pub(super) fn span_ms(&self) -> u64 {
        u64::from(self.options.duration) * 1_000
    }

    /// From a pool's first request on.
    pub(super) fn phases(&self) -> [Phase; 3] {
        let phase = |name, seed, ramp_ms, span_ms| {
            let ends_warm = name == "warming";
            Phase { name, seed, ramp_ms, span_ms, ends_warm }
        };
        let short_ms = (self.span_ms() / 5).max(1_000);
        let warm_up_ms = u64::from(self.options.warm_up_max) * 1_000;
        [
            phase("cold", 1, 0, short_ms),
            phase("warming", 2, 0, warm_up_ms),
            phase("steady", 3, short_ms, self.span_ms()),
        ]
    }

    /// How long it takes at the most, but for writing files.
    fn planned_ms(&self) -> u64 {
        let [cold, warming, steady] = self.phases().map(Phase::planned_ms);
        let is_beside = |what| self.options.beside.contains(&what);
        let bare = if is_beside(Beside::Ssd) { steady } else { 0 };
        let alone = if is_beside(Beside::Origin) { warming + steady } else { 0 };
        self.loads() * (bare + alone + (cold + warming + steady) * self.ways_count())
    }

    /// The same for two builds.
    pub(super) fn plan_both(&self, rounds: u64) {
        let [cold, warming, steady] = self.phases().map(Phase::planned_ms);
        // A pool may take as long as a round until it is clean.
        let each = 2 * (cold + warming) + 2 * rounds * (steady + self.span_ms());
        self.session.plan(each * self.loads() * self.ways_count());
    }

    fn loads(&self) -> u64 {
        (self.profiles().len() * self.sets().len()) as u64
    }

    fn ways_count(&self) -> u64 {
        self.ways().len() as u64
    }

    /// A new pool.
    pub(super) fn setup(&self, way: Way, set_bytes: u64) -> Setup<'_> {
        Setup {
            program: &self.program,
            origin: &self.options.origin,
            volume_bytes: set_bytes,
            mode: way.mode.text(),
            cache_bytes: self.options.cache,
            ram_bytes: self.options.ram.unwrap_or(0),
            is_tcp: way.export == ExportName::Tcp,
            is_read_only: matches!(self.options.origin, Origin::Given(_))
                && !self.options.overwrite_origin,
        }
    }

    /// fio on a file of the cache's disk, which is written in full first.
    async fn bare(
        &self,
        profile: &'static Profile,
        set_bytes: u64,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let (path, name) = (self.session.dir().join("bare"), "bare SSD");
        self.session.write_file(&path, set_bytes, "a new file for the bare SSD").await?;
        let [.., steady] = self.phases();
        let what = format!("{} on {name}", profile.name);
        let target = Target::File(path.to_str().unwrap_or_default());
        let load = Load { what: &what, profile, target, stretch: steady.stretch(set_bytes) };
        let ran = self.session.run(&load, None, |_, _| false).await?;
        rows.push(self.row(profile, set_bytes, name.to_owned(), steady.name, ran));
        remove(&path)
    }

    /// The origin, served by the same program without a cache. It has nothing to become warm, but disks have
    /// queues and caches of their own: it is measured once its rate is level. Its network is that of the first export.
    async fn alone(
        &self,
        profile: &'static Profile,
        set_bytes: u64,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let way = Way { mode: ModeName::Writethrough, export: self.options.export[0] };
        let setup = Setup { mode: BYPASS, ram_bytes: 0, ..self.setup(way, set_bytes) };
        let mut served = Served::start(self.session, &setup).await?;
        let uri = served.uri.clone();
        let [_, ramp, steady] = self.phases();
        let target = Target::Nbd(&uri);
        let what = format!("{} on {ORIGIN}, ramp-up", profile.name);
        let load = Load { what: &what, profile, target, stretch: ramp.stretch(set_bytes) };
        let mut bytes = Vec::new();
        let is_enough = |counters: &Counters, _: &[(u64, f64)]| {
            let names = ["read_bytes", "write_bytes"];
            bytes.push(names.iter().filter_map(|&name| counters.get(name)).sum());
            is_level(&bytes)
        };
        let ramped = self.session.run(&load, Some(&mut served), is_enough).await?;
        let what = format!("{} on {ORIGIN}", profile.name);
        let load = Load { what: &what, profile, target, stretch: steady.stretch(set_bytes) };
        let ran = self.session.run(&load, None, |_, _| false).await?;
        let row = self.row(profile, set_bytes, ORIGIN.to_owned(), steady.name, ran);
        rows.push(Row { is_settled: Some(!ramped.is_whole), ..row });
        Ok(())
    }

    /// A new pool, from its first request on.
    async fn cached(
        &self,
        profile: &'static Profile,
        way: Way,
        set_bytes: u64,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let name = self.name(way);
        let mut served = Served::start(self.session, &self.setup(way, set_bytes)).await?;
        let mut is_settled = None;
        for phase in self.phases() {
            let what = format!("{} on {name}, {}", profile.name, phase.name);
            let ran = self.phase(profile, way, set_bytes, phase, &what, &mut served).await?;
            if phase.ends_warm {
                is_settled = Some(!ran.is_whole);
            }
            let row = self.row(profile, set_bytes, name.clone(), phase.name, ran);
            rows.push(Row { is_settled, ..row });
        }
        Ok(())
    }

    /// One phase of a pool.
    ///
    /// # Errors
    /// If fio or the server fails, or all of it is to end.
    pub(super) async fn phase(
        &self,
        profile: &'static Profile,
        way: Way,
        set_bytes: u64,
        phase: Phase,
        what: &str,
        served: &mut Served,
    ) -> Result<Ran> {
        let is_logged = profile.writes() && way.mode.logs_writes();
        let needs_lap = set_bytes >= self.options.cache || is_logged;
        let lap_bytes = if needs_lap { self.options.cache } else { 0 };
        let uri = served.uri.clone();
        let stretch = phase.stretch(set_bytes);
        let load = Load { what, profile, target: Target::Nbd(&uri), stretch };
        let is_enough = |counters: &Counters, hits: &[(u64, f64)]| {
            phase.ends_warm && is_warm(counters, hits, lap_bytes)
        };
        self.session.run(&load, Some(served), is_enough).await
    }

    pub(super) fn name(&self, way: Way) -> String {
        let mode = way.mode.text();
        match way.export {
            ExportName::Unix if !self.options.export.contains(&ExportName::Tcp) => mode.to_owned(),
            ExportName::Unix => format!("{mode} (Unix)"),
            ExportName::Tcp => format!("{mode} (TCP)"),
        }
    }

    fn row(
        &self,
        profile: &'static Profile,
        set_bytes: u64,
        target: String,
        phase: &'static str,
        ran: Ran,
    ) -> Row {
        let factor = set_bytes as f64 / self.options.cache as f64;
        Row { profile, set_bytes, factor, target, phase, is_settled: None, ran }
    }
}

/// Each once, in the same order: what is named twice is not measured twice.
pub(super) fn distinct<T: Copy + PartialEq>(all: &[T]) -> Vec<T> {
    let mut distinct = Vec::new();
    for &it in all {
        if !distinct.contains(&it) {
            distinct.push(it);
        }
    }
    distinct
}

/// Whether what was served until each sample has grown evenly over the last ones.
fn is_level(bytes: &[u64]) -> bool {
    let Some(first) = bytes.len().checked_sub(FLAT_SAMPLES + 1) else { return false };
    let grown = |from: usize, to: usize| bytes[to].saturating_sub(bytes[from]) as f64;
    let middle = first + FLAT_SAMPLES / 2;
    let (earlier, later) = (grown(first, middle), grown(middle, first + FLAT_SAMPLES));
    earlier > 0.0 && (later - earlier).abs() < earlier * LEVEL_DRIFT
}

/// Whether a new pool serves as it is going to: `lap_bytes` were written to its log (before that nothing is
/// reclaimed, and every cache looks good), and its share of hits rises no more.
fn is_warm(counters: &Counters, hits: &[(u64, f64)], lap_bytes: u64) -> bool {
    let ssd_bytes: u64 =
        counters.iter().filter(|(name, _)| name.starts_with("ssd_")).map(|(_, bytes)| bytes).sum();
    let Some(&(_, last)) = hits.last() else { return ssd_bytes >= lap_bytes };
    let before = hits.len().checked_sub(FLAT_SAMPLES + 1).map(|index| hits[index].1);
    let is_flat = before.is_some_and(|before| last < before + FLAT_RISE);
    ssd_bytes >= lap_bytes && (last >= WARM_HIT_RATIO || is_flat)
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path)
        .map_err(|error| Failure::system(format!("remove {}", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_settled_when_its_rate_is_level() {
        let sums = |rates: &[u64]| -> Vec<u64> {
            rates
                .iter()
                .scan(0, |sum, rate| {
                    *sum += rate;
                    Some(*sum)
                })
                .collect()
        };
        let even = [100; FLAT_SAMPLES + 1];
        assert!(is_level(&sums(&even)));
        assert!(!is_level(&sums(&even[1..])), "too few samples");
        assert!(!is_level(&[7; FLAT_SAMPLES + 1]), "nothing is served");
        // A write cache is full in the middle of the samples; a while later that is over.
        let mut filled = vec![900; 6];
        filled.extend([100; 5]);
        assert!(!is_level(&sums(&filled)));
        filled.extend([100; 6]);
        assert!(is_level(&sums(&filled)));
    }

    #[test]
    fn what_is_named_twice_is_measured_once() {
        assert_eq!(distinct(&[3, 1, 3, 2, 1]), [3, 1, 2]);
        assert!(distinct::<u8>(&[]).is_empty());
    }

    #[test]
    fn a_cache_is_warm_when_its_hits_rise_no_more_and_its_log_has_gone_round() {
        let none = Counters::new();
        let samples = |ratios: &[f64]| -> Vec<(u64, f64)> {
            ratios.iter().map(|&ratio| (0, ratio)).collect()
        };
        assert!(is_warm(&none, &samples(&[0.2, 0.995]), 0));
        assert!(!is_warm(&none, &samples(&[0.2, 0.5]), 0), "too few samples to be flat");
        assert!(is_warm(&none, &samples(&[0.5; FLAT_SAMPLES + 1]), 0));
        let rising: Vec<f64> = (0..=FLAT_SAMPLES).map(|i| i as f64 / 100.0).collect();
        assert!(!is_warm(&none, &samples(&rising), 0));
        // Who only writes has no hits of reads.
        let written =
            Counters::from([("ssd_write_bytes".to_owned(), 9), ("ssd_move_bytes".to_owned(), 1)]);
        assert!(is_warm(&written, &[], 10) && !is_warm(&written, &[], 11));
        assert!(!is_warm(&written, &samples(&[1.0]), 11));
    }
}
