//! How an SSD is, as it says itself: smartctl is asked, and nvme-cli where that knows nothing.
//!
//! * Asking blocks, and is done on threads. A tool that does not end is ended by timeout(1); a disk
//!   that keeps even that waiting keeps one thread, and is not asked anew meanwhile.
//! * Whatever is printed is read with suspicion ([`report`]). Not to know is an answer, with its reason:
//!   virtual disks, RAID controllers and machines without the tools have no other.
//! * Nothing is done with what is found but to say it: a person decides whether an SSD is replaced.

mod disk;
mod report;

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_control::api::{Health, HealthVerdict};

use self::report::{BACKUP_FAILED, READ_ONLY, Report, SPARE_LOW, TOO_HOT, UNRELIABLE};

/// Seconds that a tool may take: a disk that sleeps wakes up in them.
const TOOL_TIME_MAX_S: &str = "30";
/// Seconds behind which a tool that was told to end is killed.
const KILL_AFTER_S: &str = "5";
/// Bytes that are read of what a tool prints; all of a disk is a tenth of it.
const PRINTED_BYTES_MAX: u64 = 256 << 10;
/// Bytes that are kept of what it complains of: the first line is shown.
const COMPLAINT_BYTES_MAX: u64 = 4 << 10;

/// Life used, in percent, from which an SSD should be replaced soon.
const LIFE_USED_MOST_PERCENT: u64 = 90;
/// Days of life below which it should be.
const DAYS_LEFT_LEAST: u64 = 30;
/// From here on SSDs slow themselves down; their data sheets allow 70 degrees.
const TEMPERATURE_MOST_C: u64 = 70;

/// How much is remembered of what an SSD was written, in seconds: "today".
const HISTORY_S: u64 = 24 * 3600;
/// Seconds between two such memories, and the shortest span that says anything.
const HISTORY_STEP_S: u64 = 3600;

/// Where the tools are.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) smartctl: PathBuf,
    pub(crate) nvme: PathBuf,
}

impl Default for Tools {
    /// Wherever `PATH` has them.
    fn default() -> Self {
        Self { smartctl: "smartctl".into(), nvme: "nvme".into() }
    }
}

/// What came of asking.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    disk: Option<PathBuf>,
    report: Result<Report, String>,
}

impl Answer {
    /// There was none in time.
    pub(crate) fn none() -> Answer {
        Answer { disk: None, report: Err("it does not answer".to_owned()) }
    }
}

/// Asks the disk below a cache device how it is. Blocks.
pub(crate) fn ask(tools: &Tools, path: &Path) -> Answer {
    match disk::below(path) {
        Ok(disk) => {
            let report = ask_disk(tools, &disk);
            Answer { disk: Some(disk), report }
        }
        Err(reason) => Answer { disk: None, report: Err(reason) },
    }
}

fn ask_disk(tools: &Tools, disk: &Path) -> Result<Report, String> {
    let arguments = ["--json=c", "--all", "--log=devstat"];
    let first = printed(&tools.smartctl, &arguments, disk).and_then(|text| report::smartctl(&text));
    let is_nvme = disk.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvme"));
    match first {
        Err(reason) if is_nvme => {
            let arguments = ["smart-log", "--output-format=json"];
            let second = printed(&tools.nvme, &arguments, disk);
            second
                .and_then(|text| report::nvme(&text))
                .map_err(|other| format!("{reason}; {other}"))
        }
        other => other,
    }
}

/// What a tool prints about a disk; its exit code says little (smartctl's is a set of bits).
fn printed(tool: &Path, arguments: &[&str], disk: &Path) -> Result<Vec<u8>, String> {
    let name = tool.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new("timeout");
    command.args(["-k", KILL_AFTER_S, TOOL_TIME_MAX_S]).arg(tool).args(arguments).arg(disk);
    command.env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("timeout cannot be run: {error}"))?;
    let (out, mut text) = (child.stdout.take(), Vec::new());
    let (err, mut complaint) = (child.stderr.take(), Vec::new());
    // Both at once: a tool waits where nobody reads.
    let read = std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().spawn_scoped(scope, || {
            err.map(|mut err| {
                let kept = err.by_ref().take(COMPLAINT_BYTES_MAX).read_to_end(&mut complaint);
                kept.and_then(|_| io::copy(&mut err, &mut io::sink()))
            })
        });
        let read = out.map(|out| out.take(PRINTED_BYTES_MAX).read_to_end(&mut text));
        // What it complains of is not needed, if it cannot be had.
        reader.ok().map(|reader| reader.join());
        read
    });
    let ended = child.wait().map_err(|error| format!("{name}: {error}"))?;
    if let Some(Err(error)) = read {
        return Err(format!("{name}: {error}"));
    }
    match ended.code() {
        _ if !text.is_empty() => Ok(text),
        // timeout(1).
        Some(127) => Err(format!("{name} is not installed")),
        Some(126) => Err(format!("{name} cannot be run")),
        Some(124) => Err(format!("{name} did not end within {TOOL_TIME_MAX_S} s")),
        _ => Err(match report::first_line(&complaint) {
            Some(first) => format!("{name} says: {first}"),
            None => format!("{name} printed nothing"),
        }),
    }
}

/// What an SSD has said so far.
#[derive(Debug, Default)]
pub(crate) struct Known {
    health: Health,
    /// The verdict and the errors that were heard of last, whatever came of asking since.
    last: (HealthVerdict, u64),
    /// When, in seconds since 1970, it had been written how many bytes.
    written: VecDeque<(u64, u64)>,
}

/// What a person should hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is worse than before, or the first that is heard of it is bad.
    Worse(HealthVerdict),
    /// What was wrong is not any more.
    Well,
}

impl Known {
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Takes an answer in; what a person should hear of it.
    pub(crate) fn learn(&mut self, answer: Answer, now_unix_s: u64) -> Option<Change> {
        let Answer { disk, report } = answer;
        let report = match report {
            Ok(report) => report,
            Err(summary) => {
                let unknown = Health { disk, summary, ..Health::default() };
                self.health = Health { asked_unix_s: now_unix_s, ..unknown };
                return None;
            }
        };
        self.note_written(now_unix_s, report.written_bytes);
        let days_left = self.days_left(&report);
        self.health = Health { disk, asked_unix_s: now_unix_s, ..judge(&report, days_left) };
        let new = (self.health.verdict, self.health.media_errors.unwrap_or(0));
        let old = std::mem::replace(&mut self.last, new);
        match new.0 {
            HealthVerdict::Warning | HealthVerdict::Failing if new.0 > old.0 || new.1 > old.1 => {
                Some(Change::Worse(new.0))
            }
            HealthVerdict::Good if old.0 > HealthVerdict::Good => Some(Change::Well),
            _ => None,
        }
    }

    fn note_written(&mut self, now: u64, written: Option<u64>) {
        let Some(written) = written else { return };
        let is_odd = |&(at, before): &(u64, u64)| at > now || before > written;
        if self.written.back().is_some_and(is_odd) {
            // Another disk, or another time of day.
            self.written.clear();
        }
        let is_due = |&(at, _): &(u64, u64)| now - at >= HISTORY_STEP_S;
        if self.written.back().is_none_or(is_due) {
            self.written.push_back((now, written));
        }
        while self.written.front().is_some_and(|&(at, _)| now - at > HISTORY_S) {
            self.written.pop_front();
        }
    }

    /// Days until its life is used up, and whether at what it is written today or at its mean so far.
    fn days_left(&self, report: &Report) -> Option<(u64, bool)> {
        let used = report.life_used_percent.filter(|used| *used > 0)?;
        let left = 100_u64.saturating_sub(used);
        let days = |left_s: u128| u64::try_from(left_s / (24 * 3600)).ok();
        let today = self.written.front().zip(self.written.back()).and_then(|(first, last)| {
            let (span, bytes) = (last.0 - first.0, last.1 - first.1);
            let written = u128::from(report.written_bytes?);
            let left_bytes = u128::from(left) * written / u128::from(used);
            let left_s = (left_bytes * u128::from(span)).checked_div(u128::from(bytes))?;
            (span >= HISTORY_STEP_S).then_some(left_s)
        });
        match today {
            Some(left_s) => days(left_s).map(|days| (days, true)),
            None => {
                let hours = u128::from(report.power_on_hours.filter(|hours| *hours > 0)?);
                days(u128::from(left) * hours * 3600 / u128::from(used)).map(|days| (days, false))
            }
        }
    }
}

/// What a report means.
fn judge(report: &Report, days_left: Option<(u64, bool)>) -> Health {
    let says = |bit: u64| report.warnings & bit != 0;
    let below = report.spare_percent.zip(report.spare_least_percent);
    let mut failing = Vec::new();
    let mut warning = Vec::new();
    if says(READ_ONLY) {
        failing.push("it takes no writes any more".to_owned());
    }
    if says(UNRELIABLE) {
        failing.push("it says that it is not reliable any more".to_owned());
    }
    if says(SPARE_LOW) || below.is_some_and(|(spare, least)| spare < least) {
        failing.push("its spare blocks are used up".to_owned());
    }
    if says(BACKUP_FAILED) {
        failing.push("what keeps its memory over a power cut has failed".to_owned());
    }
    if report.passed == Some(false) && failing.is_empty() {
        failing.push("it says that it is failing".to_owned());
    }
    if let Some(errors) = report.media_errors.filter(|errors| *errors > 0) {
        warning.push(format!("it could not read {errors} times what it holds"));
    }
    if let Some(used) = report.life_used_percent.filter(|used| *used >= LIFE_USED_MOST_PERCENT) {
        warning.push(format!("{used} % of its life are used"));
    } else if let Some((days, _)) = days_left.filter(|(days, _)| *days < DAYS_LEFT_LEAST) {
        warning.push(format!("its life ends in {days} days"));
    }
    let is_hot = report.temperature_c.is_some_and(|it| it >= TEMPERATURE_MOST_C);
    if says(TOO_HOT) || is_hot {
        warning.push("it is too hot".to_owned());
    }
    let verdict = match (failing.is_empty(), warning.is_empty()) {
        (false, _) => HealthVerdict::Failing,
        (true, false) => HealthVerdict::Warning,
        (true, true) => HealthVerdict::Good,
    };
    failing.extend(warning);
    failing.extend(figures(report, days_left));
    Health {
        verdict,
        summary: failing.join(", "),
        temperature_c: report.temperature_c,
        spare_percent: report.spare_percent,
        life_used_percent: report.life_used_percent,
        media_errors: report.media_errors,
        written_bytes: report.written_bytes,
        days_left: days_left.map(|(days, _)| days),
        ..Health::default()
    }
}

/// What a person wants to know anyhow.
fn figures(report: &Report, days_left: Option<(u64, bool)>) -> Vec<String> {
    let mut all = Vec::new();
    match report.life_used_percent {
        Some(0) => all.push("less than 1 % of its life used".to_owned()),
        Some(used) if used < LIFE_USED_MOST_PERCENT => {
            all.push(format!("{used} % of its life used"))
        }
        _ => {}
    }
    match days_left.filter(|(days, _)| *days >= DAYS_LEFT_LEAST) {
        Some((days, true)) => all.push(format!("{days} days left at today's writes")),
        Some((days, false)) => all.push(format!("{days} days left at its mean so far")),
        None => {}
    }
    all.extend(report.spare_percent.map(|spare| format!("{spare} % spare")));
    all.extend(report.temperature_c.map(|degrees| format!("{degrees} °C")));
    if all.is_empty() {
        all.push("it says no more than that it is well".to_owned());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    fn answer(report: Report) -> Answer {
        Answer { disk: Some(PathBuf::from("/dev/nvme0n1")), report: Ok(report) }
    }

    fn well() -> Report {
        Report {
            passed: Some(true),
            spare_percent: Some(100),
            spare_least_percent: Some(10),
            life_used_percent: Some(10),
            written_bytes: Some(100 << 40),
            power_on_hours: Some(1_000 * 24),
            media_errors: Some(0),
            ..Report::default()
        }
    }

    #[test]
    fn days_left_are_those_of_today_once_an_hour_was_seen() {
        let mut known = Known::default();
        known.learn(answer(well()), DAY);
        assert_eq!(known.health().days_left, Some(9_000), "a tenth in a thousand days");
        let later = |hours: u64, gib: u64| {
            answer(Report { written_bytes: Some((100 << 40) + (gib << 30)), ..well() })
                .report
                .map(|report| (answer(report), DAY + hours * 3600))
                .unwrap()
        };
        let (said, at) = later(2, 75);
        known.learn(said, at);
        // 900 TiB are left, and 900 GiB are written a day.
        assert_eq!(known.health().days_left, Some(1_024));
        assert!(known.health().summary.contains("1024 days left at today's writes"));
        let (said, at) = later(50, 75);
        known.learn(said, at);
        assert_eq!(known.health().days_left, Some(9_000), "nothing was written today");
        known.learn(answer(Report { life_used_percent: Some(0), ..well() }), at + 60);
        assert_eq!(known.health().days_left, None);
        known.learn(answer(Report { written_bytes: Some(5), ..well() }), at - 60);
        assert_eq!(known.written.len(), 1, "another disk begins anew");
    }

    #[test]
    fn each_sign_has_its_verdict_and_its_words() {
        let judged = |report: Report| {
            let mut known = Known::default();
            let change = known.learn(answer(report), DAY);
            (known.health().verdict, known.health().summary.clone(), change)
        };
        assert_eq!(judged(well()).0, HealthVerdict::Good);
        assert_eq!(judged(well()).2, None);
        let failing = [
            Report { passed: Some(false), ..well() },
            Report { warnings: SPARE_LOW, ..well() },
            Report { warnings: UNRELIABLE, ..well() },
            Report { warnings: READ_ONLY, ..well() },
            Report { warnings: BACKUP_FAILED, ..well() },
            Report { spare_percent: Some(9), ..well() },
        ];
        for report in failing {
            let (verdict, _, change) = judged(report);
            assert_eq!(verdict, HealthVerdict::Failing, "{report:?}");
            assert_eq!(change, Some(Change::Worse(HealthVerdict::Failing)));
        }
        let warning = [
            (Report { life_used_percent: Some(90), ..well() }, "90 % of its life"),
            (Report { power_on_hours: Some(24), ..well() }, "ends in 9 days"),
            (Report { media_errors: Some(2), ..well() }, "could not read 2 times"),
            (Report { temperature_c: Some(70), ..well() }, "too hot"),
            (Report { warnings: TOO_HOT, ..well() }, "too hot"),
        ];
        for (report, words) in warning {
            let (verdict, summary, _) = judged(report);
            assert_eq!(verdict, HealthVerdict::Warning, "{report:?}");
            assert!(summary.contains(words), "{summary}");
        }
    }

    #[test]
    fn what_has_been_told_is_told_again_only_if_it_gets_worse() {
        let mut known = Known::default();
        let errors = |count| answer(Report { media_errors: Some(count), ..well() });
        assert_eq!(known.learn(errors(0), DAY), None);
        assert_eq!(known.learn(errors(1), DAY), Some(Change::Worse(HealthVerdict::Warning)));
        assert_eq!(known.learn(errors(1), DAY), None);
        assert_eq!(known.learn(errors(4), DAY), Some(Change::Worse(HealthVerdict::Warning)));
        let failing = Report { passed: Some(false), media_errors: Some(4), ..well() };
        assert_eq!(known.learn(answer(failing), DAY), Some(Change::Worse(HealthVerdict::Failing)));
        assert_eq!(known.learn(errors(4), DAY), None, "better, not well");
        let unknown = Answer { disk: None, report: Err("why".into()) };
        assert_eq!(known.learn(unknown, DAY), None);
        assert_eq!(known.health().verdict, HealthVerdict::Unknown);
        assert_eq!(known.learn(errors(4), DAY), None, "as before nobody knew");
        assert_eq!(known.learn(answer(well()), DAY), Some(Change::Well));
        assert_eq!(known.learn(answer(well()), DAY), None);
    }

    #[test]
    fn who_prints_nothing_is_quoted_with_its_complaint() {
        // `sh -c SCRIPT DEVICE` stands for a tool; the device is its name.
        let ask = |script: &str| printed(Path::new("sh"), &["-c", script], Path::new("/dev/nvme0"));
        let denied = r#"echo "$0: Permission denied" >&2; echo more >&2; exit 1"#;
        assert_eq!(ask(denied).unwrap_err(), "sh says: /dev/nvme0: Permission denied");
        assert_eq!(
            ask("echo {}; echo oh >&2; exit 4"),
            Ok(b"{}\n".to_vec()),
            "what it prints counts"
        );
        assert_eq!(ask("exit 1").unwrap_err(), "sh printed nothing");
        // More than a pipe holds keeps nobody waiting.
        let noisy = "head -c 1000000 /dev/zero >&2; echo {}";
        assert_eq!(ask(noisy), Ok(b"{}\n".to_vec()));
    }

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        let tools = Tools { smartctl: "/nowhere/smartctl".into(), nvme: "/nowhere/nvme".into() };
        let said = ask_disk(&tools, Path::new("/dev/nvme9n9")).unwrap_err();
        assert_eq!(said, "smartctl is not installed; nvme is not installed");
        let said = ask_disk(&tools, Path::new("/dev/sdz")).unwrap_err();
        assert_eq!(said, "smartctl is not installed");
    }
}
