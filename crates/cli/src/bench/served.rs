//! What is measured over NBD: `forebay dev serve` of a program, in a process of its own, on files of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_lab::process::Process;
use rustix::process::{Pid, Signal, geteuid, kill_process};

use super::measure::BYPASS;
use super::session::{Session, write_error};
use crate::Result;
use crate::failure::Failure;
use crate::text::tell;

/// A program that does not say that it serves, or how its counters stand, in so long a time is given up.
const ANSWER_TIME_MAX_MS: u64 = 60_000;

/// How often its words are looked at.
const LOOK_MS: u64 = 20;

/// The cache of a pool whose only volume goes past it; the smallest segments.
const BYPASS_BYTES: u64 = 64 << 20;
const SMALL_SEGMENT: &str = "256K";

/// Below this size a cache does not hold as many segments of the usual size as a pool has to have.
const USUAL_CACHE_BYTES: u64 = 512 << 20;

/// Behind the cache.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A new file with the timing of modelled disks.
    Model,
    /// The user's: a path or the URI of an NBD export.
    Given(String),
}

/// What is served.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) program: &'a Path,
    pub(crate) origin: &'a Origin,
    /// Bytes of a modelled origin.
    pub(crate) volume_bytes: u64,
    pub(crate) mode: &'a str,
    pub(crate) cache_bytes: u64,
    pub(crate) ram_bytes: u64,
    /// Whether clients come over TCP.
    pub(crate) is_tcp: bool,
    /// Whether nobody may write.
    pub(crate) is_read_only: bool,
}

/// All counters of a pool.
pub(crate) type Counters = BTreeMap<String, u64>;

/// A directory that goes away with everything in it; we made it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Makes it, for this user alone.
    ///
    /// # Errors
    /// If it is there, or cannot be made.
    pub(crate) fn new(path: PathBuf) -> Result<Folder> {
        use std::os::unix::fs::DirBuilderExt;
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Folder(path)),
            Err(error) => Err(Failure::system(format!("create {}", path.display()), &error)
                .hint("choose another directory with --dir")),
        }
    }
}

/// What the folder of a whole benchmark is called, before the number of its process.
const NAME: &str = "forebay-bench-";

/// The folder of this benchmark in `dir`, with a lock that says that it is in use. Those of benchmarks that were killed go away.
///
/// # Errors
/// Those of [`Folder::new`].
pub(crate) fn own_folder(dir: &Path) -> Result<(Folder, File)> {
    for path in abandoned(dir) {
        let path = Folder(path);
        tell(format_args!("note: {} is of a benchmark that was killed: removed", path.0.display()));
    }
    let folder = Folder::new(dir.join(format!("{NAME}{}", std::process::id())))?;
    let lock = File::open(&folder.0).and_then(|lock| lock.lock().map(|()| lock));
    let lock = lock.map_err(|error| write_error(&folder.0, &error))?;
    Ok((folder, lock))
}

/// Folders of this user's benchmarks whose process is gone, and that nobody has locked: it may be gone only as seen from here, in
/// another container.
fn abandoned(dir: &Path) -> Vec<PathBuf> {
    let own = geteuid().as_raw();
    let is_abandoned = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(number) = name.and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok())
        else {
            return false;
        };
        let is_gone = !Path::new("/proc").join(number.to_string()).exists();
        let is_own = path.symlink_metadata().is_ok_and(|it| it.is_dir() && it.uid() == own);
        let is_free = || File::open(path).is_ok_and(|folder| folder.try_lock().is_ok());
        is_gone && is_own && is_free()
    };
    let all = std::fs::read_dir(dir).into_iter().flatten().filter_map(std::result::Result::ok);
    all.map(|entry| entry.path()).filter(|path| is_abandoned(path)).collect()
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tell(format_args!("note: cannot remove {}: {error}", self.0.display()));
        }
    }
}

/// A new directory that stays with what is put into it; with nothing in it, it goes away again.
pub(crate) struct Kept(pub(crate) PathBuf);

impl Kept {
    /// Makes it.
    ///
    /// # Errors
    /// If it is there already, or cannot be made.
    pub(crate) fn new(dir: &Path) -> Result<Kept> {
        let made = std::path::absolute(dir).and_then(|dir| std::fs::create_dir(&dir).map(|()| dir));
        made.map(Kept).map_err(|error| {
            Failure::system(format!("create {}", dir.display()), &error)
                .hint("--keep makes a new directory: name one that is not there yet")
        })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Refused if there is something in it.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A running server. It is killed at the end: all that it has is made for this measurement.
pub(crate) struct Served {
    process: Process,
    /// Where clients connect.
    pub(crate) uri: String,
    /// Lines of its output that were read.
    seen: usize,
    /// Behind the process, which has it open.
    folder: Folder,
}

impl Setup<'_> {
    fn arguments(&self, folder: &Path) -> Vec<String> {
        let file = |name: &str| folder.join(name).display().to_string();
        let origin = match self.origin {
            Origin::Model => file("origin"),
            Origin::Given(place) => place.clone(),
        };
        let cache_bytes = if self.mode == BYPASS { BYPASS_BYTES } else { self.cache_bytes };
        let mut arguments: Vec<String> = ["dev", "serve", "--create"].map(String::from).to_vec();
        for (flag, value) in [
            ("--cache", file("cache")),
            ("--cache-bytes", cache_bytes.to_string()),
            ("--origin", origin),
            ("--witness", file("witness")),
            ("--socket", file("nbd.sock")),
            ("--mode", self.mode.to_owned()),
            ("--dirty-copies", "1".to_owned()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        let mut add = |is_wanted: bool, words: &[&str]| {
            if is_wanted {
                arguments.extend(words.iter().map(|&word| word.to_owned()));
            }
        };
        add(true, &["--accept-data-loss-on-ssd-failure"]);
        add(cache_bytes < USUAL_CACHE_BYTES, &["--segment-bytes", SMALL_SEGMENT]);
        add(self.ram_bytes > 0, &["--ram", &self.ram_bytes.to_string()]);
        add(self.is_tcp, &["--port", "0"]);
        add(self.is_read_only, &["--read-only"]);
        add(matches!(self.origin, Origin::Model), &["--modelled"]);
        arguments
    }
}

impl Served {
    /// Starts the server with a new pool and, if that is modelled, a new origin that is written in full, and
    /// waits until it serves.
    ///
    /// # Errors
    /// If it ends instead, with what it said last.
    pub(crate) async fn start(session: &Session<'_>, setup: &Setup<'_>) -> Result<Served> {
        let folder = session.folder()?;
        if matches!(setup.origin, Origin::Model) {
            let origin = folder.0.join("origin");
            session.write_file(&origin, setup.volume_bytes, "a new origin").await?;
        }
        let arguments = setup.arguments(&folder.0);
        session.note_command(setup.program, &arguments);
        let output = |name: &str| {
            let path = folder.0.join(name);
            File::create_new(&path).map_err(|error| write_error(&path, &error))
        };
        let (out, err) = (output("stdout")?, output("stderr")?);
        let process = Process::start(setup.program, &arguments, out.into(), err.into());
        let process = process.map_err(|error| Failure::system("run env, of coreutils", &error))?;
        let mut served = Served { process, uri: String::new(), seen: 0, folder };
        let start = if setup.is_tcp { "serving nbd://" } else { "serving nbd+unix://" };
        let line = served.line(session, start).await?;
        served.uri = line.trim_start_matches("serving ").to_owned();
        Ok(served)
    }

    /// Waits for the next line that begins like this.
    async fn line(&mut self, session: &Session<'_>, start: &str) -> Result<String> {
        let path = self.folder.0.join("stdout");
        for _ in 0..ANSWER_TIME_MAX_MS / LOOK_MS {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            // What stands behind the last end of a line is not whole.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let lines: Vec<_> = whole.lines().skip(self.seen).collect();
            if let Some(at) = lines.iter().position(|line| line.starts_with(start)) {
                self.seen += at + 1;
                return Ok(lines[at].to_owned());
            }
            if let Ok(Some(status)) = self.process.ended() {
                return Err(self.failed(&format!("the server has ended ({status})")));
            }
            session.pause(LOOK_MS).await?;
        }
        Err(self.failed(&format!("the server does not say \"{start}\"")))
    }

    /// With what it said of it.
    fn failed(&self, what: &str) -> Failure {
        let said = std::fs::read_to_string(self.folder.0.join("stderr")).unwrap_or_default();
        let find = |start: &str| said.lines().rev().find_map(|line| line.strip_prefix(start));
        let why = find("error: ").or_else(|| said.lines().last()).unwrap_or("it does not say why");
        Failure::new(format!("{what}: {why}"))
            .hint(find("hint: ").unwrap_or("look whether `forebay doctor` finds anything"))
    }

    /// The pool's counters as they are now.
    ///
    /// # Errors
    /// If the server has ended.
    pub(crate) async fn counters(&mut self, session: &Session<'_>) -> Result<Counters> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        let asked = pid.map(|pid| kill_process(pid, Signal::USR1));
        if !matches!(asked, Some(Ok(()))) {
            return Err(self.failed("the server has ended"));
        }
        let line = self.line(session, "counters: ").await?;
        Ok(parse_counters(&line))
    }
}

/// Words of the form `name=number`; others are of no interest.
fn parse_counters(line: &str) -> Counters {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    line.split_whitespace().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_words_with_numbers() {
        let counters = parse_counters("counters: read_hits=12 latched=false x= =3 dirty_blocks=0");
        let expected =
            [("".to_owned(), 3), ("dirty_blocks".to_owned(), 0), ("read_hits".to_owned(), 12)];
        assert_eq!(counters, Counters::from(expected));
    }

    #[test]
    fn only_a_modelled_origin_is_made_and_slowed_down() {
        let given = Origin::Given("/dev/sdb".to_owned());
        let setup = |origin, mode| Setup {
            program: Path::new("forebay"),
            origin,
            volume_bytes: 1 << 20,
            mode,
            cache_bytes: 1 << 30,
            ram_bytes: 0,
            is_tcp: false,
            is_read_only: true,
        };
        let text = |setup: Setup| setup.arguments(Path::new("/x")).join(" ");
        let line = text(setup(&given, "writeback"));
        assert!(line.contains("--origin /dev/sdb ") && line.contains("--read-only"), "{line}");
        assert!(!line.contains("--modelled") && !line.contains("--segment-bytes"), "{line}");
        let line = text(setup(&Origin::Model, BYPASS));
        assert!(line.contains("--origin /x/origin ") && line.contains("--modelled"), "{line}");
        assert!(line.contains("--cache-bytes 67108864 ") && line.contains("--segment-bytes 256K"));
    }

    #[test]
    fn a_folder_goes_away_once_its_benchmark_has_been_killed() {
        let root = std::env::temp_dir().join(format!("forebay-abandoned-{}", std::process::id()));
        // No process has a number above the kernel's 2^22.
        let (gone, locked) =
            (root.join(format!("{NAME}9000001")), root.join(format!("{NAME}9000002")));
        let others =
            [root.join(format!("{NAME}1")), root.join(format!("{NAME}x")), root.join("9000001")];
        for path in others.iter().chain([&gone, &locked]) {
            std::fs::create_dir_all(path.join("served-1")).unwrap();
        }
        std::os::unix::fs::symlink(&others[0], root.join(format!("{NAME}9000003"))).unwrap();
        let lock = File::open(&locked).unwrap();
        lock.lock().unwrap();
        assert_eq!(abandoned(&root), std::slice::from_ref(&gone));
        let (own, _lock) = own_folder(&root).unwrap();
        assert!(own.0.exists() && !gone.exists() && locked.exists());
        drop(own);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
