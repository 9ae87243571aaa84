//! A volume as an export of the NBD server.

use forebay_device::{Buf, Data};
use forebay_engine::{Client, Error, ErrorKind};
use forebay_export::{Export, ExportError};

/// See the head of the file.
pub(crate) struct VolumeExport {
    volume: Client,
    description: String,
}

impl VolumeExport {
    /// The export of `volume`; its clients share one view of it.
    pub(crate) fn new(volume: Client, description: String) -> Self {
        Self { volume, description }
    }
}

/// What a client is told of an engine's error.
fn told(error: &Error) -> ExportError {
    match error.kind {
        ErrorKind::Io | ErrorKind::Damaged => ExportError::Io,
        ErrorKind::OutOfRange | ErrorKind::Invalid => ExportError::Invalid,
        ErrorKind::Stopping => ExportError::ShuttingDown,
        ErrorKind::Refused | ErrorKind::Future | ErrorKind::NeedsDecision | ErrorKind::NotFound => {
            ExportError::Io
        }
    }
}

impl Export for VolumeExport {
    fn name(&self) -> &str {
        self.volume.name()
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn read_only(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Buf, Result<(), ExportError>) {
        let (buf, result) = self.volume.read(offset, buf).await;
        (buf, result.map_err(|error| told(&error)))
    }

    async fn write(&self, offset: u64, data: Data, fua: bool) -> Result<(), ExportError> {
        self.volume.write(offset, data, fua).await.map_err(|error| told(&error))
    }

    async fn flush(&self) -> Result<(), ExportError> {
        self.volume.flush().await.map_err(|error| told(&error))
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), ExportError> {
        self.volume.trim(offset, len, fua).await.map_err(|error| told(&error))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _may_trim: bool,
        fua: bool,
    ) -> Result<(), ExportError> {
        self.volume.write_zeroes(offset, len, fua).await.map_err(|error| told(&error))
    }
}
