//! `forebay export`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use forebay_control::api::{AddExport, Change, Done, Export, Many, One, Place, TlsUse};
use forebay_control::name::VolumeName;

use super::{Asking, absolute, table};
use crate::Result;
use crate::text::{say, tell, whole};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve a volume over NBD, now and after each start of the daemon
    Add {
        /// POOL/NAME
        volume: VolumeName,
        /// Unix socket to serve on [default: POOL@NAME.sock in the daemon's run_dir]
        #[arg(long, value_name = "PATH", conflicts_with = "port")]
        socket: Option<PathBuf>,
        /// Port of the loopback address to serve on; 0 takes a free one
        #[arg(long, value_parser = whole::<u16>(..=u16::MAX))]
        port: Option<u16>,
        /// Address to serve on; one that other machines can reach needs TLS with clients' certificates
        #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["socket", "port"],
            value_parser = address)]
        listen: Option<SocketAddr>,
        /// Refuse clients' writes
        #[arg(long)]
        read_only: bool,
        /// Refuse clients without TLS, even if the daemon's tls.mode is "offered"
        #[arg(long)]
        require_tls: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// List the exports
    List,
    /// Answer what clients have asked, close their connections and serve no more
    Remove {
        /// POOL/NAME
        volume: VolumeName,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// An address as people write it. Names are not looked up: what they stand for may change.
fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "write numbers, as in 192.0.2.1:10809 or [2001:db8::1]:10809".to_owned())
}

/// Runs the command.
pub(crate) fn run(command: Command, asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    match command {
        Command::Add { volume, socket, port, listen, read_only, require_tls, dry_run } => {
            let place = match socket {
                Some(path) => Some(Place::Socket(absolute(&path)?)),
                None => port.map(Place::Port).or(listen.map(Place::Address)),
            };
            let body = AddExport { volume, place, read_only, require_tls };
            if dry_run {
                return daemon.plan(&Change::AddExport(body));
            }
            let export: One<Export> = daemon.post("/api/v1/exports", &body)?;
            daemon.print(&export, |export| {
                say(&export.item.uri);
                let with = match (export.item.tls, export.item.uri.contains('?')) {
                    (TlsUse::Required, true) => "&tls-certificates=DIR",
                    (TlsUse::Required, false) => "?tls-certificates=DIR",
                    _ => "",
                };
                tell(format_args!("next: `nbdinfo '{}{with}'`", export.item.uri));
            });
        }
        Command::List => {
            let exports: Many<Export> = daemon.get("/api/v1/exports")?;
            daemon.print(&exports, |exports| {
                let rows: Vec<_> = exports
                    .items
                    .iter()
                    .map(|export| {
                        let place = match export.reason.as_str() {
                            "" => export.uri.clone(),
                            reason => format!("not served: {reason}"),
                        };
                        let access = if export.read_only { "read-only" } else { "read-write" };
                        let tls = match export.tls {
                            TlsUse::None => "no",
                            TlsUse::Offered => "offered",
                            TlsUse::Required => "required",
                        };
                        let clients = export.clients.to_string();
                        vec![export.volume.to_string(), clients, access.into(), tls.into(), place]
                    })
                    .collect();
                say(table(&["VOLUME", "CLIENTS", "ACCESS", "TLS", "ADDRESS"], &rows));
            });
        }
        Command::Remove { volume, dry_run: true } => {
            return daemon.plan(&Change::RemoveExport(volume));
        }
        Command::Remove { volume, dry_run: false } => {
            let path = format!("/api/v1/exports/{}/{}", volume.pool, volume.volume);
            let done: Done = daemon.delete(&path)?;
            let next =
                format!("`forebay volume remove {volume}`, or `forebay export add {volume}`");
            super::pool::finish_with(&daemon, &done, &next);
        }
    }
    Ok(())
}
