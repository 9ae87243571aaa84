//! `forebay lab scale`: how costs grow with the size of a cache.

use std::time::Duration;

use clap::{Args, ValueEnum};
use forebay_lab::scale::{self, Extent, Judged, Outcome, Series};
use serde_json::{Value, json};

use super::clock;
use crate::Result;
use crate::admin::table;
use crate::failure::Failure;
use crate::memory;
use crate::progress::Progress;
use crate::text::{bytes, left, say, thousands};

#[derive(Args)]
pub(crate) struct Options {
    /// What grows; without any, all of it
    #[arg(value_name = "SERIES")]
    series: Vec<SeriesName>,
    /// Play sizes that take hours and many gigabytes of memory
    #[arg(long)]
    full: bool,
    /// Play sizes that say little and take seconds
    #[arg(long, conflicts_with = "full")]
    tiny: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// A series by its name, for clap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeriesName(Series);

impl ValueEnum for SeriesName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [SeriesName; Series::ALL.len()] = {
            let mut all = [SeriesName(Series::Bytes); Series::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = SeriesName(Series::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// Time for which the thread that asks had a processor: others on this machine are not in it.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

impl Options {
    pub(super) fn run(&self) -> Result<()> {
        let wanted =
            |&series: &Series| self.series.is_empty() || self.series.contains(&SeriesName(series));
        let series: Vec<_> = Series::ALL.into_iter().filter(wanted).collect();
        let extent = match (self.full, self.tiny) {
            (true, _) => Extent::Full,
            (_, true) => Extent::Tiny,
            _ => Extent::Usual,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        check_memory(scale::memory(&series, extent, cores), memory::available())?;
        let (progress, elapsed) = (Progress::watch("playing"), clock());
        let outcomes = scale::play(&series, extent, cores, &processor_time, &mut |step| {
            let took = elapsed();
            let rest = took.as_secs_f64() * (1.0 - step.share) / step.share.max(1e-9);
            let rest = match step.share < 1.0 {
                true => format!("; about {} left", left(rest.ceil() as u64)),
                false => String::new(),
            };
            let message = format!("{} {}{rest}", step_text(step.point), step.what);
            progress.tell(took.as_nanos() as u64, &message);
        });
        progress.finish();
        let outcomes = outcomes.map_err(|error| {
            Failure::new(format!("the engine failed: {error}"))
                .hint("this is a fault of Forebay's, as it comes the same every time")
        })?;
        if self.json {
            let series: Vec<_> = outcomes.iter().map(|outcomes| in_json(outcomes)).collect();
            say(json!({ "schema": 1, "cores": cores, "series": series }));
        } else {
            outcomes.iter().for_each(|outcomes| print(outcomes));
        }
        Ok(())
    }
}

/// Whether there is memory for a run, if anybody can tell.
fn check_memory(need: u64, available: Option<u64>) -> Result<()> {
    match available {
        Some(available) if available < need => Err(Failure::new(format!(
            "this takes {} of memory, and {} is available",
            bytes(need),
            bytes(available)
        ))
        .hint("leave out --full, or name one series of those that --help lists")),
        _ => Ok(()),
    }
}

fn step_text(point: &scale::Point) -> String {
    let name = point.series.name();
    match point.series {
        Series::Bytes | Series::Segments | Series::Scattered => {
            format!("{name} of {}", bytes(point.size_bytes))
        }
        Series::Volumes => format!("{} {name}", point.volumes),
        Series::Reactors => format!("{} {name}", point.reactors),
    }
}

type Column = (&'static str, scale::Figure, fn(f64) -> String);

fn count(value: f64) -> String {
    thousands(value as u64)
}

fn size(value: f64) -> String {
    bytes(value as u64)
}

fn millis(nanos: f64) -> String {
    format!("{:.1} ms", nanos / 1e6)
}

fn micros(nanos: f64) -> String {
    format!("{:.2} us", nanos / 1e3)
}

/// The same on every machine.
const COUNTED: [Column; 11] = [
    ("SEGMENTS", |it| Some(it.counted.segments as f64), count),
    ("SHARDS", |it| Some(it.counted.shards as f64), count),
    ("CACHED", |it| Some(it.counted.blocks as f64 * 4096.0), size),
    ("INDEX", |it| Some(it.counted.index_bytes as f64), size),
    ("INDEX PER GIB", |it| Some(scale::index_per_gib(it)), size),
    ("CHECKPOINT", |it| Some(it.counted.stop_bytes as f64), size),
    ("ITS TIME", |it| Some(it.counted.stop_ns as f64), millis),
    ("CLEAN START", |it| Some(it.counted.clean_ns as f64), millis),
    ("READ", |it| Some(it.counted.clean_bytes as f64), size),
    ("AFTER A CRASH", |it| Some(it.counted.crash_ns as f64), millis),
    ("READ", |it| Some(it.counted.crash_bytes as f64), size),
];

/// This machine's.
const TIMED: [Column; 9] = [
    ("HIT", |it| Some(it.timed.hit), micros),
    ("WRITE", |it| Some(it.timed.write), micros),
    ("WRITE, FULL LOG", |it| it.timed.full, micros),
    ("DESTAGED BLOCK", |it| Some(it.timed.destage), micros),
    ("POPULATED MISS", |it| Some(it.timed.miss), micros),
    ("IDLE SECOND", |it| Some(it.timed.idle), millis),
    ("CHECKPOINT", |it| Some(it.timed.stop), millis),
    ("CLEAN START", |it| Some(it.timed.clean), millis),
    ("AFTER A CRASH", |it| Some(it.timed.crash), millis),
];

/// A line for each size, and one that says how each column grows from the first to the last.
fn lines(outcomes: &[Outcome], columns: &[Column]) -> Vec<Vec<String>> {
    let line = |outcome: &Outcome| {
        let cell = |(_, of, text): &Column| of(outcome).map_or_else(|| "-".to_owned(), text);
        let cells = columns.iter().map(cell);
        std::iter::once(step_text(&outcome.point)).chain(cells).collect()
    };
    let mut lines: Vec<Vec<String>> = outcomes.iter().map(line).collect();
    let factor = |(_, of, _): &Column| {
        scale::growth(outcomes, of).map_or_else(|| "-".to_owned(), |by| format!("x {by:.2}"))
    };
    let grown = std::iter::once("grows by".to_owned()).chain(columns.iter().map(factor));
    lines.push(grown.collect());
    lines
}

fn head(first: &'static str, columns: &[Column]) -> Vec<&'static str> {
    std::iter::once(first).chain(columns.iter().map(|(name, ..)| *name)).collect()
}

fn verdict(judged: &Judged) -> &'static str {
    if judged.is_met() { "met" } else { "missed" }
}

fn print(outcomes: &[Outcome]) {
    let Some(series) = outcomes.first().map(|outcome| outcome.point.series) else { return };
    say(format_args!("{}: {}\n", series.name(), series.what()));
    say(table(&head("THE SAME EVERYWHERE", &COUNTED), &lines(outcomes, &COUNTED)));
    say("");
    say(table(&head("PROCESSOR TIME HERE", &TIMED), &lines(outcomes, &TIMED)));
    say("");
    let judged = scale::judge(outcomes).into_iter().map(|judged| {
        let (figure, bar) = (format!("{:.2}", judged.figure), format!("< {}", judged.bar));
        vec![judged.what.to_owned(), figure, bar, verdict(&judged).to_owned()]
    });
    say(table(&["BAR", "FIGURE", "ALLOWED", "VERDICT"], &judged.collect::<Vec<_>>()));
    say("");
}

fn in_json(outcomes: &[Outcome]) -> Value {
    let series = outcomes.first().map(|outcome| outcome.point.series);
    let points: Vec<_> = outcomes.iter().map(point_in_json).collect();
    let bars: Vec<_> = scale::judge(outcomes)
        .iter()
        .map(|it| {
            json!({
                "what": it.what, "figure": it.figure, "below": it.bar, "verdict": verdict(it),
            })
        })
        .collect();
    json!({
        "series": series.map(Series::name), "what": series.map(Series::what),
        "points": points, "bars": bars,
    })
}

fn point_in_json(Outcome { point, counted, timed }: &Outcome) -> Value {
    json!({
        "size_bytes": point.size_bytes, "device_bytes": point.pool_bytes,
        "volumes": point.volumes, "reactors": point.reactors,
        "counted": {
            "segments": counted.segments, "shards": counted.shards, "blocks": counted.blocks,
            "index_bytes": counted.index_bytes,
            "checkpoint_bytes": counted.stop_bytes, "checkpoint_ns": counted.stop_ns,
            "clean_start_ns": counted.clean_ns, "clean_start_read_bytes": counted.clean_bytes,
            "crash_start_ns": counted.crash_ns, "crash_start_read_bytes": counted.crash_bytes,
            "crash_records": counted.crash_records, "crash_lost_blocks": counted.crash_lost,
        },
        "processor_ns": {
            "hit": timed.hit, "write": timed.write, "write_full_log": timed.full,
            "destaged_block": timed.destage, "populated_miss": timed.miss,
            "idle_second": timed.idle, "checkpoint": timed.stop,
            "clean_start": timed.clean, "crash_start": timed.crash,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lacks_the_memory_hears_how_much_is_needed() {
        let error = check_memory(48 << 30, Some(8 << 30)).err().unwrap();
        let text = error.what();
        assert!(text.contains("48 GiB") && text.contains(" 8 GiB"), "{text}");
        assert!(
            check_memory(1 << 30, Some(8 << 30)).is_ok() && check_memory(1 << 30, None).is_ok()
        );
    }
}
