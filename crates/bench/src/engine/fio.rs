//! fio on a bare, written file of the same disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::Result;

/// A kind of load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// fio's name of it: `randread`, `write` and so on.
    pub rw: &'static str,
    pub block_bytes: u64,
    pub depth: u32,
    pub jobs: u32,
    /// fdatasync after every write.
    pub sync: bool,
}

/// The file that fio works on.
pub(super) struct Fio {
    path: PathBuf,
    size_bytes: u64,
}

impl Fio {
    pub(super) fn new(path: &Path, size_bytes: u64) -> Self {
        Self { path: path.to_owned(), size_bytes }
    }

    /// Requests per second of `job`.
    pub(super) fn rate(&self, job: Job, span_ms: u64) -> Result<f64> {
        let mut command = Command::new("fio");
        command
            .args(["--name=bare", "--ioengine=io_uring", "--direct=1", "--output-format=json"])
            .args(["--time_based", "--group_reporting", "--gtod_reduce=1", "--randrepeat=0"])
            .args(["--invalidate=0", "--fallocate=none", "--overwrite=1"])
            .arg(format!("--filename={}", self.path.display()))
            .arg(format!("--size={}", self.size_bytes))
            .arg(format!("--runtime={span_ms}ms"))
            .arg(format!("--rw={}", job.rw))
            .arg(format!("--bs={}", job.block_bytes))
            .arg(format!("--iodepth={}", job.depth))
            .arg(format!("--numjobs={}", job.jobs));
        if job.sync {
            command.arg("--fdatasync=1");
        }
        let output = command.output().map_err(|e| format!("running fio: {e}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("fio failed: {}", text.lines().next().unwrap_or("no reason")));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // Notes may stand before the object.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let value: Value =
            serde_json::from_str(json).map_err(|e| format!("fio's answer is no JSON: {e}"))?;
        let side = if job.rw.ends_with("read") { "read" } else { "write" };
        let rate = value["jobs"][0][side]["iops"].as_f64();
        rate.filter(|&rate| rate > 0.0).ok_or_else(|| "fio's answer has no rate".to_owned())
    }
}
