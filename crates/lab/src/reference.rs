//! The traces of the manifest and the miss ratios that libCacheSim found on them.

use std::path::{Path, PathBuf};

use crate::baseline::Baseline;
use crate::trace::{Options, Reader};
use crate::workload::Workload;
use crate::{Error, Result};

/// Variable that names the folder of the traces.
pub const TRACES_VARIABLE: &str = "FOREBAY_TRACES";
/// The file of miss ratios beside the traces.
const FILE: &str = "reference-miss-ratios.csv";

/// One of libCacheSim's results, with reads and writes both counted.
#[derive(Clone, Debug)]
pub struct Known {
    /// Name of the trace.
    pub trace: String,
    /// Share of the footprint, in percent.
    pub percent: f64,
    /// Blocks of the cache.
    pub capacity: usize,
    /// The policy.
    pub baseline: Baseline,
    /// Misses over accesses.
    pub miss_ratio: f64,
}

/// The folder of the traces: what the variable names, or `shared/traces` beside the checkout.
///
/// # Errors
/// If it is not there.
pub fn folder(checkout: &Path) -> Result<PathBuf> {
    let named = std::env::var_os(TRACES_VARIABLE).map(PathBuf::from);
    let beside = checkout.join("../shared/traces");
    let folder = named.unwrap_or(beside);
    if folder.join(FILE).is_file() {
        return Ok(folder);
    }
    Err(Error::new(
        format!("the traces are not there: {} does not exist", folder.join(FILE).display()),
        format!("set {TRACES_VARIABLE} to the folder of the traces; they are not ours to hand on"),
    ))
}

fn path_of(folder: &Path, trace: &str) -> PathBuf {
    folder.join(format!("{trace}.csv.zst"))
}

/// Whether all of these traces are there.
///
/// # Errors
/// If one is not.
pub fn check_there<'a>(folder: &Path, mut traces: impl Iterator<Item = &'a str>) -> Result<()> {
    let missing = traces.find_map(|trace| {
        let path = path_of(folder, trace);
        (!path.is_file()).then_some(path)
    });
    match missing {
        None => Ok(()),
        Some(path) => Err(Error::new(
            format!("a trace is not there: {} does not exist", path.display()),
            format!(
                "{TRACES_VARIABLE} names the folder of the traces; they are not ours to hand on"
            ),
        )),
    }
}

/// The trace of this name.
///
/// # Errors
/// The reader's.
pub fn load(folder: &Path, trace: &str) -> Result<Workload> {
    let path = path_of(folder, trace);
    Workload::load(Reader::open(&[&path], Options::default()))
}

/// Names in the reference of those policies that we have.
fn baseline_named(name: &str) -> Option<Baseline> {
    Some(match name {
        "FIFO" => Baseline::Fifo,
        "CLOCK" => Baseline::Clock,
        "LRU" => Baseline::Lru,
        "ARC" => Baseline::Arc,
        "LIRS" => Baseline::Lirs,
        "TwoQ" => Baseline::TwoQ,
        "SLRU" => Baseline::Slru,
        "S3FIFO" => Baseline::S3Fifo,
        "SIEVE" => Baseline::Sieve,
        "WTinyLFU" => Baseline::WTinyLfu,
        "Belady" => Baseline::Belady,
        _ => return None,
    })
}

/// All that is known of the policies that we have, reads and writes both counted.
///
/// # Errors
/// If the file cannot be read or understood.
pub fn known(folder: &Path) -> Result<Vec<Known>> {
    let path = folder.join(FILE);
    let name = path.display().to_string();
    let text = std::fs::read_to_string(&path).map_err(|error| Error::io(&name, &error))?;
    let mut known = Vec::new();
    for (line, number) in text.lines().zip(1..).skip(1) {
        let bad = || {
            Error::new(
                format!("{name}, line {number} is not understood"),
                "it should be trace,variant,accesses,footprint,fraction,blocks,algorithm,miss ratio",
            )
        };
        let fields: Vec<_> = line.split(',').collect();
        let &[trace, variant, _, _, fraction, capacity, algorithm, miss_ratio] = &fields[..] else {
            return Err(bad());
        };
        let Some(baseline) = baseline_named(algorithm).filter(|_| variant == "rw") else {
            continue;
        };
        known.push(Known {
            trace: trace.to_owned(),
            percent: fraction.parse::<f64>().map_err(|_| bad())? * 100.0,
            capacity: capacity.parse().map_err(|_| bad())?,
            baseline,
            miss_ratio: miss_ratio.parse().map_err(|_| bad())?,
        });
    }
    Ok(known)
}
