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
/// Starts each request with an extended header.
pub(crate) const MAGIC_REQUEST_EXTENDED: u32 = 0x21e4_1c71;
/// Starts each chunk of a reply with an extended header.
pub(crate) const MAGIC_REPLY_EXTENDED: u32 = 0x6e8a_278c;

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
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options that the server knows.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const START_TLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    /// Set in whatever is a refusal.
    pub(crate) const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR + 1;
    pub(crate) const ERR_POLICY: u32 = ERROR + 2;
    pub(crate) const ERR_INVALID: u32 = ERROR + 3;
    pub(crate) const ERR_TLS_REQD: u32 = ERROR + 5;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR + 6;
    pub(crate) const ERR_TOO_BIG: u32 = ERROR + 9;
    pub(crate) const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
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
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Request flags.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
    pub(crate) const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Structured replies.
pub(crate) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1 << 0;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const BLOCK_STATUS_EXT: u16 = 6;
    /// Set in the kind of whatever tells of an error.
    pub(crate) const IS_ERROR: u16 = 1 << 15;
    pub(crate) const ERROR: u16 = IS_ERROR + 1;
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

/// How requests and replies of a connection look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All replies are simple.
    Simple,
    /// Reads and block status are answered by structured replies, the rest by simple ones.
    Structured,
    /// Requests and all replies have extended headers.
    Extended,
}

impl Form {
    /// Bytes of a request's header.
    pub(crate) fn request_header_bytes(self) -> usize {
        if self == Form::Extended { 32 } else { REQUEST_HEADER_BYTES }
    }
}

/// Bytes of a request's header in the old form.
pub(crate) const REQUEST_HEADER_BYTES: usize = 28;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    /// Chosen by the client, returned with the reply.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Request {
    /// Reads a header; `None` if the magic number is wrong.
    pub(crate) fn decode(bytes: &[u8], form: Form) -> Option<Self> {
        let extended = form == Form::Extended;
        let mut fields = Fields(bytes);
        let magic = if extended { MAGIC_REQUEST_EXTENDED } else { MAGIC_REQUEST };
        (fields.u32()? == magic).then_some(())?;
        Some(Self {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            len: if extended { fields.u64()? } else { u64::from(fields.u32()?) },
        })
    }

    /// The header, in the old form.
    pub(crate) fn encode(&self) -> [u8; REQUEST_HEADER_BYTES] {
        let mut out = [0; REQUEST_HEADER_BYTES];
        let len = u32::try_from(self.len).expect("a request without an extended header is short");
        out[0..4].copy_from_slice(&MAGIC_REQUEST.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&len.to_be_bytes());
        out
    }

    /// How many bytes of payload follow the header. A write has always some; with extended headers
    /// any request may say that it has.
    pub(crate) fn payload_bytes(&self, form: Form) -> u64 {
        let says_so = form == Form::Extended && self.flags & command_flag::PAYLOAD_LEN != 0;
        if self.kind == command::WRITE || says_so { self.len } else { 0 }
    }
}

/// Most bytes of a reply's header: that of a read with an extended header.
pub(crate) const REPLY_HEADER_BYTES_MAX: usize = 40;

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

    fn simple(cookie: u64, result: Result<(), Errno>) -> Self {
        let error = result.map_or_else(|errno| errno as u32, |()| 0);
        Self::new()
            .put(&MAGIC_SIMPLE_REPLY.to_be_bytes())
            .put(&error.to_be_bytes())
            .put(&cookie.to_be_bytes())
    }

    /// The header of a chunk with `len` bytes of content.
    fn chunk(form: Form, request: &Request, flags: u16, kind: u16, len: u32) -> Self {
        let extended = form == Form::Extended;
        let magic = if extended { MAGIC_REPLY_EXTENDED } else { MAGIC_STRUCTURED_REPLY };
        let header = Self::new()
            .put(&magic.to_be_bytes())
            .put(&flags.to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&request.cookie.to_be_bytes());
        if extended {
            header.put(&request.offset.to_be_bytes()).put(&u64::from(len).to_be_bytes())
        } else {
            header.put(&len.to_be_bytes())
        }
    }

    /// A reply without data.
    pub(crate) fn result(form: Form, request: &Request, result: Result<(), Errno>) -> Self {
        let has_chunks = matches!(request.kind, command::READ | command::BLOCK_STATUS);
        if form == Form::Simple || form == Form::Structured && !has_chunks {
            return Self::simple(request.cookie, result);
        }
        match result {
            Ok(()) => Self::chunk(form, request, chunk::FLAG_DONE, chunk::NONE, 0),
            Err(errno) => Self::chunk(form, request, chunk::FLAG_DONE, chunk::ERROR, 6)
                .put(&(errno as u32).to_be_bytes())
                .put(&[0; 2]),
        }
    }

    /// A read's reply; `len` bytes of data follow, at least one.
    pub(crate) fn data(form: Form, request: &Request, len: u32) -> Self {
        if form == Form::Simple {
            return Self::simple(request.cookie, Ok(()));
        }
        Self::chunk(form, request, chunk::FLAG_DONE, chunk::OFFSET_DATA, 8 + len)
            .put(&request.offset.to_be_bytes())
    }

    /// One context's answer to a block status; `count` descriptors follow.
    pub(crate) fn status(
        form: Form,
        request: &Request,
        is_last: bool,
        context: u32,
        count: u32,
    ) -> Self {
        let flags = if is_last { chunk::FLAG_DONE } else { 0 };
        let len = count * DESCRIPTOR_BYTES_MAX as u32;
        if form == Form::Extended {
            return Self::chunk(form, request, flags, chunk::BLOCK_STATUS_EXT, 8 + len)
                .put(&context.to_be_bytes())
                .put(&count.to_be_bytes());
        }
        Self::chunk(form, request, flags, chunk::BLOCK_STATUS, 4 + len / 2)
            .put(&context.to_be_bytes())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Bytes of a descriptor of block status: twice 64 bits with extended headers, else twice 32.
pub(crate) const DESCRIPTOR_BYTES_MAX: usize = 16;

/// A descriptor of block status.
pub(crate) fn put_descriptor(out: &mut Vec<u8>, form: Form, len: u64, flags: u32) {
    if form == Form::Extended {
        out.extend(len.to_be_bytes());
        out.extend(u64::from(flags).to_be_bytes());
    } else {
        let len = u32::try_from(len).expect("a request without an extended header is short");
        out.extend(len.to_be_bytes());
        out.extend(flags.to_be_bytes());
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

    const READ: Request =
        Request { flags: 0, kind: command::READ, cookie: 7, offset: 0x1000, len: 512 };

    #[test]
    fn a_request_header_is_read_field_by_field() {
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0,
            0, 0, 2, 0,
        ];
        let decode = |bytes: &[u8]| Request::decode(bytes, Form::Simple);
        let expected =
            Request { flags: 1, kind: 1, cookie: 0x0102_0304_0506_0708, offset: 4096, len: 512 };
        assert_eq!(decode(&bytes), Some(expected));
        assert_eq!(Request::decode(&bytes, Form::Structured), Some(expected));
        assert_eq!(expected.encode(), bytes);
        assert_eq!(Request::decode(&bytes, Form::Extended), None);
        let mut wrong = bytes;
        wrong[3] = 0x14;
        assert_eq!(decode(&wrong), None);
        assert_eq!(decode(&bytes[..27]), None);
    }

    #[test]
    fn an_extended_header_has_a_long_length() {
        let bytes = [
            0x21, 0xe4, 0x1c, 0x71, 0, 0x20, 0, 4, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0x10,
            0, 0, 0, 1, 0, 0, 0, 2, 0,
        ];
        let len = (1 << 40) + 512;
        let expected = Request { flags: 32, kind: 4, cookie: 9, offset: 4096, len };
        assert_eq!(Request::decode(&bytes, Form::Extended), Some(expected));
        assert_eq!(Request::decode(&bytes, Form::Structured), None);
        assert_eq!(Request::decode(&bytes[..31], Form::Extended), None);
    }

    #[test]
    fn writes_have_a_payload_and_with_extended_headers_whatever_says_so() {
        let write = Request { kind: command::WRITE, ..READ };
        let flagged = Request { flags: command_flag::PAYLOAD_LEN, ..READ };
        for (form, bytes) in [(Form::Simple, 0), (Form::Structured, 0), (Form::Extended, 512)] {
            assert_eq!((READ.payload_bytes(form), write.payload_bytes(form)), (0, 512));
            assert_eq!(flagged.payload_bytes(form), bytes, "{form:?}");
        }
    }

    #[test]
    fn an_option_header_needs_its_magic_number() {
        let bytes = *b"IHAVEOPT\0\0\0\x07\0\0\x01\0";
        assert_eq!(decode_option(&bytes), Some((7, 256)));
        assert_eq!(decode_option(b"IHAVEOPS\0\0\0\x07\0\0\x01\0"), None);
    }

    #[test]
    fn simple_replies_have_sixteen_bytes() {
        let result = |form, kind, result| {
            ReplyHeader::result(form, &Request { kind, ..READ }, result).as_bytes().to_vec()
        };
        let failed = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(result(Form::Simple, command::READ, Err(Errno::NoSpace)), failed);
        assert_eq!(result(Form::Structured, command::WRITE, Err(Errno::NoSpace)), failed);
        assert_eq!(result(Form::Simple, command::FLUSH, Ok(()))[4..8], [0; 4]);
        assert_eq!(
            ReplyHeader::data(Form::Simple, &READ, 512).as_bytes()[..8],
            failed[..4].iter().copied().chain([0; 4]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn structured_replies_are_one_chunk_that_is_the_last() {
        assert_eq!(
            ReplyHeader::data(Form::Structured, &READ, 512).as_bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 2, 8, 0, 0, 0, 0,
                0, 0, 0x10, 0
            ]
        );
        assert_eq!(
            ReplyHeader::result(Form::Structured, &READ, Err(Errno::Io)).as_bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0,
                5, 0, 0
            ]
        );
        assert_eq!(
            ReplyHeader::result(Form::Structured, &READ, Ok(())).as_bytes(),
            [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]
        );
    }

    #[test]
    fn extended_replies_repeat_the_offset() {
        let head = [0x6e, 0x8a, 0x27, 0x8c, 0, 1];
        let place = [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 0];
        assert_eq!(
            ReplyHeader::data(Form::Extended, &READ, 512).as_bytes(),
            [&head[..], &[0, 1], &place, &[0, 0, 0, 0, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0x10, 0]]
                .concat()
        );
        let write = Request { kind: command::WRITE, ..READ };
        assert_eq!(
            ReplyHeader::result(Form::Extended, &write, Err(Errno::Io)).as_bytes(),
            [&head[..], &[0x80, 1], &place, &[0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0]].concat()
        );
        assert_eq!(
            ReplyHeader::result(Form::Extended, &write, Ok(())).as_bytes(),
            [&head[..], &[0, 0], &place, &[0; 8]].concat()
        );
    }

    #[test]
    fn block_status_names_its_context_and_has_wider_fields_with_extended_headers() {
        let request = Request { kind: command::BLOCK_STATUS, ..READ };
        assert_eq!(
            ReplyHeader::status(Form::Structured, &request, false, 2, 3).as_bytes(),
            [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 28, 0, 0, 0, 2]
        );
        let extended = ReplyHeader::status(Form::Extended, &request, true, 2, 3);
        assert_eq!(extended.as_bytes()[4..8], [0, 1, 0, 6]);
        assert_eq!(extended.as_bytes()[24..], [0, 0, 0, 0, 0, 0, 0, 56, 0, 0, 0, 2, 0, 0, 0, 3]);
        let mut out = Vec::new();
        put_descriptor(&mut out, Form::Structured, 512, 3);
        put_descriptor(&mut out, Form::Extended, 1 << 40, 3);
        assert_eq!(out[..8], [0, 0, 2, 0, 0, 0, 0, 3]);
        assert_eq!(out[8..], [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    }
}
