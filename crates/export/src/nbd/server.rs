//! Listeners, connections, stopping.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::runtime::Nanos;

use crate::nbd::complaint::{Complaint, End, Fault, Limiter};
use crate::nbd::connection::Connection;
use crate::nbd::exports::Exports;
use crate::nbd::handshake::negotiate;
use crate::nbd::limits::{
    ACCEPT_PAUSE, BYTES_INFLIGHT_MAX, CONNECTIONS_MAX, DRAIN_TIME_MAX, NEGOTIATION_TIME_MAX,
    WATCH_INTERVAL,
};
use crate::nbd::link::{Control, Link};
use crate::nbd::permits::Share;
use crate::nbd::signal::{Signal, Waiters, within};
use crate::nbd::tls::Tls;
use crate::{Export, Listen, Transport, is_of_one_client};

/// Connections that are not closed yet.
#[derive(Default)]
struct Connections {
    list: RefCell<Vec<Rc<Control>>>,
    ended: Waiters,
}

impl Connections {
    fn count(&self) -> usize {
        self.list.borrow().len()
    }

    fn for_each(&self, act: impl Fn(&Control)) {
        // A copy: raising a signal wakes tasks, and this must not depend on what they do.
        let list = self.list.borrow().clone();
        list.iter().for_each(|control| act(control));
    }
}

/// One connection's place in the list.
struct Place {
    connections: Rc<Connections>,
    share: Rc<Share>,
    control: Rc<Control>,
}

impl Place {
    fn take(connections: &Rc<Connections>, share: &Rc<Share>) -> Self {
        share.enter();
        let control = Rc::new(Control::default());
        connections.list.borrow_mut().push(Rc::clone(&control));
        Self { connections: Rc::clone(connections), share: Rc::clone(share), control }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.list.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.control));
        self.connections.ended.wake_all();
        self.share.leave();
    }
}

/// What a server may be told; by default what [`limits`](crate::nbd::limits) say.
#[derive(Clone)]
pub struct Settings {
    /// The server's certificate; without it there is no TLS.
    pub tls: Option<Tls>,
    /// How long a client may ask for nothing; without it for ever, since a disk may well be idle.
    pub idle_max: Option<Nanos>,
    /// Memory of one connection's requests in progress, in bytes; at least
    /// [`INFLIGHT_BYTES_MIN`](crate::nbd::limits::INFLIGHT_BYTES_MIN).
    pub inflight_bytes_max: u64,
    /// What it has together with other servers of its thread.
    pub share: Rc<Share>,
}

impl Default for Settings {
    fn default() -> Self {
        let inflight_bytes_max = BYTES_INFLIGHT_MAX;
        Self { tls: None, idle_max: None, inflight_bytes_max, share: Rc::default() }
    }
}

/// Serves exports to the clients of any number of listeners, on one thread.
pub struct Server<E> {
    runtime: Rc<dyn Runtime>,
    exports: Exports<E>,
    settings: Settings,
    connections: Rc<Connections>,
    stopping: Signal,
    limiter: Limiter,
    /// Whether a listener looks after clients and complaints already.
    is_watched: Cell<bool>,
    complain: Box<dyn Fn(&Complaint)>,
}

impl<E: Export> Server<E> {
    /// A server without listeners. It calls `complain` once for each connection that ends because
    /// its client did not keep to the protocol or to a limit, when it has ended. Above
    /// [`COMPLAINTS_MAX`](crate::nbd::limits::COMPLAINTS_MAX) it does so once for all others of a kind, when the
    /// span is over.
    pub fn new(
        runtime: Rc<dyn Runtime>,
        exports: Exports<E>,
        settings: Settings,
        complain: impl Fn(&Complaint) + 'static,
    ) -> Rc<Self> {
        Rc::new(Self {
            runtime,
            exports,
            settings,
            connections: Rc::default(),
            stopping: Signal::default(),
            limiter: Limiter::default(),
            is_watched: Cell::new(false),
            complain: Box::new(complain),
        })
    }

    /// What is served; may be changed at any time.
    pub fn exports(&self) -> &Exports<E> {
        &self.exports
    }

    /// Number of clients that are connected.
    pub fn connection_count(&self) -> usize {
        self.connections.count()
    }

    /// Memory of the requests in progress on the servers with the same share, in bytes: 0 when nobody
    /// asks for anything.
    pub fn inflight_bytes(&self) -> u64 {
        self.settings.share.budget.bytes()
    }

    /// Makes every [`Server::serve`] return: no client is accepted and nothing received any more;
    /// requests that have come as a whole are finished and answered, then connections are closed.
    /// Clients that do not take their replies, or that the export keeps waiting, are cut off after
    /// [`DRAIN_TIME_MAX`]; the export is waited for without a limit.
    pub fn stop(&self) {
        self.stopping.raise();
        self.connections.for_each(|control| control.stop.raise());
    }

    /// The same, and closes all connections at once: nobody hears what the export answers from now on.
    pub fn cut_off(&self) {
        self.stop();
        self.connections.for_each(|control| control.abort.raise());
    }

    /// Serves the clients of `listener` until [`Server::stop`]; returns when the server's
    /// connections are closed.
    pub async fn serve<L: Listen>(self: Rc<Self>, listener: L) {
        {
            let mut watching = pin!(self.watch());
            let mut accepting = pin!(self.accept_clients(&listener));
            let both = poll_fn(|context| {
                let _ = watching.as_mut().poll(context);
                accepting.as_mut().poll(context)
            });
            self.stopping.cut(both).await;
        }
        drop(listener);
        let gone = self.connections.ended.until(|| self.connections.count() == 0);
        if within(&*self.runtime, DRAIN_TIME_MAX, gone).await.is_none() {
            self.cut_off();
            self.connections.ended.until(|| self.connections.count() == 0).await;
        }
        self.tell_kept();
    }

    /// What one listener does for all; for ever.
    async fn watch(&self) {
        if self.is_watched.replace(true) {
            return std::future::pending().await;
        }
        let mut clients = pin!(self.watch_clients());
        let mut complaints = pin!(self.watch_complaints());
        poll_fn(|context| {
            let _ = clients.as_mut().poll(context);
            complaints.as_mut().poll(context)
        })
        .await;
    }

    /// Tells of complaints for which there was no room, once there is; for ever.
    async fn watch_complaints(&self) {
        loop {
            let end = self.limiter.until_keeping().await;
            let _ = self.runtime.sleep(end.saturating_sub(self.runtime.now())).await;
            self.tell_kept();
        }
    }

    fn tell_kept(&self) {
        self.limiter.take().iter().for_each(&self.complain);
    }

    /// Looks after clients that do nothing, while that matters; for ever.
    async fn watch_clients(&self) {
        let Settings { idle_max, share, .. } = &self.settings;
        let matters = || self.connections.count() > 0 && (idle_max.is_some() || share.is_short());
        loop {
            share.until(matters).await;
            let _ = self.runtime.sleep(WATCH_INTERVAL).await;
            let is_short = share.is_short();
            self.connections.for_each(|control| control.look(is_short, *idle_max));
        }
    }

    async fn accept_clients<L: Listen>(self: &Rc<Self>, listener: &L) {
        let connections = &self.connections;
        loop {
            connections.ended.until(|| connections.count() < CONNECTIONS_MAX).await;
            self.settings.share.room().await;
            match listener.accept().await {
                Ok(stream) => {
                    let place = Place::take(connections, &self.settings.share);
                    self.runtime.spawn(Box::pin(Rc::clone(self).serve_client(stream, place)));
                }
                Err(error) if is_of_one_client(&error) => {}
                Err(_) => {
                    let _ = self.runtime.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve_client<T: Transport>(self: Rc<Self>, stream: T, place: Place) {
        let link = Link::new(stream, Rc::clone(&place.control));
        let peer = link.peer();
        let negotiation = negotiate(&link, &self.exports, self.settings.tls.as_ref());
        let negotiated = within(&*self.runtime, NEGOTIATION_TIME_MAX, negotiation).await;
        let (export, end): (_, End) = match negotiated.unwrap_or(Err(Some(Fault::SlowNegotiation)))
        {
            Ok((seat, session)) => {
                let (runtime, export) = (Rc::clone(&self.runtime), Rc::clone(seat.export()));
                let (name, export) = (export.name().to_owned(), export.for_client());
                let Settings { share, inflight_bytes_max, .. } = &self.settings;
                let (guard, memory) = ((seat, place), (&share.budget, *inflight_bytes_max));
                let connection = Connection::new(runtime, link, export, session, memory, guard);
                (Some(name), connection.run().await)
            }
            Err(end) => {
                link.finish(&*self.runtime).await;
                (None, end)
            }
        };
        let complaint = end.map(|fault| Complaint { peer, export, fault, unsaid: 0 });
        let told = complaint.and_then(|it| self.limiter.admit(self.runtime.now(), it));
        told.iter().for_each(&self.complain);
    }
}
