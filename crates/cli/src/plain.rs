//! An origin as an export of the NBD server, with nothing in between: how volumes are served while their pool is
//! without its cache devices.
//!
//! * Reads, writes, TRIM, zeroes and FLUSH go straight to the device. Requests are in units of 512 B: of a device with
//!   larger sectors, the one around the end of a write is read, changed and written, and no other write meanwhile.
//! * What it does is judged as of an origin behind a cache: see [`Standing`].
//! * A flush that fails may have lost what any client has written, and the next one does not bring it back: each
//!   client is told, by the first FLUSH of its own behind that.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::runtime::{Nanos, Runtime};
use forebay_device::{BlockDevice, Buf, Data, IoError, IoErrorKind};
use forebay_engine::limits::ORIGIN_SILENT_SPAN;
use forebay_engine::{OriginTrouble, Standing};
use forebay_export::{Export, ExportError, Extent, Tier, Zeroing};
use tokio::sync::RwLock;

use crate::export::{Access, Terms};

/// What is served of an origin.
pub(crate) struct Plain {
    name: String,
    runtime: Rc<dyn Runtime>,
    device: Rc<dyn BlockDevice>,
    standing: Standing,
    size_bytes: u64,
    sector_bytes: u64,
    /// Of a device with larger sectors than requests: held by whoever changes it, alone by who has read what it writes.
    sectors: RwLock<()>,
    /// Flushes that have failed, and changes that were under way then: they may be lost, and have ended later.
    failures: Cell<u64>,
    under_way: Cell<usize>,
    /// Since when some have been under way, and none was answered; if none is, when the last one was.
    unanswered: Cell<Nanos>,
}

/// A request that the device has.
struct UnderWay<'a>(&'a Plain);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.unanswered.set(self.0.runtime.now());
    }
}

impl Plain {
    /// The first bytes of a device; no more than it has.
    pub(crate) fn new(
        name: String,
        runtime: Rc<dyn Runtime>,
        device: Rc<dyn BlockDevice>,
        size_bytes: u64,
    ) -> Plain {
        let geometry = device.geometry();
        Plain {
            name,
            runtime,
            standing: Standing::default(),
            size_bytes: size_bytes.min(geometry.size_bytes),
            sector_bytes: geometry.sector_bytes.into(),
            device,
            sectors: RwLock::new(()),
            failures: Cell::new(0),
            under_way: Cell::new(0),
            unanswered: Cell::new(0),
        }
    }

    /// Whether the device has requests that it has not answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.get() > 0
    }

    /// What of the device does not work, if it has not worked for some time.
    pub(crate) fn trouble(&self) -> Option<OriginTrouble> {
        let now = self.runtime.now();
        let asked = self.is_busy().then(|| self.unanswered.get());
        let tried = self.standing.probing_since().map(|since| since.max(self.unanswered.get()));
        let is_long = |since: Nanos| now >= since + ORIGIN_SILENT_SPAN;
        let is_silent = asked.or(tried).is_some_and(is_long);
        if is_silent { Some(OriginTrouble::Silent) } else { self.standing.trouble(now) }
    }

    /// Whether it may still be in a trouble that it was in: something has failed since, and has not succeeded again.
    pub(crate) fn is_unsure(&self) -> bool {
        self.standing.is_unsure(self.runtime.now())
    }

    /// Tries whether it can be read elsewhere, if reads fail and that is due. Whoever ends does not wait for it: a read
    /// changes nothing, however late.
    pub(crate) async fn probe(&self) {
        let (now, geometry) = (self.runtime.now(), self.device.geometry());
        let place = self.standing.begin_probe(now, geometry.size_bytes, self.sector_bytes);
        let Some(offset) = place else { return };
        let outcome = self.device.read(offset, Buf::new(self.sector_bytes as usize)).await;
        self.standing.end_probe(&outcome.result, self.runtime.now());
    }

    fn begin(&self) -> UnderWay<'_> {
        if self.under_way.replace(self.under_way.get() + 1) == 0 {
            self.unanswered.set(self.runtime.now());
        }
        UnderWay(self)
    }

    /// The whole sectors that some bytes lie in.
    fn widened(&self, offset: u64, len: u64) -> (u64, u64) {
        let start = offset / self.sector_bytes * self.sector_bytes;
        (start, (offset + len).next_multiple_of(self.sector_bytes))
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Buf, Result<(), IoError>) {
        let _request = self.begin();
        let (buf, result) = self.read_part(offset, buf).await;
        self.standing.note_read(offset, &result, self.runtime.now());
        (buf, result)
    }

    async fn read_part(&self, offset: u64, mut buf: Buf) -> (Buf, Result<(), IoError>) {
        let len = buf.len() as u64;
        let (start, end) = self.widened(offset, len);
        if (start, end) == (offset, offset + len) {
            let outcome = self.device.read(offset, buf).await;
            return (outcome.buf.unwrap_or_else(|| Buf::zeroed(len as usize)), outcome.result);
        }
        match self.read_whole(start, end).await {
            Ok(wide) => {
                let at = (offset - start) as usize;
                buf.copy_from_slice(&wide[at..at + len as usize]);
                (buf, Ok(()))
            }
            Err(error) => (buf, Err(error)),
        }
    }

    async fn read_whole(&self, start: u64, end: u64) -> Result<Buf, IoError> {
        let outcome = self.device.read(start, Buf::new((end - start) as usize)).await;
        outcome.result?;
        outcome.buf.ok_or(IoErrorKind::Other.into())
    }

    /// Has something changed, and tells everybody if a flush has failed meanwhile.
    async fn change(
        &self,
        change: impl Future<Output = Result<(), IoError>>,
    ) -> Result<(), IoError> {
        let _request = self.begin();
        let before = self.failures.get();
        let result = change.await;
        self.standing.writes.note(&result, self.runtime.now());
        if self.failures.get() != before {
            self.failures.set(self.failures.get() + 1);
        }
        result
    }

    async fn write(&self, offset: u64, data: Data) -> Result<(), IoError> {
        let len = data.len() as u64;
        let (start, end) = self.widened(offset, len);
        if (start, end) == (offset, offset + len) {
            let _others = self.sectors.read().await;
            return self.device.write(offset, data).done().await;
        }
        let _alone = self.sectors.write().await;
        let mut wide = self.read_whole(start, end).await?;
        let at = (offset - start) as usize;
        wide[at..at + data.len()].copy_from_slice(&data);
        self.device.write(start, wide.freeze()).done().await
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let end = offset + len;
        let first = offset.next_multiple_of(self.sector_bytes).min(end);
        let last = (end / self.sector_bytes * self.sector_bytes).max(first);
        for (from, to) in [(offset, first), (last, end)] {
            if from < to {
                self.write(from, Buf::zeroed((to - from) as usize).freeze()).await?;
            }
        }
        if first < last {
            let _others = self.sectors.read().await;
            self.device.write_zeroes(first, last - first).done().await?;
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let first = offset.next_multiple_of(self.sector_bytes);
        let last = (offset + len) / self.sector_bytes * self.sector_bytes;
        if first >= last {
            return Ok(());
        }
        let _others = self.sectors.read().await;
        self.device.discard(first, last - first).done().await
    }

    async fn flush(&self) -> Result<(), IoError> {
        let _request = self.begin();
        let result = self.device.flush().done().await;
        self.standing.flushes.note(&result, self.runtime.now());
        if result.is_err() {
            self.failures.set(self.failures.get() + 1);
        }
        result
    }
}

/// What one client is served from.
pub(crate) struct PlainExport {
    plain: Rc<Plain>,
    terms: Terms,
    /// How many of the failures it was told of.
    told: Cell<u64>,
}

impl PlainExport {
    pub(crate) fn new(plain: &Rc<Plain>, terms: &Terms) -> PlainExport {
        let told = Cell::new(plain.failures.get());
        PlainExport { plain: Rc::clone(plain), terms: terms.clone(), told }
    }

    async fn finish(&self, changed: Result<(), IoError>, fua: bool) -> Result<(), ExportError> {
        let changed = changed.map_err(|_| ExportError::Io);
        match fua {
            true => changed.and(self.plain.flush().await.map_err(|_| ExportError::Io)),
            false => changed,
        }
    }
}

impl Export for PlainExport {
    fn name(&self) -> &str {
        &self.plain.name
    }

    fn description(&self) -> &str {
        "Forebay volume, without its cache"
    }

    fn size_bytes(&self) -> u64 {
        self.plain.size_bytes
    }

    fn read_only(&self) -> bool {
        self.terms.access == Access::ReadOnly
    }

    fn needs_tls(&self) -> bool {
        self.terms.needs_tls
    }

    fn for_client(self: Rc<Self>) -> Rc<Self> {
        Rc::new(PlainExport::new(&self.plain, &self.terms))
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Buf, Result<(), ExportError>) {
        let (buf, result) = self.plain.read(offset, buf).await;
        (buf, result.map_err(|_| ExportError::Io))
    }

    async fn write(&self, offset: u64, data: Data, fua: bool) -> Result<(), ExportError> {
        let written = self.plain.change(self.plain.write(offset, data)).await;
        self.finish(written, fua).await
    }

    async fn flush(&self) -> Result<(), ExportError> {
        let flushed = self.plain.flush().await;
        let failures = self.plain.failures.get();
        match self.told.replace(failures) == failures {
            true => flushed.map_err(|_| ExportError::Io),
            false => Err(ExportError::Io),
        }
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), ExportError> {
        let trimmed = self.plain.change(self.plain.discard(offset, len)).await;
        self.finish(trimmed, fua).await
    }

    /// A device that has no quick way writes them, which is for nobody to hear who asks for a quick one.
    async fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), ExportError> {
        if how.only_if_fast {
            return Err(ExportError::Unsupported);
        }
        let written = self.plain.change(self.plain.write_zeroes(offset, len)).await;
        self.finish(written, how.fua).await
    }

    async fn status(&self, _offset: u64, len: u64) -> Result<Vec<Extent>, ExportError> {
        Ok(vec![Extent { len, is_zero: false, tier: Tier::Origin }])
    }

    async fn prefetch(&self, _offset: u64, _len: u64) -> Result<(), ExportError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::all;
    use forebay_device::model::disk::{DiskSettings, SimDisk};
    use forebay_device::model::fault::{Failing, Faults, Hanging, Ops, Stuck, Trigger};
    use forebay_device::model::world::World;
    use forebay_device::runtime::SECOND;

    fn export(world: &Rc<World>, device: Rc<dyn BlockDevice>) -> Rc<PlainExport> {
        let (size_bytes, runtime) = (device.geometry().size_bytes, Rc::clone(world) as _);
        let plain = Rc::new(Plain::new("v".to_owned(), runtime, device, size_bytes));
        Rc::new(PlainExport::new(&plain, &Access::ReadWrite.into()))
    }

    fn filled(byte: u8, len: usize) -> Data {
        let mut buf = Buf::zeroed(len);
        buf.fill(byte);
        buf.freeze()
    }

    #[test]
    fn parts_of_sectors_are_written_beside_each_other_and_nothing_around_is_lost() {
        const SIZE: usize = 64 << 10;
        let world = World::new(1);
        let disk = SimDisk::new(&world, DiskSettings::origin(SIZE as u64, 4096, true), 2);
        let (device, own) = (Rc::clone(&disk) as Rc<dyn BlockDevice>, Rc::clone(&world));
        let read = world.run_until(async move {
            let export = export(&own, device);
            export.write(0, filled(9, SIZE), false).await.unwrap();
            // Eight clients, each with an eighth of one sector, and one that ends in the next.
            let eighths =
                (0..8).map(|at: u64| export.write(512 * at, filled(at as u8, 512), false));
            all(eighths.map(async |one| one.await.unwrap()).collect()).await;
            export.write(4096 - 512, filled(20, 1024), true).await.unwrap();
            let how = Zeroing::default();
            export.write_zeroes(8192 + 512, 16384, how).await.unwrap();
            let fast = Zeroing { only_if_fast: true, ..how };
            assert_eq!(export.write_zeroes(0, 512, fast).await, Err(ExportError::Unsupported));
            export.trim(40960 + 512, 1024, true).await.unwrap();
            export.flush().await.unwrap();
            let (buf, result) = export.read(512, Buf::zeroed(SIZE - 512)).await;
            result.unwrap();
            buf.to_vec()
        });
        let mut wanted = vec![9; SIZE];
        for at in 0..8 {
            wanted[512 * at..512 * (at + 1)].fill(at as u8);
        }
        wanted[4096 - 512..4096 + 512].fill(20);
        wanted[8192 + 512..8192 + 512 + 16384].fill(0);
        assert!(read.expect("ends") == wanted[512..]);
        assert!(disk.peek(0, SIZE) == wanted);
    }

    #[test]
    fn a_failed_flush_is_told_to_each_client_once() {
        let world = World::new(1);
        let runtime = Rc::clone(&world) as Rc<dyn forebay_device::Runtime>;
        let faults = Faults::new(1);
        let device = Rc::new(Failing {
            inner: SimDisk::new(&world, DiskSettings::origin(1 << 20, 512, true), 2),
            faults: Rc::clone(&faults),
            error: IoErrorKind::Media,
            runtime,
        });
        let own = Rc::clone(&world);
        let told = world.run_until(async move {
            let export = export(&own, device);
            let clients: Vec<_> = (0..2).map(|_| Rc::clone(&export).for_client()).collect();
            clients[0].write(0, filled(1, 4096), false).await.unwrap();
            faults.arm(Trigger::every(Ops::Flushes).times(1));
            let mut told = Vec::new();
            for _ in 0..2 {
                for client in &clients {
                    told.push(client.flush().await);
                }
            }
            told.push(export.for_client().flush().await);
            told
        });
        let (failed, fine) = (Err(ExportError::Io), Ok(()));
        assert_eq!(told.expect("ends"), [failed, failed, fine, fine, fine]);
    }

    #[test]
    fn a_device_that_fails_for_long_is_in_trouble_and_one_bad_place_is_none() {
        let world = World::new(1);
        let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
        let faults = Faults::new(1);
        let device = Rc::new(Failing {
            inner: SimDisk::new(&world, DiskSettings::origin(1 << 20, 512, true), 2),
            faults: Rc::clone(&faults),
            error: IoErrorKind::Media,
            runtime: Rc::clone(&runtime),
        });
        let own = Rc::clone(&world);
        let told = world.run_until(async move {
            let (export, mut told) = (export(&own, device), Vec::new());
            let plain = Rc::clone(&export.plain);
            let mut meet = async |ops, elsewhere| {
                faults.arm(Trigger::every(ops));
                for _ in 0..6 {
                    let _ = export.write(0, filled(1, 512), true).await;
                    let _ = export.read(0, Buf::zeroed(512)).await;
                    let _ = runtime.sleep(SECOND).await;
                    if elsewhere {
                        faults.disarm();
                        plain.probe().await;
                        faults.arm(Trigger::every(ops));
                    }
                }
                told.push(plain.trouble().map(|trouble| trouble.to_string()));
                faults.disarm();
                export.write(0, filled(1, 512), true).await.unwrap();
                let (_, read) = export.read(0, Buf::zeroed(512)).await;
                read.unwrap();
                told.push(plain.trouble().map(|trouble| trouble.to_string()));
            };
            meet(Ops::Writes, false).await;
            meet(Ops::Flushes, false).await;
            meet(Ops::Reads, false).await;
            meet(Ops::Reads, true).await;
            told
        });
        let told = told.expect("ends");
        let begin = |at: usize| told[at].as_deref().map(|what| what.split(':').next().unwrap());
        let (writing, reading) =
            (Some("writing its origin fails"), Some("reading its origin fails"));
        assert_eq!([0, 2, 4, 6].map(begin), [writing, writing, reading, None], "{told:?}");
        assert_eq!([1, 3, 5, 7].map(begin), [None; 4], "it works again: {told:?}");
    }

    /// A device whose requests fail, or have no answer, as these say; and what has none.
    fn faulty(world: &Rc<World>) -> (Rc<dyn BlockDevice>, [Rc<Faults>; 2], Rc<Stuck>) {
        let runtime = || Rc::clone(world) as Rc<dyn Runtime>;
        let (faults, stuck) = ([Faults::new(1), Faults::new(2)], Rc::new(Stuck::default()));
        let failing = Rc::new(Failing {
            inner: SimDisk::new(world, DiskSettings::origin(1 << 20, 512, true), 2),
            faults: Rc::clone(&faults[0]),
            error: IoErrorKind::Media,
            runtime: runtime(),
        });
        let hanging = Hanging {
            inner: failing,
            faults: Rc::clone(&faults[1]),
            stuck: Rc::clone(&stuck),
            runtime: runtime(),
        };
        (Rc::new(hanging), faults, stuck)
    }

    #[test]
    fn while_a_try_hangs_its_device_is_in_trouble_and_nothing_else_waits_for_it() {
        let world = World::new(1);
        let (device, [failing, hanging], stuck) = faulty(&world);
        let (own, runtime) = (Rc::clone(&world), Rc::clone(&world) as Rc<dyn Runtime>);
        let ended = world.run_until(async move {
            let export = export(&own, Rc::clone(&device));
            let plain = Rc::clone(&export.plain);
            let begin_probe = || {
                let plain = Rc::clone(&plain);
                runtime.spawn(Box::pin(async move { plain.probe().await }));
            };
            failing.arm(Trigger::every(Ops::Reads));
            for _ in 0..6 {
                let _ = export.read(0, Buf::zeroed(512)).await;
                let _ = runtime.sleep(SECOND).await;
            }
            assert!(matches!(plain.trouble(), Some(OriginTrouble::Reads(_))));
            failing.disarm();
            hanging.arm(Trigger::every(Ops::Reads));
            for looks in 1..200 {
                begin_probe();
                let _ = runtime.sleep(SECOND).await;
                assert_eq!(stuck.count(), 1, "one at a time");
                assert!(plain.trouble().is_some(), "it is over after {looks} s");
            }
            assert_eq!(plain.trouble(), Some(OriginTrouble::Silent));
            assert!(!plain.is_busy(), "an end would wait for it");
            hanging.disarm();
            stuck.release(&device);
            let _ = runtime.sleep(SECOND).await;
            assert_eq!((plain.trouble(), plain.is_unsure()), (None, false));
        });
        ended.expect("ends");
    }

    #[test]
    fn what_fails_after_a_long_silence_is_not_over() {
        let world = World::new(1);
        let (device, [failing, hanging], stuck) = faulty(&world);
        let (own, runtime) = (Rc::clone(&world), Rc::clone(&world) as Rc<dyn Runtime>);
        let ended = world.run_until(async move {
            let export = export(&own, Rc::clone(&device));
            let plain = Rc::clone(&export.plain);
            hanging.arm(Trigger::every(Ops::Reads));
            let reader = Rc::clone(&export);
            runtime.spawn(Box::pin(async move {
                let _ = reader.read(0, Buf::zeroed(512)).await;
            }));
            let _ = runtime.sleep(ORIGIN_SILENT_SPAN + SECOND).await;
            assert_eq!(plain.trouble(), Some(OriginTrouble::Silent));
            hanging.disarm();
            failing.arm(Trigger::every(Ops::Reads));
            stuck.release(&device);
            let (_, read) = export.read(0, Buf::zeroed(512)).await;
            assert_eq!(read, Err(ExportError::Io));
            assert_eq!((plain.trouble(), plain.is_unsure()), (None, true));
            failing.disarm();
            plain.probe().await;
            assert_eq!((plain.trouble(), plain.is_unsure()), (None, false));
        });
        ended.expect("ends");
    }
}
