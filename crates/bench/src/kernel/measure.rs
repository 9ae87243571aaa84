//! Measuring: what runs on a [`Rig`], and what it came to.

use std::fs;

use super::cases::{self, Case};
use super::engines::{ALL, BARE, OURS};
use super::protocol::Line;
use super::rig::{Rig, SECTOR_BYTES};
use super::system::{busy, done, seconds};
use crate::bench::Result;
use crate::fio::{Job, ZIPF};
use crate::nbd::table::{Values, values};

/// How much longer than a round the rows without rounds are: twice that for the first, of which half is warm-up, and
/// overwriting, which has to come to a full log.
const LONG_SPANS: u64 = 4;
const OVERWRITE_SPANS: u64 = 12;

impl Rig<'_> {
    /// Measures everything that is wanted, on all sides that run.
    pub(super) fn measure_all(&mut self) {
        let cases = cases::hot();
        let wanted = cases.iter().filter(|case| self.asked.wants(case.name)).collect::<Vec<_>>();
        wanted.into_iter().for_each(|case| self.rounds(case));
        if let Err(reason) = self.set_disk_caches(false) {
            self.tell(Line::Fact(format!("the slow disks keep their write caches: {reason}")));
        }
        for row in &cases::NAMES[cases.len()..] {
            if self.asked.wants(row) {
                self.once(row);
            }
        }
    }

    /// One side of a round.
    fn measure(&self, side: usize, case: &Case) -> Result<Values> {
        let place = &self.places[&side];
        self.shell(side, ALL[side].resume)?;
        let look = || -> Result<(f64, f64, f64)> {
            let origin = place.origin.as_ref().map_or(Ok((0.0, 0.0)), |name| done(name))?;
            Ok((busy()?, origin.0, done(&place.ssd)?.1))
        };
        let before = look()?;
        let rate = self.fio_hot(side)?.run(case.job, self.asked.span_ms)?.rate();
        let after = look()?;
        self.shell(side, ALL[side].pause)?;
        let requests = rate * self.asked.span_ms as f64 / 1e3;
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
        self.shell(side, ALL[side].resume)?;
        let values = match row {
            "zipf" => self.zipf(side),
            "overwrite" => self.overwrite(side),
            "destage" => self.destage(side),
            _ => self.restart(side),
        };
        let paused = self.shell(side, ALL[side].pause);
        // What cannot be paused has failed before.
        values.and_then(|values| paused.map(|_| values))
    }

    /// Reads of twice as much as there is room for; the bare slice has half of it.
    fn zipf(&self, side: usize) -> Result<Values> {
        let bytes = match side {
            BARE => self.asked.cache_bytes,
            _ => self.asked.origin_bytes(),
        };
        let fio = self.fio(side, bytes)?;
        fio.run_with(cases::READS, LONG_SPANS * self.asked.span_ms, &ZIPF)?;
        let rate = fio.run_with(cases::READS, LONG_SPANS * self.asked.span_ms, &ZIPF)?.rate();
        Ok(values([("rate", rate)]))
    }

    /// Overwrites what is cached, as much as ten times the cache or as long as there is time.
    fn overwrite(&self, side: usize) -> Result<Values> {
        let span_ms = OVERWRITE_SPANS * self.asked.span_ms;
        let even = self.fio_hot(side)?.run_evenly(cases::WRITES, span_ms)?;
        let bytes = even.rate * span_ms as f64 / 1e3 * cases::WRITES.block_bytes as f64;
        Ok(values([
            ("rate", even.rate),
            ("worst", even.worst_second),
            ("p999", even.p999_ms),
            ("caches", bytes / self.asked.cache_bytes as f64),
        ]))
    }

    /// Reads of what is cached while what was overwritten goes to the slow disk.
    fn destage(&self, side: usize) -> Result<Values> {
        let place = &self.places[&side];
        self.shell(side, ALL[side].destage)?;
        let span_ms = LONG_SPANS * self.asked.span_ms;
        let origin = || place.origin.as_ref().map_or(Ok((0.0, 0.0)), |name| done(name));
        let (before, start) = (origin()?, seconds()?);
        let rate = self.fio_hot(side)?.run(cases::READS, span_ms)?.rate();
        let after = origin()?;
        let mib = (after.1 - before.1) * SECTOR_BYTES as f64 / f64::from(1 << 20);
        let reads = (after.0 - before.0) / (rate * span_ms as f64 / 1e3);
        let destaged = mib / (seconds()? - start);
        Ok(values([("rate", rate), ("destaged", destaged), ("origin_reads", reads)]))
    }

    /// Ends a cache in order and starts it again, with a first read; ours after a kill as well.
    fn restart(&self, side: usize) -> Result<Values> {
        let read = Job { depth: 1, ..cases::READS };
        let read = || self.fio(side, read.block_bytes)?.lap(read);
        let start = seconds()?;
        read()?;
        let alone = seconds()? - start;
        let timed = |text: &str| -> Result<f64> {
            let start = seconds()?;
            self.shell(side, text).map_err(|e| format!("{e}; {}", self.ground.kernel_said()))?;
            Ok(seconds()? - start)
        };
        let stop = timed(ALL[side].stop)?;
        let start = timed(ALL[side].again)?;
        let first = seconds()?;
        read()?;
        // What fio takes to start is not the cache's.
        let first = (seconds()? - first - alone).max(0.0);
        let mut values = values([("stop", stop), ("start", start + first)]);
        if side == OURS {
            self.shell(side, "nbd-client -d $NBD; sh -e signal KILL; sleep 1")?;
            values.insert("killed".to_owned(), timed(ALL[side].again)?);
        }
        Ok(values)
    }

    fn once(&mut self, row: &str) {
        // The bare slice has nothing to write back, and nothing to start.
        let is_cache = |side: &usize| *side != BARE || matches!(row, "zipf" | "overwrite");
        for side in self.running.clone().into_iter().filter(is_cache) {
            let measured = self.measure_once(side, row);
            self.tell_of(row, side, measured);
        }
    }

    /// Gives the slow disks a write cache or takes it: what a FLUSH costs them.
    fn set_disk_caches(&self, has: bool) -> Result<()> {
        let kind = if has { "write back" } else { "write through" };
        let slow = self.places.values().filter_map(|place| place.slow.as_ref());
        slow.map(|name| format!("/sys/block/{name}/queue/write_cache"))
            .try_for_each(|path| fs::write(&path, kind).map_err(|e| format!("{path}: {e}")))
    }

    fn rounds(&mut self, case: &Case) {
        if let Err(reason) = self.set_disk_caches(case.disk_cache) {
            (0..ALL.len()).for_each(|side| self.tell_of(case.name, side, Err(reason.clone())));
            return;
        }
        for round in 0..self.asked.rounds {
            let mut order = self.running.clone();
            if !round.is_multiple_of(2) {
                order.reverse();
            }
            for side in order {
                let measured = self.measure(side, case);
                self.tell_of(case.name, side, measured);
            }
        }
    }
}
