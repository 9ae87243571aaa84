//! Streams and listeners in memory, for one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_device::{Buf, Data, IoError, IoErrorKind};
use forebay_export::{Listen, Transport};

#[derive(Default)]
struct Direction {
    bytes: RefCell<VecDeque<u8>>,
    closed: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

impl Direction {
    fn wake(&self) {
        self.wakers.borrow_mut().drain(..).for_each(Waker::wake);
    }

    fn close(&self) {
        self.closed.set(true);
        self.wake();
    }
}

/// One end of a stream.
pub struct Pipe {
    inward: Rc<Direction>,
    outward: Rc<Direction>,
    /// Bytes that a direction holds before its sender waits.
    window: usize,
}

/// A connected pair.
pub fn pair(window: usize) -> (Pipe, Pipe) {
    let (one, two) = (Rc::<Direction>::default(), Rc::<Direction>::default());
    (
        Pipe { inward: Rc::clone(&one), outward: Rc::clone(&two), window },
        Pipe { inward: two, outward: one, window },
    )
}

impl Transport for Pipe {
    async fn recv_exact(&self, mut buf: Buf) -> (Buf, Result<(), IoError>) {
        let mut filled = 0;
        let result = poll_fn(|cx| {
            let mut bytes = self.inward.bytes.borrow_mut();
            let step = bytes.len().min(buf.len() - filled);
            for (target, byte) in buf[filled..].iter_mut().zip(bytes.drain(..step)) {
                *target = byte;
            }
            filled += step;
            drop(bytes);
            if step > 0 {
                self.inward.wake();
            }
            if filled == buf.len() {
                return Poll::Ready(Ok(()));
            }
            if self.inward.closed.get() {
                return Poll::Ready(Err(IoErrorKind::Vanished.into()));
            }
            self.inward.wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        (buf, result)
    }

    async fn recv(&self, mut buf: Buf) -> (Buf, Result<usize, IoError>) {
        let count = poll_fn(|cx| {
            let mut bytes = self.inward.bytes.borrow_mut();
            let step = bytes.len().min(buf.len());
            for (target, byte) in buf.iter_mut().zip(bytes.drain(..step)) {
                *target = byte;
            }
            drop(bytes);
            if step > 0 || self.inward.closed.get() {
                self.inward.wake();
                return Poll::Ready(step);
            }
            self.inward.wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        (buf, Ok(count))
    }

    async fn send_all(&self, data: Data) -> Result<(), IoError> {
        let mut sent = 0;
        poll_fn(|cx| {
            if self.outward.closed.get() {
                return Poll::Ready(Err(IoErrorKind::Vanished.into()));
            }
            let mut bytes = self.outward.bytes.borrow_mut();
            let step = (data.len() - sent).min(self.window.saturating_sub(bytes.len()));
            bytes.extend(&data[sent..sent + step]);
            sent += step;
            drop(bytes);
            if step > 0 {
                self.outward.wake();
            }
            if sent == data.len() {
                return Poll::Ready(Ok(()));
            }
            self.outward.wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn peer(&self) -> String {
        "a pipe".to_owned()
    }

    fn shutdown(&self) {
        self.inward.close();
        self.outward.close();
    }
}

impl Pipe {
    /// Sends nothing more, but still receives.
    pub fn finish(&self) {
        self.outward.close();
    }

    /// Bytes that were sent and that the other side has not taken.
    pub fn untaken(&self) -> usize {
        self.outward.bytes.borrow().len()
    }

    /// Everything until the other side closes.
    pub async fn drain(&self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let (byte, result) = self.recv_exact(Buf::new(1)).await;
            match result {
                Ok(()) => all.push(byte[0]),
                Err(_) => return all,
            }
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Where clients of the same thread connect.
#[derive(Default, Clone)]
pub struct Doorstep(Rc<Waiting>);

#[derive(Default)]
struct Waiting {
    clients: RefCell<VecDeque<Pipe>>,
    server: RefCell<Option<Waker>>,
}

impl Doorstep {
    /// A new client.
    pub fn connect(&self) -> Pipe {
        self.connect_with_window(64 << 10)
    }

    pub fn connect_with_window(&self, window: usize) -> Pipe {
        let (client, server) = pair(window);
        self.0.clients.borrow_mut().push_back(server);
        if let Some(waker) = self.0.server.borrow_mut().take() {
            waker.wake();
        }
        client
    }

    /// Clients that were not accepted.
    pub fn waiting_count(&self) -> usize {
        self.0.clients.borrow().len()
    }
}

impl Listen for Doorstep {
    type Stream = Pipe;

    async fn accept(&self) -> std::io::Result<Pipe> {
        poll_fn(|cx| match self.0.clients.borrow_mut().pop_front() {
            Some(stream) => Poll::Ready(Ok(stream)),
            None => {
                *self.0.server.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}
