//! The sides of `forebay-bench peers`, and the slow disks behind those that are caches.

use std::path::PathBuf;
use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::SECOND;

use super::NbdOptions;
use super::server::{Files, Ours, Server, sync_file, sync_file_system, write_file};
use crate::bench::{Bench, Result};
use crate::fio::Job;

/// Heads of the table, in the order of the numbers below.
pub(crate) const NAMES: [&str; 6] =
    ["ours, SSD", "ours", "nbdkit back", "nbdkit through", "bare qemu-nbd", "bare nbdkit"];

/// Ours on the SSD alone, and with RAM in front of it.
pub(super) const SSD: usize = 0;
pub(super) const OURS: usize = 1;
pub(super) const BACK: usize = 2;
pub(super) const THROUGH: usize = 3;
pub(super) const QEMU: usize = 4;
pub(super) const BARE: usize = 5;

/// Those that are caches, each with a slow disk of its own.
pub(super) const CACHES: std::ops::Range<usize> = SSD..QEMU;

pub(super) const K4: u64 = 4 << 10;
const M1: u64 = 1 << 20;

/// 1 MiB requests in order, or what else is made of them.
pub(super) fn sequential(rw: &'static str) -> Job {
    Job { rw, block_bytes: M1, depth: 4, jobs: 1, sync: false }
}

/// Sizes in bytes.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// What a cache has room for.
    pub cache: u64,
    /// Of a slow disk, and of a bare file.
    pub volume: u64,
    /// What everybody is filled with.
    pub hot: u64,
    /// Whether a cache may hold less than a volume.
    pub is_limited: bool,
}

impl Shape {
    /// RAM of ours: as much as nbdkit's cache has of the page cache.
    fn ram_bytes(&self) -> u64 {
        self.cache.min(self.volume)
    }

    /// Segments as the daemon would choose them, for smaller caches as well.
    fn segment_bytes(&self) -> u64 {
        const SEGMENTS: u64 = 512;
        const SEGMENT_BYTES_MAX: u64 = 32 << 20;
        (1 << (self.cache / SEGMENTS).ilog2()).min(SEGMENT_BYTES_MAX)
    }
}

/// Bytes of memory of a cache: with half of what is hot in it, with all of it, and of the page cache then. What both
/// have is the server's, whatever it holds.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub half: f64,
    pub full: f64,
    pub pages: f64,
}

/// All sides; what each caches is served by a disk of its own.
pub(super) struct Sides {
    pub shape: Shape,
    pub ours: [Ours; 2],
    /// nbdkit's cache writing back and through, qemu-nbd and nbdkit on bare files.
    others: [Server; 4],
    clock: Rc<Reactor>,
    dir: PathBuf,
    bare_path: PathBuf,
    disks: [Ours; 4],
    /// Of each cache, as it was filled.
    pub memory: Vec<Memory>,
    _files: Files,
}

impl Sides {
    /// Starts everybody, with all that is hot in the caches and nothing dirty.
    ///
    /// # Errors
    /// If one does not start.
    pub(super) fn start(bench: &Bench, options: &NbdOptions, shape: Shape) -> Result<Self> {
        let (clock, dir) = (&bench.clock, &options.bench.dir);
        let (qemu_path, bare_path) = (dir.join("qemu.bin"), dir.join("nbdkit.bin"));
        let files = Files::new(&[&qemu_path, &bare_path]);
        write_file(clock, &qemu_path, shape.volume)?;
        write_file(clock, &bare_path, shape.volume)?;
        let disk = |name| Ours::disk(clock, options, name, shape.volume);
        let [ssd, ram] = ["disk-ssd", "disk-ram"].map(disk);
        let disks = [ssd?, ram?, disk("disk-back")?, disk("disk-through")?];
        let [ssd, ram, back, through] = disks.each_ref().map(|disk| disk.server.uri.as_str());
        let ours = |name, origin, ram_bytes: u64| {
            let sizes = [
                ("--cache-bytes", shape.cache),
                ("--segment-bytes", shape.segment_bytes()),
                ("--ram", ram_bytes),
            ];
            let args = sizes.map(|(flag, bytes)| [flag.to_owned(), bytes.to_string()]).concat();
            Ours::before(clock, options, name, origin, &args)
        };
        let bytes_max = shape.is_limited.then_some(shape.cache);
        let mut sides = Self {
            shape,
            ours: [ours("ours-ssd", ssd, 0)?, ours("ours", ram, shape.ram_bytes())?],
            others: [
                Server::cached(clock, dir, "writeback", back, bytes_max)?,
                Server::cached(clock, dir, "writethrough", through, bytes_max)?,
                Server::qemu(clock, dir, &qemu_path)?,
                Server::nbdkit(clock, dir, "file", &bare_path.display().to_string())?,
            ],
            clock: Rc::clone(clock),
            dir: dir.clone(),
            bare_path,
            disks,
            memory: Vec::new(),
            _files: files,
        };
        for side in CACHES {
            eprintln!("filling the cache of {} ...", NAMES[side]);
            // What its requests need at a time, it has after the first.
            sides.fill(side, shape.hot / 2)?;
            sides.fill(side, shape.hot / 2)?;
            let half = sides.server(side).memory_bytes()?.0;
            sides.fill(side, shape.hot)?;
            let (full, pages) = sides.server(side).memory_bytes()?;
            sides.memory.push(Memory { half, full, pages });
        }
        Ok(sides)
    }

    pub(super) fn server(&self, side: usize) -> &Server {
        match side {
            SSD | OURS => &self.ours[side].server,
            _ => &self.others[side - BACK],
        }
    }

    /// Leaves nothing behind that would take the next one's time; bytes that the server had sent to disks then.
    ///
    /// # Errors
    /// If something stays dirty.
    pub(super) fn settle(&mut self, side: usize) -> Result<f64> {
        match side {
            SSD | OURS => self.ours[side].settle()?,
            BACK => return self.begin_anew(side),
            THROUGH => self.flush(side)?,
            QEMU => {}
            _ => sync_file(&self.bare_path)?,
        }
        self.server(side).disk_bytes()
    }

    /// In place of a FLUSH, which takes the slow disks minutes: another process, into whose cache what is hot is read. Bytes
    /// that the one before had sent to disks.
    fn begin_anew(&mut self, side: usize) -> Result<f64> {
        let bytes = self.server(side).disk_bytes()?;
        self.restart(side, "KILL")?;
        self.read_twice(side, self.shape.hot)?;
        sync_file_system(&self.dir)?;
        Ok(bytes)
    }

    /// One write, and a FLUSH behind it.
    ///
    /// # Errors
    /// If fio fails.
    pub(super) fn flush(&self, side: usize) -> Result<()> {
        self.server(side).fio(K4).flush()
    }

    /// Brings what is hot into a cache and its RAM.
    ///
    /// # Errors
    /// If fio fails.
    pub(super) fn read_hot(&self, side: usize) -> Result<()> {
        self.read_in(side, self.shape.hot)
    }

    /// Reads the first `bytes`; ours has them written in order before. nbdkit's would take minutes for that, at the
    /// speed of the slow disks.
    fn fill(&mut self, side: usize, bytes: u64) -> Result<()> {
        if matches!(side, SSD | OURS) {
            self.server(side).fio(bytes).lap(Job { depth: 1, ..sequential("write") })?;
            self.settle(side)?;
        }
        self.read_twice(side, bytes)
    }

    /// Reads the first `bytes` in order, then as guests of RAM.
    fn read_twice(&self, side: usize, bytes: u64) -> Result<()> {
        self.server(side).fio(bytes).lap(sequential("read"))?;
        self.read_in(side, bytes)
    }

    fn read_in(&self, side: usize, bytes: u64) -> Result<()> {
        // Neither longer reads nor a scan would be guests of RAM.
        let lap = Job { block_bytes: 16 * K4, depth: 32, ..sequential("randread") };
        self.server(side).fio(bytes).lap(lap).map(|_| ())
    }

    /// Reads that a slow disk was asked for so far, and bytes written to it; none where there is no such disk.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn origin(&mut self, side: usize) -> Result<(f64, f64)> {
        let Some(disk) = self.disks.get_mut(side) else { return Ok((0.0, 0.0)) };
        let (reads, bytes) = (disk.counter("read_requests")?, disk.counter("write_bytes")?);
        Ok((reads as f64, bytes as f64))
    }

    /// Seconds of a moment that means nothing by itself.
    pub(super) fn now_s(&self) -> f64 {
        self.clock.now() as f64 / SECOND as f64
    }

    /// Ends a cache by a signal and starts it again; seconds of either.
    ///
    /// # Errors
    /// If it does not end, or not start.
    pub(super) fn restart(&mut self, side: usize, signal: &str) -> Result<(f64, f64)> {
        let begun = self.now_s();
        let clock = Rc::clone(&self.clock);
        let server = match side {
            SSD | OURS => &mut self.ours[side].server,
            _ => &mut self.others[side - BACK],
        };
        server.end(&clock, signal)?;
        let ended = self.now_s();
        match side {
            SSD | OURS => self.ours[side].again()?,
            _ => self.others[side - BACK].again(&clock)?,
        }
        Ok((ended - begun, self.now_s() - ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_cache_has_as_many_segments_as_a_large_one() {
        let segment_bytes =
            |cache| Shape { cache, volume: 0, hot: 0, is_limited: true }.segment_bytes();
        assert_eq!(segment_bytes(128 << 20), 256 << 10);
        assert_eq!(segment_bytes(4 << 30), 8 << 20);
        assert_eq!(segment_bytes(64 << 30), 32 << 20);
    }
}
