//! What a server's replies look like; without I/O.

use crate::nbd::wire::{Fields, MAGIC_SIMPLE_REPLY, MAGIC_STRUCTURED_REPLY, chunk};

/// Bytes of a simple reply; with fewer nothing can be said of any.
pub(super) const SIMPLE_BYTES: usize = 16;
/// Bytes of the header of a part of a structured reply.
pub(super) const CHUNK_BYTES: usize = 20;

/// The header of a reply, or of a part of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// A whole reply; what was read follows if it is good.
    Simple { cookie: u64, errno: u32 },
    /// A part of a reply, with bytes behind it.
    Chunk { cookie: u64, is_last: bool, kind: u16, len: u32 },
}

/// How many bytes the header that begins like this has; `None` if none does.
pub(super) fn header_bytes(start: &[u8]) -> Option<usize> {
    match Fields(start).u32()? {
        MAGIC_SIMPLE_REPLY => Some(SIMPLE_BYTES),
        MAGIC_STRUCTURED_REPLY => Some(CHUNK_BYTES),
        _ => None,
    }
}

/// Reads a header.
pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
    let mut fields = Fields(bytes);
    match fields.u32()? {
        MAGIC_SIMPLE_REPLY => {
            let errno = fields.u32()?;
            Some(Header::Simple { cookie: fields.u64()?, errno })
        }
        MAGIC_STRUCTURED_REPLY => {
            let (flags, kind) = (fields.u16()?, fields.u16()?);
            let (cookie, len) = (fields.u64()?, fields.u32()?);
            Some(Header::Chunk { cookie, is_last: flags & chunk::FLAG_DONE != 0, kind, len })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::wire::{Errno, Form, ReplyHeader, Request, command};

    #[test]
    fn what_our_server_sends_is_read() {
        let read = Request { flags: 0, kind: command::READ, cookie: 7, offset: 0, len: 512 };
        let bytes = ReplyHeader::result(Form::Simple, &read, Err(Errno::Io));
        assert_eq!(header_bytes(bytes.as_bytes()), Some(SIMPLE_BYTES));
        assert_eq!(decode(bytes.as_bytes()), Some(Header::Simple { cookie: 7, errno: 5 }));
        let bytes = ReplyHeader::data(Form::Structured, &read, 512);
        assert_eq!(header_bytes(bytes.as_bytes()), Some(CHUNK_BYTES));
        let (is_last, kind) = (true, chunk::OFFSET_DATA);
        let expected = Header::Chunk { cookie: 7, is_last, kind, len: 520 };
        assert_eq!(decode(bytes.as_bytes()), Some(expected));
        assert_eq!(header_bytes(&[0; 16]), None);
        assert_eq!(decode(&[0x67, 0x44, 0x66, 0x98, 0]), None);
    }
}
