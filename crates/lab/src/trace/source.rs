//! Files as plain bytes: gzip and zstd are told by their first bytes, not by a name.

use std::io::{BufRead, BufReader, Read, Result};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

/// Bytes of a file that are looked at to tell its format; a line of each of them fits.
const HEAD_BYTES: usize = 4 << 10;
/// Bytes read at once.
const BUFFER_BYTES: usize = 128 << 10;

const GZIP: [u8; 2] = [0x1F, 0x8B];
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// The beginning of what is in a file, and all of it.
pub(super) fn plain(input: Box<dyn Read>) -> Result<(Vec<u8>, Box<dyn BufRead>)> {
    let (head, input) = peek(input)?;
    let input: Box<dyn Read> = if head.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, input)))
    } else if head.starts_with(&ZSTD) {
        Box::new(Frames { rest: Some(Box::new(BufReader::new(input))), frame: None })
    } else {
        return Ok((head, Box::new(BufReader::with_capacity(BUFFER_BYTES, input))));
    };
    let (head, input) = peek(input)?;
    Ok((head, Box::new(BufReader::with_capacity(BUFFER_BYTES, input))))
}

/// The first bytes of a stream, and the whole stream.
fn peek(mut input: Box<dyn Read>) -> Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    input.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head.clone(), std::io::Cursor::new(head).chain(input)))
}

type Compressed = Box<dyn BufRead>;

/// The content of all frames of a zstd file; parallel compressors write many.
struct Frames {
    /// What comes after the frames read so far, while none is being read.
    rest: Option<Compressed>,
    frame: Option<StreamingDecoder<Compressed, ruzstd::decoding::FrameDecoder>>,
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let count = frame.read(out)?;
                if count > 0 || out.is_empty() {
                    return Ok(count);
                }
                self.rest = self.frame.take().map(StreamingDecoder::into_inner);
            }
            let Some(mut rest) = self.rest.take() else { return Ok(0) };
            if rest.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match StreamingDecoder::new(rest) {
                Ok(frame) => self.frame = Some(frame),
                Err(error) => return Err(std::io::Error::other(explained(&error))),
            }
        }
    }
}

fn explained(error: &FrameDecoderError) -> String {
    match error {
        FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { .. }) => {
            "a frame to be skipped is not understood; compress it again with `zstd`".to_owned()
        }
        other => other.to_string(),
    }
}
