//! Which of a request's events count, in one file and in several.

use super::*;
use crate::trace::events::LOOK_AHEAD_BYTES;

const QUEUED: u32 = 1;
const ISSUED: u32 = 7;
const COMPLETED: u32 = 8;

/// A record of blktrace about 512 bytes that are read.
fn record(time_us: u64, sector: u64, event: u32) -> Vec<u8> {
    let mut bytes = 0x6561_7407u32.to_le_bytes().to_vec();
    bytes.extend(0u32.to_le_bytes());
    bytes.extend((time_us * 1000).to_le_bytes());
    bytes.extend(sector.to_le_bytes());
    bytes.extend([512, event | 1 << 16, 4162, 0x0080_0010, 0].map(u32::to_le_bytes).concat());
    bytes.extend(0u32.to_le_bytes());
    bytes
}

fn records(of: &[(u64, u64, u32)]) -> Vec<u8> {
    of.iter().flat_map(|&(time_us, sector, event)| record(time_us, sector, event)).collect()
}

/// Lines of blkparse about a sector each that is read.
fn lines(of: &[(u64, u64, &str)]) -> Vec<u8> {
    let line = |&(time_us, sector, event): &(u64, u64, &str)| {
        format!("8,16 1 1 0.{time_us:06}000 4162 {event} R {sector} + 1 [fio]\n")
    };
    of.iter().map(line).collect::<String>().into_bytes()
}

fn sectors(requests: &[Request]) -> Vec<u64> {
    requests.iter().map(|request| request.offset / 512).collect()
}

#[test]
fn files_of_one_recording_count_each_request_once_in_the_order_of_time() {
    let files = [
        ("sdb.blktrace.0", records(&[(10, 1, QUEUED), (11, 1, ISSUED), (30, 3, QUEUED)])),
        ("sdb.blktrace.1", records(&[(15, 1, COMPLETED), (35, 3, COMPLETED)])),
        ("sdb.blktrace.2", records(&[(20, 2, QUEUED), (40, 4, QUEUED)])),
        // A processor that did nothing leaves a file without anything.
        ("sdb.blktrace.3", Vec::new()),
    ];
    let requests = read_files("recording", &files, Options::default()).unwrap();
    assert_eq!(sectors(&requests), [1, 2, 3, 4]);
    let format = Some(Format::Blktrace);
    let again = read_files("recording-named", &files, Options { format, skip_bad: false });
    assert_eq!(again, Ok(requests));
}

#[test]
fn recordings_of_other_names_follow_one_after_the_other_and_count_the_same_event() {
    let files = [
        ("monday.blktrace.0", records(&[(10, 1, QUEUED), (30, 2, QUEUED)])),
        ("tuesday.blktrace.0", records(&[(5, 3, ISSUED), (20, 4, QUEUED)])),
        ("completions", records(&[(1, 9, COMPLETED)])),
    ];
    let requests = read_files("recordings", &files, Options::default()).unwrap();
    assert_eq!(sectors(&requests), [1, 2, 4]);
}

#[test]
fn an_event_of_earlier_requests_at_the_beginning_does_not_choose_the_event_that_counts() {
    let early = [(1, 8, COMPLETED), (2, 9, ISSUED), (3, 1, QUEUED), (4, 1, COMPLETED)];
    let requests = read(&records(&early), Options::default()).unwrap();
    assert_eq!(sectors(&requests), [1]);
    let early = [(1, 8, "C"), (2, 9, "D"), (3, 1, "Q"), (4, 1, "C")];
    let requests = read(&lines(&early), Options::default()).unwrap();
    assert_eq!(sectors(&requests), [1]);
    let requests = read(&lines(&early[..2]), Options::default()).unwrap();
    assert_eq!(sectors(&requests), [9]);
}

#[test]
fn an_event_beyond_what_is_looked_at_chooses_nothing() {
    let count = LOOK_AHEAD_BYTES as u64 / 48 + 1;
    let mut late: Vec<_> = (0..count).map(|sector| (sector, sector, COMPLETED)).collect();
    late.push((count, 7, QUEUED));
    assert_eq!(read(&records(&late), Options::default()).unwrap().len() as u64, count);
    late[count as usize - 2].2 = QUEUED;
    assert_eq!(read(&records(&late), Options::default()).unwrap().len(), 2);
}

#[test]
fn what_blkparse_says_of_its_input_is_no_event() {
    let mut text = b"Input file sdb.blktrace.0 added\nInput file sdb.blktrace.1 added\n".to_vec();
    text.extend(BLKPARSE.bytes());
    assert_eq!(places(&read(&text, Options::default()).unwrap()), PLACES);
    let options = Options { format: Some(Format::Blkparse), skip_bad: false };
    assert_eq!(places(&read(&text, options).unwrap()), PLACES);
}

#[test]
fn one_event_counts_in_all_texts_of_blkparse() {
    let files = [
        ("a", lines(&[(1, 1, "D"), (2, 1, "C")])),
        ("b", lines(&[(1, 2, "C"), (2, 3, "Q"), (3, 3, "D")])),
    ];
    let requests = read_files("texts", &files, Options::default()).unwrap();
    assert_eq!(sectors(&requests), [3]);
}

#[test]
fn texts_of_blkparse_with_a_summary_each_may_be_joined_to_one_stream() {
    let summary = " Reads Queued:           2,        9KiB\t Writes Queued:           1,        1KiB\n\
        \x20Read depth:             2        \t Write depth:             1\n\n\
        CPU1 (8,16):\n IO unplugs:             3        \t Timer unplugs:           0\n\n\
        Total (sdb):\n Reads Queued:           2,        9KiB\n\n\
        Throughput (R/W): 9KiB/s / 1KiB/s\nEvents (sdb): 7 entries\n\
        Skips: 0 forward (0 -   0.0%)\n";
    let one = format!("{BLKPARSE}{summary}");
    for between in ["", "Input file sdc.blktrace.0 added\n", "\u{feff}"] {
        let told = read(format!("{one}{between}{one}").as_bytes(), Options::default()).unwrap();
        assert_eq!(places(&told), [PLACES, PLACES].concat(), "{between:?}");
    }
    for (other, field) in [("what is this\n", "device"), ("8,16 1 1 soon 1 Q R 8 + 1\n", "time")] {
        let error = read(format!("{one}{other}").as_bytes(), Options::default()).unwrap_err();
        assert!(error.what.contains(field), "{error}");
    }
}

#[test]
fn events_of_blkparse_without_sectors_are_no_requests() {
    let without = [
        "8,0 0 5 0.1 0 C WS 0 [0]",
        "8,0 0 5 0.1 0 C R 36 (     417) [0]",
        "8,0 0 5 0.1 0 C R (12 00 00 00 24 00) [0]",
        "8,0 0 5 0.1 7 D R 36 (12 00 00 00 24 00) [smartd]",
        "8,0 0 5 0.1 7 D R 36 [smartd]",
        "8,0 0 5 0.1 7 Q FWS [jbd2/sda1 8]",
        "8,0 0 5 0.1 7 Q WS",
    ];
    for event in ["Q", "D", "C"] {
        let mut text = without.join("\n").into_bytes();
        text.extend([&b"\n"[..], &lines(&[(1, 7, event)])].concat());
        let requests = read(&text, Options::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(sectors(&requests), [7], "{event}");
    }
}

#[test]
fn a_command_that_was_passed_through_is_no_request() {
    const PASSED_THROUGH: u32 = 1 << (16 + 9);
    let events =
        [(1, 36, ISSUED | PASSED_THROUGH), (2, 7, COMPLETED), (3, 36, COMPLETED | PASSED_THROUGH)];
    assert_eq!(sectors(&read(&records(&events), Options::default()).unwrap()), [7]);
}

#[test]
fn events_of_kernels_that_name_control_groups_are_understood() {
    const CGROUP: u32 = 1 << 8;
    let events = [(1, 5, QUEUED | CGROUP), (2, 5, ISSUED | CGROUP), (3, 6, QUEUED)];
    assert_eq!(sectors(&read(&records(&events), Options::default()).unwrap()), [5, 6]);
}
