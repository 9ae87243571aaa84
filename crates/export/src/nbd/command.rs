//! Which requests are valid, and what they ask for. No I/O.

use crate::nbd::limits::{REQUEST_BYTES_MAX, SECTOR_BYTES};
use crate::nbd::wire::{Errno, Request, command, command_flag, export_flag};

/// What a connection agreed on, and what does not change of its export meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) size_bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) zeroes_fast: bool,
    /// Reads are answered by structured replies.
    pub(crate) structured: bool,
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
            | export_flag::CAN_MULTI_CONN;
        if self.read_only {
            flags |= export_flag::READ_ONLY;
        }
        if self.structured {
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
        len: u32,
        fua: bool,
    },
    WriteZeroes {
        offset: u64,
        len: u32,
        may_trim: bool,
        fua: bool,
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
            command::READ if session.structured => command_flag::DF,
            command::READ | command::WRITE | command::FLUSH | command::TRIM => 0,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            _ => return Err(Errno::Inval),
        };
    if flags & !allowed != 0 {
        return Err(Errno::Inval);
    }
    if request.kind == command::FLUSH {
        return if (offset, len) == (0, 0) { Ok(Command::Flush) } else { Err(Errno::Inval) };
    }
    let writes = request.kind != command::READ;
    if writes && session.read_only {
        return Err(Errno::Perm);
    }
    check_range(request, session)?;
    if flags & command_flag::FAST_ZERO != 0 && !session.zeroes_fast {
        return Err(Errno::NotSup);
    }
    Ok(match request.kind {
        _ if len == 0 => Command::Nothing,
        command::READ => Command::Read { offset, len },
        command::WRITE => Command::Write { offset, len, fua },
        command::TRIM => Command::Trim { offset, len, fua },
        _ => {
            let may_trim = flags & command_flag::NO_HOLE == 0;
            Command::WriteZeroes { offset, len, may_trim, fua }
        }
    })
}

fn check_range(request: &Request, session: &Session) -> Result<(), Errno> {
    let Request { kind, offset, len, .. } = *request;
    let sector = u64::from(SECTOR_BYTES);
    if !offset.is_multiple_of(sector) || !u64::from(len).is_multiple_of(sector) {
        return Err(Errno::Inval);
    }
    let carries_data = matches!(kind, command::READ | command::WRITE);
    if carries_data && len > REQUEST_BYTES_MAX {
        return Err(Errno::Inval);
    }
    let inside = offset.checked_add(u64::from(len)).is_some_and(|end| end <= session.size_bytes);
    match kind {
        _ if inside => Ok(()),
        command::WRITE | command::WRITE_ZEROES => Err(Errno::NoSpace),
        _ => Err(Errno::Inval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Session =
        Session { size_bytes: 1 << 30, read_only: false, zeroes_fast: true, structured: true };

    fn request(kind: u16, flags: u16, offset: u64, len: u32) -> Request {
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
                Command::WriteZeroes { offset: 512, len: 512, may_trim: true, fua: true },
            ),
            (
                request(6, 2 | 16, 512, 512),
                Command::WriteZeroes { offset: 512, len: 512, may_trim: false, fua: false },
            ),
            (request(0, 0, 512, 0), Command::Nothing),
            (request(1, 1, 1 << 30, 0), Command::Nothing),
            (request(4, 0, 0, 0), Command::Nothing),
            (request(6, 0, 0, 0), Command::Nothing),
        ];
        for (request, command) in table {
            assert_eq!(plan(&request, &SESSION), Ok(command), "{request:?}");
        }
    }

    #[test]
    fn invalid_requests_get_the_error_of_the_protocol() {
        let end = SESSION.size_bytes;
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
            (request(5, 0, 0, 512), Errno::Inval),
            (request(7, 0, 0, 512), Errno::Inval),
            (request(0xffff, 0, 0, 512), Errno::Inval),
        ];
        for (request, errno) in table {
            assert_eq!(plan(&request, &SESSION), Err(errno), "{request:?}");
        }
    }

    #[test]
    fn a_read_only_export_refuses_everything_that_writes() {
        let session = Session { read_only: true, ..SESSION };
        for kind in [1, 4, 6] {
            assert_eq!(plan(&request(kind, 0, 0, 512), &session), Err(Errno::Perm));
        }
        assert!(plan(&request(0, 0, 0, 512), &session).is_ok());
        assert_eq!(plan(&request(3, 0, 0, 0), &session), Ok(Command::Flush));
        assert_eq!(session.flags(), 0b1001_1110_1111);
    }

    #[test]
    fn zeroes_that_must_be_fast_are_refused_where_they_are_slow() {
        let session = Session { zeroes_fast: false, ..SESSION };
        assert_eq!(plan(&request(6, 16, 0, 512), &session), Err(Errno::NotSup));
        assert!(plan(&request(6, 0, 0, 512), &session).is_ok());
    }

    #[test]
    fn unfragmented_reads_exist_only_with_structured_replies() {
        let session = Session { structured: false, ..SESSION };
        assert_eq!(plan(&request(0, 4, 0, 512), &session), Err(Errno::Inval));
        assert_eq!(session.flags() & export_flag::SEND_DF, 0);
        assert_ne!(SESSION.flags() & export_flag::SEND_DF, 0);
    }
}
