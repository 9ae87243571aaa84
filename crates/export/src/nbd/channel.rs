//! A client's stream, in the clear or encrypted.
//!
//! * In the clear nothing is added to the stream: no copy, no buffer.
//! * Before the handshake nothing is read ahead, so no byte that came in the clear can be taken for
//!   one that came under its protection.
//! * Encrypted, a byte is copied twice on each way, beside what the cipher does to it.
//! * One task receives while another one sends; what TLS has to say of its own accord (an answer to
//!   a change of keys) goes out with the next reply.

use std::cell::{Cell, OnceCell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;

use forebay_device::{Buf, Data, IoError, IoErrorKind};
use rustls::ServerConnection;

use crate::Transport;
use crate::nbd::limits::TLS_PIECE_BYTES;
use crate::nbd::tls::Tls;

/// Bytes that encryption adds to a piece at the most, and what TLS says of its own accord: a record
/// for each 16 KiB, with less than 64 bytes each, and a few short messages.
const TLS_EXTRA_BYTES: usize = 1024;

/// See the head of the file.
pub(crate) struct Channel<T> {
    stream: T,
    keys: OnceCell<Keys>,
    /// What was wrong with the encrypted stream.
    fault: RefCell<Option<String>>,
}

/// The state of an encrypted connection. No borrow is held across an `await`.
struct Keys {
    connection: RefCell<ServerConnection>,
    /// What has been received and not decrypted.
    incoming: RefCell<(Buf, Range<usize>)>,
    is_closed: Cell<bool>,
}

const GONE: IoError = IoError::new(IoErrorKind::Vanished);

impl<T: Transport> Channel<T> {
    pub(crate) fn new(stream: T) -> Self {
        Self { stream, keys: OnceCell::new(), fault: RefCell::default() }
    }

    pub(crate) fn peer(&self) -> String {
        self.stream.peer()
    }

    pub(crate) fn shutdown(&self) {
        self.stream.shutdown();
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.keys.get().is_some()
    }

    /// What was wrong with the encrypted stream, once.
    pub(crate) fn take_fault(&self) -> Option<String> {
        self.fault.take()
    }

    /// Fills `buf`; as [`Transport::recv_exact`].
    pub(crate) async fn recv_exact(&self, buf: Buf) -> (Buf, Result<(), IoError>) {
        match self.keys.get() {
            None => self.stream.recv_exact(buf).await,
            Some(keys) => self.recv_encrypted(keys, buf).await,
        }
    }

    /// Receives what is there; as [`Transport::recv`].
    pub(crate) async fn recv(&self, mut buf: Buf) -> (Buf, Result<usize, IoError>) {
        let Some(keys) = self.keys.get() else { return self.stream.recv(buf).await };
        loop {
            match self.decrypt(keys, &mut buf) {
                Ok(0) => {}
                other => return (buf, other),
            }
            if let Err(error) = self.recv_more(keys).await {
                return (buf, Err(error));
            }
        }
    }

    /// Sends all of `parts`; as [`Transport::send_parts`].
    pub(crate) async fn send_parts(&self, parts: &mut Vec<Data>) -> Result<(), IoError> {
        if !self.is_encrypted() {
            return self.stream.send_parts(parts).await;
        }
        for part in parts.drain(..) {
            self.send_all(part).await?;
        }
        Ok(())
    }

    /// Sends all of `data`.
    pub(crate) async fn send_all(&self, data: Data) -> Result<(), IoError> {
        match self.keys.get() {
            None => self.stream.send_all(data).await,
            Some(keys) => {
                for piece in data.chunks(TLS_PIECE_BYTES) {
                    keys.encrypt(piece)?;
                    self.send_pending(&keys.connection, piece.len()).await?;
                }
                Ok(())
            }
        }
    }

    /// Encrypts everything from here on.
    ///
    /// # Errors
    /// If the client does not do its part; what was wrong is in [`Channel::take_fault`], unless it
    /// has left.
    pub(crate) async fn start_tls(&self, tls: &Tls) -> Result<(), IoError> {
        let connection =
            ServerConnection::new(tls.config()).map_err(|error| self.broken(&error))?;
        let connection = RefCell::new(connection);
        connection.borrow_mut().set_buffer_limit(None);
        let mut space = Buf::new(TLS_PIECE_BYTES);
        loop {
            self.send_pending(&connection, 0).await?;
            if !connection.borrow().is_handshaking() {
                break;
            }
            let (buf, received) = self.stream.recv(space).await;
            space = buf;
            let mut bytes = match received? {
                0 => return Err(GONE),
                count => &space[..count],
            };
            let taken = loop {
                if bytes.is_empty() || !connection.borrow().is_handshaking() {
                    break Ok(bytes.len());
                }
                let mut connection = connection.borrow_mut();
                match connection.read_tls(&mut bytes) {
                    // It takes nothing more once the client has said that it leaves.
                    Ok(0) => break Err(GONE),
                    Ok(_) => {}
                    Err(error) => break Err(self.broken(&error)),
                }
                if let Err(error) = connection.process_new_packets() {
                    break Err(self.broken(&error));
                }
            };
            match taken {
                Ok(0) => {}
                // What came behind the handshake is encrypted already.
                Ok(left) => {
                    let end = received?;
                    self.send_pending(&connection, 0).await?;
                    return self.begin(connection, space, end - left..end);
                }
                Err(error) => {
                    // The client is told why.
                    let _ = self.send_pending(&connection, 0).await;
                    return Err(error);
                }
            }
        }
        self.begin(connection, space, 0..0)
    }

    fn begin(
        &self,
        connection: RefCell<ServerConnection>,
        space: Buf,
        range: Range<usize>,
    ) -> Result<(), IoError> {
        let incoming = RefCell::new((space, range));
        let keys = Keys { connection, incoming, is_closed: Cell::new(false) };
        self.keys.set(keys).map_err(|_| IoError::new(IoErrorKind::Invalid))
    }

    /// Says that nothing more is sent.
    pub(crate) async fn send_close(&self) {
        if let Some(keys) = self.keys.get().filter(|keys| !keys.is_closed.replace(true)) {
            keys.connection.borrow_mut().send_close_notify();
            let _ = self.send_pending(&keys.connection, 0).await;
        }
    }

    /// Sends what is encrypted; `len` bytes of it are a client's data.
    async fn send_pending(
        &self,
        connection: &RefCell<ServerConnection>,
        len: usize,
    ) -> Result<(), IoError> {
        while connection.borrow().wants_write() {
            let mut message = Buf::new(len + TLS_EXTRA_BYTES);
            let mut room = &mut message[..];
            while !room.is_empty() && connection.borrow().wants_write() {
                // A slice takes bytes as long as it has room.
                if connection.borrow_mut().write_tls(&mut room).is_err() {
                    return Err(IoError::new(IoErrorKind::Other));
                }
            }
            let filled = len + TLS_EXTRA_BYTES - room.len();
            drop(message.split_off(filled));
            self.stream.send_all(message.freeze()).await?;
        }
        Ok(())
    }

    async fn recv_encrypted(&self, keys: &Keys, mut buf: Buf) -> (Buf, Result<(), IoError>) {
        let mut filled = 0;
        loop {
            match self.decrypt(keys, &mut buf[filled..]) {
                Ok(count) => filled += count,
                Err(error) => return (buf, Err(error)),
            }
            if filled == buf.len() {
                return (buf, Ok(()));
            }
            if let Err(error) = self.recv_more(keys).await {
                return (buf, Err(error));
            }
        }
    }

    /// Receives what is to be decrypted next.
    async fn recv_more(&self, keys: &Keys) -> Result<(), IoError> {
        let space = std::mem::replace(&mut keys.incoming.borrow_mut().0, Buf::new(0));
        let space = if space.is_empty() { Buf::new(TLS_PIECE_BYTES) } else { space };
        let (space, received) = self.stream.recv(space).await;
        match received? {
            0 => Err(GONE),
            count => {
                *keys.incoming.borrow_mut() = (space, 0..count);
                Ok(())
            }
        }
    }

    fn decrypt(&self, keys: &Keys, target: &mut [u8]) -> Result<usize, IoError> {
        keys.decrypt(target).map_err(|broken| match broken {
            Broken::Closed => GONE,
            Broken::Fault(why) => self.broken(&why),
        })
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> IoError {
        *self.fault.borrow_mut() = Some(why.to_string());
        IoError::new(IoErrorKind::Invalid)
    }
}

/// Why nothing more can be decrypted.
enum Broken {
    Closed,
    Fault(String),
}

impl Keys {
    /// Encrypts a piece; it is to be sent before the next one.
    fn encrypt(&self, piece: &[u8]) -> Result<(), IoError> {
        let written = self.connection.borrow_mut().writer().write_all(piece);
        written.map_err(|_| IoError::new(IoErrorKind::Invalid))
    }

    /// Fills the beginning of `target` with what has been received; less than all of it if more has
    /// to be received first.
    fn decrypt(&self, target: &mut [u8]) -> Result<usize, Broken> {
        let mut connection = self.connection.borrow_mut();
        let mut incoming = self.incoming.borrow_mut();
        let (bytes, range) = &mut *incoming;
        let fault = |error: &dyn std::fmt::Display| Broken::Fault(error.to_string());
        let mut filled = 0;
        while filled < target.len() {
            match connection.reader().read(&mut target[filled..]) {
                Ok(0) => return if filled > 0 { Ok(filled) } else { Err(Broken::Closed) },
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if range.start == range.end {
                        break;
                    }
                    let mut rest = &bytes[range.clone()];
                    if connection.read_tls(&mut rest).map_err(|error| fault(&error))? == 0 {
                        return if filled > 0 { Ok(filled) } else { Err(Broken::Closed) };
                    }
                    range.start = range.end - rest.len();
                    connection.process_new_packets().map_err(|error| fault(&error))?;
                }
                Err(error) => return Err(fault(&error)),
            }
        }
        Ok(filled)
    }
}
