//! One measurement: its directory, its time, what it has run, and the loads that it runs.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::real::prepare::prepare_file;
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{MILLISECOND, Runtime};
use forebay_lab::process::Process;
use rustix::process::{Pid, Signal, kill_process};

use super::fio::{self, Answer};
use super::profile::{Profile, Stretch, Target, Terms};
use super::served::{Counters, Folder, Kept, Served};
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
    /// Whether each write was followed by its flush.
    pub(crate) is_durable: bool,
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

    /// What a write took on average with its flush, in nanoseconds; `None` unless each had one. There are no
    /// percentiles of the two together.
    pub(crate) fn durable_mean_ns(&self) -> Option<f64> {
        let answer = &self.answer;
        let is_known = self.is_durable && answer.writes.requests > 0 && answer.flushes.count > 0;
        is_known.then_some(answer.writes.mean_ns + answer.flushes.mean_ns)
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
    kept: Option<Kept>,
    /// Servers so far.
    served: Cell<u64>,
    commands: RefCell<Vec<String>>,
    /// Job files by name.
    jobs: RefCell<Vec<(String, String)>>,
    /// Milliseconds that were planned for what has not run yet.
    left_ms: Cell<u64>,
}

/// Words as a shell takes them.
pub(crate) fn command_line<'a>(words: impl Iterator<Item = &'a String>) -> String {
    let is_plain = |word: &str| {
        !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+=:,@".contains(c))
    };
    let quoted = |word: &String| match is_plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.map(quoted).collect::<Vec<_>>().join(" ")
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
        kept: Option<Kept>,
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
        self.kept.as_ref().map(|kept| &*kept.0)
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

    /// Keeps a command line for the report: one that has run, or that does what we did.
    pub(crate) fn note_command(&self, program: &Path, arguments: &[String]) {
        let program = program.display().to_string();
        let words = std::iter::once(&program).chain(arguments);
        self.commands.borrow_mut().push(command_line(words));
    }

    /// Writes a new file in full, so that no place of it is slower at its first write, and keeps for the
    /// report that it is there.
    ///
    /// # Errors
    /// If it cannot be written, or all of it is to end.
    pub(crate) async fn write_file(&self, path: &Path, size_bytes: u64, what: &str) -> Result<()> {
        let progress = Progress::bytes(&format!("writing {what}"), size_bytes);
        let prepare =
            prepare_file(self.reactor, path, size_bytes, |done| progress.bytes_done(done));
        self.unless_ended(prepare).await??;
        progress.finish();
        let count = format!("count={size_bytes}");
        let file = format!("of={}", path.display());
        let zeroes = ["if=/dev/zero", &file, "bs=1M", "iflag=count_bytes", &count, "conv=fsync"];
        self.note_command(Path::new("dd"), &zeroes.map(str::to_owned));
        Ok(())
    }

    /// What to run for all so far to be done again.
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
        let is_durable = self.terms.sync && load.profile.writes();
        let mut ran = Ran { is_whole: true, is_durable, ..Ran::default() };
        let (ramp_ms, span_ms) = (load.stretch.ramp_ms, load.stretch.whole_ms());
        if let Some(served) = served.as_deref_mut() {
            ran.before = served.counters(self).await?;
        }
        let mut fio = self.start_fio(load)?;
        let progress = Progress::watch(load.what);
        let (started, mut last) = (self.now_ms(), Reads::of(&ran.before));
        let mut sampled = 0;
        let mut is_measured = ramp_ms == 0;
        while !fio.has_ended()? {
            self.pause(LOOK_MS).await?;
            let elapsed = self.now_ms() - started;
            if elapsed > span_ms + FIO_MARGIN_MS {
                return Err(Failure::new(format!("fio does not end, at {}", load.what))
                    .hint("the target does not answer: look at `dmesg | tail`"));
            }
            if !is_measured && elapsed >= ramp_ms {
                is_measured = true;
                if let Some(served) = served.as_deref_mut() {
                    ran.before = served.counters(self).await?;
                    last = Reads::of(&ran.before);
                }
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
                    if is_measured {
                        ran.hits.push((elapsed - ramp_ms, ratio));
                    }
                    words = format!(", hits {}", percent(ratio));
                }
                last = reads;
                if is_measured && ran.is_whole && is_enough(&counters, &ran.hits) {
                    ran.is_whole = false;
                    fio.interrupt();
                }
            }
            let rest = self.left_ms.get().saturating_sub(elapsed.min(span_ms));
            let (elapsed, span) = (elapsed / 1_000, span_ms.div_ceil(1_000));
            let rest = left(rest.div_ceil(1_000));
            progress.tell(
                elapsed * 1_000 * MILLISECOND,
                &format!("{} s of {span} s{words}; at most {rest} left of all", elapsed.min(span)),
            );
        }
        progress.finish();
        self.done(span_ms + AROUND_MS);
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
        let dir = self.kept().unwrap_or(self.dir()).to_owned();
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
        let writers = load.profile.writers(self.terms, load.stretch.size_bytes);
        Ok(Fio { process, dir, name, writers, is_interrupted: false })
    }
}

/// fio at work.
struct Fio {
    process: Process,
    dir: PathBuf,
    name: String,
    /// See [`Profile::writers`].
    writers: Option<u32>,
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
        let wants = [profile.read_percent > 0, profile.writes()];
        fio::read(&self.dir, &self.name, wants, self.writers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::fio::{Flushes, Side};

    #[test]
    fn command_lines_are_what_a_shell_makes_the_same_words_of() {
        let words = ["forebay", "--dir=/a b", "", "it's", "$HOME", "zipf:1.2", "nbd://x?y"];
        let words = words.map(str::to_owned).to_vec();
        let line = command_line(words.iter());
        assert!(line.starts_with("forebay '--dir=/a b' '' ") && line.contains(" zipf:1.2 "));
        assert_eq!(shlex::split(&line), Some(words));
    }

    #[test]
    fn a_durable_write_takes_as_long_as_the_write_and_its_flush() {
        let mut ran = Ran { is_durable: true, ..Ran::default() };
        assert_eq!(ran.durable_mean_ns(), None, "nothing was written");
        ran.answer.writes = Side { requests: 3, mean_ns: 40.0, ..Side::default() };
        assert_eq!(ran.durable_mean_ns(), None, "and nothing flushed");
        ran.answer.flushes = Flushes { count: 3, mean_ns: 60.0, ..Flushes::default() };
        assert_eq!(ran.durable_mean_ns(), Some(100.0));
        ran.is_durable = false;
        assert_eq!(ran.durable_mean_ns(), None, "a flush was for many writes");
    }
}
