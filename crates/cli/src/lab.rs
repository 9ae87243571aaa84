//! `forebay lab`: recorded traces run against the policy that decides in the daemon; papers replayed; how costs
//! grow with the size of a cache.

mod papers;
mod scale;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use forebay_engine::policy::Thresholds;
use forebay_lab::baseline::Baseline;
use forebay_lab::run::{Report, Sequential, Settings};
use forebay_lab::trace::{Format, Options as Reading, Reader};
use forebay_lab::workload::{BLOCK_BYTES, Workload};
use serde_json::json;

use crate::Result;
use crate::failure::Failure;
use crate::text::{bytes, parse_bytes, parse_cache_block, say, tell, thousands, whole};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run traces through the daemon's policy and others, and print what each misses
    Trace(Options),
    /// Replay published measurements in virtual time, on models of their disks and SSDs
    ///
    /// The engine that ships runs in virtual time on modelled disks and SSDs of the papers' models, and is
    /// charged the processor's time that it was measured to take. Prints the paper's figures beside ours:
    /// requests per second without and with a cache, the factor between them, and the time to become warm.
    /// The same figures every time, on every machine.
    Papers(papers::Options),
    /// Measure how costs grow with the size of a cache
    ///
    /// The engine that ships runs on modelled devices, without data, at growing sizes: processor time of a hit,
    /// a write, a destaged block and a miss, memory of the index, bytes and time of a checkpoint and of starts
    /// after it and after a crash. What makes a cache large grows apart: bytes, segments, single blocks,
    /// volumes, reactors. Where a size is played smaller than it says, the table says how. Without data,
    /// but with an index of its size: the usual run takes minutes and 2 GiB of memory.
    Scale(scale::Options),
}

#[derive(Args)]
pub(crate) struct Options {
    /// Traces, read one after the other as one workload (the files of one blktrace recording merged by time); - is
    /// standard input. Plain, gzip or zstd
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Format of the traces; without it their beginning tells
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatName>,
    /// Count lines that cannot be understood, and go on
    #[arg(long)]
    skip_bad: bool,
    /// Read so many requests at the most
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    requests: Option<usize>,
    /// Size of the cache, in bytes or as a share of the footprint (10%); repeat it for more
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_values = ["1%", "10%", "40%"])]
    size: Vec<Size>,
    /// Size of a tier in RAM before the cache, in bytes or as a share of the footprint; without it there is none
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ram: Option<Size>,
    /// Blocks of 4 KiB in a unit of reclaim; without it as in the daemon, 1/512 of the cache. With 1, blocks are
    /// decided one by one and moving them costs nothing, as in the policies that can be shown beside it
    #[arg(long, value_name = "BLOCKS", value_parser = whole::<u32>(1..=65_536))]
    unit_blocks: Option<u32>,
    /// Bytes written to the SSD per byte admitted, at the most, in percent; without it 150, and no limit with
    /// units of one block
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u32>(100..=100_000))]
    write_amplification_max: Option<u32>,
    /// Bytes that may be written to the SSD per byte that clients ask for, in percent; without it as many as come
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u32>(1..=100_000))]
    write_budget: Option<u32>,
    /// Bring a missed read in with the Nth read of its cache block (`populate_on_read` of a volume) [default: the
    /// first; the second while hardly any of what that brings in is read again, as with profile auto, but not with units
    /// of one block]
    #[arg(long, value_name = "N", value_parser = whole::<u8>(1..=4))]
    populate_on_read: Option<u8>,
    /// The same of writes; with 0 they bring in nothing (`populate_on_write`)
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = whole::<u8>(0..=4))]
    populate_on_write: u8,
    /// What such accesses are counted for together, a power of two from 4K to 4M. What is brought in is
    /// what was missed, not all of it
    #[arg(long, value_name = "SIZE", value_parser = parse_cache_block, default_value = "64K")]
    cache_block: u32,
    /// What follows so much of a stream of reads is not brought in (`sequential-cutoff` of a volume); or off [default: 1M,
    /// as long as streams are not read again; off with units of one block]
    #[arg(long, value_name = "SIZE", value_parser = parse_cutoff)]
    sequential_cutoff: Option<Sequential>,
    /// Another policy to show beside it; repeat it for more
    #[arg(long = "beside", value_name = "POLICY")]
    beside: Vec<BaselineName>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn parse_cutoff(text: &str) -> std::result::Result<Sequential, String> {
    match text {
        "off" => Ok(Sequential::Cached),
        _ => parse_bytes(text).map(Sequential::Passes),
    }
}

/// Size of a cache.
#[derive(Clone, Copy, Debug)]
enum Size {
    Bytes(u64),
    /// Of the footprint.
    Percent(f64),
}

fn parse_size(text: &str) -> std::result::Result<Size, String> {
    let Some(percent) = text.strip_suffix('%') else { return parse_bytes(text).map(Size::Bytes) };
    match percent.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Size::Percent(percent)),
        _ => Err("a share of the footprint is above 0% and at most 100%".to_owned()),
    }
}

impl Size {
    /// Blocks of it; one at the least, for what was asked for is not left away.
    fn blocks(self, footprint: usize) -> usize {
        match self {
            Self::Bytes(0) => 0,
            Self::Bytes(bytes) => usize::try_from(bytes / BLOCK_BYTES).unwrap_or(usize::MAX).max(1),
            Self::Percent(percent) => {
                ((footprint as f64 * percent / 100.0).round() as usize).max(1)
            }
        }
    }
}

/// A format by its name, for clap.
#[derive(Clone, Copy, Debug)]
struct FormatName(Format);

impl ValueEnum for FormatName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [FormatName; Format::ALL.len()] = {
            let mut all = [FormatName(Format::Forebay); Format::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = FormatName(Format::ALL[at]);
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

/// A policy by its name, for clap.
#[derive(Clone, Copy, Debug)]
struct BaselineName(Baseline);

impl ValueEnum for BaselineName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [BaselineName; Baseline::ALL.len()] = {
            let mut all = [BaselineName(Baseline::Fifo); Baseline::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = BaselineName(Baseline::ALL[at]);
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

impl From<forebay_lab::Error> for Failure {
    fn from(error: forebay_lab::Error) -> Self {
        Failure::new(error.what).hint(error.hint)
    }
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Trace(options) => options.run(),
        Command::Papers(options) => options.run(),
        Command::Scale(options) => options.run(),
    }
}

#[allow(clippy::disallowed_methods, reason = "what is measured is this machine, without a reactor")]
fn clock() -> impl Fn() -> std::time::Duration {
    let start = std::time::Instant::now();
    move || start.elapsed()
}

impl Options {
    fn run(&self) -> Result<()> {
        let Loaded { workload, bad, unread } = self.load()?;
        let (mut runs, mut too_small) = (Vec::new(), None);
        for size in &self.size {
            let blocks = size.blocks(workload.footprint());
            let settings = match self.unit_blocks {
                Some(unit_blocks) => Settings::of_units(blocks, unit_blocks as usize),
                None => Settings::daemon(blocks),
            };
            let settings = Settings {
                write_amplification_max_percent: self
                    .write_amplification_max
                    .or(settings.write_amplification_max_percent),
                write_budget_percent: self.write_budget,
                thresholds: Thresholds {
                    read: self.populate_on_read.unwrap_or(1),
                    write: self.populate_on_write,
                },
                sequential: self.sequential_cutoff.unwrap_or(settings.sequential),
                auto: settings.auto && self.populate_on_read.is_none(),
                cache_block_blocks: u64::from(self.cache_block) / BLOCK_BYTES,
                ram_blocks: self.ram.map_or(0, |ram| ram.blocks(workload.footprint())),
                ..settings
            };
            if let Err(error) = settings.check_size() {
                tell(format_args!("note: {}: left out", error.what));
                too_small.get_or_insert(error);
                continue;
            }
            let report = forebay_lab::run::run(&workload, settings, &clock())?;
            // What ours has in RAM, they have as well.
            let all_blocks = blocks.saturating_add(settings.ram_blocks);
            let beside = self.beside.iter().map(|&BaselineName(baseline)| {
                (baseline.name(), miss_ratio(baseline, &workload, all_blocks))
            });
            runs.push((blocks, settings, report, beside.collect::<Vec<_>>()));
        }
        if let (true, Some(error)) = (runs.is_empty(), too_small) {
            return Err(error.into());
        }
        if self.json {
            let runs: Vec<_> = runs.iter().map(in_json).collect();
            say(json!({
                "schema": 1, "accesses": workload.accesses.len(),
                "footprint_blocks": workload.footprint(), "requests": workload.requests.len(),
                "bad": bad, "unread": unread, "runs": runs,
            }));
            return Ok(());
        }
        say(format_args!(
            "{} requests, {} accesses of 4 KiB, footprint {}",
            thousands(workload.requests.len() as u64),
            thousands(workload.accesses.len() as u64),
            bytes(workload.footprint() as u64 * BLOCK_BYTES),
        ));
        runs.iter().for_each(print);
        Ok(())
    }

    fn load(&self) -> Result<Loaded> {
        let paths: Vec<&Path> = self.traces.iter().map(PathBuf::as_path).collect();
        let format = self.format.map(|FormatName(format)| format);
        let mut reader = Reader::open(&paths, Reading { format, skip_bad: self.skip_bad });
        let workload = Workload::load(reader.by_ref().take(self.requests.unwrap_or(usize::MAX)))?;
        if reader.bad() > 0 {
            tell(match reader.bad() {
                1 => "note: 1 bad line or record was passed over".to_owned(),
                bad => format!("note: {} bad lines or records were passed over", thousands(bad)),
            });
        }
        for name in reader.unread() {
            tell(format_args!(
                "note: the rest of {name} was not read: nothing tells where its next record begins"
            ));
        }
        if workload.accesses.is_empty() {
            return Err(Failure::new("the traces have no reads or writes")
                .hint("look whether --format is right"));
        }
        Ok(Loaded { workload, bad: reader.bad(), unread: reader.unread().to_vec() })
    }
}

/// What was read of the traces.
struct Loaded {
    workload: Workload,
    /// Lines or records that were passed over.
    bad: u64,
    /// Files whose rest was not read.
    unread: Vec<String>,
}

fn miss_ratio(baseline: Baseline, workload: &Workload, blocks: usize) -> f64 {
    // What holds everything holds no more by being larger.
    let mut cache = baseline.cache(workload, blocks.clamp(1, workload.footprint() + 1));
    let missed = workload.accesses.iter().filter(|&&block| !cache.access(block)).count();
    missed as f64 / workload.accesses.len() as f64
}

type Run = (usize, Settings, Report, Vec<(&'static str, f64)>);

fn in_json((blocks, settings, report, beside): &Run) -> serde_json::Value {
    json!({
        "cache_blocks": blocks, "unit_blocks": settings.unit_blocks,
        "granule_blocks": settings.granule_blocks,
        "write_amplification_max_percent": settings.write_amplification_max_percent,
        "ram_blocks": settings.ram_blocks, "ram_hits": report.ram_hits,
        "miss_ratio": {
            "access": report.accesses().ratio(), "read": report.reads.ratio(),
            "write": report.writes.ratio(), "request": report.requests.ratio(),
            "byte": report.bytes.ratio(),
        },
        "blocks": {
            "read": report.reads.all, "read_missed": report.reads.missed,
            "written": report.writes.all, "written_missed": report.writes.missed,
        },
        "populated_blocks": report.populated_blocks, "passed_blocks": report.passed_blocks,
        "moved_blocks": report.moved_blocks,
        "ssd_bytes_per_client_byte": report.ssd_bytes_per_client_byte(),
        "policy_bytes": report.policy_bytes, "ns_per_access": report.ns_per_access(),
        "beside_blocks": blocks.saturating_add(settings.ram_blocks),
        "beside": beside.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
    })
}

fn print((blocks, settings, report, beside): &Run) {
    let in_bytes = |blocks: usize| bytes((blocks as u64).saturating_mul(BLOCK_BYTES));
    let ram = match settings.ram_blocks {
        0 => String::new(),
        ram_blocks => format!(", behind {} of RAM", in_bytes(ram_blocks)),
    };
    let (unit, granule) =
        (in_bytes(settings.unit_blocks), in_bytes(settings.granule_blocks as usize));
    say(format_args!("\ncache of {}, units of {unit}{ram}", in_bytes(*blocks)));
    let amplification = match settings.write_amplification_max_percent {
        Some(percent) => format!("at most {percent} %"),
        None => "without a limit".to_owned(),
    };
    say(format_args!("  granules of {granule}, write amplification {amplification}"));
    say(format_args!("  miss ratio       {:.4}", report.accesses().ratio()));
    say(format_args!("    of reads       {:.4}", report.reads.ratio()));
    say(format_args!("    of writes      {:.4}", report.writes.ratio()));
    say(format_args!("    of requests    {:.4}", report.requests.ratio()));
    say(format_args!("    of bytes       {:.4}", report.bytes.ratio()));
    if settings.ram_blocks > 0 {
        let of_all = report.ram_hits as f64 / report.accesses().all.max(1) as f64;
        say(format_args!("  hits in RAM      {of_all:.4}"));
    }
    if settings.ram_blocks > 0 && !beside.is_empty() {
        let all_blocks = blocks.saturating_add(settings.ram_blocks);
        say(format_args!("  beside it, with {} in all:", in_bytes(all_blocks)));
    }
    for (name, ratio) in beside {
        say(format_args!("  {name:<16} {ratio:.4}"));
    }
    say(format_args!("  populated        {}", bytes(report.populated_blocks * BLOCK_BYTES)));
    say(format_args!("  moved            {}", bytes(report.moved_blocks * BLOCK_BYTES)));
    say(format_args!("  SSD per client   {:.2} bytes", report.ssd_bytes_per_client_byte()));
    say(format_args!("  policy's memory  {}", bytes(report.policy_bytes as u64)));
    say(format_args!("  time an access   {:.0} ns", report.ns_per_access()));
}
