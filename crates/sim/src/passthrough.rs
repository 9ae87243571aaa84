//! A cache that caches nothing: each volume is its origin. It shows that world, disks and oracle
//! agree with each other, and its planted bugs show that they notice when something is wrong.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use forebay_device::io::Outcome;
use forebay_device::{Buf, Data, IoError, IoErrorKind};

use crate::subject::{Env, Mode, Subject, SubjectError};
use crate::swarm::Config;

/// The trivial subject.
pub struct Passthrough {
    env: Env,
    writes: Cell<u64>,
    /// Failed flushes of each volume, and how many of them each session has been told of.
    failures: RefCell<BTreeMap<usize, u64>>,
    told: RefCell<BTreeMap<(usize, usize), u64>>,
}

impl Passthrough {
    fn bug(&self, name: &str) -> bool {
        self.env.bug.as_deref() == Some(name)
    }

    async fn flush_origin(&self, volume: usize) -> Result<(), IoError> {
        let result = self.env.origins[volume].flush().done().await;
        if result.is_err() {
            *self.failures.borrow_mut().entry(volume).or_default() += 1;
        }
        result
    }

    /// A change ends before which there were so many failures: one on its way may have lost it,
    /// though it was told of before.
    fn end_change(&self, client: usize, volume: usize, failures: u64) {
        if self.failures(volume) != failures {
            let session = (volume, self.env.config.session(client));
            let mut told = self.told.borrow_mut();
            let told = told.entry(session).or_default();
            *told = failures.min(*told);
        }
    }

    fn failures(&self, volume: usize) -> u64 {
        self.failures.borrow().get(&volume).copied().unwrap_or(0)
    }
}

impl Subject for Passthrough {
    const BUGS: &'static [&'static str] = &[
        "flush-lies",
        "fua-ignored",
        "acknowledged-early",
        "one-sector-off",
        "recovery-unflushed",
        "trim-garbles",
    ];

    fn adapt(config: &mut Config) {
        config.volumes.iter_mut().for_each(|volume| volume.origin_sector_bytes = 512);
    }

    async fn create(_: &Env) -> Result<(), SubjectError> {
        Ok(())
    }

    async fn open(env: &Env) -> Result<Self, SubjectError> {
        let (writes, failures) = (Cell::new(0), RefCell::default());
        let subject = Self { env: env.clone(), writes, failures, told: RefCell::default() };
        if !subject.bug("recovery-unflushed") {
            // What is read from now on must not be lost any more, so a dead process's writes are
            // made durable first.
            subject.destage().await?;
        }
        Ok(subject)
    }

    async fn read(&self, _: usize, volume: usize, offset: u64, buf: Buf) -> Outcome {
        self.env.origins[volume].read(offset, buf).await
    }

    async fn write(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        data: Data,
        fua: bool,
    ) -> Result<(), IoError> {
        let count = self.writes.get() + 1;
        self.writes.set(count);
        let origin = &self.env.origins[volume];
        let sector = u64::from(origin.geometry().sector_bytes);
        let offset = match offset.checked_sub(sector) {
            Some(before) if self.bug("one-sector-off") && count.is_multiple_of(16) => before,
            _ => offset,
        };
        let failures = self.failures(volume);
        let write = origin.write(offset, data).done();
        if self.bug("acknowledged-early") && count.is_multiple_of(8) {
            self.env.runtime.spawn(Box::pin(async move {
                let _ = write.await;
            }));
            return Ok(());
        }
        write.await?;
        self.end_change(client, volume, failures);
        if fua && !self.bug("fua-ignored") {
            self.flush_origin(volume).await?;
            if failures != self.failures(volume) {
                return Err(IoErrorKind::Other.into());
            }
        }
        Ok(())
    }

    async fn flush(&self, client: usize, volume: usize) -> Result<(), IoError> {
        if self.bug("flush-lies") {
            return Ok(());
        }
        let session = (volume, self.env.config.session(client));
        let told = self.told.borrow().get(&session).copied().unwrap_or(0);
        let result = self.flush_origin(volume).await;
        let failures = self.failures(volume);
        self.told.borrow_mut().insert(session, failures);
        if told < failures { Err(IoErrorKind::Other.into()) } else { result }
    }

    async fn trim(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        len: u64,
    ) -> Result<(), IoError> {
        let failures = self.failures(volume);
        if self.bug("trim-garbles") {
            let data = Buf::copy_of(&vec![0xA5; len as usize]).freeze();
            return self.env.origins[volume].write(offset, data).done().await;
        }
        self.env.origins[volume].discard(offset, len).done().await?;
        self.end_change(client, volume, failures);
        Ok(())
    }

    async fn write_zeroes(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        len: u64,
    ) -> Result<(), IoError> {
        let failures = self.failures(volume);
        self.env.origins[volume].write_zeroes(offset, len).done().await?;
        self.end_change(client, volume, failures);
        Ok(())
    }

    async fn set_mode(&self, _: usize, _: Mode) -> Result<(), SubjectError> {
        Ok(())
    }

    async fn destage(&self) -> Result<(), SubjectError> {
        for volume in 0..self.env.origins.len() {
            self.flush_origin(volume).await?;
        }
        Ok(())
    }

    async fn stop(self) -> Result<(), SubjectError> {
        self.destage().await
    }
}
