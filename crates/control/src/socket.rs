//! The control socket: whoever can open it controls the daemon, so its mode comes before its name.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A listener whose file goes away with it, unless somebody else keeps the socket.
pub struct ControlSocket {
    path: PathBuf,
    stays: bool,
    pub(crate) listener: UnixListener,
    /// Locked as long as the socket is ours: two daemons that start at once both find a dead one's
    /// socket, and the second would take away what the first has put there.
    _lock: File,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if !self.stays {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A name beside `path`.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    path.with_file_name(name)
}

/// The name that a socket at `path` has at first, and that the kernel goes on calling it by.
fn first_name(path: &Path) -> PathBuf {
    beside(path, ".new").join("s")
}

fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(ErrorKind::AddrInUse, "another daemon answers there"))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes the socket of a daemon that is gone.
///
/// # Errors
/// `AddrInUse` if somebody answers there or it is no socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AddrInUse, "it exists and is not a socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another daemon answers there")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

impl ControlSocket {
    /// Listens at `path` with this mode. A socket that nobody answers on is taken over.
    ///
    /// # Errors
    /// `AddrInUse` if a live daemon answers there, or something else is there.
    pub fn open(path: &Path, mode: u32) -> io::Result<ControlSocket> {
        let lock = lock(&beside(path, ".lock"))?;
        remove_stale(path)?;
        // A directory that only we can enter: nobody connects before the mode is right.
        let new = first_name(path);
        let dir = beside(path, ".new");
        remove_stale(&new)?;
        let create = || DirBuilder::new().mode(0o700).create(&dir);
        match create() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // Of one that was killed right here, or of somebody who would like to enter it: that one we do not use.
                std::fs::remove_dir(&dir)?;
                create()?;
            }
            other => other?,
        }
        let listener = UnixListener::bind(&new)?;
        std::fs::set_permissions(&new, Permissions::from_mode(mode))?;
        std::fs::rename(&new, path)?;
        std::fs::remove_dir(&dir)?;
        listener.set_nonblocking(true)?;
        Ok(ControlSocket { path: path.to_owned(), stays: false, listener, _lock: lock })
    }

    /// Where a socket is that was made by [`ControlSocket::open`] and that the kernel calls `name`; none if it was
    /// made by somebody else.
    pub fn place_of(name: &Path) -> Option<PathBuf> {
        let dir = name.parent()?.to_str()?;
        let path = PathBuf::from(dir.strip_suffix(".new")?);
        (first_name(&path) == name).then_some(path)
    }

    /// Goes on with a socket that listens at `path` already, as its maker has set it up.
    ///
    /// # Errors
    /// `AddrInUse` if a live daemon has it.
    pub fn of(path: &Path, listener: UnixListener) -> io::Result<ControlSocket> {
        let lock = lock(&beside(path, ".lock"))?;
        listener.set_nonblocking(true)?;
        Ok(ControlSocket { path: path.to_owned(), stays: true, listener, _lock: lock })
    }

    /// Another descriptor of the socket, for whoever goes on with it later. Its file stays.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn keep(&mut self) -> io::Result<OwnedFd> {
        let kept = self.listener.try_clone()?;
        self.stays = true;
        Ok(kept.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_taken_over_from_the_dead_and_refused_while_it_answers() {
        let folder = std::env::temp_dir().join(format!("forebay-control-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("control.sock");
        let first = ControlSocket::open(&path, 0o600).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let name = first.listener.local_addr().unwrap();
        assert_eq!(ControlSocket::place_of(name.as_pathname().unwrap()), Some(path.clone()));
        assert_eq!(ControlSocket::place_of(&path), None, "somebody else has made it there");
        let second = ControlSocket::open(&path, 0o600);
        assert!(second.is_err_and(|error| error.kind() == ErrorKind::AddrInUse));
        // Also while the first one has not got its name yet.
        std::fs::rename(&path, folder.join("elsewhere")).unwrap();
        let third = ControlSocket::open(&path, 0o600);
        assert!(third.is_err_and(|error| error.kind() == ErrorKind::AddrInUse));
        std::fs::rename(folder.join("elsewhere"), &path).unwrap();
        // As after a kill: the file stays, nobody listens.
        let abandoned = folder.join("abandoned.sock");
        drop(UnixListener::bind(&abandoned).unwrap());
        assert!(ControlSocket::open(&abandoned, 0o600).is_ok());
        drop(first);
        assert!(!path.exists());
        // As after a kill before it had its name; and what somebody else has made there is not entered.
        let dir = folder.join("control.sock.new");
        std::fs::create_dir(&dir).unwrap();
        drop(UnixListener::bind(dir.join("s")).unwrap());
        drop(ControlSocket::open(&path, 0o600).unwrap());
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        std::fs::write(dir.join("theirs"), b"").unwrap();
        assert!(ControlSocket::open(&path, 0o600).is_err());
        assert!(dir.join("theirs").exists() && !path.exists());
        std::fs::write(&path, b"precious").unwrap();
        assert!(ControlSocket::open(&path, 0o600).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
