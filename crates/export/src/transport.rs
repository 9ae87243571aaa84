//! The byte streams that servers run on.

use std::future::Future;

use forebay_device::real::net::{Listener, Stream};
use forebay_device::{Buf, Data, IoError};

/// One client's byte stream. One task receives while another one sends.
///
/// A future of this trait may be dropped before it is ready: the bytes that it would have moved
/// may or may not be moved then, and the stream is only good for [`Transport::shutdown`].
pub trait Transport: 'static {
    /// Fills all of `buf`; the buffer comes back whatever the result, with what had come by then.
    /// The stream's end is an error.
    fn recv_exact(&self, buf: Buf) -> impl Future<Output = (Buf, Result<(), IoError>)>;

    /// Receives what is there, at least a byte and at most the buffer's length; 0 means that the
    /// peer sends nothing more. The buffer is not empty, and comes back whatever the result.
    fn recv(&self, buf: Buf) -> impl Future<Output = (Buf, Result<usize, IoError>)>;

    /// Sends all of `data`.
    fn send_all(&self, data: Data) -> impl Future<Output = Result<(), IoError>>;

    /// Sends all of `parts`, one after the other; the list is empty then.
    fn send_parts(&self, parts: &mut Vec<Data>) -> impl Future<Output = Result<(), IoError>> {
        async {
            for part in parts.drain(..) {
                self.send_all(part).await?;
            }
            Ok(())
        }
    }

    /// Who is at the other end, for people.
    fn peer(&self) -> String;

    /// Ends both directions; whoever still sends or receives gets an error. The stream is
    /// closed when it is dropped.
    fn shutdown(&self);
}

/// Whether a failed accept is about the client that came, and says nothing about the next one:
/// only others, such as a lack of descriptors, are worth a pause.
pub fn is_of_one_client(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::Interrupted
            | ErrorKind::BrokenPipe
    )
}

/// Where clients connect.
pub trait Listen: 'static {
    /// A connected client.
    type Stream: Transport;

    /// The next client. May be dropped before it is ready.
    fn accept(&self) -> impl Future<Output = std::io::Result<Self::Stream>>;
}

impl Transport for Stream {
    async fn recv_exact(&self, buf: Buf) -> (Buf, Result<(), IoError>) {
        Stream::recv_exact(self, buf).await
    }

    async fn recv(&self, buf: Buf) -> (Buf, Result<usize, IoError>) {
        Stream::recv(self, buf).await
    }

    async fn send_all(&self, data: Data) -> Result<(), IoError> {
        Stream::send_all(self, data).await
    }

    async fn send_parts(&self, parts: &mut Vec<Data>) -> Result<(), IoError> {
        Stream::send_parts(self, parts).await
    }

    fn peer(&self) -> String {
        Stream::peer(self).to_string()
    }

    fn shutdown(&self) {
        Stream::shutdown(self);
    }
}

impl Listen for Listener {
    type Stream = Stream;

    async fn accept(&self) -> std::io::Result<Stream> {
        Listener::accept(self).await
    }
}
