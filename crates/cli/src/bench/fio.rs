//! What fio answers: its JSON, and the logs that it writes beside it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::profile::POINT_MS;
use crate::Result;
use crate::failure::Failure;

/// What is told where fio is missing.
const APT: &str = "on Debian and Ubuntu: sudo apt-get install -y fio";

/// Requests of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Side {
    pub(crate) requests: u64,
    pub(crate) iops: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) mean_ns: f64,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
}

/// What happened around a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Point {
    /// From the beginning of the load.
    pub(crate) at_ms: u64,
    pub(crate) iops: f64,
    /// The mean of it.
    pub(crate) latency_ns: Option<f64>,
}

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) span_ms: u64,
    pub(crate) reads: Side,
    pub(crate) writes: Side,
    pub(crate) curve: Vec<Point>,
}

impl Answer {
    /// Requests per second.
    pub(crate) fn iops(&self) -> f64 {
        self.reads.iops + self.writes.iops
    }
}

/// fio's version.
///
/// # Errors
/// If there is no fio here, or it lacks an engine.
pub(crate) fn version() -> Result<String> {
    let ask = |argument: &str| {
        let mut command = Command::new("fio");
        command.arg(argument).stdin(Stdio::null()).output().map_err(|error| {
            Failure::new(format!("cannot run fio: {error}"))
                .hint(format!("the loads are fio's; {APT}"))
        })
    };
    let version = String::from_utf8_lossy(&ask("--version")?.stdout).trim().to_owned();
    for engine in ["nbd", "io_uring"] {
        if !ask(&format!("--enghelp={engine}"))?.status.success() {
            return Err(Failure::new(format!("{version} lacks the engine {engine}"))
                .hint(format!("take one that was built with it; {APT}")));
        }
    }
    Ok(version)
}

fn not_understood(what: &str) -> Failure {
    Failure::new(format!("fio's answer is not understood: {what}"))
        .hint("--keep DIR keeps what it wrote; fio 3.33 is what this was made with")
}

/// Reads the answer to a job with these directions; notes may stand before the object.
///
/// # Errors
/// If it is no answer, the job failed, or a direction did nothing.
pub(crate) fn answer(text: &str, wants: [bool; 2]) -> Result<Answer> {
    let json = text.find('{').map_or("", |at| &text[at..]);
    // A note may stand behind it as well.
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let value = match values.next() {
        Some(Ok(value)) => value,
        Some(Err(error)) => return Err(not_understood(&error.to_string())),
        None => return Err(not_understood("there is none")),
    };
    let job = &value["jobs"][0];
    let error = job["error"].as_i64().ok_or_else(|| not_understood("it has no job"))?;
    if error != 0 {
        return Err(Failure::new(format!("fio's requests failed with error {error}")));
    }
    let [reads, writes] = [("read", wants[0]), ("write", wants[1])].map(|(name, is_wanted)| {
        let side = side(&job[name]).ok_or_else(|| not_understood(&format!("no figures of {name}")));
        match side {
            Ok(side) if is_wanted && side.requests == 0 => {
                Err(Failure::new(format!("fio has completed no {name} in the time it had"))
                    .hint("give it longer: --duration"))
            }
            other => other,
        }
    });
    let (reads, writes) = (reads?, writes?);
    let span = |side: &str| job[side]["runtime"].as_u64().unwrap_or(0);
    Ok(Answer { span_ms: span("read").max(span("write")), reads, writes, curve: Vec::new() })
}

fn side(value: &Value) -> Option<Side> {
    let latency = &value["clat_ns"];
    let percentile = |name: &str| latency["percentile"][name].as_u64();
    Some(Side {
        requests: value["total_ios"].as_u64()?,
        iops: value["iops"].as_f64()?,
        bytes_per_s: value["bw_bytes"].as_f64()?,
        mean_ns: latency["mean"].as_f64()?,
        p50_ns: percentile("50.000000"),
        p99_ns: percentile("99.000000"),
    })
}

/// Reads two logs of fio's, of rates and of latencies: lines of milliseconds, value, direction and more.
///
/// # Errors
/// If a line is none.
pub(crate) fn curve(rates: &str, latencies: &str) -> Result<Vec<Point>> {
    /// By point and direction: the rates, and the latencies, as fio writes a point's twice at times.
    type Values = BTreeMap<(u64, u64), [Vec<f64>; 2]>;
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let mut values = Values::new();
    for (which, text) in [rates, latencies].into_iter().enumerate() {
        for line in text.lines() {
            let (at_ms, value, direction) = entry(line)
                .ok_or_else(|| not_understood(&format!("a line of a log is \"{line}\"")))?;
            // The two logs' points are a few milliseconds apart.
            let point = at_ms.saturating_add(POINT_MS / 2) / POINT_MS;
            values.entry((point, direction)).or_default()[which].push(value);
        }
    }
    let mut points: BTreeMap<u64, Point> = BTreeMap::new();
    for ((number, _), [rates, latencies]) in values {
        // The last point is in one of the logs alone where fio has ended between the two.
        if rates.is_empty() || latencies.is_empty() {
            continue;
        }
        let (rate, latency) = (mean(&rates), mean(&latencies));
        let at_ms = number.saturating_mul(POINT_MS);
        let point = points.entry(number).or_insert(Point { at_ms, ..Point::default() });
        let whole = point.latency_ns.unwrap_or(0.0) * point.iops + latency * rate;
        point.iops += rate;
        point.latency_ns = (point.iops > 0.0).then(|| whole / point.iops);
    }
    Ok(points.into_values().collect())
}

fn entry(line: &str) -> Option<(u64, f64, u64)> {
    let mut fields = line.split(',').map(str::trim);
    let at = fields.next()?.parse().ok()?;
    let value = fields.next()?.parse::<f64>().ok().filter(|value| value.is_finite())?;
    let direction = fields.next()?.parse().ok()?;
    Some((at, value, direction))
}

/// What fio has written under this name in a directory.
///
/// # Errors
/// If a file is missing, or is none of fio's.
pub(crate) fn read(dir: &Path, name: &str, wants: [bool; 2]) -> Result<Answer> {
    let file = |end: &str| {
        let path = dir.join(format!("{name}{end}"));
        std::fs::read_to_string(&path)
            .map_err(|error| Failure::system(format!("read {}", path.display()), &error))
    };
    let mut answer = answer(&file(".json")?, wants)?;
    answer.curve = curve(&file("_iops.log")?, &file("_clat.log")?)?;
    Ok(answer)
}

impl Side {
    /// For `--json`; `None` if nothing was done.
    pub(crate) fn to_json(self) -> Option<Value> {
        (self.requests > 0).then(|| {
            json!({
                "requests": self.requests, "iops": self.iops, "bytes_per_s": self.bytes_per_s,
                "mean_ns": self.mean_ns, "p50_ns": self.p50_ns, "p99_ns": self.p99_ns,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One direction as fio 3.33 prints it, without what nobody reads.
    fn direction(requests: u64) -> String {
        format!(
            r#"{{"total_ios": {requests}, "iops": {requests}.5, "bw_bytes": 4096, "runtime": 1002,
                "clat_ns": {{"mean": 800.25, "percentile": {{"50.000000": 700, "99.000000": 9000}}}}}}"#
        )
    }

    fn text(error: i32, reads: u64, writes: u64) -> String {
        let (reads, writes) = (direction(reads), direction(writes));
        format!(
            "\nfio: terminating on signal 2\n{{\"jobs\": [{{\"error\": {error}, \"read\": {reads}, \
             \"write\": {writes}}}]}}\nfio: a last word\n"
        )
    }

    #[test]
    fn an_answer_has_both_directions() {
        let answer = answer(&text(0, 70, 30), [true, true]).unwrap();
        assert_eq!((answer.span_ms, answer.iops()), (1002, 101.0));
        assert_eq!((answer.reads.p50_ns, answer.writes.p99_ns), (Some(700), Some(9000)));
        assert!(Side::default().to_json().is_none() && answer.reads.to_json().is_some());
    }

    #[test]
    fn what_is_no_answer_is_told_apart() {
        let failed = |text: &str| answer(text, [true, false]).unwrap_err().what().to_owned();
        assert!(failed(&text(5, 1, 0)).contains("error 5"));
        assert!(failed(&text(0, 0, 9)).contains("completed no read"));
        for wrong in [
            "",
            "fio: nothing",
            "{",
            "{}",
            r#"{"jobs": []}"#,
            r#"{"jobs": {"read": 1}}"#,
            r#"{"jobs": [{"error": 0}]}"#,
            r#"{"jobs": [{"error": 0, "read": {"total_ios": -1}, "write": 7}]}"#,
            &text(0, 1, 1).replace("total_ios", "total"),
            &text(0, 1, 1).replace("800.25", "\"fast\""),
            &text(0, 1, 1)[..120],
        ] {
            assert!(failed(wrong).contains("not understood"), "{wrong}");
        }
    }

    #[test]
    fn a_curve_weighs_latencies_by_their_rates() {
        let rates = "500, 30, 0, 0, 0\n500, 10, 1, 0, 0\n1000, 50, 0, 0, 0\n";
        let latencies = "502, 100, 0, 0, 0\n502, 500, 1, 0, 0\n999, 80, 0, 0, 0\n";
        let points = curve(rates, latencies).unwrap();
        assert_eq!(points[0], Point { at_ms: 500, iops: 40.0, latency_ns: Some(200.0) });
        assert_eq!(points[1], Point { at_ms: 1000, iops: 50.0, latency_ns: Some(80.0) });
        assert_eq!(curve("", "").unwrap(), []);
        let twice = "500, 10, 0\n1000, 20, 0\n1010, 40, 0\n";
        let late = "500, 7, 0\n1000, 9, 0\n1500, 8, 0\n";
        let points = curve(twice, late).unwrap();
        let all: Vec<_> = points.iter().map(|point| (point.at_ms, point.iops)).collect();
        assert_eq!(all, [(500, 10.0), (1000, 30.0)], "no drop to nothing at the end");
        for wrong in ["500", "500, x, 0", "500, 1", "x, 1, 0", "500, 1, -1", "500, NaN, 0", "\n"] {
            assert!(curve(wrong, "").is_err(), "{wrong}");
        }
        let far = format!("{}, 1, 0\n", u64::MAX);
        assert_eq!(curve(&far, &far).unwrap().len(), 1);
    }
}
