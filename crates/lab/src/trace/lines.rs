//! Lines of bounded length.

use std::io::{BufRead, Result};

use super::{LINE_BYTES_MAX, source};

/// What [`read_line`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line, without its end.
    Whole,
    /// A line that is too long; it was passed over.
    Long,
    /// The end of the file.
    End,
}

/// Reads the next line into `line`, which never holds more than [`LINE_BYTES_MAX`] bytes.
pub(super) fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> Result<Line> {
    line.clear();
    let (mut any, mut long) = (false, false);
    loop {
        if source::is_at_end(input)? {
            break;
        }
        let buffer = input.fill_buf()?;
        any = true;
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let piece = &buffer[..end.unwrap_or(buffer.len())];
        long |= line.len() + piece.len() > LINE_BYTES_MAX;
        if !long {
            line.extend_from_slice(piece);
        }
        let consumed = piece.len() + usize::from(end.is_some());
        input.consume(consumed);
        if end.is_some() {
            break;
        }
    }
    Ok(match (any, long) {
        (false, _) => Line::End,
        (true, true) => Line::Long,
        (true, false) => Line::Whole,
    })
}
