//! Files of which a part cannot be understood: what is read of them, and what is said of the rest.

use super::*;

const SKIP: Options = Options { format: None, skip_bad: true };

/// A reader and the requests that it had.
fn read_on(bytes: Vec<u8>, options: Options) -> (Reader, Vec<Request>) {
    let mut reader = Reader::over("sample", Cursor::new(bytes), options).unwrap();
    let requests = reader.by_ref().map(|request| request.unwrap()).collect();
    (reader, requests)
}

#[test]
fn a_vscsi_trace_may_begin_with_another_command_than_read_and_write() {
    const INQUIRY: u8 = 0x12;
    for (version, opcode_at) in [(1, 12), (2, 0)] {
        let mut bytes = vscsi(version);
        bytes[opcode_at] = INQUIRY;
        assert_eq!(places(&read(&bytes, Options::default()).unwrap()), PLACES[1..]);
    }
}

#[test]
fn a_bad_record_of_a_vscsi_trace_costs_no_other_one() {
    for (version, bytes_each, version_at) in [(1, 32, 15), (2, 40, 3)] {
        let good = vscsi(version);
        let first = |bytes: &mut Vec<u8>| bytes[version_at] = 9;
        let mut middle = good.clone();
        middle[bytes_each + version_at] = 9;
        let (reader, requests) = read_on(middle.clone(), SKIP);
        assert_eq!(places(&requests), [PLACES[0], PLACES[2]]);
        assert_eq!((reader.bad(), reader.unread().len()), (1, 0));
        let error = read(&middle, Options::default()).unwrap_err();
        assert!(error.what.contains("record 2, field \"version\": 9"), "{error}");

        let mut two = [good.clone(), good].concat();
        first(&mut two);
        two[2 * bytes_each + version_at] = 0;
        let (reader, requests) = read_on(two, SKIP);
        assert_eq!(places(&requests), [&PLACES[1..2], &PLACES].concat());
        assert_eq!(reader.bad(), 2);
    }
}

#[test]
fn the_rest_of_a_file_that_was_not_read_is_told() {
    let mut bytes = blktrace(false);
    let second = 48 + 12;
    bytes[second] = 0;
    let (reader, requests) = read_on(bytes.clone(), SKIP);
    assert_eq!(places(&requests), []);
    assert_eq!((reader.bad(), reader.unread()), (1, &["sample".to_owned()][..]));
    let error = read(&bytes, Options::default()).unwrap_err();
    assert!(error.hint.contains("the rest of sample is not read"), "{}", error.hint);

    let cut_off = blktrace(false)[..48 + 12 + 48 + 5].to_vec();
    let (reader, requests) = read_on(cut_off, SKIP);
    assert_eq!(places(&requests), PLACES[..1]);
    assert_eq!((reader.bad(), reader.unread().len()), (1, 0));
}

fn frame(text: &str) -> Vec<u8> {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    ruzstd::encoding::compress_to_vec(text.as_bytes(), level)
}

/// A frame that a decoder passes over.
fn skippable(kind: u8, bytes: u32) -> Vec<u8> {
    let mut frame = vec![0x50 | kind, 0x2A, 0x4D, 0x18];
    frame.extend(bytes.to_le_bytes());
    frame.extend(vec![7; bytes as usize]);
    frame
}

#[test]
fn frames_to_be_skipped_are_read_over() {
    let (head, tail) = CSV.split_at(CSV.len() / 2);
    let around =
        [skippable(0, 4), frame(head), skippable(5, 0), frame(tail), skippable(15, 300_000)];
    assert_eq!(places(&read(&around.concat(), Options::default()).unwrap()), PLACES);
    let leading = [skippable(0, 300_000), skippable(1, 1), frame(CSV)].concat();
    assert_eq!(places(&read(&leading, Options::default()).unwrap()), PLACES);
    let cut_off = [frame(CSV), skippable(0, 100)[..50].to_vec()].concat();
    let error = read(&cut_off, Options::default()).unwrap_err();
    assert!(error.what.contains("ends inside of a frame"), "{error}");
}

#[test]
fn what_follows_the_frames_of_zstd_is_refused_in_plain_words() {
    for rest in [&b"garbage"[..], b"ab"] {
        let error = read(&[&frame(CSV), rest].concat(), Options::default()).unwrap_err();
        assert_eq!(
            error.what,
            "cannot read sample: what follows the last whole zstd frame is not zstd"
        );
    }
}
