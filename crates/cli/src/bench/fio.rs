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

/// Flushes that writers waited for. fio 3.33 flushes after reads as well; newer ones do not (axboe/fio#1777).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flushes {
    pub(crate) count: u64,
    pub(crate) mean_ns: f64,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
}

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) span_ms: u64,
    pub(crate) reads: Side,
    /// Latencies are those of the writes alone.
    pub(crate) writes: Side,
    pub(crate) flushes: Flushes,
    pub(crate) curve: Vec<Point>,
}

impl Answer {
    /// Requests per second.
    pub(crate) fn iops(&self) -> f64 {
        self.reads.iops + self.writes.iops
    }

    /// Requests of the slowest whole second; `None` if there is none. A point that the curve lacks had no request, but
    /// for the last one, which fio may have had no time to log.
    pub(crate) fn worst_second(&self) -> Option<f64> {
        const SECOND_MS: u64 = 1_000;
        let end = self.curve.last()?.at_ms / SECOND_MS;
        if end + 1 < self.span_ms / SECOND_MS {
            return Some(0.0);
        }
        let mut seconds: BTreeMap<u64, f64> = BTreeMap::new();
        for point in &self.curve {
            // Each is of the time before it.
            let second = point.at_ms.saturating_sub(1) / SECOND_MS;
            *seconds.entry(second).or_default() += point.iops * POINT_MS as f64 / SECOND_MS as f64;
        }
        let whole = seconds.range(..end).map(|(_, requests)| *requests);
        if (whole.clone().count() as u64) < end {
            return Some(0.0);
        }
        whole.reduce(f64::min)
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
    let (span_ms, flushes) = (span("read").max(span("write")), flushes(&job["sync"]["lat_ns"]));
    Ok(Answer { span_ms, reads, writes, flushes, curve: Vec::new() })
}

fn percentile(latency: &Value, name: &str) -> Option<u64> {
    latency["percentile"][name].as_u64()
}

/// fio's own count of them is 0 for a group of jobs, that of the latencies is not. Without any there is none.
fn flushes(latency: &Value) -> Flushes {
    Flushes {
        count: latency["N"].as_u64().unwrap_or(0),
        mean_ns: latency["mean"].as_f64().unwrap_or(0.0),
        p50_ns: percentile(latency, "50.000000"),
        p99_ns: percentile(latency, "99.000000"),
    }
}

fn side(value: &Value) -> Option<Side> {
    let latency = &value["clat_ns"];
    Some(Side {
        requests: value["total_ios"].as_u64()?,
        iops: value["iops"].as_f64()?,
        bytes_per_s: value["bw_bytes"].as_f64()?,
        mean_ns: latency["mean"].as_f64()?,
        p50_ns: percentile(latency, "50.000000"),
        p99_ns: percentile(latency, "99.000000"),
    })
}

/// By point and direction: values, as fio writes a point's twice at times.
type Values = BTreeMap<(u64, u64), Vec<f64>>;

/// Reads a log of fio's: lines of milliseconds, value, direction and more.
fn values(text: &str) -> Result<Values> {
    let mut values = Values::new();
    for line in text.lines() {
        let (at_ms, value, direction) =
            entry(line).ok_or_else(|| not_understood(&format!("a line of a log is \"{line}\"")))?;
        // Different logs' points are a few milliseconds apart.
        let point = at_ms.saturating_add(POINT_MS / 2) / POINT_MS;
        values.entry((point, direction)).or_default().push(value);
    }
    Ok(values)
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}

/// Reads two logs of a job, of rates and of latencies.
///
/// # Errors
/// If a line is none.
pub(crate) fn curve(rates: &str, latencies: &str) -> Result<Vec<Point>> {
    let (rates, latencies) = (values(rates)?, values(latencies)?);
    let mut points: BTreeMap<u64, Point> = BTreeMap::new();
    for (place, rates) in rates {
        // The last point is in one of the logs alone where fio has ended between the two.
        let Some(latencies) = latencies.get(&place) else { continue };
        let (number, rate, latency) = (place.0, mean(&rates), mean(latencies));
        let at_ms = number.saturating_mul(POINT_MS);
        let point = points.entry(number).or_insert(Point { at_ms, ..Point::default() });
        let whole = point.latency_ns.unwrap_or(0.0) * point.iops + latency * rate;
        point.iops += rate;
        point.latency_ns = (point.iops > 0.0).then(|| whole / point.iops);
    }
    Ok(points.into_values().collect())
}

/// Reads the logs of rates of writers, one log each. A writer that has completed nothing at a point has no line
/// of it. It always has one request or its flush in flight, so that their number over their rate is what a
/// request takes with its flush.
///
/// # Errors
/// If a line is none.
pub(crate) fn curve_of_writers(logs: &[String]) -> Result<Vec<Point>> {
    let mut points: BTreeMap<u64, (Point, usize)> = BTreeMap::new();
    for text in logs {
        let values = values(text)?;
        for ((number, _), rates) in &values {
            let at_ms = number.saturating_mul(POINT_MS);
            let (point, _) =
                points.entry(*number).or_insert((Point { at_ms, ..Point::default() }, 0));
            point.iops += mean(rates);
        }
        if let Some((last, _)) = values.keys().next_back() {
            points.entry(*last).and_modify(|(_, ended)| *ended += 1);
        }
    }
    // Some writers end before they log the last point.
    if points.len() > 1 && points.last_entry().is_some_and(|last| last.get().1 < logs.len()) {
        points.pop_last();
    }
    let with_latency = |(mut point, _): (Point, usize)| {
        point.latency_ns = (point.iops > 0.0).then(|| logs.len() as f64 * 1e9 / point.iops);
        point
    };
    Ok(points.into_values().map(with_latency).collect())
}

fn entry(line: &str) -> Option<(u64, f64, u64)> {
    let mut fields = line.split(',').map(str::trim);
    let at = fields.next()?.parse().ok()?;
    let value = fields.next()?.parse::<f64>().ok().filter(|value| value.is_finite())?;
    let direction = fields.next()?.parse().ok()?;
    Some((at, value, direction))
}

/// What fio has written under this name in a directory, with so many writers that wait for their flushes.
///
/// # Errors
/// If a file is missing, or is none of fio's.
pub(crate) fn read(
    dir: &Path,
    name: &str,
    wants: [bool; 2],
    writers: Option<u32>,
) -> Result<Answer> {
    let file = |end: &str| {
        let path = dir.join(format!("{name}{end}"));
        std::fs::read_to_string(&path)
            .map_err(|error| Failure::system(format!("read {}", path.display()), &error))
    };
    let mut answer = answer(&file(".json")?, wants)?;
    answer.curve = match writers {
        None => curve(&file("_iops.log")?, &file("_clat.log")?)?,
        Some(writers) => {
            let logs = (1..=writers).map(|number| file(&format!("_iops.{number}.log")));
            curve_of_writers(&logs.collect::<Result<Vec<_>>>()?)?
        }
    };
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

impl Flushes {
    /// For `--json`; `None` if nobody flushed.
    pub(crate) fn to_json(self) -> Option<Value> {
        (self.count > 0).then(|| {
            json!({
                "requests": self.count,
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
        assert_eq!(answer.flushes, Flushes::default());
        assert!(answer.flushes.to_json().is_none());
    }

    #[test]
    fn flushes_are_counted_by_their_latencies() {
        let sync = r#""sync": {"total_ios": 0, "lat_ns": {"mean": 20.5, "N": 7,
            "percentile": {"50.000000": 19, "99.000000": 40}}}, "read""#;
        let text = text(0, 70, 30).replacen("\"read\"", sync, 1);
        let flushes = answer(&text, [true, true]).unwrap().flushes;
        assert_eq!((flushes.count, flushes.p50_ns, flushes.p99_ns), (7, Some(19), Some(40)));
        assert_eq!(flushes.to_json().unwrap()["mean_ns"], 20.5);
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
        assert_eq!(curve_of_writers(std::slice::from_ref(&far)).unwrap().len(), 1);
        assert_eq!(curve(&far, &far).unwrap().len(), 1);
    }

    #[test]
    fn the_worst_second_is_a_whole_one_and_stalls_count() {
        let worst = |points: &[(u64, f64)], span_ms| {
            let point = |&(at_ms, iops): &(u64, f64)| Point { at_ms, iops, latency_ns: None };
            Answer { span_ms, curve: points.iter().map(point).collect(), ..Answer::default() }
                .worst_second()
        };
        let even = [(500, 40.0), (1_000, 60.0), (1_500, 10.0), (2_000, 80.0)];
        assert_eq!(worst(&even, 2_003), Some(45.0));
        assert_eq!(worst(&even[..3], 2_003), Some(50.0), "the last point was not logged");
        assert_eq!(worst(&even[..2], 3_003), Some(0.0), "nothing ended after the first second");
        let gap = [(500, 40.0), (1_000, 60.0), (2_500, 10.0), (3_000, 80.0)];
        assert_eq!(worst(&gap, 3_003), Some(0.0), "nor in the second one");
        assert_eq!(worst(&[(500, 40.0), (2_000, 60.0)], 2_003), Some(20.0));
        assert_eq!(worst(&even[..1], 700), None);
        assert_eq!(worst(&[], 700), None);
        assert_eq!(worst(&[(u64::MAX, 1.0)], 2_003), Some(0.0));
    }

    #[test]
    fn rates_of_writers_add_up_and_say_how_long_each_waits() {
        let log = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let logs = [
            log(&["500, 30, 0, 0", "500, 10, 1, 0", "1000, 100, 1, 0", "1500, 60, 1, 0"]),
            // Nothing at the second point, and one point's values twice.
            log(&["499, 160, 1, 0", "1500, 40, 1, 0", "1510, 60, 1, 0"]),
        ];
        let points = curve_of_writers(&logs).unwrap();
        let all: Vec<_> = points.iter().map(|it| (it.at_ms, it.iops, it.latency_ns)).collect();
        let latency = |rate: f64| Some(2e9 / rate);
        assert_eq!(
            all,
            [
                (500, 200.0, latency(200.0)),
                (1000, 100.0, latency(100.0)),
                (1500, 110.0, latency(110.0))
            ]
        );
        let ended = [log(&["500, 8, 1, 0", "1000, 8, 1, 0"]), log(&["500, 8, 1, 0"])];
        assert_eq!(curve_of_writers(&ended).unwrap().len(), 1, "no drop at the end");
        assert_eq!(curve_of_writers(&[]).unwrap(), []);
        assert!(curve_of_writers(&["500".to_owned()]).is_err());
    }
}
