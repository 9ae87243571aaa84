//! What smartctl and nvme-cli print, read with suspicion: fields are there or not by disk and by version,
//! numbers come as text, and instead of all of it there may be an error or nothing.
//!
//! Sources: smartctl(8) of smartmontools 7.3 and its NEWS up to 7.5 (`endurance_used`, `spare_available`);
//! NVM Express base specification, SMART / Health Information log (02h); ACS-4, device statistics.

use serde_json::Value;

/// A unit of `data_units_written`: a thousand sectors of 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;
/// A sector of ATA's attributes and statistics, where the disk does not say that its own are larger.
const SECTOR_BYTES: u64 = 512;

/// Bits of NVMe's `critical_warning`.
pub(super) const SPARE_LOW: u64 = 1 << 0;
pub(super) const TOO_HOT: u64 = 1 << 1;
pub(super) const UNRELIABLE: u64 = 1 << 2;
pub(super) const READ_ONLY: u64 = 1 << 3;
pub(super) const BACKUP_FAILED: u64 = 1 << 4;

/// Attributes of SATA SSDs whose value is what is left of their life in percent, as smartctl names them; the
/// first one that a disk has counts.
const LIFE_LEFT: [&str; 6] = [
    "Percent_Lifetime_Remain",
    "Remaining_Lifetime_Perc",
    "Percent_Life_Remaining",
    "SSD_Life_Left",
    "Media_Wearout_Indicator",
    "Wear_Leveling_Count",
];

/// Attributes that count what could not be read.
const UNCORRECTED: [&str; 3] =
    ["Reported_Uncorrect", "Uncorrectable_Error_Cnt", "Offline_Uncorrectable"];

/// Attributes that count what was written, with the bytes of their units.
const WRITTEN: [(&str, u64); 3] = [
    ("Total_LBAs_Written", SECTOR_BYTES),
    ("Host_Writes_32MiB", 32 << 20),
    ("Host_Writes_GiB", 1 << 30),
];

/// What a disk says of itself; what it does not say is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Its own verdict.
    pub(super) passed: Option<bool>,
    /// NVMe's `critical_warning`.
    pub(super) warnings: u64,
    pub(super) temperature_c: Option<u64>,
    /// What is left of its spare blocks, and below how much it should be replaced.
    pub(super) spare_percent: Option<u64>,
    pub(super) spare_least_percent: Option<u64>,
    /// May exceed 100.
    pub(super) life_used_percent: Option<u64>,
    /// What it could not read or correct, since it was made.
    pub(super) media_errors: Option<u64>,
    pub(super) written_bytes: Option<u64>,
    pub(super) power_on_hours: Option<u64>,
}

/// Reads what `smartctl --json --all --log=devstat` has printed.
///
/// # Errors
/// Why nothing comes of it: what smartctl says, or that it is no such text.
pub(super) fn smartctl(text: &[u8]) -> Result<Report, String> {
    let all: Value = serde_json::from_slice(text).map_err(|_| not_json(text))?;
    let mut report = match all.get("nvme_smart_health_information_log") {
        Some(log) => nvme_log(log),
        None => Report::default(),
    };
    report.passed = all.pointer("/smart_status/passed").and_then(Value::as_bool);
    let at = |path: &str| all.pointer(path).and_then(number);
    report.temperature_c = at("/temperature/current")
        .or_else(|| at("/nvme_smart_health_information_log/temperature"))
        .and_then(celsius);
    report.power_on_hours = at("/power_on_time/hours").or(report.power_on_hours);
    report.life_used_percent = at("/endurance_used/current_percent")
        .or(report.life_used_percent)
        .or_else(|| statistic(&all, "Percentage Used Endurance Indicator"))
        .or_else(|| at("/scsi_percentage_used_endurance_indicator"))
        .or_else(|| life_left(&all).map(|left| 100 - left));
    report.spare_percent = at("/spare_available/current_percent").or(report.spare_percent);
    report.spare_least_percent =
        at("/spare_available/threshold_percent").or(report.spare_least_percent);
    report.media_errors = report.media_errors.or_else(|| uncorrected(&all));
    report.written_bytes = report.written_bytes.or_else(|| written(&all));
    known(report).ok_or_else(|| {
        let messages = all.pointer("/smartctl/messages").and_then(Value::as_array);
        let first = messages.and_then(|all| all.first()?.get("string")?.as_str());
        first.map_or_else(|| "it says nothing of its health".to_owned(), line)
    })
}

/// Reads what `nvme smart-log --output-format=json` has printed.
///
/// # Errors
/// If that is no such text.
pub(super) fn nvme(text: &[u8]) -> Result<Report, String> {
    let log: Value = serde_json::from_slice(text).map_err(|_| not_json(text))?;
    let mut report = nvme_log(&log);
    let kelvin = log.get("temperature").and_then(number);
    report.temperature_c = kelvin.and_then(|it| celsius(it.checked_sub(273)?));
    known(report).ok_or_else(|| {
        // Newer versions put what went wrong there, too.
        let error = log.get("error").and_then(Value::as_str).map(line);
        error.unwrap_or_else(|| "it says nothing of its health".to_owned())
    })
}

/// A temperature that a disk which answers can have; 0 stands for none.
fn celsius(it: u64) -> Option<u64> {
    (1..=150).contains(&it).then_some(it)
}

/// The fields of the log, by the names of either tool; its temperature is kelvin or not by the tool.
fn nvme_log(log: &Value) -> Report {
    let of = |names: [&str; 2]| names.iter().find_map(|name| log.get(name).and_then(number));
    let one = |name: &str| log.get(name).and_then(number);
    let percent = |names| of(names).filter(|it| *it <= 100);
    Report {
        passed: None,
        warnings: one("critical_warning").unwrap_or(0),
        temperature_c: None,
        spare_percent: percent(["available_spare", "avail_spare"]),
        spare_least_percent: percent(["available_spare_threshold", "spare_thresh"]),
        // One byte; more is no percentage of anything.
        life_used_percent: of(["percentage_used", "percent_used"]).filter(|it| *it <= 255),
        media_errors: one("media_errors"),
        written_bytes: one("data_units_written").map(|it| it.saturating_mul(DATA_UNIT_BYTES)),
        power_on_hours: one("power_on_hours"),
    }
}

/// A report that says anything.
fn known(report: Report) -> Option<Report> {
    (report != Report::default()).then_some(report)
}

/// A whole number however it is written: 7, 7.0, "7", "1,234", {"value": 7}.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(it) => it.as_u64().or_else(|| {
            let it = it.as_f64().filter(|it| (0.0..1e19).contains(it))?;
            Some(it as u64)
        }),
        Value::String(text) => text.replace(',', "").trim().parse().ok(),
        Value::Object(it) => it.get("value").filter(|it| !it.is_object()).and_then(number),
        _ => None,
    }
}

fn array<'a>(all: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    all.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

/// One of ATA's attributes.
fn attribute<'a>(all: &'a Value, name: &str) -> Option<&'a Value> {
    array(all, "/ata_smart_attributes/table").find(|it| it.get("name").is_some_and(|n| n == name))
}

fn raw(all: &Value, name: &str) -> Option<u64> {
    attribute(all, name)?.pointer("/raw/value").and_then(number)
}

/// One of ATA's device statistics.
fn statistic(all: &Value, name: &str) -> Option<u64> {
    let pages = array(all, "/ata_device_statistics/pages");
    let mut entries = pages.flat_map(|page| array(page, "/table"));
    entries.find(|it| it.get("name").is_some_and(|n| n == name))?.get("value").and_then(number)
}

fn life_left(all: &Value) -> Option<u64> {
    let value = |name: &&str| attribute(all, name)?.get("value").and_then(number);
    LIFE_LEFT.iter().find_map(value).filter(|left| *left <= 100)
}

fn uncorrected(all: &Value) -> Option<u64> {
    let log = all.get("scsi_error_counter_log");
    let scsi = ["read", "write", "verify"]
        .iter()
        .filter_map(|what| log?.get(what)?.get("total_uncorrected_errors").and_then(number));
    let counts: Vec<_> = UNCORRECTED.iter().filter_map(|name| raw(all, name)).chain(scsi).collect();
    (!counts.is_empty()).then(|| counts.iter().fold(0, |sum, it| u64::saturating_add(sum, *it)))
}

fn written(all: &Value) -> Option<u64> {
    let sectors = statistic(all, "Logical Sectors Written");
    let of = |(name, unit): &(&str, u64)| Some(raw(all, name)?.saturating_mul(*unit));
    sectors
        .map(|it| {
            let own = all.get("logical_block_size").and_then(number).filter(|it| *it > 0);
            it.saturating_mul(own.unwrap_or(SECTOR_BYTES))
        })
        .or_else(|| WRITTEN.iter().find_map(of))
}

/// Some tools answer in plain words.
fn not_json(text: &[u8]) -> String {
    let printed = |first| format!("it printed: {first}");
    first_line(text).map_or_else(|| "it printed nothing".to_owned(), printed)
}

/// The first line that says anything: smartctl begins with its version and whose it is.
pub(super) fn first_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let said = || text.lines().map(str::trim).filter(|it| !it.is_empty());
    let is_head = |it: &str| it.starts_with("smartctl ") || it.starts_with("Copyright (C)");
    said().find(|it| !is_head(it)).or_else(|| said().next()).map(line)
}

/// One line of what somebody else wrote, safe to print and not longer than two of a terminal.
fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NVME: &[u8] = include_bytes!("fixtures/smartctl-nvme.json");
    const SATA: &[u8] = include_bytes!("fixtures/smartctl-sata.json");
    const SAS: &[u8] = include_bytes!("fixtures/smartctl-sas.json");
    const NEWER: &[u8] = include_bytes!("fixtures/smartctl-newer.json");
    const VIRTUAL: &[u8] = include_bytes!("fixtures/smartctl-virtual.json");
    const CLI: &[u8] = include_bytes!("fixtures/nvme-cli.json");
    const CLI_ERROR: &[u8] = include_bytes!("fixtures/nvme-cli-error.json");
    const CLI_USAGE: &[u8] = include_bytes!("fixtures/nvme-cli-usage.txt");
    const PLAIN: &[u8] = include_bytes!("fixtures/smartctl-plain.txt");
    const USAGE: &[u8] = include_bytes!("fixtures/smartctl-usage.txt");

    #[test]
    fn an_nvme_ssd_says_all_of_it() {
        let report = Report {
            passed: Some(true),
            warnings: 0,
            temperature_c: Some(41),
            spare_percent: Some(100),
            spare_least_percent: Some(10),
            life_used_percent: Some(12),
            media_errors: Some(0),
            written_bytes: Some(390_625_000 * 512_000),
            power_on_hours: Some(8_760),
        };
        assert_eq!(smartctl(NVME).unwrap(), report);
        let report = Report { passed: None, ..report };
        assert_eq!(nvme(CLI).unwrap(), report, "the other tool says the same");
    }

    #[test]
    fn a_sata_ssd_has_it_in_attributes_or_in_statistics() {
        let report = smartctl(SATA).unwrap();
        assert_eq!(report.life_used_percent, Some(7), "value 093 of what is left");
        assert_eq!(report.media_errors, Some(3));
        assert_eq!(report.written_bytes, Some(2_000_000 * 512));
        let both =
            String::from_utf8_lossy(SATA).replace("unused_statistics", "ata_device_statistics");
        let report = smartctl(both.as_bytes()).unwrap();
        assert_eq!(
            report.life_used_percent,
            Some(9),
            "what it says itself counts before attributes"
        );
        assert_eq!(report.written_bytes, Some(3_000_000 * 512));
    }

    #[test]
    fn sas_and_newer_versions_are_understood() {
        let sas = smartctl(SAS).unwrap();
        assert_eq!((sas.life_used_percent, sas.media_errors), (Some(4), Some(2)));
        let newer = smartctl(NEWER).unwrap();
        assert_eq!((newer.life_used_percent, newer.spare_percent), (Some(31), Some(98)));
        assert_eq!(newer.spare_least_percent, Some(5));
    }

    #[test]
    fn who_has_nothing_to_say_is_quoted() {
        assert_eq!(smartctl(VIRTUAL).unwrap_err(), "/dev/vda: Unable to detect device type");
        assert_eq!(smartctl(b"{}").unwrap_err(), "it says nothing of its health");
        assert_eq!(nvme(b"").unwrap_err(), "it printed nothing");
        let usage = b"\n\x1b[1mUsage: nvme smart-log <device>\x1b[0m\n";
        assert_eq!(nvme(usage).unwrap_err(), "it printed: [1mUsage: nvme smart-log <device>[0m");
        assert!(smartctl(&[b'x'; 5_000]).unwrap_err().len() < 200);
    }

    #[test]
    fn plain_words_are_quoted_where_they_say_what_is_wrong() {
        let denied = "it printed: Smartctl open device: /dev/nvme0 failed: Permission denied";
        assert_eq!(smartctl(PLAIN).unwrap_err(), denied);
        let unknown = "it printed: =======> UNRECOGNIZED OPTION: json=c";
        assert_eq!(smartctl(USAGE).unwrap_err(), unknown, "versions before 7.0");
        assert_eq!(nvme(CLI_ERROR).unwrap_err(), "Failed to open /dev/nvme0n1: Permission denied");
        assert_eq!(nvme(CLI_USAGE).unwrap_err(), "it printed: nvme-1.8.1");
        assert_eq!(smartctl(b"smartctl 6.6\n").unwrap_err(), "it printed: smartctl 6.6");
    }

    #[test]
    fn numbers_come_in_many_ways() {
        let text = r#"{"critical_warning": {"value": 4, "x": 1}, "percent_used": "3",
            "data_units_written": "1,234", "media_errors": 2.0, "avail_spare": -1,
            "spare_thresh": 1000, "temperature": 1e300}"#;
        let report = nvme(text.as_bytes()).unwrap();
        assert_eq!((report.warnings, report.life_used_percent), (UNRELIABLE, Some(3)));
        assert_eq!((report.written_bytes, report.media_errors), (Some(1_234 * 512_000), Some(2)));
        assert_eq!((report.spare_percent, report.spare_least_percent), (None, None));
        assert_eq!(report.temperature_c, None);
    }

    proptest! {
        #[test]
        fn nothing_that_is_printed_can_do_harm(
            which in 0..10usize,
            at in any::<prop::sample::Index>(),
            with in proptest::collection::vec(any::<u8>(), 0..12),
        ) {
            let words = [CLI_ERROR, CLI_USAGE, PLAIN, USAGE];
            let mut text = [&[NVME, SATA, SAS, NEWER, VIRTUAL, CLI][..], &words].concat()[which].to_vec();
            let at = at.index(text.len());
            let end = (at + with.len()).min(text.len());
            text.splice(at..end, with);
            for report in [smartctl(&text), nvme(&text)].into_iter().flatten() {
                prop_assert!(report.life_used_percent.is_none_or(|it| it < 1 << 63));
            }
        }
    }
}
