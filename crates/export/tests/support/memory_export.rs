//! A volume in memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_device::runtime::{MICROSECOND, Nanos};
use forebay_device::{Buf, Data, Runtime};
use forebay_export::nbd::limits::EXTENTS_MAX;
use forebay_export::{Export, ExportError, Extent, Tier, Zeroing};

/// A volume in memory that checks what a server promises to check.
pub struct MemoryExport {
    pub name: String,
    pub description: String,
    pub read_only: bool,
    pub zeroes_fast: bool,
    pub needs_tls: bool,
    /// Requests wait for a random time up to this one, so that they end in another order.
    pub delay_max: Nanos,
    /// What every request fails with.
    pub fault: Cell<Option<ExportError>>,
    /// Whether what a read was given stays behind and its answer is in other memory.
    pub keeps_memory: Cell<bool>,
    /// Requests in progress, and the most that there have been.
    pub inflight: Cell<usize>,
    pub inflight_peak: Cell<usize>,
    /// Requests that have ended, for other threads too.
    pub finished: Arc<AtomicUsize>,
    /// Clients that have begun.
    pub clients: Cell<usize>,
    /// Those that have gone in order, with all answers.
    pub leaves: Cell<usize>,
    pub flushes: Cell<usize>,
    pub fua_writes: Cell<usize>,
    pub prefetches: Cell<usize>,
    bytes: RefCell<Vec<u8>>,
    runtime: Rc<dyn Runtime>,
}

struct InFlight<'a>(&'a MemoryExport);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.inflight.set(self.0.inflight.get() - 1);
    }
}

impl MemoryExport {
    pub fn new(runtime: Rc<dyn Runtime>, name: &str, size_bytes: usize) -> Self {
        Self {
            name: name.to_owned(),
            description: format!("{name} in memory"),
            read_only: false,
            zeroes_fast: true,
            needs_tls: false,
            delay_max: 0,
            fault: Cell::new(None),
            keeps_memory: Cell::new(false),
            inflight: Cell::new(0),
            inflight_peak: Cell::new(0),
            finished: Arc::default(),
            clients: Cell::new(0),
            leaves: Cell::new(0),
            flushes: Cell::new(0),
            fua_writes: Cell::new(0),
            prefetches: Cell::new(0),
            bytes: RefCell::new(vec![0; size_bytes]),
            runtime,
        }
    }

    pub fn delayed(self) -> Self {
        Self { delay_max: 300 * MICROSECOND, ..self }
    }

    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    pub fn needing_tls(self) -> Self {
        Self { needs_tls: true, ..self }
    }

    pub fn bytes(&self) -> std::cell::RefMut<'_, Vec<u8>> {
        self.bytes.borrow_mut()
    }

    async fn enter(&self, range: Option<(u64, u64)>, writes: bool) -> Result<(), ExportError> {
        self.inflight.set(self.inflight.get() + 1);
        self.inflight_peak.set(self.inflight_peak.get().max(self.inflight.get()));
        let _inflight = InFlight(self);
        if let Some((offset, len)) = range {
            let end = offset.checked_add(len).expect("no overflow");
            assert!(len > 0 && end <= self.size_bytes(), "the range is inside");
            assert!(offset % 512 == 0 && len % 512 == 0, "the range is aligned");
        }
        assert!(!(writes && self.read_only), "a read-only export sees no write");
        if self.delay_max > 0 {
            let _ = self.runtime.sleep(self.runtime.random() % self.delay_max).await;
        }
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.fault.get().map_or(Ok(()), Err)
    }

    fn fill(&self, offset: u64, len: u64, byte: u8) {
        let start = offset as usize;
        self.bytes()[start..start + len as usize].fill(byte);
    }
}

impl Export for MemoryExport {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn size_bytes(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn needs_tls(&self) -> bool {
        self.needs_tls
    }

    fn for_client(self: Rc<Self>) -> Rc<Self> {
        self.clients.set(self.clients.get() + 1);
        self
    }

    fn take_leave(&self) {
        self.leaves.set(self.leaves.get() + 1);
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Buf, Result<(), ExportError>) {
        assert_eq!(buf.as_mut_ptr() as usize % 4096, 0, "fit for direct I/O");
        let result = self.enter(Some((offset, buf.len() as u64)), false).await;
        let (start, len) = (offset as usize, buf.len());
        if self.keeps_memory.get() {
            buf.fill(0xEE);
            buf = Buf::new(len);
        }
        buf.copy_from_slice(&self.bytes.borrow()[start..start + len]);
        (buf, result)
    }

    async fn write(&self, offset: u64, data: Data, fua: bool) -> Result<(), ExportError> {
        assert_eq!(data.as_ptr() as usize % 4096, 0, "fit for direct I/O");
        self.enter(Some((offset, data.len() as u64)), true).await?;
        self.fua_writes.set(self.fua_writes.get() + usize::from(fua));
        let start = offset as usize;
        self.bytes()[start..start + data.len()].copy_from_slice(&data);
        Ok(())
    }

    async fn flush(&self) -> Result<(), ExportError> {
        self.flushes.set(self.flushes.get() + 1);
        self.enter(None, false).await
    }

    async fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<(), ExportError> {
        self.enter(Some((offset, len)), true).await?;
        self.fill(offset, len, 0);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), ExportError> {
        self.enter(Some((offset, len)), true).await?;
        if how.only_if_fast && !self.zeroes_fast {
            return Err(ExportError::Unsupported);
        }
        self.fua_writes.set(self.fua_writes.get() + usize::from(how.fua));
        self.fill(offset, len, 0);
        Ok(())
    }

    /// Sectors of zeroes are known as such and dirty, those that begin with 1 are clean, all others
    /// are on the origin.
    async fn status(&self, offset: u64, len: u64) -> Result<Vec<Extent>, ExportError> {
        self.enter(Some((offset, len)), false).await?;
        let (start, len) = (offset as usize, len as usize);
        let mut extents: Vec<Extent> = Vec::new();
        for sector in self.bytes()[start..start + len].chunks(512) {
            let is_zero = sector.iter().all(|&byte| byte == 0);
            let tier = match sector[0] {
                _ if is_zero => Tier::SsdDirty,
                1 => Tier::SsdClean,
                _ => Tier::Origin,
            };
            let same = |last: &&mut Extent| (last.is_zero, last.tier) == (is_zero, tier);
            if let Some(last) = extents.last_mut().filter(same) {
                last.len += 512;
            } else if extents.len() < EXTENTS_MAX {
                extents.push(Extent { len: 512, is_zero, tier });
            } else {
                break;
            }
        }
        Ok(extents)
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), ExportError> {
        self.prefetches.set(self.prefetches.get() + 1);
        self.enter(Some((offset, len)), false).await
    }
}
