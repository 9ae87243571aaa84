//! `forebay volume`.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use forebay_control::api::{
    self, AcceptLost, AcceptOrigin, AddVolume, CacheProfile, Change, Destaging, DirtyData, Job,
    Many, One, Priority, SequentialWhen, SequentialWrites, SetVolume, SetVolumeSettings, Volume,
    VolumeState,
};
use forebay_control::hours::DestageHours;
use forebay_control::name::VolumeName;
use forebay_export::nbd::client::Place as NbdPlace;

use super::{Asking, Daemon, absolute, confirm, table};
use crate::Result;
use crate::daemon::mode_name;
use crate::failure::Failure;
use crate::text::{self, parse_bytes, say, tell, whole};

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
    /// Change how a volume is served, and bring home what is dirty unless it is written back; or change
    /// its settings
    Set {
        /// POOL/NAME
        volume: VolumeName,
        /// A mode (`writeback`, `writethrough`, `readonly`, `writeonly`, `bypass`), or
        /// `destage-hours=HH:MM-HH:MM|any`, `dirty-age-max=TIME|off`, `sequential-cutoff=SIZE|off`,
        /// `sequential-writes=cache|bypass`, `sequential-when=always|full`,
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

/// The most that is counted of accesses.
const COUNT_MAX: u8 = forebay_engine::policy::TOUCHES_MAX;

/// What can be set of a volume but its mode.
const KEYS: [&str; 12] = [
    "destage-hours",
    "dirty-age-max",
    "sequential-cutoff",
    "sequential-writes",
    "sequential-when",
    "profile",
    "populate_on_read",
    "populate_on_write",
    "cache_block",
    "reservation",
    "limit",
    "priority",
];

/// One change as people write it.
#[derive(Clone, Debug)]
pub(crate) enum Setting {
    Mode(Mode),
    Key(SetVolumeSettings),
}

fn parse_read_count(text: &str) -> std::result::Result<u8, String> {
    if text == "0" {
        return Err("it is 1 to 4; mode writeonly is for reads that bring in nothing".to_owned());
    }
    whole(1..=COUNT_MAX)(text)
}

fn parse_count(text: &str) -> std::result::Result<u8, String> {
    whole(..=COUNT_MAX)(text)
}

fn parse_size_or_off(text: &str) -> std::result::Result<u64, String> {
    if text == "off" { Ok(0) } else { parse_bytes(text) }
}

fn parse_setting(text: &str) -> std::result::Result<Setting, String> {
    let nothing = SetVolumeSettings::default();
    let Some((key, value)) = text.split_once('=') else {
        return Mode::from_str(text, false).map(Setting::Mode).map_err(|_| {
            let modes = Mode::value_variants().iter().map(|&mode| mode_name(mode.into()));
            let modes: Vec<_> = modes.collect();
            let nearest = text::nearest(text, modes.iter().copied());
            format!("{nearest}it is neither a mode ({}) nor KEY=VALUE", modes.join(", "))
        });
    };
    Ok(Setting::Key(match key {
        "destage-hours" => SetVolumeSettings { destage_hours: Some(value.parse()?), ..nothing },
        "dirty-age-max" => {
            let seconds = match value {
                "off" => 0,
                age => match text::parse_duration(age)? {
                    0 => {
                        return Err(
                            "nothing is dirty for no time: write off, or use writethrough".into()
                        );
                    }
                    seconds => seconds,
                },
            };
            SetVolumeSettings { dirty_age_max_s: Some(seconds), ..nothing }
        }
        "sequential-cutoff" => {
            let bytes = Some(parse_size_or_off(value)?);
            SetVolumeSettings { sequential_cutoff_bytes: bytes, ..nothing }
        }
        "sequential-writes" => {
            let what = match value {
                "cache" => SequentialWrites::Cache,
                "bypass" => SequentialWrites::Bypass,
                _ => return Err(format!("{value:?} is neither `cache` nor `bypass`")),
            };
            SetVolumeSettings { sequential_writes: Some(what), ..nothing }
        }
        "sequential-when" => {
            let when = match value {
                "always" => SequentialWhen::Always,
                "full" => SequentialWhen::Full,
                _ => return Err(format!("{value:?} is neither `always` nor `full`")),
            };
            SetVolumeSettings { sequential_when: Some(when), ..nothing }
        }
        "profile" => SetVolumeSettings { profile: Some(value.parse()?), ..nothing },
        "populate_on_read" => {
            SetVolumeSettings { populate_on_read: Some(parse_read_count(value)?), ..nothing }
        }
        "populate_on_write" => {
            SetVolumeSettings { populate_on_write: Some(parse_count(value)?), ..nothing }
        }
        "cache_block" => {
            let bytes = u32::try_from(parse_bytes(value)?).unwrap_or(u32::MAX);
            SetVolumeSettings { cache_block_bytes: Some(bytes), ..nothing }
        }
        "reservation" => {
            SetVolumeSettings { reservation_bytes: Some(parse_size_or_off(value)?), ..nothing }
        }
        "limit" => SetVolumeSettings { limit_bytes: Some(parse_size_or_off(value)?), ..nothing },
        "priority" => SetVolumeSettings { priority: Some(value.parse()?), ..nothing },
        _ => {
            let nearest = text::nearest(key, KEYS.into_iter());
            let keys = KEYS.join(", ");
            return Err(format!("there is no setting {key:?}; {nearest}there are {keys}"));
        }
    }))
}

/// Several settings as one change; a mode stands by itself.
fn joined(settings: &[Setting]) -> Result<Setting> {
    fn take<T>(known: &mut Option<T>, new: Option<T>, what: &str) -> Result<()> {
        if new.is_some() && known.is_some() {
            return Err(Failure::new(format!("{what} is set twice")).hint("set it once"));
        }
        *known = new.or(known.take());
        Ok(())
    }
    if let [mode @ Setting::Mode(_)] = settings {
        return Ok(mode.clone());
    }
    let mut all = SetVolumeSettings::default();
    for one in settings {
        let Setting::Key(one) = one else {
            return Err(Failure::new("a mode is changed by itself")
                .hint("it is a job of its own; run `forebay volume set` twice"));
        };
        let one = one.clone();
        take(&mut all.dirty_age_max_s, one.dirty_age_max_s, "dirty-age-max")?;
        take(&mut all.destage_hours, one.destage_hours, "destage-hours")?;
        let cutoff = one.sequential_cutoff_bytes;
        take(&mut all.sequential_cutoff_bytes, cutoff, "sequential-cutoff")?;
        take(&mut all.sequential_writes, one.sequential_writes, "sequential-writes")?;
        take(&mut all.sequential_when, one.sequential_when, "sequential-when")?;
        take(&mut all.profile, one.profile, "profile")?;
        take(&mut all.populate_on_read, one.populate_on_read, "populate_on_read")?;
        take(&mut all.populate_on_write, one.populate_on_write, "populate_on_write")?;
        take(&mut all.cache_block_bytes, one.cache_block_bytes, "cache_block")?;
        take(&mut all.reservation_bytes, one.reservation_bytes, "reservation")?;
        take(&mut all.limit_bytes, one.limit_bytes, "limit")?;
        take(&mut all.priority, one.priority, "priority")?;
    }
    Ok(Setting::Key(all))
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
            // Asked first: what opens meanwhile is in the list.
            super::pool::note_unknown(&daemon)?;
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
        Command::Set { volume, settings, dry_run } => match joined(&settings)? {
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
                daemon.print(&volume, |volume| print_volume(&volume.item));
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
            daemon.print(&job, |_| match state {
                VolumeState::Online => tell(format_args!(
                    "volume \"{volume}\" is gone; {origin} is the plain disk with all of its data"
                )),
                _ => tell(format_args!(
                    "volume \"{volume}\" is gone; the pool had nothing that its origin, {origin}, lacks"
                )),
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
    daemon.print(&shown, |volume| print_volume(&volume.item));
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
    daemon.print(&shown, |volume| print_volume(&volume.item));
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
    daemon.print(&job, |_| match mode {
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
        VolumeState::Offline => "offline",
        VolumeState::Planned => "planned",
    }
}

fn dirty(volume: &Volume) -> String {
    volume.dirty_bytes.map_or("-".to_owned(), text::bytes)
}

/// What the SSDs hold of a volume.
fn held(volume: &Volume) -> String {
    volume.space.held_bytes.map_or("-".to_owned(), text::bytes)
}

/// The same with what is reserved and what is the most, as `5 MiB (64 MiB-1 GiB)`.
fn held_within(volume: &Volume) -> String {
    let some = |bytes: u64| if bytes == 0 { String::new() } else { text::bytes(bytes) };
    match (volume.space.reservation_bytes, volume.space.limit_bytes) {
        (0, 0) => held(volume),
        (reserved, limit) => format!("{} ({}-{})", held(volume), some(reserved), some(limit)),
    }
}

/// What a volume has of the cache, and may have.
fn space(volume: &Volume) -> String {
    let space = &volume.space;
    let mut text = format!("{} held", held(volume));
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
                mode_name(volume.mode).to_owned(),
                volume.population.profile.to_string(),
                text::bytes(volume.size_bytes),
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
            format!("{text}; {}", progress(destage))
        }
        _ => text,
    }
}

/// How fast dirty data goes to origins.
pub(super) fn progress(destage: &Destaging) -> String {
    let rate = match destage.rate_bytes_per_s {
        0 => "nothing goes to the origin at present".to_owned(),
        rate => format!("{}/s go to the origin", text::bytes(rate)),
    };
    match destage.left_s {
        Some(left) => format!("{rate}, clean in about {}", text::left(left)),
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
    let when = match volume.sequential_when {
        SequentialWhen::Always => "",
        SequentialWhen::Full => " while the cache is full",
    };
    let most = text::bytes(volume.sequential_cutoff_bytes);
    format!("{which} are not cached behind {most} that follow each other{when}")
}

/// A volume on one line, below its pool.
pub(super) fn print_line(volume: &Volume) {
    let (state, mode) = (state_name(volume.state), mode_name(volume.mode));
    let mut what = format!(
        "{}  {mode}, {}, {} dirty, {}, origin {}",
        volume.name,
        text::bytes(volume.size_bytes),
        dirty(volume),
        space(volume),
        volume.origin
    );
    if !volume.reason.is_empty() {
        what.push_str(&format!(": {}", volume.reason));
    }
    say(text::fitted(&format!("volume   {state:7}  "), 18, &what));
}

fn print_volume(volume: &Volume) {
    say(format_args!("volume   {}", volume.name));
    match volume.reason.as_str() {
        "" => say(format_args!("state    {}", state_name(volume.state))),
        reason => {
            say(text::beside("state    ", &format!("{}: {reason}", state_name(volume.state))))
        }
    }
    say(format_args!("mode     {}", mode_name(volume.mode)));
    say(format_args!("size     {}", text::bytes(volume.size_bytes)));
    say(format_args!("origin   {}", volume.origin));
    say(text::beside("dirty    ", &dirt(volume)));
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
    for uri in &volume.exports {
        say(format_args!("export   {uri}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_two_letters_swapped_or_one_wrong_is_known_again() {
        for key in KEYS {
            for wrong in text::slips(key) {
                let why = parse_setting(&format!("{wrong}=1")).expect_err(&wrong);
                assert!(why.contains(&format!("did you mean {key}? ")), "{wrong}: {why}");
            }
            let why = parse_setting(&format!("{key}=?")).expect_err("no value is like that");
            assert!(!why.contains("there is no setting"), "{key}: {why}");
        }
    }
}
