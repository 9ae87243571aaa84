//! What runs in the guest, as its first process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use super::cases::{self, Case};
use super::engines::{ALL, BARE, Engine, NAMES};
use super::hot_bytes;
use super::protocol::Line;
use crate::bench::{Bench, Result};
use crate::fio::{Fio, Job, ZIPF};

/// Where the guest can write: in its memory.
const DIR: &str = "/dev/shm";

/// What a slice has beside the cache, for dm-cache's metadata.
const META_BYTES: u64 = 16 << 20;

const SECTOR_BYTES: u64 = 512;

/// Accesses that the slow disk makes at a time, and how long each takes. The timer makes it 10 to 20 ms where a tick
/// is 10 ms.
const SPINDLES: u32 = 4;
const ACCESS_MS: u32 = 8;

/// How much longer than a round the rows without rounds are: twice that for the first, of which half is warm-up, and
/// overwriting, which has to come to a full log.
const LONG_SPANS: u64 = 4;
const OVERWRITE_SPANS: u64 = 12;

/// What is asked of the guest, on its kernel's command line.
#[derive(Args, Clone, Debug)]
pub struct GuestOptions {
    /// Our program.
    #[arg(long)]
    server: PathBuf,
    #[arg(long)]
    rounds: usize,
    #[arg(long)]
    span_ms: u64,
    #[arg(long)]
    cache_bytes: u64,
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// What the kernel adds of its own.
    #[arg(hide = true)]
    more: Vec<String>,
}

impl GuestOptions {
    pub(super) fn new(server: &Path, bench: &Bench, cache_bytes: u64) -> Result<Self> {
        let named = server.canonicalize();
        Ok(Self {
            server: named.map_err(|e| format!("{}: {e}; build it first", server.display()))?,
            rounds: bench.options.rounds,
            span_ms: bench.span_ms(),
            cache_bytes,
            rows: bench.options.rows.clone(),
            more: Vec::new(),
        })
    }

    /// As arguments.
    pub(super) fn to_args(&self) -> Vec<String> {
        let mut args = vec!["kernel-guest".to_owned()];
        let numbers = [("rounds", self.rounds as u64), ("span-ms", self.span_ms)];
        for (flag, value) in [&numbers[..], &[("cache-bytes", self.cache_bytes)]].concat() {
            args.push(format!("--{flag}={value}"));
        }
        args.push(format!("--server={}", self.server.display()));
        if !self.rows.is_empty() {
            args.push(format!("--rows={}", self.rows.join(",")));
        }
        args
    }

    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| wanted == row)
    }

    /// Bytes of a slow disk.
    pub(super) fn origin_bytes(&self) -> u64 {
        2 * self.cache_bytes
    }

    /// Bytes of the SSD, and of one slice of it.
    pub(super) fn ssd_bytes(&self) -> u64 {
        NAMES.len() as u64 * self.slice_bytes()
    }

    fn slice_bytes(&self) -> u64 {
        self.cache_bytes + META_BYTES
    }

    /// MiB of memory that the guest needs: the slow disks', and a GiB for the rest.
    pub(super) fn memory_mib(&self) -> u64 {
        ((BARE as u64 * self.origin_bytes()) >> 20) + 1024
    }
}

/// Seconds that a step of setting up may take; warming dm-cache is the longest.
const STEP_MAX: &str = "180";

/// Runs lines of shell; the last thing that it said is the error.
fn shell(text: &str, variables: &[(&str, String)]) -> Result<String> {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", STEP_MAX, "sh", "-ec", text]).current_dir(DIR).stdin(Stdio::null());
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DM_DISABLE_UDEV", "1");
    // What stays in the background must not hold the pipes.
    let (out, errors) = (Path::new(DIR).join("out"), Path::new(DIR).join("errors"));
    let create = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    command.stdout(create(&out)?).stderr(create(&errors)?);
    let status = command.envs(variables.iter().map(|(k, v)| (k, v))).status();
    let status = status.map_err(|e| format!("sh: {e}"))?;
    if status.success() {
        return Ok(fs::read_to_string(&out).unwrap_or_default());
    }
    let said = fs::read_to_string(&errors).unwrap_or_default();
    Err(format!("{status}: {}", said.lines().rev().take(3).collect::<Vec<_>>().join(" / ")))
}

type Values = BTreeMap<String, f64>;

fn values<const N: usize>(values: [(&str, f64); N]) -> Values {
    values.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Nanoseconds of a system call, a read of one byte: the least of some spans, since others want the processor too.
pub(super) fn system_call_ns() -> Result<f64> {
    const SPANS: usize = 5;
    let spans = (0..SPANS).map(|_| system_call_once_ns()).collect::<Result<Vec<_>>>()?;
    Ok(spans.into_iter().fold(f64::INFINITY, f64::min))
}

fn system_call_once_ns() -> Result<f64> {
    // The clock that is at hand tells hundredths of a second.
    const CALLS: u32 = 1_000;
    const SPAN_S: f64 = 0.2;
    let failed = |e| format!("/dev/zero: {e}");
    let mut zero = File::open("/dev/zero").map_err(failed)?;
    let (mut byte, mut calls) = ([0], 0);
    let before = seconds()?;
    loop {
        for _ in 0..CALLS {
            zero.read_exact(&mut byte).map_err(failed)?;
        }
        calls += CALLS;
        let passed = seconds()? - before;
        if passed >= SPAN_S {
            return Ok(passed * 1e9 / f64::from(calls));
        }
    }
}

/// Since the system started; whole hundredths.
fn seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| "/proc/uptime tells no time".to_owned())
}

/// A number among those of a line, counted from 0.
fn field(text: &str, index: usize) -> Option<f64> {
    text.split_whitespace().nth(index)?.parse().ok()
}

/// Seconds that the guest's processors were busy, with whatever.
fn busy_seconds(stat: &str) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq
    let ticks = [0, 1, 2, 5, 6].map(|index| field(line, index));
    Some(ticks.into_iter().sum::<Option<f64>>()? / TICKS_PER_SECOND)
}

fn busy() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_seconds(&stat).ok_or_else(|| "/proc/stat tells no time".to_owned())
}

/// MiB that could still be had.
fn free_mib() -> Result<f64> {
    // What is kept of files and directories is not a cache's doing.
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("drop_caches: {e}"))?;
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| field(line, 0));
    kib.map(|kib| kib / 1024.0).ok_or_else(|| "/proc/meminfo tells no memory".to_owned())
}

/// What a block device has done: requests read, sectors written.
fn done(device: &str) -> Result<(f64, f64)> {
    let path = format!("/sys/block/{device}/stat");
    let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let both = field(&text, 0).zip(field(&text, 6));
    both.ok_or_else(|| format!("{path} has no counts"))
}

/// What one side has of its own.
struct Place {
    variables: Vec<(&'static str, String)>,
    /// Names in sysfs.
    ssd: String,
    origin: Option<String>,
    slow: Option<String>,
}

struct Guest {
    options: GuestOptions,
    places: Vec<Place>,
    /// Whoever could not start has no further part.
    running: Vec<usize>,
}

/// The last of the kernel's messages, which are behind an error of its caches.
fn kernel_said() -> String {
    let said = shell("dmesg | tail -n 2", &[]).unwrap_or_default();
    said.trim().replace('\n', " / ")
}

fn module(name: &str) {
    // What is missing is noticed by whoever needs it; it may be built in.
    let _ = shell(&format!("modprobe -d {DIR} {name}"), &[]);
}

const MOUNTS: &str = "
mount -t sysfs s /sys
mount -t tmpfs t /run
mkdir -p lib
ln -s /usr/lib/uml/modules lib/modules";

const DISK: &str = "
modprobe -d . virtio_blk || true
modprobe -d . dm-mod || true
modprobe -d . dm-delay || true
modprobe -d . brd || true
modprobe -d . loop || true
# What serves it says at first that it has no cache, and FLUSH would not reach it.
echo 'write back' >/sys/block/vda/cache_type
cat /sys/block/vda/queue/write_cache";

const SLICE: &str = r#"
dmsetup create ssd$SIDE --table "0 $((META + DATA)) linear /dev/vda $(((META + DATA) * SIDE))"
dmsetup info -c --noheadings -o minor ssd$SIDE"#;

/// A disk without a queue of its own and a loop device that hands it so many requests at a time. It has a write cache
/// because the loop device below it says so; nothing else that keeps its bytes in memory does. Its memory is
/// taken now, so that it does not count as the cache's.
const ORIGIN: &str = r#"
dd if=/dev/zero of=/dev/ram$SIDE bs=1M count=$((SECTORS / 2048))
losetup --direct-io=on $BELOW /dev/ram$SIDE
dmsetup create slow$SIDE --table "0 $SECTORS delay $BELOW 0 $ACCESS_MS"
losetup --direct-io=on $ORIGIN /dev/mapper/slow$SIDE
echo none >/sys/block/loop$SIDE/queue/scheduler
echo $SPINDLES >/sys/block/loop$SIDE/queue/nr_requests
dmsetup info -c --noheadings -o minor slow$SIDE"#;

impl Place {
    fn make(side: usize, options: &GuestOptions) -> Result<Self> {
        let sectors = |bytes: u64| (bytes / SECTOR_BYTES).to_string();
        let variables = vec![
            ("SIDE", side.to_string()),
            ("SSD", format!("/dev/mapper/ssd{side}")),
            ("META", sectors(META_BYTES)),
            ("DATA", sectors(options.cache_bytes)),
            ("ORIGIN", format!("/dev/loop{side}")),
            ("BELOW", format!("/dev/loop{}", side + ALL.len())),
            ("SECTORS", sectors(options.origin_bytes())),
            ("SPINDLES", SPINDLES.to_string()),
            ("ACCESS_MS", ACCESS_MS.to_string()),
            ("HOT", hot_bytes(options.cache_bytes).to_string()),
            ("WARM_S", (options.span_ms * 2).div_ceil(1000).to_string()),
            ("FOREBAY", options.server.display().to_string()),
        ];
        let minor = shell(SLICE, &variables)?;
        let device = |minor: &str| format!("dm-{}", minor.trim());
        let (ssd, mut origin, mut slow) = (device(&minor), None, None);
        if side != BARE {
            slow = Some(device(&shell(ORIGIN, &variables)?));
            origin = Some(format!("loop{side}"));
        }
        Ok(Self { variables, ssd, origin, slow })
    }
}

impl Guest {
    fn start(options: GuestOptions) -> Result<Self> {
        for (kind, at) in [("proc", "/proc"), ("devtmpfs", "/dev")] {
            // Some kernels have mounted it themselves.
            let _ = Command::new("/bin/mount").args(["-t", kind, kind, at]).output();
        }
        fs::create_dir_all(DIR).map_err(|e| format!("{DIR}: {e}"))?;
        let mounted = Command::new("/bin/mount").args(["-t", "tmpfs", "shm", DIR]).status();
        mounted.map_err(|e| format!("mount: {e}"))?;
        shell(MOUNTS, &[])?;
        let cache = shell(DISK, &[])?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Line::Fact(format!(
            "guest: Linux {}, {cores} cores, {} MiB; SSD: {}; a system call costs {:.1} us",
            release.trim(),
            options.memory_mib(),
            cache.trim(),
            system_call_ns()? / 1e3,
        ))
        .print();
        let places = (0..ALL.len()).map(|side| Place::make(side, &options));
        let places = places.collect::<Result<_>>()?;
        Ok(Self { options, places, running: Vec::new() })
    }

    fn fio(&self, side: usize) -> Fio {
        Fio::block(Path::new(ALL[side].device), hot_bytes(self.options.cache_bytes))
    }

    /// Makes a cache and fills it; what it took of memory.
    fn set_up(&mut self, side: usize) -> Result<f64> {
        let Engine { modules, start, warm, pause, .. } = &ALL[side];
        modules.iter().for_each(|name| module(name));
        let before = free_mib()?;
        let variables = &self.places[side].variables;
        shell(start, variables).map_err(|e| format!("starting: {e}; {}", kernel_said()))?;
        let lap = Job { rw: "write", block_bytes: 64 << 10, depth: 8, jobs: 1, sync: false };
        for _ in 0..2 {
            self.fio(side).lap(lap)?;
        }
        shell(warm, variables).map_err(|e| format!("warming: {e}"))?;
        let used = before - free_mib()?;
        shell(pause, variables)?;
        Ok(used)
    }

    fn set_up_all(&mut self) {
        for side in 0..ALL.len() {
            let row = String::new();
            match self.set_up(side) {
                Ok(mib) => {
                    let gib = self.options.cache_bytes as f64 / (1u64 << 30) as f64;
                    let values = values([("ram", mib / gib)]);
                    Line::Figures { row, side, values }.print();
                    self.running.push(side);
                }
                Err(reason) => Line::Missing { row, side, reason }.print(),
            }
        }
    }

    /// One side of a round.
    fn measure(&self, side: usize, case: &Case) -> Result<Values> {
        let (engine, place) = (&ALL[side], &self.places[side]);
        shell(engine.resume, &place.variables)?;
        let look = || -> Result<(f64, f64, f64)> {
            let origin = place.origin.as_ref().map_or(Ok((0.0, 0.0)), |name| done(name))?;
            Ok((busy()?, origin.0, done(&place.ssd)?.1))
        };
        let before = look()?;
        let rate = self.fio(side).run(case.job, self.options.span_ms)?.rate();
        let after = look()?;
        shell(engine.pause, &place.variables)?;
        let requests = rate * self.options.span_ms as f64 / 1e3;
        let ssd_bytes = (after.2 - before.2) * SECTOR_BYTES as f64;
        Ok(values([
            ("rate", rate),
            ("cpu", (after.0 - before.0) * 1e6 / requests),
            ("origin_reads", (after.1 - before.1) / requests),
            ("ssd", ssd_bytes / (requests * case.job.block_bytes as f64)),
        ]))
    }

    /// What one side comes to in a row without rounds.
    fn measure_once(&self, side: usize, row: &str) -> Result<Values> {
        let variables = &self.places[side].variables;
        shell(ALL[side].resume, variables)?;
        let values = match row {
            "zipf" => self.zipf(side),
            "overwrite" => self.overwrite(side),
            "destage" => self.destage(side),
            _ => self.restart(side),
        };
        shell(ALL[side].pause, variables)?;
        values
    }

    /// Reads of twice as much as there is room for; the bare slice has half of it.
    fn zipf(&self, side: usize) -> Result<Values> {
        let bytes = match side {
            BARE => self.options.cache_bytes,
            _ => self.options.origin_bytes(),
        };
        let fio = Fio::block(Path::new(ALL[side].device), bytes);
        fio.run_with(cases::READS, LONG_SPANS * self.options.span_ms, &ZIPF)?;
        let rate = fio.run_with(cases::READS, LONG_SPANS * self.options.span_ms, &ZIPF)?.rate();
        Ok(values([("rate", rate)]))
    }

    /// Overwrites what is cached, as much as ten times the cache or as long as there is time.
    fn overwrite(&self, side: usize) -> Result<Values> {
        let span_ms = OVERWRITE_SPANS * self.options.span_ms;
        let even = self.fio(side).run_evenly(cases::WRITES, span_ms)?;
        let bytes = even.rate * span_ms as f64 / 1e3 * cases::WRITES.block_bytes as f64;
        Ok(values([
            ("rate", even.rate),
            ("worst", even.worst_second),
            ("p999", even.p999_ms),
            ("caches", bytes / self.options.cache_bytes as f64),
        ]))
    }

    /// Reads of what is cached while what was overwritten goes to the slow disk.
    fn destage(&self, side: usize) -> Result<Values> {
        let place = &self.places[side];
        shell(ALL[side].destage, &place.variables)?;
        let span_ms = LONG_SPANS * self.options.span_ms;
        let origin = || place.origin.as_ref().map_or(Ok((0.0, 0.0)), |name| done(name));
        let (before, start) = (origin()?, seconds()?);
        let rate = self.fio(side).run(cases::READS, span_ms)?.rate();
        let after = origin()?;
        let mib = (after.1 - before.1) * SECTOR_BYTES as f64 / f64::from(1 << 20);
        let reads = (after.0 - before.0) / (rate * span_ms as f64 / 1e3);
        let destaged = mib / (seconds()? - start);
        Ok(values([("rate", rate), ("destaged", destaged), ("origin_reads", reads)]))
    }

    /// Ends a cache in order and starts it again, with a first read; ours after a kill as well.
    fn restart(&self, side: usize) -> Result<Values> {
        let (engine, variables) = (&ALL[side], &self.places[side].variables);
        let read = Job { depth: 1, ..cases::READS };
        let read = || Fio::block(Path::new(engine.device), read.block_bytes).lap(read);
        let start = seconds()?;
        read()?;
        let alone = seconds()? - start;
        let timed = |text: &str| -> Result<f64> {
            let start = seconds()?;
            shell(text, variables).map_err(|e| format!("{e}; {}", kernel_said()))?;
            Ok(seconds()? - start)
        };
        let stop = timed(engine.stop)?;
        let start = timed(engine.again)?;
        let first = seconds()?;
        read()?;
        // What fio takes to start is not the cache's.
        let first = (seconds()? - first - alone).max(0.0);
        let mut values = values([("stop", stop), ("start", start + first)]);
        if side == 0 {
            shell("nbd-client -d /dev/nbd0; kill -KILL $(cat pid); sleep 1", variables)?;
            values.insert("killed".to_owned(), timed(engine.again)?);
        }
        Ok(values)
    }

    fn once(&self, row: &str) {
        // The bare slice has nothing to write back, and nothing to start.
        let is_cache = |&&side: &&usize| side != BARE || matches!(row, "zipf" | "overwrite");
        for &side in self.running.iter().filter(is_cache) {
            let row = row.to_owned();
            match self.measure_once(side, &row) {
                Ok(values) => Line::Figures { row, side, values }.print(),
                Err(reason) => Line::Missing { row, side, reason }.print(),
            }
        }
    }

    /// Gives the slow disks a write cache or takes it: what a FLUSH costs them.
    fn set_disk_caches(&self, has: bool) -> Result<()> {
        let kind = if has { "write back" } else { "write through" };
        let slow = self.places.iter().filter_map(|place| place.slow.as_ref());
        slow.map(|name| format!("/sys/block/{name}/queue/write_cache"))
            .try_for_each(|path| fs::write(&path, kind).map_err(|e| format!("{path}: {e}")))
    }

    fn rounds(&self, case: &Case) {
        if let Err(reason) = self.set_disk_caches(case.disk_cache) {
            for side in 0..ALL.len() {
                let (row, reason) = (case.name.to_owned(), reason.clone());
                Line::Missing { row, side, reason }.print();
            }
            return;
        }
        for round in 0..self.options.rounds {
            let mut order = self.running.clone();
            if !round.is_multiple_of(2) {
                order.reverse();
            }
            for side in order {
                let row = case.name.to_owned();
                match self.measure(side, case) {
                    Ok(values) => Line::Figures { row, side, values }.print(),
                    Err(reason) => Line::Missing { row, side, reason }.print(),
                }
            }
        }
    }
}

/// Measures everything, tells it, and ends the guest.
///
/// # Errors
/// If the guest cannot end.
pub fn run(options: &GuestOptions) -> Result<()> {
    match Guest::start(options.clone()) {
        Ok(mut guest) => {
            guest.set_up_all();
            let cases = cases::hot();
            let wanted = cases.iter().filter(|case| options.wants(case.name));
            wanted.for_each(|case| guest.rounds(case));
            let once = cases::NAMES[cases.len()..].iter().filter(|row| options.wants(row));
            if let Err(reason) = guest.set_disk_caches(false) {
                Line::Fact(format!("the slow disks keep their write caches: {reason}")).print();
            }
            once.for_each(|row| guest.once(row));
            Line::End.print();
        }
        Err(reason) => Line::Fact(format!("the guest cannot work: {reason}")).print(),
    }
    fs::write("/proc/sysrq-trigger", "o").map_err(|e| format!("/proc/sysrq-trigger: {e}"))?;
    // The first process must not end before its kernel.
    let slept = Command::new("sleep").arg("60").status();
    slept.map(|_| ()).map_err(|e| format!("sleep: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_not_busy_while_it_waits() {
        let stat = "cpu  100 20 300 4000 5000 6 70 0 0 0\ncpu0 1 2 3 4 5 6 7\n";
        assert_eq!(busy_seconds(stat), Some(4.96));
        assert_eq!(busy_seconds("cpu  100 20"), None);
        assert_eq!(busy_seconds(""), None);
    }
}
