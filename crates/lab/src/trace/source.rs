//! Files as plain bytes: gzip and zstd are told by their first bytes, not by a name.

use std::io::{BufRead, BufReader, ErrorKind, Read, Result};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes of a file that are looked at to tell its format; a line of each of them fits.
pub(super) const HEAD_BYTES: usize = 4 << 10;
/// Bytes read at once.
pub(super) const BUFFER_BYTES: usize = 128 << 10;

const GZIP: [u8; 2] = [0x1F, 0x8B];
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// What is in a file.
pub(super) fn plain(input: Box<dyn Read>) -> Result<Box<dyn Read>> {
    let (head, input) = peek(input, ZSTD.len())?;
    let buffered = |input| BufReader::with_capacity(BUFFER_BYTES, input);
    Ok(if head.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(buffered(input)))
    } else if head.starts_with(&ZSTD) || is_skippable(&head) {
        Box::new(Frames { rest: buffered(input), decoder: FrameDecoder::new(), within: false })
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

/// Whether this is the beginning of a frame that decoders pass over; pzstd writes such frames, of
/// the sizes of those that follow.
fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..])
}

/// The content of all frames of a zstd file; parallel compressors write many.
struct Frames {
    /// What comes after that which was read so far.
    rest: BufReader<Box<dyn Read>>,
    decoder: FrameDecoder,
    /// Whether the decoder is within a frame.
    within: bool,
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        while self.within || self.enter()? {
            let count = self.read_frame(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            self.within = false;
        }
        Ok(0)
    }
}

impl Frames {
    /// Goes on to the next frame that has content; `false` if there is none.
    fn enter(&mut self) -> Result<bool> {
        while !self.rest.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.rest) {
                Ok(()) => {
                    self.within = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => self.skip(length.into())?,
                Err(error) => return Err(explained(error)),
            }
        }
        Ok(false)
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        if std::io::copy(&mut self.rest.by_ref().take(bytes), &mut std::io::sink())? < bytes {
            return Err(std::io::Error::other("it ends inside of a frame"));
        }
        Ok(())
    }

    /// Reads from the frame that the decoder is within; nothing at its end.
    fn read_frame(&mut self, out: &mut [u8]) -> Result<usize> {
        while self.decoder.can_collect() < out.len() && !self.decoder.is_finished() {
            let missing = BlockDecodingStrategy::UptoBytes(out.len() - self.decoder.can_collect());
            self.decoder.decode_blocks(&mut self.rest, missing).map_err(explained)?;
        }
        self.decoder.read(out)
    }
}

fn explained(error: FrameDecoderError) -> std::io::Error {
    let FrameDecoderError::ReadFrameHeaderError(header) = &error else {
        return std::io::Error::other(error);
    };
    let is_short = |error: &std::io::Error| error.kind() == ErrorKind::UnexpectedEof;
    std::io::Error::other(match header {
        ReadFrameHeaderError::BadMagicNumber(_) => NOT_ZSTD.to_owned(),
        ReadFrameHeaderError::MagicNumberReadError(error) if is_short(error) => NOT_ZSTD.to_owned(),
        other => other.to_string(),
    })
}

const NOT_ZSTD: &str = "what follows the last whole zstd frame is not zstd";
