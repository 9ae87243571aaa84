//! Headers of zstd frames (RFC 8878, 3.1.1), read before the decoder sees them: ruzstd 0.8 limits the
//! window of every frame but a file's first one.

use std::io::{Error, ErrorKind, Read, Result};

/// The first bytes of a frame.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// What begins a frame.
pub(super) enum Header {
    /// A frame with content.
    Content {
        /// The whole header.
        header: Vec<u8>,
        /// What its decoder keeps of what it has decoded.
        window_bytes: u64,
    },
    /// One that decoders pass over; so many bytes follow.
    Skippable(u32),
}

/// Whether this is the beginning of a frame that decoders pass over; pzstd writes such frames, of
/// the sizes of those that follow.
pub(super) fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..])
}

/// Reads the header that comes next; something must come.
pub(super) fn read(input: &mut dyn Read) -> Result<Header> {
    let mut magic = [0; 4];
    let begins = match input.read_exact(&mut magic) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
        read => read.is_ok(),
    };
    if begins && is_skippable(&magic) {
        let mut bytes = [0; 4];
        fill(input, &mut bytes)?;
        return Ok(Header::Skippable(u32::from_le_bytes(bytes)));
    }
    if !begins || magic != MAGIC {
        return Err(Error::other("what follows the last whole zstd frame is not zstd"));
    }
    let mut descriptor = [0];
    fill(input, &mut descriptor)?;
    let [descriptor] = descriptor;
    // What is in one segment has no window but its content, the size of which is told then.
    let whole = descriptor & 1 << 5 != 0;
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(whole),
        power => 1 << power,
    };
    let size_at = usize::from(!whole) + dictionary_bytes;
    let mut fields = vec![0; size_at + size_bytes];
    fill(input, &mut fields)?;
    let window_bytes = match whole {
        true => content_bytes(&fields[size_at..]),
        false => window_bytes(fields[0]),
    };
    let header = [&MAGIC[..], &[descriptor], &fields].concat();
    Ok(Header::Content { header, window_bytes })
}

fn fill(input: &mut dyn Read, bytes: &mut [u8]) -> Result<()> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => cut_off(),
        _ => error,
    })
}

/// The error that a file is which ends too early.
pub(super) fn cut_off() -> Error {
    Error::other("it ends inside of a frame")
}

/// The field of two bytes begins where that of one ends.
fn content_bytes(field: &[u8]) -> u64 {
    let bytes = field.iter().rev().fold(0, |bytes, &byte| bytes << 8 | u64::from(byte));
    if field.len() == 2 { bytes + 256 } else { bytes }
}

/// A power of two, and eighths of it.
fn window_bytes(field: u8) -> u64 {
    let base = 1 << (10 + (field >> 3));
    base + base / 8 * u64::from(field & 7)
}
