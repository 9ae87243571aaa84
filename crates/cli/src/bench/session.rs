//! One measurement: its directory, its time, what it has run, and the loads that it runs.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{MILLISECOND, Runtime};
use forebay_lab::process::Process;
use rustix::process::{Pid, Signal, kill_process};

use super::fio::{self, Answer};
use super::profile::{Profile, Stretch, Target, Terms};
use super::served::{Counters, Folder, Served};
use crate::Result;
use crate::failure::Failure;
use crate::flag::Flag;
use crate::progress::Progress;
use crate::text::{left, percent, tell, thousands};

/// How often a running load is looked at, and how many looks make a sample.
const LOOK_MS: u64 = 100;
const SAMPLE_MS: u64 = 1_000;

/// What fio may take for its start and its end, in milliseconds.
const FIO_MARGIN_MS: u64 = 60_000;

/// What a run takes beside its load, in milliseconds; only for the estimate.
pub(crate) const AROUND_MS: u64 = 1_500;

/// How reads were served.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reads {
    pub(crate) hits: u64,
    pub(crate) all: u64,
}

impl Reads {
    pub(crate) fn of(counters: &Counters) -> Reads {
        let value = |name: &str| counters.get(name).copied().unwrap_or(0);
        let hits = value("read_hits");
        Reads { hits, all: hits + value("read_partial_hits") + value("read_misses") }
    }

    pub(crate) fn since(self, before: Reads) -> Reads {
        Reads {
            hits: self.hits.saturating_sub(before.hits),
            all: self.all.saturating_sub(before.all),
        }
    }

    /// The share of hits; `None` without reads.
    pub(crate) fn ratio(self) -> Option<f64> {
        (self.all > 0).then(|| self.hits as f64 / self.all as f64)
    }
}

/// A load that has run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) answer: Answer,
    /// The pool's counters before and behind it; empty without a pool.
    pub(crate) before: Counters,
    pub(crate) after: Counters,
    /// Milliseconds from its start, and the share of hits of the reads since the sample before.
    pub(crate) hits: Vec<(u64, f64)>,
    /// Whether it ran for as long as it might.
    pub(crate) is_whole: bool,
}

impl Ran {
    /// By how much a counter has risen; `None` if there is none.
    pub(crate) fn since(&self, name: &str) -> Option<u64> {
        let before = self.before.get(name).copied().unwrap_or(0);
        self.after.get(name).map(|now| now.saturating_sub(before))
    }

    /// Bytes that went past the cache, by reason.
    pub(crate) fn bypassed(&self) -> Counters {
        let reason = |name: &String| {
            let reason = name.strip_prefix("bypass_")?.strip_suffix("_bytes")?;
            Some((reason.to_owned(), self.since(name)?))
        };
        self.after.keys().filter_map(reason).filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// How its reads were served.
    pub(crate) fn reads(&self) -> Reads {
        Reads::of(&self.after).since(Reads::of(&self.before))
    }
}

/// What is to run.
pub(crate) struct Load<'a> {
    /// For the progress line.
    pub(crate) what: &'a str,
    pub(crate) profile: &'a Profile,
    pub(crate) target: Target<'a>,
    pub(crate) stretch: Stretch,
}

/// See the head of the file.
pub(crate) struct Session<'a> {
    reactor: &'a Rc<Reactor>,
    end: Rc<Flag>,
    terms: Terms,
    /// Where pools are, and what fio writes unless that is to be kept.
    folder: Folder,
    kept: Option<PathBuf>,
    /// Servers so far.
    served: Cell<u64>,
    commands: RefCell<Vec<String>>,
    /// Job files by name.
    jobs: RefCell<Vec<(String, String)>>,
    /// Milliseconds that were planned for what has not run yet.
    left_ms: Cell<u64>,
}

/// What was interrupted.
fn interrupted() -> Failure {
    Failure::new("interrupted before everything was measured")
}

/// A file that cannot be written.
pub(crate) fn write_error(path: &Path, error: &std::io::Error) -> Failure {
    Failure::system(format!("write {}", path.display()), error)
        .hint("look at its directory, and at the room there")
}

impl<'a> Session<'a> {
    /// Begins in `folder`, which goes away with it; what fio reads and writes goes to `kept` if there is one.
    pub(crate) fn new(
        reactor: &'a Rc<Reactor>,
        end: Rc<Flag>,
        terms: Terms,
        folder: Folder,
        kept: Option<PathBuf>,
    ) -> Session<'a> {
        Session {
            reactor,
            end,
            terms,
            folder,
            kept,
            served: Cell::new(0),
            commands: RefCell::default(),
            jobs: RefCell::default(),
            left_ms: Cell::new(0),
        }
    }

    /// Where files go away at the end.
    pub(crate) fn dir(&self) -> &Path {
        &self.folder.0
    }

    /// Where what fio reads and writes stays, if it does.
    pub(crate) fn kept(&self) -> Option<&Path> {
        self.kept.as_deref()
    }

    /// What it runs on.
    pub(crate) fn reactor(&self) -> &'a Rc<Reactor> {
        self.reactor
    }

    /// A directory for the files of another server.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn folder(&self) -> Result<Folder> {
        self.served.set(self.served.get() + 1);
        Folder::new(self.dir().join(format!("served-{}", self.served.get())))
    }

    /// Keeps a command line for the report.
    pub(crate) fn note_command(&self, program: &Path, arguments: &[String]) {
        let line = format!("{} {}", program.display(), arguments.join(" "));
        self.commands.borrow_mut().push(line);
    }

    /// All command lines so far.
    pub(crate) fn commands(&self) -> Vec<String> {
        self.commands.borrow().clone()
    }

    /// All job files so far, with their names.
    pub(crate) fn jobs(&self) -> Vec<(String, String)> {
        self.jobs.borrow().clone()
    }

    /// Says how long everything is going to take.
    pub(crate) fn plan(&self, ms: u64) {
        self.left_ms.set(ms);
    }

    /// Waits; an error if all of it is to end.
    pub(crate) async fn pause(&self, ms: u64) -> Result<()> {
        let runtime: &dyn Runtime = &**self.reactor;
        self.end.cut(runtime.sleep(ms * MILLISECOND)).await.ok_or_else(interrupted)?;
        Ok(())
    }

    /// Runs `work` unless all of it is to end.
    pub(crate) async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.end.cut(work).await.ok_or_else(interrupted)
    }

    fn now_ms(&self) -> u64 {
        self.reactor.now() / MILLISECOND
    }

    /// Runs a load until its time is over, or `is_enough` says so of the samples so far.
    ///
    /// # Errors
    /// If fio or the server fails.
    pub(crate) async fn run(
        &self,
        load: &Load<'_>,
        mut served: Option<&mut Served>,
        mut is_enough: impl FnMut(&Counters, &[(u64, f64)]) -> bool,
    ) -> Result<Ran> {
        let mut ran = Ran { is_whole: true, ..Ran::default() };
        if let Some(served) = served.as_deref_mut() {
            ran.before = served.counters(self).await?;
        }
        let mut fio = self.start_fio(load)?;
        let progress = Progress::watch(load.what);
        let (started, mut last) = (self.now_ms(), Reads::of(&ran.before));
        let mut sampled = 0;
        while !fio.has_ended()? {
            self.pause(LOOK_MS).await?;
            let elapsed = self.now_ms() - started;
            if elapsed > load.stretch.span_ms + FIO_MARGIN_MS {
                return Err(Failure::new(format!("fio does not end, at {}", load.what))
                    .hint("the target does not answer: look at `dmesg | tail`"));
            }
            if elapsed / SAMPLE_MS == sampled {
                continue;
            }
            sampled = elapsed / SAMPLE_MS;
            let mut words = String::new();
            if let Some(served) = served.as_deref_mut() {
                let counters = served.counters(self).await?;
                let reads = Reads::of(&counters);
                if let Some(ratio) = reads.since(last).ratio() {
                    ran.hits.push((elapsed, ratio));
                    words = format!(", hits {}", percent(ratio));
                }
                last = reads;
                if ran.is_whole && is_enough(&counters, &ran.hits) {
                    ran.is_whole = false;
                    fio.interrupt();
                }
            }
            let span = load.stretch.span_ms;
            let rest = self.left_ms.get().saturating_sub(elapsed.min(span));
            let (elapsed, span) = (elapsed / 1_000, span.div_ceil(1_000));
            let rest = left(rest.div_ceil(1_000));
            progress.tell(
                elapsed * 1_000 * MILLISECOND,
                &format!("{} s of {span} s{words}; at most {rest} left of all", elapsed.min(span)),
            );
        }
        progress.finish();
        self.done(load.stretch.span_ms + AROUND_MS);
        if let Some(served) = served {
            ran.after = served.counters(self).await?;
        }
        ran.answer = fio.answer(load.profile).map_err(|failure| failure.on(load.what))?;
        let iops = thousands(ran.answer.iops().round() as u64);
        tell(format_args!("{}: {iops} requests per second", load.what));
        Ok(ran)
    }

    /// So much of what was planned is over.
    pub(crate) fn done(&self, ms: u64) {
        self.left_ms.set(self.left_ms.get().saturating_sub(ms));
    }

    fn start_fio(&self, load: &Load<'_>) -> Result<Fio> {
        let dir = self.kept.as_deref().unwrap_or(self.dir()).to_owned();
        let name = format!("{:03}-{}", self.jobs.borrow().len() + 1, load.profile.name);
        // fio puts its logs where it is started, or where their name says.
        let logs = dir.join(&name).display().to_string();
        let job = load.profile.job(&logs, load.target, self.terms, load.stretch);
        let path = dir.join(format!("{name}.fio"));
        std::fs::write(&path, &job).map_err(|error| write_error(&path, &error))?;
        tell(format_args!("\n{}, job file {name}.fio:\n{}", load.what, job.trim_end()));
        self.jobs.borrow_mut().push((format!("{name}: {}", load.what), job));
        let output = format!("--output={}", dir.join(format!("{name}.json")).display());
        let arguments = ["--output-format=json".to_owned(), output, path.display().to_string()];
        self.note_command(Path::new("fio"), &arguments);
        let said = dir.join(format!("{name}.stderr"));
        let file = File::create(&said).map_err(|error| write_error(&said, &error))?;
        let out = file.try_clone().map_err(|error| write_error(&said, &error))?;
        let process = Process::start(Path::new("fio"), &arguments, out.into(), file.into())
            .map_err(|error| Failure::system("run env, of coreutils", &error))?;
        Ok(Fio { process, dir, name, is_interrupted: false })
    }
}

/// fio at work.
struct Fio {
    process: Process,
    dir: PathBuf,
    name: String,
    is_interrupted: bool,
}

impl Fio {
    fn has_ended(&mut self) -> Result<bool> {
        let ended =
            self.process.ended().map_err(|error| Failure::system("wait for fio", &error))?;
        match ended {
            None => Ok(false),
            // Its code is 128 then; the answer says whether it is one.
            Some(status) if status.success() || self.is_interrupted => Ok(true),
            Some(status) => {
                let path = self.dir.join(format!("{}.stderr", self.name));
                let said = std::fs::read_to_string(path).unwrap_or_default();
                let why = said.lines().find(|line| !line.trim().is_empty());
                let why = why.unwrap_or("it does not say why");
                Err(Failure::new(format!("fio failed ({status}): {why}"))
                    .hint("--keep DIR keeps its job file, to try it by itself"))
            }
        }
    }

    /// Lets it end its requests and answer.
    fn interrupt(&mut self) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        // If it has ended already, that is as good.
        let _ = pid.map(|pid| kill_process(pid, Signal::INT));
        self.is_interrupted = true;
    }

    fn answer(&self, profile: &Profile) -> Result<Answer> {
        fio::read(&self.dir, &self.name, [profile.read_percent > 0, profile.writes()])
    }
}
