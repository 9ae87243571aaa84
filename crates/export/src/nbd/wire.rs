//! Numbers and layouts of the protocol. All integers are big-endian.

use crate::ExportError;

/// First eight bytes of a server.
pub(crate) const MAGIC_SERVER: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Starts the rest of the greeting and each option.
pub(crate) const MAGIC_OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Starts each reply to an option.
pub(crate) const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Starts each request.
pub(crate) const MAGIC_REQUEST: u32 = 0x2560_9513;
/// Starts each simple reply.
pub(crate) const MAGIC_SIMPLE_REPLY: u32 = 0x6744_6698;
/// Starts each chunk of a structured reply.
pub(crate) const MAGIC_STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Handshake flags, the same bits from server and client: fixed newstyle, no padding zeroes.
pub(crate) mod handshake_flag {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what an export can do.
pub(crate) mod export_flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options that the server knows.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
}

/// Replies to options.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR + 1;
    pub(crate) const ERR_INVALID: u32 = ERROR + 3;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR + 6;
    pub(crate) const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Kinds of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Request types.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
}

/// Request flags.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Structured replies.
mod chunk {
    pub(super) const FLAG_DONE: u16 = 1 << 0;
    pub(super) const NONE: u16 = 0;
    pub(super) const OFFSET_DATA: u16 = 1;
    pub(super) const ERROR: u16 = (1 << 15) + 1;
}

/// An error as the protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted.
    Perm = 1,
    /// Input or output error.
    Io = 5,
    /// Invalid argument.
    Inval = 22,
    /// No space left.
    NoSpace = 28,
    /// Not supported.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl From<ExportError> for Errno {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Io => Self::Io,
            ExportError::NoSpace => Self::NoSpace,
            ExportError::Invalid => Self::Inval,
            ExportError::ReadOnly => Self::Perm,
            ExportError::Unsupported => Self::NotSup,
            ExportError::ShuttingDown => Self::Shutdown,
        }
    }
}

/// Bytes of an option's header.
pub(crate) const OPTION_HEADER_BYTES: usize = 16;

/// Reads an option's header: its number and the length of its payload; `None` if the magic
/// number is wrong.
pub(crate) fn decode_option(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut fields = Fields(bytes);
    (fields.u64()? == MAGIC_OPTION).then_some(())?;
    Some((fields.u32()?, fields.u32()?))
}

/// Bytes of a request's header.
pub(crate) const REQUEST_HEADER_BYTES: usize = 28;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    /// Chosen by the client, returned with the reply.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Request {
    /// Reads a header; `None` if the magic number is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u32()? == MAGIC_REQUEST).then_some(())?;
        Some(Self {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            len: fields.u32()?,
        })
    }

    /// How many bytes of payload follow the header. Only a write has any.
    pub(crate) fn payload_bytes(&self) -> u32 {
        if self.kind == command::WRITE { self.len } else { 0 }
    }
}

/// Most bytes of a reply's header.
pub(crate) const REPLY_HEADER_BYTES_MAX: usize = 28;

/// A reply up to its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyHeader {
    bytes: [u8; REPLY_HEADER_BYTES_MAX],
    len: usize,
}

impl ReplyHeader {
    fn new() -> Self {
        Self { bytes: [0; REPLY_HEADER_BYTES_MAX], len: 0 }
    }

    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    /// A reply to any request but a structured read. The data of a read follows.
    pub(crate) fn simple(cookie: u64, result: Result<(), Errno>) -> Self {
        let error = result.map_or_else(|errno| errno as u32, |()| 0);
        Self::new()
            .put(&MAGIC_SIMPLE_REPLY.to_be_bytes())
            .put(&error.to_be_bytes())
            .put(&cookie.to_be_bytes())
    }

    fn chunk(cookie: u64, kind: u16, len: u32) -> Self {
        Self::new()
            .put(&MAGIC_STRUCTURED_REPLY.to_be_bytes())
            .put(&chunk::FLAG_DONE.to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&cookie.to_be_bytes())
            .put(&len.to_be_bytes())
    }

    /// The only chunk of a structured read; `len` bytes of data follow.
    pub(crate) fn structured_data(cookie: u64, offset: u64, len: u32) -> Self {
        if len == 0 {
            // A data chunk must not be empty.
            return Self::chunk(cookie, chunk::NONE, 0);
        }
        Self::chunk(cookie, chunk::OFFSET_DATA, 8 + len).put(&offset.to_be_bytes())
    }

    /// The only chunk of a structured read that failed.
    pub(crate) fn structured_error(cookie: u64, errno: Errno) -> Self {
        Self::chunk(cookie, chunk::ERROR, 6).put(&(errno as u32).to_be_bytes()).put(&[0; 2])
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Takes fields from the front of some bytes; `None` where they end too early.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn export_errors_map_to_the_numbers_of_the_protocol() {
        let table = [
            (ExportError::Io, 5),
            (ExportError::NoSpace, 28),
            (ExportError::Invalid, 22),
            (ExportError::ReadOnly, 1),
            (ExportError::Unsupported, 95),
            (ExportError::ShuttingDown, 108),
        ];
        for (error, number) in table {
            assert_eq!(Errno::from(error) as u32, number, "{error:?}");
        }
    }

    #[test]
    fn a_request_header_is_read_field_by_field() {
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0,
            0, 0, 2, 0,
        ];
        let request = Request::decode(&bytes);
        let expected =
            Request { flags: 1, kind: 1, cookie: 0x0102_0304_0506_0708, offset: 4096, len: 512 };
        assert_eq!(request, Some(expected));
        assert_eq!(expected.payload_bytes(), 512);
        assert_eq!(Request { kind: command::READ, ..expected }.payload_bytes(), 0);
        let mut wrong = bytes;
        wrong[3] = 0x14;
        assert_eq!(Request::decode(&wrong), None);
        assert_eq!(Request::decode(&bytes[..27]), None);
    }

    #[test]
    fn an_option_header_needs_its_magic_number() {
        let bytes = *b"IHAVEOPT\0\0\0\x07\0\0\x01\0";
        assert_eq!(decode_option(&bytes), Some((7, 256)));
        assert_eq!(decode_option(b"IHAVEOPS\0\0\0\x07\0\0\x01\0"), None);
    }

    #[test]
    fn simple_replies_have_sixteen_bytes() {
        assert_eq!(
            ReplyHeader::simple(0x0807_0605_0403_0201, Err(Errno::NoSpace)).as_bytes(),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 8, 7, 6, 5, 4, 3, 2, 1]
        );
        assert_eq!(ReplyHeader::simple(0, Ok(())).as_bytes()[4..8], [0; 4]);
    }

    #[test]
    fn structured_replies_are_one_chunk_that_is_the_last() {
        assert_eq!(
            ReplyHeader::structured_data(7, 0x1000, 512).as_bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 2, 8, 0, 0, 0, 0,
                0, 0, 0x10, 0
            ]
        );
        assert_eq!(
            ReplyHeader::structured_error(7, Errno::Io).as_bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0,
                5, 0, 0
            ]
        );
        assert_eq!(
            ReplyHeader::structured_data(7, 0, 0).as_bytes(),
            [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]
        );
    }
}
