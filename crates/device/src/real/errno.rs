//! The system's error numbers as [`IoErrorKind`]s: the only table of its kind.

use crate::io::{IoError, IoErrorKind};

/// What each error number of a read, write, flush, discard or socket call means to the engine.
/// Numbers not listed are [`IoErrorKind::Other`].
const KINDS: &[(i32, IoErrorKind)] = &[
    (libc::EIO, IoErrorKind::Media),
    (libc::EILSEQ, IoErrorKind::Media), // integrity check of the block layer
    (libc::ENODATA, IoErrorKind::Media), // NVMe and SCSI: medium error
    (libc::EREMOTEIO, IoErrorKind::Media), // SCSI: target failure
    (libc::EUCLEAN, IoErrorKind::Media), // the file system below found itself corrupt
    (libc::ENODEV, IoErrorKind::Vanished),
    (libc::ENXIO, IoErrorKind::Vanished),
    (libc::ENOLINK, IoErrorKind::Vanished), // SCSI and NVMe: transport lost
    (libc::ESTALE, IoErrorKind::Vanished),  // a file on a network file system
    (libc::ECANCELED, IoErrorKind::Vanished), // cancelled by the reactor's end
    (libc::EPIPE, IoErrorKind::Vanished),
    (libc::ECONNRESET, IoErrorKind::Vanished),
    (libc::ECONNABORTED, IoErrorKind::Vanished),
    (libc::ENOTCONN, IoErrorKind::Vanished),
    (libc::ETIMEDOUT, IoErrorKind::TimedOut),
    (libc::ETIME, IoErrorKind::TimedOut),
    (libc::ENOSPC, IoErrorKind::NoSpace),
    (libc::EDQUOT, IoErrorKind::NoSpace),
    (libc::EFBIG, IoErrorKind::NoSpace),
    (libc::EOPNOTSUPP, IoErrorKind::Unsupported),
    (libc::ENOSYS, IoErrorKind::Unsupported),
    (libc::ENOTTY, IoErrorKind::Unsupported),
    (libc::EINVAL, IoErrorKind::Invalid),
    (libc::EPERM, IoErrorKind::Permission),
    (libc::EACCES, IoErrorKind::Permission),
    (libc::EROFS, IoErrorKind::Permission),
    (libc::EBADF, IoErrorKind::Permission), // a write to what was opened for reading
];

/// The error for a positive error number.
pub fn io_error(errno: i32) -> IoError {
    let kind = KINDS.iter().find(|(number, _)| *number == errno);
    IoError { kind: kind.map_or(IoErrorKind::Other, |(_, kind)| *kind), errno: Some(errno) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_listed_once_and_keeps_its_number() {
        for (at, (errno, kind)) in KINDS.iter().enumerate() {
            assert!(KINDS[..at].iter().all(|(other, _)| other != errno), "{errno} twice");
            assert_eq!(io_error(*errno), IoError { kind: *kind, errno: Some(*errno) });
        }
    }

    #[test]
    fn the_errors_that_decide_about_data_have_their_kind() {
        let kinds = [
            (libc::EIO, IoErrorKind::Media),
            (libc::ENODEV, IoErrorKind::Vanished),
            (libc::ENOSPC, IoErrorKind::NoSpace),
            (libc::EOPNOTSUPP, IoErrorKind::Unsupported),
            (libc::EROFS, IoErrorKind::Permission),
            (libc::ENOMEM, IoErrorKind::Other),
            (0, IoErrorKind::Other),
        ];
        for (errno, kind) in kinds {
            assert_eq!(io_error(errno).kind, kind, "errno {errno}");
        }
    }
}
