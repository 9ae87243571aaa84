//! `forebay volume`.

mod setting;

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use forebay_control::api::{
    self, AcceptLost, AcceptOrigin, AddVolume, CacheProfile, Change, Destaging, DirtyData, Export,
    Job, Many, One, Priority, SequentialWhen, SequentialWrites, SetVolume, Volume, VolumeState,
};
use forebay_control::hours::DestageHours;
use forebay_control::name::VolumeName;
use forebay_export::nbd::client::Place as NbdPlace;

use self::setting::{Setting, joined, parse_count, parse_read_count, parse_setting};
use super::{Asking, Daemon, absolute, confirm, table, understood};
use crate::Result;
use crate::daemon::mode_name;
use crate::text::{self, parse_cache_block, say, tell};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Put a pool in front of a slow disk, whose content becomes the volume's
    Add {
        /// POOL/NAME
        volume: VolumeName,
        /// The slow disk, or nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH; nothing is written to it but what clients write
        #[arg(long, value_name = "PATH|URI")]
        origin: PathBuf,
        /// How it is served [default: writeback where dirty data is safe, else writethrough]
        #[arg(long)]
        mode: Option<Mode>,
        /// What brings blocks into the cache: auto, database, file-system, web or custom
        #[arg(long, value_name = "PROFILE", value_parser = str::parse::<CacheProfile>)]
        profile: Option<CacheProfile>,
        /// Bring a missed read in with the Nth read of its cache block, 1 to 4 [default: the profile's]
        #[arg(long, value_name = "N", value_parser = parse_read_count)]
        populate_on_read: Option<u8>,
        /// The same of writes; with 0, in modes readonly and writethrough, they bring in nothing
        #[arg(long, value_name = "N", value_parser = parse_count)]
        populate_on_write: Option<u8>,
        /// What a miss brings in, a power of two from 4K to 4M [default: the profile's, 64K with auto]
        #[arg(long, value_name = "SIZE", value_parser = parse_cache_block)]
        cache_block: Option<u32>,
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
    /// Change how a volume is served, and bring home what is dirty unless it is written back; or change
    /// its settings
    Set {
        /// POOL/NAME
        volume: VolumeName,
        /// A mode (`writeback`, `writethrough`, `readonly`, `writeonly`, `bypass`), or
        /// `destage-hours=HH:MM-HH:MM|any`, `dirty-age-max=TIME|off`, `sequential-cutoff=SIZE|off`,
        /// `sequential-writes=cache|bypass`, `sequential-when=auto|always|full`,
        /// `profile=auto|database|file-system|web|custom`, `populate_on_read=1..4`,
        /// `populate_on_write=0..4`, `cache_block=SIZE`, `reservation=SIZE|off`, `limit=SIZE|off`,
        /// `priority=low|normal|high`
        #[arg(value_name = "MODE|KEY=VALUE", required = true, value_parser = parse_setting)]
        settings: Vec<Setting>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Give up what was lost with cache devices: reads of it return the origin's older data instead of an error
    AcceptLost {
        /// POOL/NAME
        volume: VolumeName,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Use the origin of a volume as it is although it was changed while the pool was stopped and dirty data waits for
    /// it
    AcceptOrigin {
        /// POOL/NAME
        volume: VolumeName,
        /// What becomes of the dirty data
        #[arg(long)]
        dirty: OfDirty,
        /// Do not ask
        #[arg(long)]
        yes: bool,
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

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OfDirty {
    /// It is written over what the origin has there now
    Write,
    /// It is given up: what the origin has is read in its place
    Drop,
}

impl From<OfDirty> for DirtyData {
    fn from(dirty: OfDirty) -> DirtyData {
        match dirty {
            OfDirty::Write => DirtyData::Write,
            OfDirty::Drop => DirtyData::Drop,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// Writes are acknowledged by the SSDs and destaged later
    Writeback,
    /// Writes go to SSDs and origin
    Writethrough,
    /// Writes go to the origin only
    Readonly,
    /// As writeback, but reads that miss bring nothing into the cache
    Writeonly,
    /// Nothing is cached
    Bypass,
}

impl From<Mode> for api::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Writeback => api::Mode::Writeback,
            Mode::Writethrough => api::Mode::Writethrough,
            Mode::Readonly => api::Mode::Readonly,
            Mode::Writeonly => api::Mode::Writeonly,
            Mode::Bypass => api::Mode::Bypass,
        }
    }
}

/// Whether an origin is written as a URI; the daemon knows which.
fn is_uri(origin: &Path) -> bool {
    origin.to_str().is_some_and(NbdPlace::is_meant)
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
            profile,
            populate_on_read,
            populate_on_write,
            cache_block,
            accept_data_loss_on_ssd_failure,
            dry_run,
        } => {
            let body = AddVolume {
                name: volume.volume.clone(),
                origin: if is_uri(&origin) { origin } else { absolute(&origin)? },
                mode: mode.map(api::Mode::from),
                profile,
                populate_on_read,
                populate_on_write,
                cache_block_bytes: cache_block,
                accept_data_loss_on_ssd_failure,
                dry_run,
            };
            let path = format!("/api/v1/pools/{}/volumes", volume.pool);
            let added: One<Volume> = daemon.post(&path, &body)?;
            daemon.print(&added, |added| {
                print_volume(&daemon, &added.item);
                if !dry_run {
                    tell(format_args!("next: `forebay export add {volume}`"));
                }
            });
        }
        Command::List => {
            // Asked first: what opens meanwhile is in the list.
            super::pool::note_unknown(&daemon)?;
            let volumes: Many<Volume> = daemon.get("/api/v1/volumes")?;
            daemon.print(&volumes, |volumes| print_list(&volumes.items));
        }
        Command::Show { volume } => {
            let volume: One<Volume> = daemon.get(&at(&volume))?;
            daemon.print(&volume, |volume| print_volume(&daemon, &volume.item));
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
            daemon.print(&volume, |volume| print_volume(&daemon, &volume.item));
        }
        Command::Set { volume, settings, dry_run } => match understood(joined(&settings)) {
            Setting::Mode(mode) if dry_run => {
                return daemon.plan(&Change::SetVolume { volume, mode: mode.into() });
            }
            Setting::Key(settings) if dry_run => {
                return daemon.plan(&Change::SetVolumeSettings { volume, settings });
            }
            Setting::Mode(mode) => set_mode(&daemon, &volume, mode)?,
            Setting::Key(settings) => {
                let at = format!("{}/settings", at(&volume));
                let volume: One<Volume> = daemon.patch(&at, &settings)?;
                daemon.print(&volume, |volume| print_volume(&daemon, &volume.item));
            }
        },
        Command::AcceptLost { volume, dry_run: true, .. } => {
            return daemon.plan(&Change::AcceptLost(volume));
        }
        Command::AcceptLost { volume, yes, dry_run: false } => {
            accept_lost(&daemon, &volume, yes)?;
        }
        Command::AcceptOrigin { volume, dirty, dry_run: true, .. } => {
            return daemon.plan(&Change::AcceptOrigin { volume, dirty: dirty.into() });
        }
        Command::AcceptOrigin { volume, dirty, yes, dry_run: false } => {
            accept_origin(&daemon, &volume, dirty.into(), yes)?;
        }
        Command::Remove { volume, dry_run: true, .. } => {
            return daemon.plan(&Change::RemoveVolume(volume));
        }
        Command::Remove { volume, yes, dry_run: false } => {
            let known: One<Volume> = daemon.get(&at(&volume))?;
            let (origin, state) = (known.item.origin, known.item.state);
            let what = format!("Volume \"{volume}\" goes; its data stays, on {origin}");
            confirm("the name of the volume", &volume.to_string(), &what, yes)?;
            let job: One<Job> = daemon.delete(&at(&volume))?;
            let job = daemon.follow(job)?;
            daemon.print(&job, |_| {
                match state {
                    VolumeState::Online => tell(format_args!(
                        "volume \"{volume}\" is gone; {origin} is the plain disk with all of its data"
                    )),
                    _ => tell(format_args!(
                        "volume \"{volume}\" is gone; the pool had nothing that its origin, {origin}, lacks"
                    )),
                }
                let pool = &volume.pool;
                tell(format_args!(
                    "next: `forebay volume add {pool}/NAME --origin PATH`, or `forebay pool destroy {pool}`"
                ));
            });
        }
    }
    Ok(())
}

/// Whether a volume is attached, whatever its origin does. Of one that is not, and may be by the time that a change is its
/// turn, nobody knows yet what it has lost, or what is to be decided.
fn is_attached(volume: &Volume) -> bool {
    volume.destage.is_some()
}

/// Nothing is asked where it is known that nothing is lost.
fn accept_lost(daemon: &Daemon<'_>, volume: &VolumeName, yes: bool) -> Result<()> {
    let known: One<Volume> = daemon.get(&at(volume))?;
    let lost = Some(known.item.lost_bytes).filter(|_| is_attached(&known.item));
    // Who says --yes has not seen how much it is.
    let agreed = AcceptLost { lost_bytes: lost.filter(|_| !yes) };
    if lost != Some(0) {
        let what = format!(
            "{} of volume \"{volume}\" will be what {} has there: older data than was written",
            lost.map_or("all lost blocks".to_owned(), text::bytes),
            known.item.origin
        );
        confirm("the name of the volume", &volume.to_string(), &what, yes)?;
    }
    let shown: One<Volume> = daemon.post(&format!("{}/accept-lost", at(volume)), &agreed)?;
    daemon.print(&shown, |volume| print_volume(daemon, &volume.item));
    Ok(())
}

/// Nothing is asked where it is known that nothing is to be decided.
fn accept_origin(
    daemon: &Daemon<'_>,
    volume: &VolumeName,
    dirty: DirtyData,
    yes: bool,
) -> Result<()> {
    let known: One<Volume> = daemon.get(&at(volume))?;
    if !is_attached(&known.item) {
        let bytes = known.item.dirty_bytes.map_or("all blocks".to_owned(), text::bytes);
        let origin = &known.item.origin;
        let what = match dirty {
            DirtyData::Write => format!(
                "{bytes} that only the cache has are written over what {origin} has there now"
            ),
            DirtyData::Drop => format!("{bytes} that only the cache has are given up for good"),
        };
        confirm("the name of the volume", &volume.to_string(), &what, yes)?;
    }
    let shown: One<Volume> =
        daemon.post(&format!("{}/accept-origin", at(volume)), &AcceptOrigin { dirty })?;
    daemon.print(&shown, |volume| print_volume(daemon, &volume.item));
    Ok(())
}

/// Changes a mode and waits until what is dirty has come home.
fn set_mode(daemon: &Daemon<'_>, volume: &VolumeName, mode: Mode) -> Result<()> {
    let body = SetVolume { mode: mode.into() };
    let job: One<Job> = daemon.patch(&at(volume), &body)?;
    let job = daemon.follow(job).map_err(|failure| {
        failure.or_hint(&format!(
            "it is served as {} from now on; what is dirty reaches its origin in time, or with \
             `forebay volume flush {volume}`",
            mode_name(mode.into())
        ))
    })?;
    let set: One<Volume> = daemon.get(&at(volume))?;
    daemon.print(&job, |_| match mode {
        _ if !set.item.effective_reason.is_empty() => tell(format_args!(
            "volume \"{volume}\" is now {}, and {}",
            mode_name(mode.into()),
            set.item.effective_reason
        )),
        Mode::Writeback => tell(format_args!("volume \"{volume}\" is written back")),
        Mode::Writeonly => tell(format_args!(
            "volume \"{volume}\" is written back, and reads that miss bring nothing into the cache"
        )),
        mode => tell(format_args!(
            "volume \"{volume}\" is {}; its origin has all of its data",
            mode_name(mode.into())
        )),
    });
    Ok(())
}

fn state_name(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Online => "online",
        VolumeState::OriginMissing => "origin-missing",
        VolumeState::OriginRefused => "origin-refused",
        VolumeState::OriginFailed => "origin-failed",
        VolumeState::Bypassed => "bypassed",
        VolumeState::Withheld => "withheld",
        VolumeState::Offline => "offline",
        VolumeState::Planned => "planned",
    }
}

/// How a volume is served at present, where that is not its mode.
fn other_mode(volume: &Volume) -> Option<api::Mode> {
    volume.effective_mode.filter(|mode| *mode != volume.mode)
}

/// A volume's mode, and how it is served at present, as `writeback (through)`: a table has no room for more.
fn mode_in_short(volume: &Volume) -> String {
    match other_mode(volume) {
        Some(api::Mode::Writethrough) => format!("{} (through)", mode_name(volume.mode)),
        Some(other) => format!("{} ({})", mode_name(volume.mode), mode_name(other)),
        None => mode_name(volume.mode).to_owned(),
    }
}

/// The same with the reason.
fn mode_at_length(volume: &Volume) -> String {
    match (other_mode(volume), volume.effective_reason.as_str()) {
        (Some(_), reason) if !reason.is_empty() => {
            format!("{} ({reason})", mode_name(volume.mode))
        }
        _ => mode_in_short(volume),
    }
}

/// Its size; of one whose pool is not there to ask nobody knows it.
fn size(volume: &Volume) -> String {
    match volume.size_bytes {
        0 => "-".to_owned(),
        bytes => text::bytes(bytes),
    }
}

fn dirty(volume: &Volume) -> String {
    volume.dirty_bytes.map_or("-".to_owned(), text::bytes)
}

/// What the SSDs hold of a volume.
fn held(volume: &Volume) -> String {
    volume.space.held_bytes.map_or("-".to_owned(), text::bytes)
}

/// What is in RAM of it, behind that; nothing if nothing is.
fn in_ram(volume: &Volume) -> String {
    let bytes = volume.space.ram_bytes.filter(|&bytes| bytes > 0);
    bytes.map_or(String::new(), |bytes| format!(", {} in RAM", text::bytes(bytes)))
}

/// Both with what is reserved and what is the most, as `5 MiB (64 MiB-1 GiB), 1 MiB in RAM`.
fn held_within(volume: &Volume) -> String {
    let [reserved, limit] =
        [volume.space.reservation_bytes, volume.space.limit_bytes].map(text::bytes);
    let within = match (volume.space.reservation_bytes, volume.space.limit_bytes) {
        (0, 0) => String::new(),
        (0, _) => format!(" (at most {limit})"),
        (_, 0) => format!(" (at least {reserved})"),
        _ => format!(" ({reserved}-{limit})"),
    };
    held(volume) + &within + &in_ram(volume)
}

/// What a volume has of the cache, and may have.
fn space(volume: &Volume) -> String {
    let space = &volume.space;
    let mut text = format!("{} held{}", held(volume), in_ram(volume));
    if space.reservation_bytes > 0 {
        text.push_str(&format!(", {} reserved", text::bytes(space.reservation_bytes)));
        let now = space.reserved_bytes.unwrap_or(space.reservation_bytes);
        if now < space.reservation_bytes {
            let now = text::bytes(now);
            text.push_str(&format!(" (the pool has become too small: {now} at present)"));
        }
    }
    if space.limit_bytes > 0 {
        text.push_str(&format!(", at most {}", text::bytes(space.limit_bytes)));
    }
    if space.priority != Priority::Normal {
        text.push_str(&format!(", priority {}", space.priority));
    }
    text
}

fn print_list(volumes: &[Volume]) {
    let rows: Vec<_> = volumes
        .iter()
        .map(|volume| {
            vec![
                volume.name.to_string(),
                state_name(volume.state).to_owned(),
                mode_in_short(volume),
                volume.population.profile.to_string(),
                size(volume),
                dirty(volume),
                held_within(volume),
                volume.origin.clone(),
            ]
        })
        .collect();
    let head = ["VOLUME", "STATE", "MODE", "PROFILE", "SIZE", "DIRTY", "HELD", "ORIGIN"];
    say(table(&head, &rows));
}

/// What is dirty, since when, and how fast it goes.
fn dirt(volume: &Volume) -> String {
    let mut text = dirty(volume);
    if let Some(seconds) = volume.dirty_for_s {
        text.push_str(&format!(", the oldest for {}", text::left(seconds)));
    }
    if volume.lost_bytes > 0 {
        let lost = text::bytes(volume.lost_bytes);
        text.push_str(&format!(
            "; {lost} lost, reads of them fail until they are overwritten or accepted"
        ));
    }
    match &volume.destage {
        Some(destage) if volume.dirty_bytes.is_some_and(|bytes| bytes > 0) => {
            format!("{text}; {}", progress(destage, &volume.safe_when))
        }
        _ => text,
    }
}

/// How fast dirty data goes to origins, and when that is over: in these words where there is no time.
pub(super) fn progress(destage: &Destaging, when: &str) -> String {
    let rate = match destage.rate_bytes_per_s {
        0 => "nothing goes to the origin at present".to_owned(),
        rate => format!("{}/s go to the origin", text::bytes(rate)),
    };
    match destage.left_s {
        Some(left) => format!("{rate}, clean in about {}", text::left(left)),
        None if !when.is_empty() => format!("{rate}; {when}"),
        None => rate,
    }
}

/// When a volume is destaged, in words.
fn destaged(volume: &Volume) -> String {
    let when = match volume.destage_hours {
        DestageHours::Any => "when idle".to_owned(),
        hours => format!("{hours}, local time of the daemon"),
    };
    match volume.dirty_age_max_s {
        0 => when,
        most => format!("{when}; what is dirty for {} in any case", text::duration(most)),
    }
}

/// What becomes of streams, in words.
fn streams(volume: &Volume) -> String {
    if volume.sequential_cutoff_bytes == 0 {
        return "cached however long they are".to_owned();
    }
    let which = match volume.sequential_writes {
        SequentialWrites::Cache => "reads",
        SequentialWrites::Bypass => "reads and writes",
    };
    let most = text::bytes(volume.sequential_cutoff_bytes);
    let again = volume.sequential_reread_percent.map(|percent| {
        format!("; {percent} % of what such reads read was read again before it would have left")
    });
    let when = match volume.sequential_when {
        SequentialWhen::Always => "",
        SequentialWhen::Full => " while the cache is full",
        SequentialWhen::Auto if !volume.sequential_reads_cached => {
            return format!(
                "{which} are not cached behind {most} that follow each other{}",
                again.unwrap_or_else(|| ", as long as hardly any of it is read again".to_owned())
            );
        }
        SequentialWhen::Auto => {
            let writes = match volume.sequential_writes {
                SequentialWrites::Cache => String::new(),
                SequentialWrites::Bypass => format!("; writes are not behind {most}"),
            };
            return format!(
                "reads are cached however long they are{}{writes}",
                again.unwrap_or_else(|| ": they are read again".to_owned())
            );
        }
    };
    format!("{which} are not cached behind {most} that follow each other{when}")
}

/// A volume on one line, below its pool.
pub(super) fn print_line(volume: &Volume) {
    let (state, mode) = (state_name(volume.state), mode_in_short(volume));
    let mut what = format!(
        "{}  {mode}, {}, {} dirty, {}, origin {}",
        volume.name,
        size(volume),
        dirty(volume),
        space(volume),
        volume.origin
    );
    if !volume.reason.is_empty() {
        what.push_str(&format!(": {}", volume.reason));
    }
    say(text::fitted(&format!("volume   {state:7}  "), 18, &what));
}

/// Why the export of a volume has no address, as `export list` says it.
fn unserved(daemon: &Daemon<'_>, volume: &Volume) -> String {
    let exports: Option<Many<Export>> = daemon.get("/api/v1/exports").ok();
    let own = exports.and_then(|all| all.items.into_iter().find(|it| it.volume == volume.name));
    match own {
        Some(export) if !export.reason.is_empty() => format!("not served: {}", export.reason),
        // It has come to be served meanwhile.
        Some(export) => export.uri,
        None => "not served".to_owned(),
    }
}

fn print_volume(daemon: &Daemon<'_>, volume: &Volume) {
    say(format_args!("volume   {}", volume.name));
    match volume.reason.as_str() {
        "" => say(format_args!("state    {}", state_name(volume.state))),
        reason => {
            say(text::beside("state    ", &format!("{}: {reason}", state_name(volume.state))))
        }
    }
    say(text::beside("mode     ", &mode_at_length(volume)));
    say(format_args!("size     {}", size(volume)));
    say(format_args!("origin   {}", volume.origin));
    say(text::beside("dirty    ", &dirt(volume)));
    // Where no cache device is there to ask, its settings are not known.
    if !volume.population.reason.is_empty() {
        print_caching(volume);
    }
    for uri in &volume.exports {
        match uri.as_str() {
            "" => say(text::beside("export   ", &unserved(daemon, volume))),
            uri => say(format_args!("export   {uri}")),
        }
    }
}

/// How it is cached.
fn print_caching(volume: &Volume) {
    say(text::beside("cache    ", &space(volume)));
    say(text::beside("destage  ", &destaged(volume)));
    say(text::beside("streams  ", &streams(volume)));
    let population = &volume.population;
    let block = text::bytes(population.cache_block_bytes.into());
    let what = format!(
        "{}, cache blocks of {block}, populate_on_read {}, populate_on_write {}: {}",
        population.profile,
        population.populate_on_read,
        population.populate_on_write,
        population.reason
    );
    say(text::beside("profile  ", &what));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(mode: api::Mode, effective: Option<api::Mode>, reason: &str) -> Volume {
        serde_json::from_value(serde_json::json!({
            "name": "fast/vm", "origin": "/dev/sdb", "size_bytes": 0, "mode": mode,
            "effective_mode": effective, "effective_reason": reason, "state": "online",
            "reason": "", "dirty_bytes": 0, "exports": [],
        }))
        .unwrap()
    }

    #[test]
    fn how_a_volume_is_served_stands_behind_its_mode_where_it_is_not_that() {
        use api::Mode::{Writeback, Writethrough};
        let until = "written through until there are SSDs enough for its copies";
        let volume = served(Writeback, Some(Writethrough), until);
        assert_eq!(mode_at_length(&volume), format!("writeback ({until})"));
        assert_eq!(mode_in_short(&volume), "writeback (through)");
        for effective in [Some(Writeback), None] {
            let volume = served(Writeback, effective, "");
            assert_eq!(mode_at_length(&volume), "writeback");
            assert_eq!(mode_in_short(&volume), "writeback");
        }
    }
}
