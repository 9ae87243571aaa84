//! A cache that caches nothing: each volume is its origin. It shows that world, disks and oracle
//! agree with each other, and its planted bugs show that they notice when something is wrong.

use std::cell::Cell;

use forebay_device::io::Outcome;
use forebay_device::{Buf, Data, IoError};

use crate::subject::{Env, Mode, Subject, SubjectError};
use crate::swarm::Config;

/// The trivial subject.
pub struct Passthrough {
    env: Env,
    writes: Cell<u64>,
}

impl Passthrough {
    fn bug(&self, name: &str) -> bool {
        self.env.bug.as_deref() == Some(name)
    }

    async fn flush_origin(&self, volume: usize) -> Result<(), IoError> {
        self.env.origins[volume].flush().done().await
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
        let subject = Self { env: env.clone(), writes: Cell::new(0) };
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
        _: usize,
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
        let write = origin.write(offset, data).done();
        if self.bug("acknowledged-early") && count.is_multiple_of(8) {
            self.env.runtime.spawn(Box::pin(async move {
                let _ = write.await;
            }));
            return Ok(());
        }
        write.await?;
        if fua && !self.bug("fua-ignored") {
            self.flush_origin(volume).await?;
        }
        Ok(())
    }

    async fn flush(&self, _: usize, volume: usize) -> Result<(), IoError> {
        if self.bug("flush-lies") {
            return Ok(());
        }
        self.flush_origin(volume).await
    }

    async fn trim(&self, _: usize, volume: usize, offset: u64, len: u64) -> Result<(), IoError> {
        if self.bug("trim-garbles") {
            let data = Buf::copy_of(&vec![0xA5; len as usize]).freeze();
            return self.env.origins[volume].write(offset, data).done().await;
        }
        self.env.origins[volume].discard(offset, len).done().await
    }

    async fn write_zeroes(
        &self,
        _: usize,
        volume: usize,
        offset: u64,
        len: u64,
    ) -> Result<(), IoError> {
        self.env.origins[volume].write_zeroes(offset, len).done().await
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
