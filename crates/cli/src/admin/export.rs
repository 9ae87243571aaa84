//! `forebay export`.

use std::path::PathBuf;

use clap::Subcommand;
use forebay_control::api::{AddExport, Change, Done, Export, Many, One, Place};
use forebay_control::name::VolumeName;

use super::{Asking, absolute, table};
use crate::Result;
use crate::text::{say, tell};

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
        #[arg(long)]
        port: Option<u16>,
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

/// Runs the command.
pub(crate) fn run(command: Command, asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    match command {
        Command::Add { volume, socket, port, dry_run } => {
            let place = match (socket, port) {
                (Some(path), _) => Some(Place::Socket(absolute(&path)?)),
                (None, port) => port.map(Place::Port),
            };
            let body = AddExport { volume, place };
            if dry_run {
                return daemon.plan(&Change::AddExport(body));
            }
            let export: One<Export> = daemon.post("/api/v1/exports", &body)?;
            daemon.print(&export, |export| {
                say(&export.item.uri);
                tell(format_args!("next: `nbdinfo '{}'`", export.item.uri));
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
                        vec![export.volume.to_string(), export.clients.to_string(), place]
                    })
                    .collect();
                say(table(&["VOLUME", "CLIENTS", "ADDRESS"], &rows));
            });
        }
        Command::Remove { volume, dry_run: true } => {
            return daemon.plan(&Change::RemoveExport(volume));
        }
        Command::Remove { volume, dry_run: false } => {
            let path = format!("/api/v1/exports/{}/{}", volume.pool, volume.volume);
            let done: Done = daemon.delete(&path)?;
            super::pool::finish(&daemon, &done);
        }
    }
    Ok(())
}
