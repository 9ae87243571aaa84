//! A volume on its sockets, until the process is asked to end.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::real::net::{Listener, TcpOptions};
use forebay_device::real::reactor::Reactor;
use forebay_device::real::signal::Signals;
use forebay_device::runtime::Runtime;
use forebay_engine::Volume;
use forebay_export::nbd::{Exports, Server};

use crate::Result;
use crate::export::VolumeExport;
use crate::failure::Failure;
use crate::flag::Flag;

/// Exit code after a second signal, as a shell reports an interrupted command.
const EXIT_INTERRUPTED: i32 = 130;

/// A server of one volume.
pub(crate) struct Host {
    server: Rc<Server<VolumeExport>>,
    ended: Vec<Rc<Flag>>,
    /// How clients reach the volume, the Unix socket first.
    pub(crate) uris: Vec<String>,
}

impl Host {
    /// Serves `volume` on a Unix socket and, with `port`, on loopback.
    ///
    /// # Errors
    /// If an address cannot be listened on.
    pub(crate) fn start(
        reactor: &Rc<Reactor>,
        volume: Volume,
        socket: &Path,
        port: Option<u16>,
    ) -> Result<Host> {
        let name = volume.name().to_owned();
        let export = VolumeExport::new(volume, "Forebay volume".to_owned());
        let exports = Exports::of(Rc::new(export))
            .map_err(|error| Failure::new(format!("cannot export \"{name}\": {error}")))?;
        let unix = Listener::unix(reactor, socket).map_err(|error| {
            Failure::system(format!("listen on {}", socket.display()), &error)
                .hint("choose another place with --socket; a path has at most 107 bytes")
        })?;
        let mut listeners = vec![unix];
        let absolute = std::path::absolute(socket).unwrap_or_else(|_| PathBuf::from(socket));
        let mut uris = vec![format!("nbd+unix:///{name}?socket={}", absolute.display())];
        if let Some(port) = port {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let tcp = Listener::tcp(reactor, &address, TcpOptions::default()).map_err(|error| {
                Failure::system(format!("listen on {address}"), &error)
                    .hint("choose another --port; 0 takes a free one")
            })?;
            let address = tcp.local_addr().unwrap_or(address);
            uris.push(format!("nbd://{address}/{name}"));
            listeners.push(tcp);
        }
        let runtime = Rc::clone(reactor) as Rc<dyn Runtime>;
        let server = Server::new(runtime, exports);
        let mut ended = Vec::new();
        for listener in listeners {
            let (server, flag) = (Rc::clone(&server), Rc::new(Flag::default()));
            ended.push(Rc::clone(&flag));
            reactor.spawn(Box::pin(async move {
                server.serve(listener).await;
                flag.raise();
            }));
        }
        Ok(Host { server, ended, uris })
    }

    /// Answers what was asked, then closes all connections.
    pub(crate) async fn stop(self) {
        self.server.stop();
        for flag in &self.ended {
            flag.wait().await;
        }
    }
}

/// Raises the flag at the first SIGINT or SIGTERM; the second one ends the process at once, which
/// a pool survives as it survives a crash. `on_usr1` runs at each SIGUSR1.
///
/// # Errors
/// What the system says.
pub(crate) fn end_on_signals(
    reactor: &Rc<Reactor>,
    on_usr1: impl Fn() + 'static,
) -> Result<Rc<Flag>> {
    let signals = Signals::new(reactor, &[libc::SIGINT, libc::SIGTERM, libc::SIGUSR1])
        .map_err(|error| Failure::system("receive signals", &error))?;
    let flag = Rc::new(Flag::default());
    let raised = Rc::clone(&flag);
    reactor.spawn(Box::pin(async move {
        while let Ok(number) = signals.next().await {
            if number == libc::SIGUSR1 {
                on_usr1();
            } else if raised.is_raised() {
                std::process::exit(EXIT_INTERRUPTED);
            } else {
                raised.raise();
            }
        }
    }));
    Ok(flag)
}
