//! Which requests are valid, and what they ask for. No I/O.

use crate::Zeroing;
use crate::nbd::contexts::Contexts;
use crate::nbd::limits::{REQUEST_BYTES_MAX, SECTOR_BYTES};
use crate::nbd::wire::{Errno, Form, Request, command, command_flag, export_flag};

/// What a connection agreed on, and what does not change of its export meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) size_bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) form: Form,
    /// What block status tells.
    pub(crate) contexts: Contexts,
}

impl Session {
    /// The transmission flags.
    pub(crate) fn flags(&self) -> u16 {
        let mut flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_TRIM
            | export_flag::SEND_WRITE_ZEROES
            | export_flag::SEND_FAST_ZERO
            | export_flag::SEND_CACHE
            | export_flag::CAN_MULTI_CONN;
        if self.read_only {
            flags |= export_flag::READ_ONLY;
        }
        if self.form != Form::Simple {
            flags |= export_flag::SEND_DF;
        }
        flags
    }
}

/// A valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        len: u32,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        len: u64,
        fua: bool,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
        how: Zeroing,
    },
    Status {
        offset: u64,
        len: u64,
        only_one: bool,
    },
    Prefetch {
        offset: u64,
        len: u64,
    },
    /// An empty range: succeeds without reaching the export. The protocol leaves its meaning
    /// open.
    Nothing,
}

/// Checks a request (all but a disconnect).
///
/// # Errors
/// What to answer instead of carrying it out.
pub(crate) fn plan(request: &Request, session: &Session) -> Result<Command, Errno> {
    let Request { flags, offset, len, .. } = *request;
    let fua = flags & command_flag::FUA != 0;
    // FUA is allowed on everything: some clients set it on reads, too.
    let allowed = command_flag::FUA
        | match request.kind {
            command::READ if session.form != Form::Simple => command_flag::DF,
            command::WRITE if session.form == Form::Extended => command_flag::PAYLOAD_LEN,
            command::READ | command::WRITE | command::FLUSH | command::TRIM | command::CACHE => 0,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS if !session.contexts.is_empty() => command_flag::REQ_ONE,
            _ => return Err(Errno::Inval),
        };
    if flags & !allowed != 0 {
        return Err(Errno::Inval);
    }
    if request.kind == command::FLUSH {
        return if (offset, len) == (0, 0) { Ok(Command::Flush) } else { Err(Errno::Inval) };
    }
    let writes = matches!(request.kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && session.read_only {
        return Err(Errno::Perm);
    }
    check_range(request, session)?;
    let has = |flag| flags & flag != 0;
    Ok(match request.kind {
        command::BLOCK_STATUS if len == 0 => return Err(Errno::Inval),
        _ if len == 0 => Command::Nothing,
        command::READ => Command::Read { offset, len: checked_len(len) },
        command::WRITE => Command::Write { offset, len: checked_len(len), fua },
        command::TRIM => Command::Trim { offset, len, fua },
        command::CACHE => Command::Prefetch { offset, len },
        command::BLOCK_STATUS => {
            Command::Status { offset, len, only_one: has(command_flag::REQ_ONE) }
        }
        _ => {
            let may_trim = !has(command_flag::NO_HOLE);
            let only_if_fast = has(command_flag::FAST_ZERO);
            Command::WriteZeroes { offset, len, how: Zeroing { may_trim, fua, only_if_fast } }
        }
    })
}

/// The length of a request whose range has been checked and that carries data.
fn checked_len(len: u64) -> u32 {
    u32::try_from(len).expect("data has at most REQUEST_BYTES_MAX")
}

fn check_range(request: &Request, session: &Session) -> Result<(), Errno> {
    let Request { kind, offset, len, .. } = *request;
    let sector = u64::from(SECTOR_BYTES);
    if !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
        return Err(Errno::Inval);
    }
    let carries_data = matches!(kind, command::READ | command::WRITE);
    if carries_data && len > u64::from(REQUEST_BYTES_MAX) {
        return Err(Errno::Inval);
    }
    let inside = offset.checked_add(len).is_some_and(|end| end <= session.size_bytes);
    match kind {
        _ if inside => Ok(()),
        command::WRITE | command::WRITE_ZEROES => Err(Errno::NoSpace),
        _ => Err(Errno::Inval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let (form, contexts) = (Form::Structured, Contexts::all());
        Session { size_bytes: 1 << 30, read_only: false, form, contexts }
    }

    fn request(kind: u16, flags: u16, offset: u64, len: u64) -> Request {
        Request { flags, kind, cookie: 1, offset, len }
    }

    #[test]
    fn valid_requests_are_understood() {
        let table = [
            (request(0, 0, 512, 1024), Command::Read { offset: 512, len: 1024 }),
            (request(0, 5, 512, 1024), Command::Read { offset: 512, len: 1024 }),
            (request(0, 0, 0, 32 << 20), Command::Read { offset: 0, len: 32 << 20 }),
            (request(1, 0, 0, 512), Command::Write { offset: 0, len: 512, fua: false }),
            (request(1, 1, 0, 512), Command::Write { offset: 0, len: 512, fua: true }),
            (request(3, 0, 0, 0), Command::Flush),
            (request(3, 1, 0, 0), Command::Flush),
            (request(4, 0, 0, 1 << 30), Command::Trim { offset: 0, len: 1 << 30, fua: false }),
            (
                request(6, 1, 512, 512),
                Command::WriteZeroes {
                    offset: 512,
                    len: 512,
                    how: Zeroing { may_trim: true, fua: true, only_if_fast: false },
                },
            ),
            (
                request(6, 2 | 16, 512, 512),
                Command::WriteZeroes {
                    offset: 512,
                    len: 512,
                    how: Zeroing { may_trim: false, fua: false, only_if_fast: true },
                },
            ),
            (request(5, 0, 512, 1 << 29), Command::Prefetch { offset: 512, len: 1 << 29 }),
            (request(7, 0, 0, 512), Command::Status { offset: 0, len: 512, only_one: false }),
            (request(7, 8, 512, 512), Command::Status { offset: 512, len: 512, only_one: true }),
            (request(0, 0, 512, 0), Command::Nothing),
            (request(1, 1, 1 << 30, 0), Command::Nothing),
            (request(4, 0, 0, 0), Command::Nothing),
            (request(6, 0, 0, 0), Command::Nothing),
        ];
        for (request, command) in table {
            assert_eq!(plan(&request, &session()), Ok(command), "{request:?}");
        }
    }

    #[test]
    fn invalid_requests_get_the_error_of_the_protocol() {
        let end = session().size_bytes;
        let table = [
            (request(0, 0, 1, 512), Errno::Inval),
            (request(0, 0, 512, 513), Errno::Inval),
            (request(0, 0, 0, (32 << 20) + 512), Errno::Inval),
            (request(1, 0, 0, (32 << 20) + 512), Errno::Inval),
            (request(0, 0, end, 512), Errno::Inval),
            (request(0, 0, u64::MAX - 511, 512), Errno::Inval),
            (request(0, 0, u64::MAX - 511, 1024), Errno::Inval),
            (request(1, 0, end - 512, 1024), Errno::NoSpace),
            (request(1, 0, 256, 512), Errno::Inval),
            (request(4, 0, end, 512), Errno::Inval),
            (request(6, 0, end, 512), Errno::NoSpace),
            (request(1, 0, end + 512, 0), Errno::NoSpace),
            (request(3, 0, 0, 512), Errno::Inval),
            (request(3, 0, 512, 0), Errno::Inval),
            (request(1, 2, 0, 512), Errno::Inval),
            (request(1, 4, 0, 512), Errno::Inval),
            (request(4, 2, 0, 512), Errno::Inval),
            (request(6, 4, 0, 512), Errno::Inval),
            (request(0, 8, 0, 512), Errno::Inval),
            (request(5, 8, 0, 512), Errno::Inval),
            (request(5, 0, end, 512), Errno::Inval),
            (request(7, 0, 0, 0), Errno::Inval),
            (request(7, 0, end - 512, 1024), Errno::Inval),
            (request(7, 0, 3, 512), Errno::Inval),
            (request(7, 2, 0, 512), Errno::Inval),
            (request(1, 32, 0, 512), Errno::Inval),
            (request(2, 0, 0, 512), Errno::Inval),
            (request(8, 0, 0, 512), Errno::Inval),
            (request(0xffff, 0, 0, 512), Errno::Inval),
        ];
        for (request, errno) in table {
            assert_eq!(plan(&request, &session()), Err(errno), "{request:?}");
        }
    }

    #[test]
    fn a_read_only_export_refuses_everything_that_writes() {
        let session = Session { read_only: true, ..session() };
        for kind in [1, 4, 6] {
            assert_eq!(plan(&request(kind, 0, 0, 512), &session), Err(Errno::Perm));
        }
        for kind in [0, 5, 7] {
            assert!(plan(&request(kind, 0, 0, 512), &session).is_ok());
        }
        assert_eq!(plan(&request(3, 0, 0, 0), &session), Ok(Command::Flush));
        assert_eq!(session.flags(), 0b1101_1110_1111);
    }

    #[test]
    fn block_status_needs_a_context() {
        let session = Session { contexts: Contexts::default(), ..session() };
        assert_eq!(plan(&request(7, 0, 0, 512), &session), Err(Errno::Inval));
    }

    #[test]
    fn with_extended_headers_requests_without_data_may_be_as_long_as_the_export() {
        let size_bytes = 1 << 50;
        let session = Session { form: Form::Extended, size_bytes, ..session() };
        let (offset, len) = (512, size_bytes - 512);
        for kind in [4, 5, 6, 7] {
            assert!(plan(&request(kind, 0, offset, len), &session).is_ok(), "{kind}");
            assert!(plan(&request(kind, 0, offset, len + 512), &session).is_err(), "{kind}");
            assert_eq!(plan(&request(kind, 32, 0, 512), &session), Err(Errno::Inval), "{kind}");
        }
        assert!(plan(&request(1, 32, 0, 512), &session).is_ok());
        for kind in [0, 1] {
            assert_eq!(plan(&request(kind, 0, 0, (32 << 20) + 512), &session), Err(Errno::Inval));
            assert_eq!(plan(&request(kind, 0, 0, 1 << 40), &session), Err(Errno::Inval));
        }
    }

    #[test]
    fn unfragmented_reads_exist_only_with_structured_replies() {
        let simple = Session { form: Form::Simple, ..session() };
        assert_eq!(plan(&request(0, 4, 0, 512), &simple), Err(Errno::Inval));
        assert_eq!(simple.flags() & export_flag::SEND_DF, 0);
        assert_ne!(session().flags() & export_flag::SEND_DF, 0);
    }
}
