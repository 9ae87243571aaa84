//! `forebay bench`: what Forebay gives on this machine, under loads that people know by name.
//!
//! * The loads are fio's; job files are shown and can be kept. What is served is `forebay dev serve` in a
//!   process of its own on new files, so another build of it can stand beside this one.
//! * Beside a pool stand its origin alone, served by the same program without a cache, and a file on
//!   the cache's disk, which fio uses directly.
//! * Everything is in a directory that was made for it and goes away with it. Nothing else is written to,
//!   but for an origin whose owner has agreed.

mod ab;
mod fio;
mod measure;
mod page;
mod profile;
mod report;
mod served;
mod session;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::{Args, ValueEnum};
use forebay_control::api::SCHEMA;
use forebay_device::real::open::open;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_export::nbd::limits::EXPORT_CONNECTIONS_MAX;
use forebay_lab::machine;
use serde_json::{Value, json};

use self::measure::{Measuring, distinct};
use self::profile::{Distribution, Profile, Terms, parse, parse_distribution};
use self::served::{Kept, Origin, own_folder};
use self::session::{Session, command_line, write_error};
use crate::Result;
use crate::admin::say_json;
use crate::failure::Failure;
use crate::host::end_on_signals;
use crate::memory;
use crate::origin;
use crate::output::Output;
use crate::remote;
use crate::text::{self, parse_bytes, parse_duration, say, tell, whole};

/// Smallest cache: a pool has at least so many of the smallest segments.
const CACHE_BYTES_MIN: u64 = 64 << 20;

/// Working sets are made of these.
const SET_STEP_BYTES: u64 = 1 << 20;

/// Smallest working set: some requests of every profile, side by side.
const SET_BYTES_MIN: u64 = 16 << 20;

/// What else is written beside pools and origins: logs.
const OTHER_BYTES: u64 = 64 << 20;

/// If the page cannot be written.
const PAGE_HINT: &str =
    "name a file that you may write to, in a directory that is there and has room, with --html";

/// See the head of the file.
#[derive(Args)]
#[command(after_help = profile::help())]
pub(crate) struct Options {
    /// Loads to run, of those that --help lists at its end
    #[arg(value_name = "PROFILE", required = true, value_parser = parse)]
    profiles: Vec<&'static Profile>,
    /// How the volume is cached; several are measured one after the other
    #[arg(long, value_name = "MODE", value_delimiter = ',', default_value = "writeback")]
    mode: Vec<ModeName>,
    /// How fio reaches it: over NBD at a Unix socket, or at a TCP port of this machine
    #[arg(long, value_name = "EXPORT", value_delimiter = ',', default_value = "unix")]
    export: Vec<ExportName>,
    /// What is measured beside it
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "origin,ssd")]
    beside: Vec<Beside>,
    /// Size of the cache
    #[arg(long, value_name = "SIZE", value_parser = cache_bytes, default_value = "1G")]
    cache: u64,
    /// Keep what is hottest in so much RAM in front of it, in steps of 2M [default: none]
    #[arg(long, value_name = "SIZE", value_parser = crate::demo::ram_bytes)]
    ram: Option<u64>,
    /// What the load works on, as a multiple of the cache
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', default_value = "0.5", value_parser = factor)]
    working_set: Vec<f64>,
    /// Which places are asked for how often: uniform, zipf:THETA, pareto:POWER
    #[arg(long, value_name = "NAME", default_value = "uniform", value_parser = parse_distribution)]
    distribution: Distribution,
    /// A flush after every write
    #[arg(long)]
    sync: bool,
    /// Requests in flight [default: the profile's]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1024))]
    depth: Option<u32>,
    /// How long each is measured once it is steady; the cold cache a fifth of it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = seconds)]
    duration: u32,
    /// How long a cache may take to become warm; it is measured as it is then
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = seconds)]
    warm_up_max: u32,
    /// The slow device: model:hdd-raid5 (eight modelled disks), a path, or the URI of an NBD export
    #[arg(long, value_name = "ORIGIN", default_value = "model:hdd-raid5", value_parser = parse_origin)]
    origin: Origin,
    /// Let the loads write to the origin that is given: what it holds is lost
    #[arg(long)]
    overwrite_origin: bool,
    /// Directory on the SSD to measure; files are made in a new one below it, and removed
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Measure another build beside this one instead, in turns: ratio, confidence, verdict
    #[arg(long, value_name = "PROGRAM", conflicts_with = "beside")]
    ab: Option<PathBuf>,
    /// Rounds of each load with --ab
    #[arg(long, value_name = "N", default_value_t = 9, requires = "ab",
        value_parser = whole::<u64>(ab::ROUNDS_MIN..=999))]
    rounds: u64,
    /// Make this directory, and keep job files, fio's answers and logs, and the results there
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Write tables, curves, commands and job files to this file, as a page by itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long, display_order = 901)]
    json: bool,
}

/// How a volume is cached, as `forebay volume` has it.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ModeName {
    Writeback,
    Writethrough,
    Readonly,
    Writeonly,
}

impl ModeName {
    fn text(self) -> &'static str {
        match self {
            ModeName::Writeback => "writeback",
            ModeName::Writethrough => "writethrough",
            ModeName::Readonly => "readonly",
            ModeName::Writeonly => "writeonly",
        }
    }

    /// Whether writes go to the log.
    fn logs_writes(self) -> bool {
        self != ModeName::Readonly
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ExportName {
    Unix,
    Tcp,
}

impl ExportName {
    fn text(self) -> &'static str {
        match self {
            ExportName::Unix => "unix",
            ExportName::Tcp => "tcp",
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Beside {
    /// The origin alone, over NBD as well
    Origin,
    /// A file on the cache's disk
    Ssd,
    /// Nothing
    None,
}

fn cache_bytes(text: &str) -> std::result::Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes < CACHE_BYTES_MIN => {
            Err(format!("a cache has at least {}", text::bytes(CACHE_BYTES_MIN)))
        }
        bytes if !bytes.is_multiple_of(SET_STEP_BYTES) => {
            Err("the size is not a multiple of 1 MiB".to_owned())
        }
        bytes => Ok(bytes),
    }
}

fn factor(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.01..=100.0).contains(number));
    number.ok_or_else(|| "a working set is 0.01 to 100 times the cache".to_owned())
}

fn seconds(text: &str) -> std::result::Result<u32, String> {
    match parse_duration(text)? {
        0 => Err("it has to last for a second at least".to_owned()),
        seconds if seconds > 86_400 => Err("it may last for a day at most".to_owned()),
        seconds => Ok(seconds),
    }
}

fn parse_origin(text: &str) -> std::result::Result<Origin, String> {
    match text.strip_prefix("model:") {
        Some("hdd-raid5") => Ok(Origin::Model),
        Some(_) => Err("there is one model: model:hdd-raid5".to_owned()),
        None => Ok(Origin::Given(text.to_owned())),
    }
}

impl Options {
    /// The bytes of a working set.
    fn set_bytes(&self, factor: f64) -> u64 {
        let steps = (self.cache as f64 * factor / SET_STEP_BYTES as f64).round() as u64;
        steps.saturating_mul(SET_STEP_BYTES).max(SET_BYTES_MIN)
    }

    /// All working sets, each once: small ones are the same one.
    fn sets(&self) -> Vec<u64> {
        let all = self.working_set.iter().map(|&factor| self.set_bytes(factor));
        distinct(&all.collect::<Vec<_>>())
    }

    /// Everything that decides what is measured, defaults included.
    fn settings(&self) -> BTreeMap<&'static str, Value> {
        let origin = match &self.origin {
            Origin::Model => "model:hdd-raid5",
            Origin::Given(place) => place.as_str(),
        };
        let what = |it: &Beside| match it {
            Beside::Origin => "origin",
            Beside::Ssd => "ssd",
            Beside::None => "none",
        };
        let profiles: Vec<_> = self.profiles.iter().map(|it| it.name).collect();
        let modes: Vec<_> = self.mode.iter().map(|it| it.text()).collect();
        let exports: Vec<_> = self.export.iter().map(|it| it.text()).collect();
        let beside: Vec<_> = self.beside.iter().map(what).collect();
        BTreeMap::from([
            ("profiles", json!(profiles)),
            ("modes", json!(modes)),
            ("exports", json!(exports)),
            ("beside", json!(beside)),
            ("cache_bytes", json!(self.cache)),
            ("ram_bytes", json!(self.ram.unwrap_or(0))),
            ("working_set_bytes", json!(self.sets())),
            ("distribution", json!(self.distribution.text())),
            ("sync", json!(self.sync)),
            ("depth", json!(self.depth)),
            ("duration_s", json!(self.duration)),
            ("warm_up_max_s", json!(self.warm_up_max)),
            ("origin", json!(origin)),
            ("overwrite_origin", json!(self.overwrite_origin)),
            ("directory", json!(self.dir)),
            ("ab", json!(self.ab)),
            ("rounds", json!(self.ab.as_ref().map(|_| self.rounds))),
        ])
    }

    fn terms(&self) -> Terms {
        Terms { distribution: self.distribution, sync: self.sync, depth: self.depth }
    }

    /// What was measured is in `measured` also after an error.
    async fn measure(&self, session: &Session<'_>, measured: &mut Measured) -> Result<()> {
        let measuring = Measuring::new(session, self)?;
        match (measured, &self.ab) {
            (Measured::Both(pairs), Some(other)) => measuring.both(other, self.rounds, pairs).await,
            (Measured::Alone(rows), _) => measuring.all(rows).await,
            (Measured::Both(_), None) => Ok(()),
        }
    }

    /// What was measured, with all that is needed to do it again.
    fn answer(&self, facts: &page::Facts, measured: &Measured, session: &Session) -> Value {
        let jobs: Vec<_> = session
            .jobs()
            .iter()
            .map(|(name, text)| json!({ "name": name, "text": text }))
            .collect();
        json!({
            "schema": SCHEMA, "version": env!("CARGO_PKG_VERSION"), "fio": facts.fio,
            "machine": facts.machine, "command": arguments(), "settings": facts.settings,
            "cache_bytes": self.cache, "ram_bytes": self.ram.unwrap_or(0),
            "distribution": self.distribution.text(), "sync": self.sync,
            "is_complete": facts.failure.is_none(), "items": measured.items(),
            "commands": session.commands(), "jobs": jobs,
        })
    }

    /// What is known to be impossible before anything is made.
    fn check(&self) -> Result<()> {
        if self.beside.contains(&Beside::None) && distinct(&self.beside).len() > 1 {
            return Err(Failure::new("--beside none stands beside others")
                .hint("leave either out: `none` is for a pool by itself"));
        }
        self.check_writers()?;
        let largest = self.sets().into_iter().max().unwrap_or(0);
        let needed = self.needed_bytes(largest);
        match &self.origin {
            Origin::Model => {
                let most = origin::array().size_bytes();
                if largest > most {
                    let most = text::bytes(most);
                    return Err(Failure::new(format!("the modelled array holds {most}"))
                        .hint("choose a smaller --working-set, or an --origin of your own"));
                }
            }
            Origin::Given(place) => self.check_given(place)?,
        }
        self.ab.as_deref().map_or(Ok(()), check_build)?;
        check_path(&self.dir)?;
        self.keep.as_deref().map_or(Ok(()), check_path)?;
        check_room(&self.dir, needed)
    }

    /// Each writer that waits has a connection of its own.
    fn check_writers(&self) -> Result<()> {
        let (sets, terms) = (self.sets(), self.terms());
        for profile in &self.profiles {
            let writers = sets.iter().filter_map(|&bytes| profile.writers(terms, bytes)).max();
            if writers.is_some_and(|writers| writers as usize > EXPORT_CONNECTIONS_MAX) {
                let what = format!(
                    "{} has {} writers that wait for their flushes, each with a connection, and an export takes \
                     {EXPORT_CONNECTIONS_MAX}",
                    profile.name,
                    writers.unwrap_or(0)
                );
                return Err(Failure::new(what)
                    .hint(format!("choose a --depth of at most {EXPORT_CONNECTIONS_MAX}")));
            }
        }
        Ok(())
    }

    /// What the files take at the most at one time.
    fn needed_bytes(&self, set_bytes: u64) -> u64 {
        let origin = if matches!(self.origin, Origin::Model) { set_bytes } else { 0 };
        let bare = if self.beside.contains(&Beside::Ssd) { set_bytes } else { 0 };
        let pools = if self.ab.is_some() { 2 } else { 1 };
        let cached = self.cache.saturating_add(origin).saturating_mul(pools);
        bare.max(cached).saturating_add(OTHER_BYTES)
    }

    fn check_given(&self, place: &str) -> Result<()> {
        if self.ab.is_some() {
            let what = format!("two builds cannot both have {place} as their origin");
            return Err(Failure::new(what).hint("leave --origin out: each gets a modelled one"));
        }
        let writing: Vec<_> = self.profiles.iter().filter(|profile| profile.writes()).collect();
        if let (Some(profile), false) = (writing.first(), self.overwrite_origin) {
            let what = format!("{} writes, and {place} is yours", profile.name);
            return Err(Failure::new(what).hint(
                "give an origin whose data may be lost, with --overwrite-origin; or leave --origin out \
                 for a modelled one",
            ));
        }
        if remote::place(place)?.is_none() {
            // That it is there, and nobody has it; it is opened again when it is its turn.
            open(Path::new(place), &origin::options())?;
        }
        Ok(())
    }
}

/// Refuses what is no build of Forebay.
fn check_build(path: &Path) -> Result<()> {
    let told = std::process::Command::new(path).arg("--version").output();
    let why = match told {
        Ok(output) if output.stdout.starts_with(b"forebay ") => return Ok(()),
        Ok(_) => "it does not say which version it is".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::new(format!("{} is no build of Forebay: {why}", path.display()))
        .hint("give --ab the path of another `forebay`"))
}

/// Job files have words of their own for other characters, and so have URIs.
fn check_path(path: &Path) -> Result<()> {
    let is_plain =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c));
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if absolute.to_str().is_some_and(is_plain) {
        return Ok(());
    }
    Err(Failure::new(format!("fio cannot be told of the path {}", absolute.display()))
        .hint("choose one of letters, digits and / . _ - +"))
}

fn check_room(dir: &Path, needed: u64) -> Result<()> {
    let room = rustix::fs::statvfs(dir).map_err(|error| {
        Failure::system(format!("use {}", dir.display()), &error.into())
            .hint("choose another directory with --dir")
    })?;
    let available = room.f_bavail.saturating_mul(room.f_frsize);
    if available >= needed {
        return Ok(());
    }
    let (needed, available) = (text::bytes(needed), text::bytes(available));
    let what = format!("{} has {available}, and the files take {needed}", dir.display());
    Err(Failure::new(what).hint("choose a smaller --cache or --working-set, or another --dir"))
}

pub(crate) fn run(options: &Options) -> Result<()> {
    options.check()?;
    let fio = fio::version()?;
    let reactor = Reactor::new(Config::default())?;
    let result = reactor.block_on(bench(&reactor, options, &fio));
    reactor.close();
    result
}

/// The command line that this program was started with.
fn arguments() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

async fn bench(reactor: &Rc<Reactor>, options: &Options, fio: &str) -> Result<()> {
    let end = end_on_signals(reactor, || ())?;
    let dir = std::path::absolute(&options.dir)
        .map_err(|error| Failure::system(format!("use {}", options.dir.display()), &error))?;
    // The page may go to what is kept.
    let kept = options.keep.as_deref().map(Kept::new).transpose()?;
    let page = options.html.as_deref().map(|path| Output::open(path, PAGE_HINT)).transpose()?;
    let (folder, _lock) = own_folder(&dir)?;
    let other = options.ab.as_deref().and_then(Path::to_str);
    let tools: Vec<_> = ["fio"].into_iter().chain(other).collect();
    let memory = memory::total().map_or("unknown".to_owned(), text::bytes);
    let machine = format!("{}; {memory} of memory", machine::facts(&folder.0, &tools));
    tell(&machine);
    let session = Session::new(reactor, end, options.terms(), folder, kept);
    let mut measured = Measured::new(options);
    let result = options.measure(&session, &mut measured).await;
    if measured.is_empty() {
        return result;
    }
    // What was measured until an error is worth its time.
    let (settings, commands, jobs) = (options.settings(), session.commands(), session.jobs());
    let explanation = measured.explanation(options);
    let facts = page::Facts {
        fio,
        machine: &machine,
        explanation: &explanation,
        command: &command_line(arguments().iter()),
        settings: &settings,
        failure: result.as_ref().err().map(Failure::what),
        commands: &commands,
        jobs: &jobs,
    };
    let answer = options.answer(&facts, &measured, &session);
    match options.json {
        true => say_json(&answer),
        false => say(format_args!("{}\n{explanation}", measured.text())),
    }
    // Each is worth having without the other; the first failure is told.
    let stored = session.kept().map_or(Ok(()), |kept| store(kept, &answer));
    let shown = page.map_or(Ok(()), |page| {
        let path = page.path().display().to_string();
        page.write(&page::page(&measured.page(), &facts))?;
        tell(format_args!("the page is {path}"));
        Ok(())
    });
    result.and(stored).and(shown)
}

/// Puts the results beside what else is kept.
fn store(kept: &Path, answer: &Value) -> Result<()> {
    let path = kept.join("results.json");
    std::fs::write(&path, format!("{answer:#}\n")).map_err(|error| write_error(&path, &error))?;
    tell(format_args!("kept: {}", kept.display()));
    Ok(())
}

/// What came of it.
enum Measured {
    /// This build, beside its origin and the bare SSD.
    Alone(Vec<report::Row>),
    /// Two builds.
    Both(Vec<ab::Pair>),
}

impl Measured {
    /// Nothing yet.
    fn new(options: &Options) -> Measured {
        match options.ab {
            Some(_) => Measured::Both(Vec::new()),
            None => Measured::Alone(Vec::new()),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Measured::Alone(rows) => rows.is_empty(),
            Measured::Both(pairs) => pairs.is_empty(),
        }
    }

    fn items(&self) -> Vec<Value> {
        match self {
            Measured::Alone(rows) => rows.iter().map(report::Row::to_json).collect(),
            Measured::Both(pairs) => pairs.iter().map(ab::Pair::to_json).collect(),
        }
    }

    fn text(&self) -> String {
        match self {
            Measured::Alone(rows) => report::text(rows),
            Measured::Both(pairs) => ab::text(pairs),
        }
    }

    fn page(&self) -> String {
        match self {
            Measured::Alone(rows) => page::of_rows(rows),
            Measured::Both(pairs) => page::of_pairs(pairs),
        }
    }

    fn explanation(&self, options: &Options) -> String {
        match self {
            Measured::Alone(rows) => {
                let exports = distinct(&options.export);
                let is_alone = options.beside.contains(&Beside::Origin);
                // See `Measuring::alone`.
                let reached = (is_alone && exports.len() > 1).then(|| exports[0].text());
                report::explanation(rows, options.distribution, options.sync, reached)
            }
            Measured::Both(pairs) => ab::explanation(pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_are_fit_for_job_files() {
        assert!(check_path(Path::new("/var/tmp/a-b_c.d+e")).is_ok());
        for path in ["/a b", "/a:b", "/a;b", "/a$b", "/a\nb", "/a#b", "/a%20", "/a?b", "/\u{e4}"] {
            assert!(check_path(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn numbers_on_the_command_line_have_limits() {
        assert_eq!(cache_bytes("64M"), Ok(64 << 20));
        assert!(cache_bytes("63M").is_err() && cache_bytes("65537K").is_err());
        assert_eq!(factor("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "inf", "101", ""] {
            assert!(factor(text).is_err(), "{text}");
        }
        assert!(seconds("0s").is_err() && seconds("2d").is_err() && seconds("1s") == Ok(1));
    }

    #[test]
    fn there_is_one_model_and_all_else_is_a_place() {
        assert!(matches!(parse_origin("model:hdd-raid5"), Ok(Origin::Model)));
        assert!(parse_origin("model:tape").is_err());
        assert!(
            matches!(parse_origin("/dev/sdb"), Ok(Origin::Given(place)) if place == "/dev/sdb")
        );
    }

    #[test]
    fn no_room_is_found_out_before_anything_is_written() {
        let dir = std::env::temp_dir();
        assert!(check_room(&dir, 0).is_ok());
        assert!(
            check_room(&dir, u64::MAX)
                .is_err_and(|failure| failure.what().contains("the files take"))
        );
        assert!(check_room(Path::new("/nowhere/at/all"), 0).is_err());
    }
}
