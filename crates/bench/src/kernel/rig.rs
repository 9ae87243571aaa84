//! Setting up: slices of an SSD, slow disks in memory, the caches between them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::engines::{ALL, BARE, Engine, NAMES, OURS};
use super::ground::{Ground, Variables};
use super::hot_bytes;
use super::protocol::Line;
use super::system::{memory, system_call_ns};
use crate::bench::{Bench, Result};
use crate::fio::{Fio, Job};
use crate::nbd::table::{Values, values};

/// What a slice has beside the cache, for dm-cache's metadata.
const META_BYTES: u64 = 16 << 20;

pub(super) const SECTOR_BYTES: u64 = 512;

/// Accesses that the slow disk makes at a time, and how long each takes. The timer makes it 10 to 20 ms where a tick
/// is 10 ms.
const SPINDLES: u32 = 4;
const ACCESS_MS: u32 = 8;

/// What is asked of whoever measures; of a guest, on its kernel's command line.
#[derive(Args, Clone, Debug)]
pub struct Asked {
    /// Our program.
    #[arg(long)]
    server: PathBuf,
    #[arg(long)]
    pub(super) rounds: usize,
    #[arg(long)]
    pub(super) span_ms: u64,
    #[arg(long)]
    pub(super) cache_bytes: u64,
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// What the kernel adds of its own.
    #[arg(hide = true)]
    more: Vec<String>,
}

impl Asked {
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

    pub(super) fn wants(&self, row: &str) -> bool {
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

    /// Bytes of all slow disks, which are in memory.
    pub(super) fn origins_bytes(&self) -> u64 {
        BARE as u64 * self.origin_bytes()
    }

    /// MiB of memory that it takes: the slow disks', and a GiB for the rest.
    pub(super) fn memory_mib(&self) -> u64 {
        (self.origins_bytes() >> 20) + 1024
    }
}

/// What slices are cut from.
pub(super) struct Ssd {
    /// The block device.
    pub device: PathBuf,
    /// Whether it is a device that may hold anything, and is to be left without what would look like something: slices are
    /// written in full.
    pub is_given: bool,
}

const SLICE: &str = r#"
dmsetup create $NAME-ssd$SIDE --table "0 $((META + DATA)) linear $DISK $(((META + DATA) * SIDE))"
dmsetup info -c --noheadings -o minor $NAME-ssd$SIDE"#;

const FILL: &str =
    "dd if=/dev/zero of=$SSD bs=1M count=$(((META + DATA) / 2048)) oflag=direct conv=fsync";

/// A disk without a queue of its own and a loop device that hands it so many requests at a time. It has a write cache
/// because the loop device below it says so. Its memory is taken now, so that it does not count as the cache's.
const SLOW: &str = r#"
dd if=/dev/zero of=slow$SIDE bs=1M count=$((SECTORS / 2048))
below=$(losetup --find --show slow$SIDE)
dmsetup create $NAME-slow$SIDE --table "0 $SECTORS delay $below 0 $ACCESS_MS"
dmsetup info -c --noheadings -o minor $NAME-slow$SIDE
losetup --find --show --direct-io=on /dev/mapper/$NAME-slow$SIDE"#;

/// What undoes that, the last one first.
const SLOW_UNDO: [&str; 3] =
    ["detach $RUN/slow$SIDE", "remove $NAME-slow$SIDE", "detach /dev/mapper/$NAME-slow$SIDE"];

/// What one side has of its own.
pub(super) struct Place {
    variables: Variables,
    /// A link to what clients open, once it is there.
    device: PathBuf,
    /// Names in sysfs.
    pub ssd: String,
    pub origin: Option<String>,
    pub slow: Option<String>,
}

impl Place {
    fn make(side: usize, ssd: &Ssd, asked: &Asked, ground: &mut Ground) -> Result<Self> {
        let sectors = |bytes: u64| (bytes / SECTOR_BYTES).to_string();
        let device = ground.dir().join(format!("device{side}"));
        let mut variables = vec![
            ("SIDE", side.to_string()),
            ("DISK", ssd.device.display().to_string()),
            ("SSD", format!("/dev/mapper/{}-ssd{side}", ground.name())),
            ("DEVICE", device.display().to_string()),
            ("META", sectors(META_BYTES)),
            ("DATA", sectors(asked.cache_bytes)),
            ("SECTORS", sectors(asked.origin_bytes())),
            ("ACCESS_MS", ACCESS_MS.to_string()),
            ("HOT", hot_bytes(asked.cache_bytes).to_string()),
            ("WARM_S", (asked.span_ms * 2).div_ceil(1000).to_string()),
            ("FOREBAY", asked.server.display().to_string()),
        ];
        ground.undo(&variables, "remove $NAME-ssd$SIDE")?;
        let ssd_name = dm_name(&ground.shell(SLICE, &variables)?)?;
        if ssd.is_given {
            ground.undo(&variables, "wipe $SSD")?;
            ground.shell(FILL, &variables)?;
        }
        variables.push(("SSD_NAME", ssd_name.clone()));
        let mut place = Self { variables, device, ssd: ssd_name, origin: None, slow: None };
        if side != BARE {
            place.make_slow(ground)?;
        }
        Ok(place)
    }

    fn make_slow(&mut self, ground: &mut Ground) -> Result<()> {
        SLOW_UNDO.iter().try_for_each(|line| ground.undo(&self.variables, line))?;
        let said = ground.shell(SLOW, &self.variables)?;
        let (minor, origin) = said.trim().split_once('\n').ok_or("losetup names no device")?;
        let name = Path::new(origin.trim()).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        limit_queue(&name, ground)?;
        self.slow = Some(dm_name(minor)?);
        self.variables.push(("ORIGIN", format!("/dev/{name}")));
        self.variables.push(("ORIGIN_NAME", name.clone()));
        self.origin = Some(name);
        Ok(())
    }
}

/// What sysfs calls the dm device of that minor number.
fn dm_name(minor: &str) -> Result<String> {
    let number = minor.trim().parse::<u32>();
    number.map(|number| format!("dm-{number}")).map_err(|_| "dmsetup tells no number".to_owned())
}

/// Has a loop device take so many requests at a time. It may have been there before, and stays: its settings are noted.
fn limit_queue(name: &str, ground: &mut Ground) -> Result<()> {
    let queue = Path::new("/sys/block").join(name).join("queue");
    let read = |file: &str| {
        let path = queue.join(file);
        fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    let scheduler = read("scheduler")?;
    let (scheduler, requests) = (chosen(&scheduler).to_owned(), read("nr_requests")?);
    let old = [
        ("QUEUE", queue.display().to_string()),
        ("SCHEDULER", scheduler),
        ("REQUESTS", requests.trim().to_owned()),
    ];
    ground.undo(
        &old,
        "put_back $QUEUE/scheduler $SCHEDULER && put_back $QUEUE/nr_requests $REQUESTS",
    )?;
    for (file, value) in [("scheduler", "none".to_owned()), ("nr_requests", SPINDLES.to_string())] {
        let path = queue.join(file);
        fs::write(&path, value).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// The one in brackets of several words, or the only one.
fn chosen(words: &str) -> &str {
    let inside = words.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(words.trim(), |(word, _)| word)
}

/// The name of an nbd device that nobody has connected, in that directory of sysfs. Somebody may connect it all the same before
/// we do, and then has it.
fn free_nbd(sys_block: &Path) -> Result<String> {
    let entries = fs::read_dir(sys_block).map_err(|e| format!("{}: {e}", sys_block.display()))?;
    let number = |name: &str| name.strip_prefix("nbd")?.parse::<u32>().ok();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let all = names.filter_map(|name| number(&name)).collect::<Vec<_>>();
    let free = all.iter().filter(|n| !sys_block.join(format!("nbd{n}/pid")).exists()).min();
    free.map(|n| format!("nbd{n}")).ok_or_else(|| match all.len() {
        0 => {
            "there is no nbd device: the kernel has no nbd, or its module is not loaded".to_owned()
        }
        count => format!("all {count} nbd devices are in use"),
    })
}

/// All sides, set up.
pub(super) struct Rig<'a> {
    pub asked: Asked,
    pub ground: Ground,
    pub places: BTreeMap<usize, Place>,
    /// Whoever could not start has no further part.
    pub running: Vec<usize>,
    tell: Box<dyn FnMut(Line) + 'a>,
}

impl<'a> Rig<'a> {
    /// What runs on this ground, with an SSD; `tell` hears what it comes to.
    pub(super) fn new(ground: Ground, asked: Asked, tell: impl FnMut(Line) + 'a) -> Self {
        let (places, running) = (BTreeMap::new(), Vec::new());
        Self { asked, ground, places, running, tell: Box::new(tell) }
    }

    pub(super) fn tell(&mut self, line: Line) {
        (self.tell)(line);
    }

    /// Tells what a side has come to in a row, or why it has not.
    pub(super) fn tell_of(&mut self, row: &str, side: usize, result: Result<Values>) {
        let row = row.to_owned();
        self.tell(match result {
            Ok(values) => Line::Figures { row, side, values },
            Err(reason) => Line::Missing { row, side, reason },
        });
    }

    /// Tells where it runs; `whose` kernel and memory it is.
    ///
    /// # Errors
    /// If the system does not tell.
    pub(super) fn tell_where(&mut self, whose: &str, ssd: &str) -> Result<()> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let (release, mib) = (release.trim(), memory("MemTotal")?);
        let call_us = system_call_ns()? / 1e3;
        self.tell(Line::Fact(format!(
            "{whose}: Linux {release}, {cores} cores, {mib:.0} MiB; SSD: {ssd}; a system call costs {call_us:.1} us"
        )));
        Ok(())
    }

    /// Runs lines of shell for a side.
    pub(super) fn shell(&self, side: usize, text: &str) -> Result<String> {
        self.ground.shell(text, &self.places[&side].variables)
    }

    /// A client of the first bytes of a side's device.
    pub(super) fn fio(&self, side: usize, bytes: u64) -> Result<Fio> {
        let link = &self.places[&side].device;
        let device = link.canonicalize().map_err(|e| format!("{}: {e}", link.display()))?;
        Ok(Fio::block(&device, bytes))
    }

    /// A client of what is to be hit.
    pub(super) fn fio_hot(&self, side: usize) -> Result<Fio> {
        self.fio(side, hot_bytes(self.asked.cache_bytes))
    }

    /// Sets up all sides, and tells what each takes of memory. Whoever cannot start has no further part.
    pub(super) fn set_up(&mut self, ssd: &Ssd) {
        for side in 0..ALL.len() {
            match Place::make(side, ssd, &self.asked, &mut self.ground) {
                Ok(place) => drop(self.places.insert(side, place)),
                Err(reason) => self.tell_of("", side, Err(format!("making its devices: {reason}"))),
            }
        }
        for side in self.places.keys().copied().collect::<Vec<_>>() {
            let started = self.start(side);
            if started.is_ok() {
                self.running.push(side);
            }
            let gib = self.asked.cache_bytes as f64 / (1u64 << 30) as f64;
            self.tell_of("", side, started.map(|mib| values([("ram", mib / gib)])));
        }
    }

    /// Makes a cache and fills it; what it took of memory, in MiB.
    fn start(&mut self, side: usize) -> Result<f64> {
        let Engine { modules, start, undo, warm, pause, .. } = &ALL[side];
        // What is built in cannot be loaded either: that is told only if it does not start.
        let failed: Vec<_> =
            modules.iter().filter_map(|name| self.ground.module(name).err()).collect();
        let before = self.free_mib()?;
        let started = self.find_nbd(side).and_then(|()| {
            let variables = &self.places[&side].variables;
            undo.iter().try_for_each(|line| self.ground.undo(variables, line))?;
            self.shell(side, start)
        });
        started.map_err(|error| {
            let said = failed.into_iter().chain([error, self.ground.kernel_said()]);
            format!("starting: {}", said.collect::<Vec<_>>().join("; "))
        })?;
        let lap = Job { rw: "write", block_bytes: 64 << 10, depth: 8, jobs: 1, sync: false };
        for _ in 0..2 {
            self.fio_hot(side)?.lap(lap)?;
        }
        self.shell(side, warm).map_err(|e| format!("warming: {e}"))?;
        let used = before - self.free_mib()?;
        self.shell(side, pause)?;
        Ok(used)
    }

    /// Ours needs a device for its client.
    fn find_nbd(&mut self, side: usize) -> Result<()> {
        if side == OURS {
            let name = free_nbd(Path::new("/sys/block"))?;
            let variables = self.places.get_mut(&side).map(|place| &mut place.variables);
            let found = [("NBD", format!("/dev/{name}")), ("NBD_NAME", name)];
            variables.into_iter().for_each(|variables| variables.extend(found.clone()));
        }
        Ok(())
    }

    /// MiB that could still be had.
    fn free_mib(&self) -> Result<f64> {
        if self.ground.is_alone() {
            // What is kept of files and directories is not a cache's doing. Where others work, it is theirs.
            const DROP: &str = "/proc/sys/vm/drop_caches";
            fs::write(DROP, "3").map_err(|e| format!("{DROP}: {e}"))?;
        }
        memory("MemAvailable")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Place as Directory;

    /// A directory like /sys/block, with nbd devices of which some are connected.
    fn sys_block(free: &[u32], connected: &[u32]) -> Directory {
        let sys = Directory::new(&std::env::temp_dir()).expect("a directory");
        for name in ["sda", "nbd", "nbdx", "loop0"] {
            fs::create_dir(sys.path().join(name)).expect("a device");
        }
        for number in [free, connected].concat() {
            fs::create_dir(sys.path().join(format!("nbd{number}"))).expect("a device");
        }
        for number in connected {
            fs::write(sys.path().join(format!("nbd{number}/pid")), "12\n").expect("a pid");
        }
        sys
    }

    #[test]
    fn the_first_nbd_device_without_a_process_is_free() {
        let sys = sys_block(&[10, 2, 15], &[0, 1]);
        assert_eq!(free_nbd(sys.path()), Ok("nbd2".to_owned()));
    }

    #[test]
    fn no_nbd_device_is_taken_from_somebody() {
        let sys = sys_block(&[], &[0, 1]);
        assert_eq!(free_nbd(sys.path()), Err("all 2 nbd devices are in use".to_owned()));
    }

    #[test]
    fn a_kernel_without_nbd_says_so() {
        let error = free_nbd(sys_block(&[], &[]).path()).expect_err("none is there");
        assert!(error.contains("no nbd device"), "{error}");
    }

    #[test]
    fn what_is_chosen_stands_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] kyber\n"), "mq-deadline");
        assert_eq!(chosen("none\n"), "none");
    }

    #[test]
    fn a_dm_device_has_a_number() {
        assert_eq!(dm_name(" 7\n"), Ok("dm-7".to_owned()));
        assert!(dm_name("").is_err());
    }
}
