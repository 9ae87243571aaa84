//! fio, as the peer on a bare, written file of the same disk and as the client of NBD servers.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::bench::Result;

/// Options of reads by Zipf's law. The most popular blocks are in the same places in every run; else fio puts them elsewhere
/// each time, and what was warmed would not be what is measured.
pub(crate) const ZIPF: [&str; 2] = ["--random_distribution=zipf:1.1:0.25", "--norandommap"];

/// Random reads, and three writes to seven of them.
pub(crate) const MIXED: &str = "randrw";

/// A kind of load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// fio's name of it: `randread`, `write` and so on.
    pub(crate) rw: &'static str,
    pub(crate) block_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) jobs: u32,
    /// A flush after every write: fdatasync on a file, FLUSH over NBD.
    pub(crate) sync: bool,
}

/// What fio works on.
pub(crate) struct Fio {
    target: Vec<String>,
    /// How to ask for a flush after every write.
    sync: &'static str,
    size_bytes: u64,
}

/// What came of a job.
pub(crate) struct Answer {
    /// Requests per second of each of its processes.
    rates: Vec<f64>,
}

/// How even a job was.
#[derive(Debug, PartialEq)]
pub(crate) struct Evenness {
    /// Requests per second: over all of it, and in the worst of its seconds.
    pub rate: f64,
    pub worst_second: f64,
    /// What one of a thousand requests takes at least.
    pub p999_ms: f64,
    pub requests: f64,
}

impl Answer {
    /// Requests per second.
    pub(crate) fn rate(&self) -> f64 {
        self.rates.iter().sum()
    }

    /// The slowest process's share of the fastest one's rate.
    pub(crate) fn fairness(&self) -> f64 {
        let least = self.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        least / most
    }
}

impl Fio {
    /// The first `size_bytes` of a file.
    pub(crate) fn bare(path: &Path, size_bytes: u64) -> Self {
        let fixed = "--ioengine=io_uring --direct=1 --invalidate=0 --fallocate=none --overwrite=1";
        let mut target: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
        target.push(format!("--filename={}", path.display()));
        Self { target, sync: "--fdatasync=1", size_bytes }
    }

    /// The first `size_bytes` of an export; each process of a job has a connection.
    pub(crate) fn nbd(uri: &str, size_bytes: u64) -> Self {
        let target = vec!["--ioengine=nbd".to_owned(), format!("--uri={uri}")];
        // This engine knows no fdatasync; its fsync is the protocol's FLUSH.
        Self { target, sync: "--fsync=1", size_bytes }
    }

    /// The first `size_bytes` of a block device, with as few system calls as may be: several requests for each,
    /// and the writers of a job are threads.
    pub(crate) fn block(path: &Path, size_bytes: u64) -> Self {
        let fixed = "--ioengine=libaio --direct=1 --thread --iodepth_batch_submit=8 \
                     --iodepth_batch_complete_min=1 --iodepth_batch_complete_max=32";
        let mut target: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
        target.push(format!("--filename={}", path.display()));
        Self { target, sync: "--fdatasync=1", size_bytes }
    }

    /// Runs `job` for a time.
    pub(crate) fn run(&self, job: Job, span_ms: u64) -> Result<Answer> {
        self.start(job, &["--time_based".to_owned(), format!("--runtime={span_ms}ms")])
    }

    /// Runs `job` over all of the target, once.
    pub(crate) fn lap(&self, job: Job) -> Result<Answer> {
        self.start(job, &[])
    }

    /// One block written, and a flush behind it, with which all writes of others become durable.
    pub(crate) fn flush(&self) -> Result<()> {
        let job = Job { rw: "write", block_bytes: 4096, depth: 1, jobs: 1, sync: false };
        let one = Self { target: self.target.clone(), size_bytes: job.block_bytes, ..*self };
        // A flush after every write is none after the last one.
        one.start(job, &["--end_fsync=1".to_owned()]).map(|_| ())
    }

    /// Runs `job` for a time with more arguments, of which one may be where the requests go.
    pub(crate) fn run_with(&self, job: Job, span_ms: u64, more: &[&str]) -> Result<Answer> {
        let span = ["--time_based".to_owned(), format!("--runtime={span_ms}ms")];
        let more = more.iter().map(|&arg| arg.to_owned());
        self.start(job, &span.into_iter().chain(more).collect::<Vec<_>>())
    }

    /// Runs `job` of one process for a time, and looks at how even it is.
    pub(crate) fn run_evenly(&self, job: Job, span_ms: u64) -> Result<Evenness> {
        self.evenly(job, &["--time_based".to_owned(), format!("--runtime={span_ms}ms")])
    }

    /// The same until `bytes` are through, or the time is over.
    pub(crate) fn lap_evenly(&self, job: Job, bytes: u64, span_ms: u64) -> Result<Evenness> {
        self.evenly(job, &[format!("--io_size={bytes}"), format!("--runtime={span_ms}ms")])
    }

    fn evenly(&self, job: Job, span: &[String]) -> Result<Evenness> {
        let more = ["--iopsavgtime=1000".to_owned()];
        evenness(&self.output(job, &[span, &more].concat())?, job)
    }

    fn start(&self, job: Job, span: &[String]) -> Result<Answer> {
        rates(&self.output(job, &[span, &["--gtod_reduce=1".to_owned()]].concat())?, job)
    }

    /// What fio prints.
    fn output(&self, job: Job, span: &[String]) -> Result<String> {
        // If this process is killed, fio is asked to end, which ends its own processes.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--", "fio"])
            .args(["--name=bench", "--output-format=json", "--randrepeat=0"])
            .args(&self.target)
            .args(span)
            .arg(format!("--size={}", self.size_bytes))
            .arg(format!("--rw={}", job.rw))
            .arg(format!("--bs={}", job.block_bytes))
            .arg(format!("--iodepth={}", job.depth))
            .arg(format!("--numjobs={}", job.jobs));
        if job.sync {
            command.arg(self.sync);
        }
        if job.rw == MIXED {
            command.arg("--rwmixread=70");
        }
        let output = command.output().map_err(|e| format!("running fio by way of setpriv: {e}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let text = text.lines().next().unwrap_or("it does not say why");
            return Err(format!("fio failed: {text}"));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The object that fio prints; notes may stand before it.
fn object(text: &str) -> Result<Value> {
    let json = text.find('{').map_or("", |at| &text[at..]);
    serde_json::from_str(json).map_err(|e| format!("fio's answer is no JSON: {e}"))
}

/// Reads how even a job of one process was.
fn evenness(text: &str, job: Job) -> Result<Evenness> {
    const SECOND_NS: f64 = 1e9;
    let value = object(text)?;
    let side = &value["jobs"][0][if job.rw.ends_with("read") { "read" } else { "write" }];
    let latency = &side["clat_ns"];
    let read = || {
        let worst = side["iops_min"].as_f64()?;
        // A second in which nothing ends is none of fio's samples; somebody waited through it.
        let is_stalled = latency["max"].as_f64()? >= 2.0 * SECOND_NS;
        Some(Evenness {
            rate: side["iops"].as_f64().filter(|&rate| rate > 0.0)?,
            worst_second: if is_stalled { 0.0 } else { worst },
            p999_ms: latency["percentile"]["99.900000"].as_f64()? / 1e6,
            requests: side["total_ios"].as_f64()?,
        })
    };
    read().ok_or_else(|| "fio's answer has no latencies".to_owned())
}

/// Reads fio's answer. A process of the job without a rate makes all of it an error.
fn rates(text: &str, job: Job) -> Result<Answer> {
    let value = object(text)?;
    let sides: &[&str] = match job.rw {
        MIXED => &["read", "write"],
        rw if rw.ends_with("read") => &["read"],
        _ => &["write"],
    };
    let jobs = value["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let iops = |job: &Value, side: &str| job[side]["iops"].as_f64().filter(|&rate| rate > 0.0);
    let both = |job| sides.iter().map(|side| iops(job, side)).sum::<Option<f64>>();
    let rates: Option<Vec<f64>> = jobs.iter().map(both).collect();
    let rates = rates.filter(|rates| rates.len() == job.jobs as usize);
    rates.map(|rates| Answer { rates }).ok_or_else(|| "fio's answer has no rate".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_second_is_the_worst_one() {
        let job = Job { rw: "randwrite", block_bytes: 4096, depth: 32, jobs: 1, sync: false };
        let text = |max: &str| {
            format!(
                r#"fio: a note
{{"jobs": [{{"write": {{"iops": 812.5, "iops_min": 120, "total_ios": 1625, "clat_ns":
    {{"max": {max}, "percentile": {{"99.000000": 1000000, "99.900000": 2500000}}}}}}}}]}}"#
            )
        };
        let even = Evenness { rate: 812.5, worst_second: 120.0, p999_ms: 2.5, requests: 1625.0 };
        assert_eq!(evenness(&text("1900000000"), job), Ok(even));
        let stalled = evenness(&text("2100000000"), job).expect("an answer");
        assert_eq!(stalled.worst_second, 0.0);
        assert!(evenness(r#"{"jobs": [{"write": {"iops": 8}}]}"#, job).is_err());
    }

    #[test]
    fn a_job_without_a_rate_is_no_answer() {
        let job = Job { rw: "randwrite", block_bytes: 4096, depth: 1, jobs: 2, sync: true };
        let text = |rates: &str| format!("a note\n{{\"jobs\": [{rates}]}}");
        let (ten, five) = (r#"{"write": {"iops": 10}}"#, r#"{"write": {"iops": 5.0}}"#);
        let answer = rates(&text(&format!("{ten},{five}")), job).expect("two rates");
        assert_eq!((answer.rate(), answer.fairness()), (15.0, 0.5));
        assert!(rates(&text(ten), job).is_err(), "one of two");
        assert!(rates(&text(&format!(r#"{ten},{{"write": {{"iops": 0}}}}"#)), job).is_err());
        assert!(rates("no JSON", job).is_err());
        let mixed = Job { rw: MIXED, jobs: 1, ..job };
        let both = r#"{"read": {"iops": 7}, "write": {"iops": 3}}"#;
        assert_eq!(rates(&text(both), mixed).expect("a rate").rate(), 10.0);
        assert!(rates(&text(ten), mixed).is_err(), "it has not read");
    }
}
