//! How long a start takes, after a clean stop and after a kill, measured from outside: from the
//! start of the process to the first hit.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::rc::Rc;

use clap::{Args, ValueEnum};
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::OpenOptions;
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::SECOND;
use forebay_device::{BlockDevice, Buf, LocalBoxFuture, Runtime};
use forebay_engine as engine;
use forebay_engine::{CreateOptions, Pool, Tuning, Volume, Witness};
use serde_json::{Value, json};

use super::devices::{Numbered, is_numbered};
use super::load::{self, Kind, Load, Random};
use super::rig::{VOLUME, reactor, text, volume_spec, write_file};
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row, Verdict};

/// One process of the restart rows.
#[derive(Args, Clone, Debug)]
pub struct RestartOptions {
    /// What it does.
    #[arg(long)]
    step: Step,
    /// Where its files are.
    #[arg(long)]
    dir: PathBuf,
    /// Bytes of the volume, all of them cached.
    #[arg(long)]
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Make the pool, fill it, stop.
    Fill,
    /// Open, read one hit, tell, sample, stop.
    Open,
    /// Open, sample, then write at random until killed.
    Churn,
}

impl Step {
    fn word(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Open => "open",
            Self::Churn => "churn",
        }
    }
}

/// Random reads from which the hit ratio is taken.
const SAMPLES: u64 = 4_000;

/// A witness in a file.
struct FileWitness(PathBuf);

impl Witness for FileWitness {
    fn load(&self) -> LocalBoxFuture<'_, std::result::Result<Option<Vec<u8>>, String>> {
        Box::pin(async {
            match std::fs::read(&self.0) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn store(&self, bytes: Vec<u8>) -> LocalBoxFuture<'_, std::result::Result<(), String>> {
        Box::pin(async move {
            let new = self.0.with_extension("new");
            let write = || -> std::io::Result<()> {
                let mut file = std::fs::File::create(&new)?;
                file.write_all(&bytes)?;
                file.sync_all()?;
                std::fs::rename(&new, &self.0)
            };
            write().map_err(|error| error.to_string())
        })
    }
}

fn tell(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}").and_then(|()| out.flush()).map_err(text)
}

/// The hidden subcommand.
///
/// # Errors
/// Whatever fails.
pub fn step(options: &RestartOptions) -> Result<()> {
    let reactor = reactor()?;
    let result = reactor.block_on(work(&reactor, options));
    reactor.close();
    result
}

async fn work(reactor: &Rc<Reactor>, options: &RestartOptions) -> Result<()> {
    let runtime: Rc<dyn Runtime> = Rc::clone(reactor) as Rc<dyn Runtime>;
    let path = options.dir.join("restart.bin");
    // After a kill the kernel holds the file a moment longer.
    let device =
        FileDevice::open_when_free(reactor, &path, &OpenOptions::default(), 10 * SECOND).await;
    let devices: Vec<Rc<dyn BlockDevice>> = vec![Rc::new(device.map_err(text)?)];
    let witness = Rc::new(FileWitness(options.dir.join("witness")));
    if options.step == Step::Fill {
        let named = CreateOptions::named("bench");
        engine::create(&*runtime, &devices, &*witness, &named).await.map_err(text)?;
    }
    let tuning = Tuning::default();
    let pool = engine::open(Rc::clone(&runtime), devices, witness, tuning).await.map_err(text)?;
    let origin = Rc::new(Numbered::new(options.bytes));
    let volume = match options.step {
        Step::Fill => pool.add_volume(&volume_spec(), origin).await,
        Step::Open | Step::Churn => pool.attach(VOLUME, origin).await,
    };
    let volume = Rc::new(volume.map_err(text)?);
    match options.step {
        Step::Fill => {
            load::fill(&runtime, &volume, options.bytes).await?;
            volume.destage().await.map_err(text)?;
        }
        Step::Open => {
            sample(&pool, &volume, options.bytes, 1).await?;
            tell(&json!({ "first_hit": true }))?;
            tell(&report(&pool, sample(&pool, &volume, options.bytes, SAMPLES).await?))?;
        }
        Step::Churn => {
            let load = Load {
                kind: Kind::WriteRandom,
                block_bytes: 4096,
                clients: 32,
                span_bytes: options.bytes,
            };
            load::run(&runtime, &volume, load, 1_500, u64::MAX).await?;
            volume.flush().await.map_err(text)?;
            tell(&report(&pool, sample(&pool, &volume, options.bytes, SAMPLES).await?))?;
            load::run(&runtime, &volume, load, 60_000, u64::MAX).await?;
            return Err("nobody killed the process".to_owned());
        }
    }
    drop(volume);
    pool.stop().await.map_err(text)?;
    Ok(())
}

/// Reads at random; the share that were hits. Checks what it read.
async fn sample(pool: &Pool, volume: &Rc<Volume>, bytes: u64, count: u64) -> Result<f64> {
    let hits = || {
        let list = pool.counters().list();
        list.iter().find(|(name, _)| *name == "read_hits").map_or(0, |&(_, value)| value)
    };
    let before = hits();
    let mut random = Random(7);
    for _ in 0..count {
        let offset = random.below(bytes / 4096) * 4096;
        let (buf, outcome) = volume.read(offset, Buf::new(4096)).await;
        outcome.map_err(text)?;
        if !is_numbered(offset, &buf) {
            return Err(format!("the block at {offset} is wrong"));
        }
    }
    Ok((hits() - before) as f64 / count as f64)
}

fn report(pool: &Pool, hit_ratio: f64) -> Value {
    let found = pool.recovery();
    json!({
        "hit_ratio": hit_ratio,
        "blocks": pool.blocks().0,
        "clean_stop": found.clean_stop,
        "recovered_blocks": found.blocks,
        "owed_blocks": found.owed_blocks,
        "sets_scanned": found.sets_scanned,
        "records_replayed": found.records_replayed,
        "bytes_read": found.bytes_read,
        "segment_bytes": pool.superblock().segment_bytes,
    })
}

/// A child process and its answers.
struct Process {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(step: Step, dir: &Path, bytes: u64) -> Result<Self> {
        let program = std::env::current_exe().map_err(text)?;
        let mut child = Command::new(program)
            .args(["engine-restart", "--step", step.word(), "--bytes", &bytes.to_string()])
            .arg("--dir")
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let stdout = child.stdout.take().ok_or("a child without output")?;
        Ok(Self { child, answers: BufReader::new(stdout) })
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(text)?;
        serde_json::from_str(&line).map_err(|_| "the process ended early".to_owned())
    }

    fn join(mut self) -> Result<()> {
        let status = self.child.wait().map_err(text)?;
        if status.success() { Ok(()) } else { Err(format!("the process failed: {status}")) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail on a process that has ended, which is the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one start showed.
struct Start {
    seconds: f64,
    report: Value,
}

fn start(bench: &Bench, bytes: u64) -> Result<Start> {
    let begun = bench.clock.now();
    let mut process = Process::start(Step::Open, &bench.options.dir, bytes)?;
    process.answer()?;
    let seconds = (bench.clock.now() - begun) as f64 / 1e9;
    let report = process.answer()?;
    process.join()?;
    Ok(Start { seconds, report })
}

/// Lets a process write, kills it, starts another one; the hit ratio before, and the start.
fn crash(bench: &Bench, bytes: u64) -> Result<(f64, Start)> {
    let mut process = Process::start(Step::Churn, &bench.options.dir, bytes)?;
    let before = number(&process.answer()?, "hit_ratio");
    // It has gone on writing since; a moment puts the kill into the middle of that.
    let wait = bench.clock.block_on(async {
        let runtime: &dyn Runtime = &*bench.clock;
        runtime.sleep(SECOND / 5).done().await
    });
    wait.map_err(text)?;
    process.child.kill().map_err(text)?;
    process.child.wait().map_err(text)?;
    drop(process);
    Ok((before, start(bench, bytes)?))
}

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or(0.0)
}

const CLEAN: &str = "restart, clean, to the first hit";
const KILLED: &str = "restart after kill -9, to the first hit";
const READS: &str = "recovery reads after kill -9, of what is allowed";
const CLEAN_BAR: Bar = Bar::AtMost(0.5);
const KILLED_BAR: Bar = Bar::AtMost(2.0);
const READS_BAR: Bar = Bar::AtMost(1.0);

/// Runs the restart rows.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let bytes: u64 = if bench.options.quick { 1 << 30 } else { 8 << 30 };
    let path = bench.options.dir.join("restart.bin");
    let witness = bench.options.dir.join("witness");
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(&witness);
    eprintln!("filling {} GiB of cache ...", bytes >> 30);
    let filled = write_file(&path, bytes / 2 * 3)
        .and_then(|()| Process::start(Step::Fill, &bench.options.dir, bytes)?.join());
    let result = match filled {
        Ok(()) => rows(bench, bytes),
        Err(error) => {
            bench.finish(Row::failed("restart", CLEAN, CLEAN_BAR, &error))?;
            failed_kill(bench, &error)
        }
    };
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(&witness);
    result
}

fn rows(bench: &mut Bench, bytes: u64) -> Result<()> {
    let row = match clean(bench, bytes) {
        Ok(row) => row,
        Err(error) => Row::failed("restart", CLEAN, CLEAN_BAR, &error),
    };
    bench.finish(row)?;
    match killed(bench, bytes) {
        Ok(rows) => rows.into_iter().try_for_each(|row| bench.finish(row)),
        Err(error) => failed_kill(bench, &error),
    }
}

fn failed_kill(bench: &mut Bench, error: &str) -> Result<()> {
    bench.finish(Row::failed("restart", KILLED, KILLED_BAR, error))?;
    bench.finish(Row::failed("restart", READS, READS_BAR, error))
}

fn clean(bench: &mut Bench, bytes: u64) -> Result<Row> {
    let mut seconds = Vec::new();
    let mut last = Value::Null;
    while bench.wants_round(&seconds, CLEAN_BAR) {
        let start = start(bench, bytes)?;
        bench.keep(&json!({
            "row": "restart-clean", "round": seconds.len(), "seconds": start.seconds,
            "report": start.report,
        }))?;
        seconds.push(start.seconds);
        last = start.report;
    }
    let quick = bench.options.quick;
    let mut row = Row::judged("restart", CLEAN, &seconds, CLEAN_BAR, " s", quick);
    let cached = number(&last, "recovered_blocks") * 4096.0;
    row.note = format!(
        "{:.2} GiB cached, hit ratio {}, read {:.1} MiB ({:.2} % of it)",
        cached / (1_u64 << 30) as f64,
        number(&last, "hit_ratio"),
        number(&last, "bytes_read") / f64::from(1 << 20),
        number(&last, "bytes_read") / cached * 100.0,
    );
    if number(&last, "hit_ratio") < 1.0 || last["clean_stop"] != json!(true) {
        row.verdict = Verdict::Missed;
        row.note.push_str("; not clean or not warm");
    }
    Ok(row)
}

fn killed(bench: &mut Bench, bytes: u64) -> Result<Vec<Row>> {
    let (mut seconds, mut shares) = (Vec::new(), Vec::new());
    let (mut colder, mut note) = (0, String::new());
    while bench.wants_round(&seconds, KILLED_BAR) || bench.wants_round(&shares, READS_BAR) {
        let (before, start) = crash(bench, bytes)?;
        let report = &start.report;
        bench.keep(&json!({
            "row": "restart-killed", "round": seconds.len(), "seconds": start.seconds,
            "hit_ratio_before": before, "report": report,
        }))?;
        let cached = number(report, "recovered_blocks") * 4096.0;
        let read = number(report, "bytes_read");
        let allowed = cached / 100.0 + 4.0 * number(report, "segment_bytes");
        shares.push(read / allowed);
        seconds.push(start.seconds);
        colder += u32::from(number(report, "hit_ratio") < before);
        note = format!(
            "{} sets scanned, {} records replayed, {:.1} MiB read, hit ratio {before} before, \
             {} after",
            number(report, "sets_scanned"),
            number(report, "records_replayed"),
            read / f64::from(1 << 20),
            number(report, "hit_ratio"),
        );
    }
    let quick = bench.options.quick;
    let mut time = Row::judged("restart", KILLED, &seconds, KILLED_BAR, " s", quick);
    time.note = note;
    if colder > 0 {
        time.verdict = Verdict::Missed;
        time.note.push_str("; the cache was colder afterwards");
    }
    let reads = Row::judged("restart", READS, &shares, READS_BAR, "", quick);
    Ok(vec![time, reads])
}
