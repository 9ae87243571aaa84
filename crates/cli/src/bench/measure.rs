//! What is measured, one after the other: the bare SSD, the origin alone, and caches from cold to steady.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use forebay_device::BlockDevice;
use forebay_device::real::prepare::prepare_file;

use super::profile::{Profile, Stretch, Target};
use super::report::Row;
use super::served::{Counters, Origin, Served, Setup};
use super::session::{AROUND_MS, Load, Ran, Session};
use super::{Beside, ExportName, ModeName, Options};
use crate::Result;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::remote;
use crate::text;

/// The mode that goes past the cache.
pub(super) const BYPASS: &str = "bypass";

/// A cache is warm when so many of the reads of a sample are hits.
const WARM_HIT_RATIO: f64 = 0.99;

/// Or when the share of hits has risen by less than this within so many samples of a second.
const FLAT_RISE: f64 = 0.01;
const FLAT_SAMPLES: usize = 10;

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
    span_ms: u64,
    /// Whether it ends as soon as the cache is warm.
    ends_warm: bool,
}

impl Phase {
    /// The same at other places.
    pub(crate) fn seeded(self, seed: u32) -> Phase {
        Phase { seed, ..self }
    }
}

/// The seed of what is steady.
const STEADY_SEED: u32 = 3;

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

    /// Measures everything that was asked for.
    ///
    /// # Errors
    /// If fio or a server fails, or all of it is to end.
    pub(crate) async fn all(&self) -> Result<Vec<Row>> {
        self.check_origin().await?;
        self.session.plan(self.planned_ms());
        let mut rows = Vec::new();
        for set_bytes in self.sets() {
            if self.options.beside.contains(&Beside::Ssd) {
                self.bare(set_bytes, &mut rows).await?;
            }
            if self.options.beside.contains(&Beside::Origin) {
                self.alone(set_bytes, &mut rows).await?;
            }
            for way in self.ways() {
                for profile in &self.options.profiles {
                    self.cached(profile, way, set_bytes, &mut rows).await?;
                }
            }
        }
        // What belongs together was not measured together.
        let place = |row: &Row| {
            let profiles = &self.options.profiles;
            let profile = profiles.iter().position(|profile| profile.name == row.profile.name);
            (profile, row.set_bytes)
        };
        rows.sort_by_key(place);
        Ok(rows)
    }

    pub(super) fn ways(&self) -> Vec<Way> {
        let modes = self.options.mode.iter();
        modes
            .flat_map(|&mode| self.options.export.iter().map(move |&export| Way { mode, export }))
            .collect()
    }

    pub(super) fn sets(&self) -> Vec<u64> {
        self.options.working_set.iter().map(|&factor| self.options.set_bytes(factor)).collect()
    }

    pub(super) fn profiles(&self) -> &'a [&'static Profile] {
        &self.options.profiles
    }

    pub(super) fn session(&self) -> &'a Session<'a> {
        self.session
    }

    pub(super) fn span_ms(&self) -> u64 {
        u64::from(self.options.duration) * 1_000
    }

    /// From a pool's first request on.
    pub(super) fn phases(&self) -> [Phase; 3] {
        let phase = |name, seed, span_ms| Phase { name, seed, span_ms, ends_warm: false };
        let warm_up_ms = u64::from(self.options.warm_up_max) * 1_000;
        [
            phase("cold", 1, (self.span_ms() / 5).max(1_000)),
            Phase { ends_warm: true, ..phase("warming", 2, warm_up_ms) },
            phase("steady", STEADY_SEED, self.span_ms()),
        ]
    }

    /// How long it takes at the most, but for writing files.
    fn planned_ms(&self) -> u64 {
        let beside = self.options.beside.iter().filter(|&&it| it != Beside::None).count() as u64;
        let cached: u64 = self.phases().iter().map(|phase| phase.span_ms + AROUND_MS).sum();
        beside * (self.span_ms() + AROUND_MS) * self.loads()
            + cached * self.loads() * self.ways_count()
    }

    /// The same for two builds.
    pub(super) fn plan_both(&self, rounds: u64) {
        let warm: u64 = self.phases()[..2].iter().map(|phase| phase.span_ms + AROUND_MS).sum();
        let each = 2 * warm + 2 * rounds * (self.span_ms() + AROUND_MS);
        self.session.plan(each * self.loads() * self.ways_count());
    }

    fn loads(&self) -> u64 {
        (self.options.profiles.len() * self.options.working_set.len()) as u64
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
    async fn bare(&self, set_bytes: u64, rows: &mut Vec<Row>) -> Result<()> {
        let path = self.session.dir().join("bare");
        let progress = Progress::bytes("writing a file for the bare SSD", set_bytes);
        let prepare = prepare_file(self.session.reactor(), &path, set_bytes, |done| {
            progress.bytes_done(done)
        });
        self.session.unless_ended(prepare).await??;
        progress.finish();
        for profile in &self.options.profiles {
            let target = Target::File(path.to_str().unwrap_or_default());
            self.beside(profile, "bare SSD", target, set_bytes, rows).await?;
        }
        remove(&path)
    }

    /// The origin, served by the same program without a cache.
    async fn alone(&self, set_bytes: u64, rows: &mut Vec<Row>) -> Result<()> {
        let way = Way { mode: ModeName::Writethrough, export: ExportName::Unix };
        let setup = Setup { mode: BYPASS, ram_bytes: 0, ..self.setup(way, set_bytes) };
        let served = Served::start(self.session, &setup).await?;
        for profile in &self.options.profiles {
            let target = Target::Nbd(&served.uri);
            self.beside(profile, "origin alone", target, set_bytes, rows).await?;
        }
        Ok(())
    }

    /// What has nothing to become warm.
    async fn beside(
        &self,
        profile: &'static Profile,
        name: &str,
        target: Target<'_>,
        size_bytes: u64,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let what = format!("{} on {name}", profile.name);
        let stretch = Stretch { size_bytes, span_ms: self.span_ms(), seed: STEADY_SEED };
        let load = Load { what: &what, profile, target, stretch };
        let ran = self.session.run(&load, None, |_, _| false).await?;
        rows.push(self.row(profile, size_bytes, name.to_owned(), "steady", ran));
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
        for phase in self.phases() {
            let what = format!("{} on {name}, {}", profile.name, phase.name);
            let ran = self.phase(profile, way, set_bytes, phase, &what, &mut served).await?;
            rows.push(self.row(profile, set_bytes, name.clone(), phase.name, ran));
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
        let stretch = Stretch { size_bytes: set_bytes, span_ms: phase.span_ms, seed: phase.seed };
        let load = Load { what, profile, target: Target::Nbd(&uri), stretch };
        let is_enough = |counters: &Counters, hits: &[(u64, f64)]| {
            phase.ends_warm && is_warm(counters, hits, lap_bytes)
        };
        self.session.run(&load, Some(served), is_enough).await
    }

    pub(super) fn name(&self, way: Way) -> String {
        let mode = way.mode.text();
        match way.export {
            ExportName::Unix if self.options.export.len() == 1 => mode.to_owned(),
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
        Row { profile, set_bytes, factor, target, phase, ran }
    }
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
