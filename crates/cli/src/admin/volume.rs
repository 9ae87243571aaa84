//! `forebay volume`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use forebay_control::api::{
    self, AddVolume, Change, Job, Many, One, SetVolume, Volume, VolumeState,
};
use forebay_control::name::VolumeName;

use super::{Asking, absolute, confirm, table};
use crate::Result;
use crate::daemon::mode_name;
use crate::text::{self, parse_bytes, say, tell};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Put a pool in front of a slow disk, whose content becomes the volume's
    Add {
        /// POOL/NAME
        volume: VolumeName,
        /// The slow disk; nothing is written to it but what clients write
        #[arg(long, value_name = "PATH")]
        origin: PathBuf,
        /// How it is served [default: writeback where dirty data is safe, else writethrough]
        #[arg(long)]
        mode: Option<Mode>,
        /// What a miss brings in, a power of two from 4K to 4M [default: 64K]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        cache_block: Option<u64>,
        /// Write back although the death of one SSD loses what is dirty
        #[arg(long)]
        accept_data_loss_on_ssd_failure: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// List the volumes
    List,
    /// Show a volume
    Show {
        /// POOL/NAME
        volume: VolumeName,
    },
    /// Bring all dirty data to the origin; clients may go on
    Flush {
        /// POOL/NAME
        volume: VolumeName,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Make a volume as large as its origin has become; clients see it when they connect again
    Grow {
        /// POOL/NAME
        volume: VolumeName,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Change how a volume is served, and bring home what is dirty unless it is written back
    Set {
        /// POOL/NAME
        volume: VolumeName,
        /// How it is served from now on
        mode: Mode,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Bring all dirty data to the origin, then take the volume away: the origin is the plain disk
    Remove {
        /// POOL/NAME
        volume: VolumeName,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Mode {
    /// Writes are acknowledged by the SSDs and destaged later
    Writeback,
    /// Writes go to SSDs and origin
    Writethrough,
    /// Writes go to the origin only
    Readonly,
    /// Nothing is cached
    Bypass,
}

impl From<Mode> for api::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Writeback => api::Mode::Writeback,
            Mode::Writethrough => api::Mode::Writethrough,
            Mode::Readonly => api::Mode::Readonly,
            Mode::Bypass => api::Mode::Bypass,
        }
    }
}

fn at(volume: &VolumeName) -> String {
    format!("/api/v1/pools/{}/volumes/{}", volume.pool, volume.volume)
}

/// Runs the command.
pub(crate) fn run(command: Command, asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    match command {
        Command::Add {
            volume,
            origin,
            mode,
            cache_block,
            accept_data_loss_on_ssd_failure,
            dry_run,
        } => {
            let body = AddVolume {
                name: volume.volume.clone(),
                origin: absolute(&origin)?,
                mode: mode.map(api::Mode::from),
                cache_block_bytes: cache_block
                    .map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
                accept_data_loss_on_ssd_failure,
                dry_run,
            };
            let path = format!("/api/v1/pools/{}/volumes", volume.pool);
            let added: One<Volume> = daemon.post(&path, &body)?;
            daemon.print(&added, |added| {
                print_volume(&added.item);
                if !dry_run {
                    tell(format_args!("next: `forebay export add {volume}`"));
                }
            });
        }
        Command::List => {
            let volumes: Many<Volume> = daemon.get("/api/v1/volumes")?;
            daemon.print(&volumes, |volumes| print_list(&volumes.items));
        }
        Command::Show { volume } => {
            let volume: One<Volume> = daemon.get(&at(&volume))?;
            daemon.print(&volume, |volume| print_volume(&volume.item));
        }
        Command::Flush { volume, dry_run: true } => {
            return daemon.plan(&Change::FlushVolume(volume));
        }
        Command::Flush { volume, dry_run: false } => {
            let job: One<Job> = daemon.post(&format!("{}/flush", at(&volume)), &())?;
            let job = daemon.follow(job)?;
            daemon.print(&job, |_| {
                tell(format_args!("the origin of volume \"{volume}\" has all of its data"));
            });
        }
        Command::Grow { volume, dry_run: true } => {
            return daemon.plan(&Change::GrowVolume(volume));
        }
        Command::Grow { volume, dry_run: false } => {
            let volume: One<Volume> = daemon.post(&format!("{}/grow", at(&volume)), &())?;
            daemon.print(&volume, |volume| print_volume(&volume.item));
        }
        Command::Set { volume, mode, dry_run: true } => {
            return daemon.plan(&Change::SetVolume { volume, mode: mode.into() });
        }
        Command::Set { volume, mode, dry_run: false } => {
            let body = SetVolume { mode: mode.into() };
            let job: One<Job> = daemon.patch(&at(&volume), &body)?;
            let job = daemon.follow(job).map_err(|failure| {
                failure.or_hint(&format!(
                    "it is served as {} from now on; what is dirty reaches its origin in time, or \
                     with `forebay volume flush {volume}`",
                    mode_name(mode.into())
                ))
            })?;
            daemon.print(&job, |_| match mode {
                Mode::Writeback => tell(format_args!("volume \"{volume}\" is written back")),
                mode => tell(format_args!(
                    "volume \"{volume}\" is {}; its origin has all of its data",
                    mode_name(mode.into())
                )),
            });
        }
        Command::Remove { volume, dry_run: true, .. } => {
            return daemon.plan(&Change::RemoveVolume(volume));
        }
        Command::Remove { volume, yes, dry_run: false } => {
            let known: One<Volume> = daemon.get(&at(&volume))?;
            let origin = known.item.origin;
            let what = format!("Volume \"{volume}\" goes; its data stays, on {origin}");
            confirm(&volume.to_string(), &what, yes)?;
            let job: One<Job> = daemon.delete(&at(&volume))?;
            let job = daemon.follow(job)?;
            daemon.print(&job, |_| {
                tell(format_args!(
                    "volume \"{volume}\" is gone; {origin} is the plain disk with all of its data"
                ));
            });
        }
    }
    Ok(())
}

fn state_name(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Online => "online",
        VolumeState::OriginMissing => "origin-missing",
        VolumeState::Offline => "offline",
        VolumeState::Planned => "planned",
    }
}

fn dirty(volume: &Volume) -> String {
    volume.dirty_bytes.map_or("-".to_owned(), text::bytes)
}

fn print_list(volumes: &[Volume]) {
    let rows: Vec<_> = volumes
        .iter()
        .map(|volume| {
            vec![
                volume.name.to_string(),
                state_name(volume.state).to_owned(),
                mode_name(volume.mode).to_owned(),
                text::bytes(volume.size_bytes),
                dirty(volume),
                volume.origin.clone(),
            ]
        })
        .collect();
    say(table(&["VOLUME", "STATE", "MODE", "SIZE", "DIRTY", "ORIGIN"], &rows));
}

/// A volume on one line, below its pool.
pub(super) fn print_line(volume: &Volume) {
    let (state, mode) = (state_name(volume.state), mode_name(volume.mode));
    let mut line = format!(
        "volume   {state:8} {}  {mode}, {}, {} dirty, origin {}",
        volume.name,
        text::bytes(volume.size_bytes),
        dirty(volume),
        volume.origin
    );
    if !volume.reason.is_empty() {
        line.push_str(&format!(": {}", volume.reason));
    }
    say(line);
}

fn print_volume(volume: &Volume) {
    say(format_args!("volume   {}", volume.name));
    match volume.reason.as_str() {
        "" => say(format_args!("state    {}", state_name(volume.state))),
        reason => say(format_args!("state    {}: {reason}", state_name(volume.state))),
    }
    say(format_args!("mode     {}", mode_name(volume.mode)));
    say(format_args!("size     {}", text::bytes(volume.size_bytes)));
    say(format_args!("origin   {}", volume.origin));
    say(format_args!("dirty    {}", dirty(volume)));
    for uri in &volume.exports {
        say(format_args!("export   {uri}"));
    }
}
