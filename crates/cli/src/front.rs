//! A reactor that serves clients of a volume: the pool's own, or one on another thread.

use std::rc::Rc;

use forebay_device::real::file::Reader;
use forebay_device::real::net::{Socket, Stream};
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::real::thread::ReactorThread;
use forebay_device::relay::{self, Caller};
use forebay_device::{BlockDevice, Runtime};
use forebay_engine::{Client, Port};
use forebay_export::Listen;
use forebay_export::nbd::{Exports, Server};

use crate::Result;
use crate::export::VolumeExport;
use crate::failure::Failure;
use crate::flag::Flag;
use crate::text::tell;

/// Clients on their way to a front at a time: a Unix socket and a port bring one after the other.
const ARRIVING_MAX: usize = 2;

/// See the head of the file.
pub(crate) struct Front {
    clients: Caller<Socket, ()>,
    stop: Caller<(), ()>,
    thread: Option<ReactorThread>,
}

/// What arrives at a front.
struct Calls {
    clients: relay::Server<Socket, ()>,
    /// The wish to finish what the clients have asked for and to close their connections. It has a
    /// way of its own, because clients are not taken while there are too many.
    stop: relay::Server<(), ()>,
}

impl Front {
    /// Serves clients on this reactor.
    ///
    /// # Errors
    /// If the volume's name cannot be an export's.
    pub(crate) fn here(reactor: &Rc<Reactor>, volume: Client) -> Result<Front> {
        let exports = exports(volume)?;
        let (front, calls) = Front::new();
        reactor.spawn(Box::pin(serve(Rc::clone(reactor), exports, calls)));
        Ok(front)
    }

    /// Serves clients on a reactor of its own.
    ///
    /// # Errors
    /// If the system gives no thread or no ring.
    pub(crate) fn on_thread(name: &str, port: Port, members: Vec<Reader>) -> Result<Front> {
        let (front, calls) = Front::new();
        let body = |reactor| async move {
            let open = |member: Reader| Rc::new(member.open(&reactor)) as Rc<dyn BlockDevice>;
            let volume = port.open(members.into_iter().map(open).collect());
            // The name has been accepted on the pool's reactor.
            if let Ok(exports) = exports(volume) {
                serve(reactor, exports, calls).await;
            }
        };
        let thread = ReactorThread::start(name, Config::default(), body)?;
        Ok(Front { thread: Some(thread), ..front })
    }

    fn new() -> (Front, Calls) {
        let (clients, arriving) = relay::relay(ARRIVING_MAX);
        let (stop, stopping) = relay::relay(1);
        (Front { clients, stop, thread: None }, Calls { clients: arriving, stop: stopping })
    }

    /// Hands a client over; waits while the front has too many.
    pub(crate) async fn take(&self, client: Socket) {
        // A front that has ended closes the connection.
        let _ = self.clients.call(client).await;
    }

    /// Answers what was asked, then closes all connections.
    pub(crate) async fn stop(&self) {
        let _ = self.stop.call(()).await;
    }

    /// Waits for the end of the front's thread, which comes at once after [`Front::stop`].
    pub(crate) fn join(self) {
        drop((self.clients, self.stop));
        if let Some(thread) = self.thread
            && thread.join().is_err()
        {
            tell(format_args!("error: a thread that served clients has panicked"));
        }
    }
}

fn exports(volume: Client) -> Result<Exports<VolumeExport>> {
    let name = volume.name().to_owned();
    let export = VolumeExport::new(volume, "Forebay volume".to_owned());
    Exports::of(Rc::new(export))
        .map_err(|error| Failure::new(format!("cannot export \"{name}\": {error}")))
}

async fn serve(reactor: Rc<Reactor>, exports: Exports<VolumeExport>, calls: Calls) {
    let arrivals = Arrivals { reactor: Rc::clone(&reactor), clients: calls.clients };
    let server = Server::new(Rc::clone(&reactor) as Rc<dyn Runtime>, exports);
    let (serving, ended) = (Rc::clone(&server), Rc::new(Flag::default()));
    let flag = Rc::clone(&ended);
    reactor.spawn(Box::pin(async move {
        serving.serve(arrivals).await;
        flag.raise();
    }));
    let asked = calls.stop.next().await;
    server.stop();
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
    type Stream = Stream;

    async fn accept(&self) -> std::io::Result<Stream> {
        match self.clients.next().await {
            Some((socket, taken)) => {
                taken.send(());
                Stream::open(&self.reactor, socket)
            }
            None => std::future::pending().await,
        }
    }
}
