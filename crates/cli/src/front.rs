//! What serves clients of a volume on one reactor: the pool's own, or one on another thread.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};

use forebay_device::real::file::Reader;
use forebay_device::real::net::{Socket, Stream};
use forebay_device::real::reactor::Reactor;
use forebay_device::relay::{self, Caller, Gone, Reply};
use forebay_device::{BlockDevice, Buf, Data, IoError, Runtime};
use forebay_engine::ids::PoolId;
use forebay_engine::{Client, Port};
use forebay_export::nbd::limits::CONNECTIONS_MAX;
use forebay_export::nbd::{Complaint, Exports, Server, Settings, Share};
use forebay_export::{Export, Listen, Transport};

use crate::Result;
use crate::crew::Hand;
use crate::export::{Terms, VolumeExport};
use crate::failure::Failure;
use crate::flag::Flag;
use crate::members::Readers;
use crate::text::tell;

/// A front is asked twice to stop at the most.
const STOP_CALLS: usize = 2;

/// See the head of the file. Its server ends when this is dropped.
pub(crate) struct Front {
    /// A call is answered when the client's connection is closed, so there are as many places as
    /// connections.
    clients: Caller<Socket, ()>,
    stop: Caller<(), ()>,
    live: Cell<usize>,
    is_gone: Cell<bool>,
}

/// What arrives at a front.
struct Calls {
    clients: relay::Server<Socket, ()>,
    /// The wish to finish what the clients have asked for and to close their connections; the second time not to
    /// wait for that. It has a way of its own, because clients are not taken while there are too many.
    stop: relay::Server<(), ()>,
}

impl Front {
    /// Serves clients on this reactor.
    ///
    /// # Errors
    /// If the volume's name cannot be an export's.
    pub(crate) fn here(reactor: &Rc<Reactor>, volume: Client, terms: &Terms) -> Result<Front> {
        Front::of(reactor, of_volume(volume, terms), terms)
    }

    /// The same of any export.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn of(reactor: &Rc<Reactor>, export: impl Export, terms: &Terms) -> Result<Front> {
        let (front, calls) = Front::new();
        serve(reactor, export, terms, calls)?;
        Ok(front)
    }

    /// Serves clients on another reactor of the crew. The volume's name has been accepted by
    /// [`Front::here`].
    pub(crate) fn there(
        hand: &Hand,
        pool: PoolId,
        port: Port,
        readers: Readers,
        terms: Terms,
    ) -> Front {
        let (front, calls) = Front::new();
        hand.run(move |reactor| {
            let open = |reader: Reader| Rc::new(reader.open(reactor)) as Rc<dyn BlockDevice>;
            let devices = Rc::new(readers.into_iter().map(|it| it.map(open)).collect());
            remember(pool, &devices);
            let volume = port.open_with(Rc::clone(reactor) as _, devices);
            let _ = serve(reactor, of_volume(volume, &terms), &terms, calls);
        });
        front
    }

    fn new() -> (Front, Calls) {
        let (clients, arriving) = relay::relay(CONNECTIONS_MAX);
        let (stop, stopping) = relay::relay(STOP_CALLS);
        let front = Front { clients, stop, live: Cell::new(0), is_gone: Cell::new(false) };
        (front, Calls { clients: arriving, stop: stopping })
    }

    /// Connections that are not closed; `None` if it takes no more.
    pub(crate) fn live(&self) -> Option<usize> {
        let live = self.live.get();
        (live < CONNECTIONS_MAX && !self.is_gone.get()).then_some(live)
    }

    /// Connections that are not closed.
    pub(crate) fn live_count(&self) -> usize {
        self.live.get()
    }

    /// Whether the reactor has ended by itself.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.get()
    }

    /// Counts a client that is about to be handed over.
    pub(crate) fn expect_client(&self) {
        self.live.set(self.live.get() + 1);
    }

    /// Hands an expected client over; returns when its connection is closed.
    pub(crate) async fn take(&self, client: Socket) {
        if self.clients.call(client).await == Err(Gone) {
            self.is_gone.set(true);
        }
        self.live.set(self.live.get() - 1);
    }

    /// Answers what was asked, then closes all connections. Asked again before that has ended, it closes at once what
    /// is left, which gets no answer.
    pub(crate) async fn stop(&self) {
        let _ = self.stop.call(()).await;
    }
}

/// Gives a hand another cache device of a pool to read, or has it let go of one, by the number that the
/// pool knows it by.
pub(crate) fn set_reader(hand: &Hand, pool: PoolId, number: usize, reader: Option<Reader>) {
    hand.run(move |reactor| {
        let device = reader.map(|reader| Rc::new(reader.open(reactor)) as Rc<dyn BlockDevice>);
        READERS.with_borrow(|known| {
            let own = known.iter().filter(|(of, _)| *of == pool);
            for devices in own.filter_map(|(_, devices)| devices.upgrade()) {
                devices.set(number, device.clone());
            }
        });
    });
}

/// Keeps what a reactor reads of a pool within the reach of [`set_reader`].
fn remember(pool: PoolId, devices: &Rc<forebay_engine::Readers>) {
    READERS.with_borrow_mut(|known| {
        known.retain(|(_, devices)| devices.strong_count() > 0);
        known.push((pool, Rc::downgrade(devices)));
    });
}

thread_local! {
    /// What this reactor reads by itself, by pool; one for each volume that is exported.
    static READERS: RefCell<Vec<(PoolId, Weak<forebay_engine::Readers>)>> = const { RefCell::new(Vec::new()) };
    /// All exports of a reactor have the memory and the places of one.
    static SHARE: OnceCell<Rc<Share>> = const { OnceCell::new() };
}

fn of_volume(volume: Client, terms: &Terms) -> VolumeExport {
    VolumeExport::new(volume, "Forebay volume".to_owned(), terms.clone())
}

fn serve(reactor: &Rc<Reactor>, export: impl Export, terms: &Terms, calls: Calls) -> Result<()> {
    let name = terms.name.clone().unwrap_or_else(|| export.name().to_owned());
    let (exports, clients) = (Exports::default(), &terms.clients);
    exports
        .add_with(Rc::new(export), clients.places.clone())
        .map_err(|error| Failure::new(format!("cannot export \"{name}\": {error}")))?;
    let share = || Rc::new(Share::of(clients.memory_bytes_max));
    let settings = Settings {
        tls: terms.tls.clone(),
        idle_max: clients.idle_max,
        inflight_bytes_max: clients.inflight_bytes_max,
        share: SHARE.with(|known| Rc::clone(known.get_or_init(share))),
    };
    let runtime = Rc::clone(reactor) as Rc<dyn Runtime>;
    // Who has not come as far as choosing an export has come to this one's address.
    let server = Server::new(runtime, exports, settings, move |complaint| {
        let complaint = Complaint { export: Some(name.clone()), ..complaint.clone() };
        tell(format_args!("note: {complaint}"));
    });
    reactor.spawn(Box::pin(run(Rc::clone(reactor), server, calls)));
    Ok(())
}

/// Serves the clients that are handed over, until it is asked to stop.
async fn run<E: Export>(reactor: Rc<Reactor>, server: Rc<Server<E>>, calls: Calls) {
    let arrivals = Arrivals { reactor: Rc::clone(&reactor), clients: calls.clients };
    let (serving, ended) = (Rc::clone(&server), Rc::new(Flag::default()));
    let flag = Rc::clone(&ended);
    reactor.spawn(Box::pin(async move {
        serving.serve(arrivals).await;
        flag.raise();
    }));
    let asked = calls.stop.next().await;
    server.stop();
    if let Some(Some(((), reply))) = ended.cut(calls.stop.next()).await {
        server.cut_off();
        reply.send(());
    }
    ended.wait().await;
    if let Some(((), reply)) = asked {
        reply.send(());
    }
}

/// Clients that are handed over, as a listener.
struct Arrivals {
    reactor: Rc<Reactor>,
    clients: relay::Server<Socket, ()>,
}

impl Listen for Arrivals {
    type Stream = Handed;

    async fn accept(&self) -> std::io::Result<Handed> {
        while let Some((socket, reply)) = self.clients.next().await {
            match Stream::open(&self.reactor, socket) {
                Ok(stream) => return Ok(Handed { stream, reply: Some(reply) }),
                // This client has left already; that says nothing about the next one.
                Err(_) => reply.send(()),
            }
        }
        std::future::pending().await
    }
}

/// A client's stream; when it is dropped, whoever handed it over is told.
struct Handed {
    stream: Stream,
    reply: Option<Reply<Socket, ()>>,
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply.send(());
        }
    }
}

impl Transport for Handed {
    async fn recv_exact(&self, buf: Buf) -> (Buf, std::result::Result<(), IoError>) {
        self.stream.recv_exact(buf).await
    }

    async fn recv(&self, buf: Buf) -> (Buf, std::result::Result<usize, IoError>) {
        self.stream.recv(buf).await
    }

    async fn send_all(&self, data: Data) -> std::result::Result<(), IoError> {
        self.stream.send_all(data).await
    }

    async fn send_parts(&self, parts: &mut Vec<Data>) -> std::result::Result<(), IoError> {
        self.stream.send_parts(parts).await
    }

    fn peer(&self) -> String {
        self.stream.peer().to_string()
    }

    fn shutdown(&self) {
        self.stream.shutdown();
    }
}
