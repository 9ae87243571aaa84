//! Files as plain bytes: gzip and zstd are told by their first bytes, not by a name.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Result};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::frame::{self, Header};

/// Bytes of a file that are looked at to tell its format; a line of each of them fits.
pub(super) const HEAD_BYTES: usize = 4 << 10;
/// Bytes read at once.
pub(super) const BUFFER_BYTES: usize = 128 << 10;
/// Bytes of the window of one zstd file: ruzstd takes no more in frames that follow another one. A
/// decoder's buffer is up to four times as large.
pub(super) const WINDOW_BYTES_MAX: u64 = 100 << 20;
/// Bytes of the windows of all zstd files that are open together. That leaves each of
/// [`super::PIECES_MAX`] the 2 MiB that zstd takes at its usual level, and each of 128 the 8 MiB of
/// level 19. Files of larger windows are refused.
pub(super) const WINDOWS_BYTES_MAX: u64 = 1 << 30;

const GZIP: [u8; 2] = [0x1F, 0x8B];

/// The largest window of a zstd file when so many files are open together.
pub(super) fn window_bytes_max(files: usize) -> u64 {
    (WINDOWS_BYTES_MAX / files.max(1) as u64).min(WINDOW_BYTES_MAX)
}

/// What is in a file, of which a window of zstd may be so large.
pub(super) fn plain(input: Box<dyn Read>, window_bytes_max: u64) -> Result<Box<dyn Read>> {
    let (head, input) = peek(input, frame::MAGIC.len())?;
    let buffered = |input| BufReader::with_capacity(BUFFER_BYTES, input);
    Ok(if head.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(buffered(input)))
    } else if head.starts_with(&frame::MAGIC) || frame::is_skippable(&head) {
        let decoder = FrameDecoder::new();
        Box::new(Frames { rest: buffered(input), decoder, within: false, window_bytes_max })
    } else {
        input
    })
}

/// The first bytes of a stream, and the whole stream.
pub(super) fn peek(mut input: Box<dyn Read>, count: usize) -> Result<(Vec<u8>, Box<dyn Read>)> {
    let mut head = Vec::with_capacity(count);
    input.by_ref().take(count as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Box::new(std::io::Cursor::new(head).chain(input))))
}

/// Whether nothing more comes.
pub(super) fn is_at_end(input: &mut dyn BufRead) -> Result<bool> {
    loop {
        match input.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            buffer => return buffer.map(|buffer| buffer.is_empty()),
        }
    }
}

/// What a person reads of a file that cannot be read.
pub(super) fn failed(name: &str, error: &std::io::Error) -> crate::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<WindowTooLarge>()) {
        Some(too_large) => crate::Error::new(
            format!("cannot read {name}: {too_large}"),
            "decompress it first, with `zstd -dc --long=31`",
        ),
        None => crate::Error::io(name, error),
    }
}

/// A zstd file whose decoder would take too much memory.
#[derive(Debug)]
struct WindowTooLarge {
    bytes: u64,
    bytes_max: u64,
}

impl fmt::Display for WindowTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, bytes_max } = self;
        write!(f, "its zstd window of {bytes} bytes is larger than {bytes_max}")?;
        if *bytes_max < WINDOW_BYTES_MAX {
            write!(f, ", as many files are read side by side")?;
        }
        Ok(())
    }
}

impl std::error::Error for WindowTooLarge {}

/// The content of all frames of a zstd file; parallel compressors write many.
struct Frames {
    /// What comes after that which was read so far.
    rest: BufReader<Box<dyn Read>>,
    decoder: FrameDecoder,
    /// Whether the decoder is within a frame.
    within: bool,
    window_bytes_max: u64,
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        while self.within || self.enter()? {
            let count = self.read_frame(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            self.check()?;
            self.within = false;
        }
        Ok(0)
    }
}

impl Frames {
    /// Goes on to the next frame that has content; `false` if there is none.
    fn enter(&mut self) -> Result<bool> {
        while !is_at_end(&mut self.rest)? {
            let (header, bytes) = match frame::read(&mut self.rest)? {
                Header::Content { header, window_bytes } => (header, window_bytes),
                Header::Skippable(bytes) => {
                    self.skip(bytes.into())?;
                    continue;
                }
            };
            if bytes > self.window_bytes_max {
                let bytes_max = self.window_bytes_max;
                return Err(std::io::Error::other(WindowTooLarge { bytes, bytes_max }));
            }
            self.decoder.reset(&header[..]).map_err(std::io::Error::other)?;
            self.within = true;
            return Ok(true);
        }
        Ok(false)
    }

    /// Compares what was read of a frame with its checksum, if it has one: the decoder does not.
    fn check(&self) -> Result<()> {
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(std::io::Error::other("its content is not what its zstd checksum says"));
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        if std::io::copy(&mut self.rest.by_ref().take(bytes), &mut std::io::sink())? < bytes {
            return Err(frame::cut_off());
        }
        Ok(())
    }

    /// Reads from the frame that the decoder is within; nothing at its end.
    fn read_frame(&mut self, out: &mut [u8]) -> Result<usize> {
        while self.decoder.can_collect() < out.len() && !self.decoder.is_finished() {
            let missing = BlockDecodingStrategy::UptoBytes(out.len() - self.decoder.can_collect());
            self.decoder.decode_blocks(&mut self.rest, missing).map_err(std::io::Error::other)?;
        }
        self.decoder.read(out)
    }
}
