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
    for rest in [&skippable(0, 100)[..50], &skippable(0, 100)[..6], &frame(CSV)[..5]] {
        let error = read(&[&frame(CSV), rest].concat(), Options::default()).unwrap_err();
        assert!(error.what.contains("ends inside of a frame"), "{error}");
    }
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

#[test]
fn content_that_its_zstd_checksum_does_not_fit_is_refused() {
    let mut packed = frame(CSV);
    *packed.last_mut().unwrap() ^= 1;
    for packed in [packed.clone(), [packed, frame(CSV)].concat()] {
        let error = read(&packed, SKIP).unwrap_err();
        assert!(error.what.contains("is not what its zstd checksum says"), "{error}");
    }
}

/// A frame of a window of so many MiB, a power of two, of one block that is not compressed.
fn frame_of_window(mib: u32, content: &[u8]) -> Vec<u8> {
    let block = (content.len() as u32) << 3 | 1;
    let window = ((mib.ilog2() + 10) << 3) as u8;
    [&[0x28, 0xB5, 0x2F, 0xFD, 0, window], &block.to_le_bytes()[..3], content].concat()
}

#[test]
fn windows_beyond_the_limit_are_refused_with_what_to_do() {
    assert_eq!(places(&read(&frame_of_window(64, CSV.as_bytes()), SKIP).unwrap()), PLACES);
    let large = frame_of_window(128, CSV.as_bytes());
    for packed in [large.clone(), [frame(CSV), large].concat()] {
        let error = read(&packed, SKIP).unwrap_err();
        assert!(error.what.contains("window of 134217728 bytes is larger than 104857600"));
        assert!(error.hint.contains("zstd -dc --long=31"), "{}", error.hint);
    }
    // The window of what is in one segment is its size.
    let whole = [&[0x28, 0xB5, 0x2F, 0xFD, 0xE0][..], &[255; 8]].concat();
    let error = read(&whole, SKIP).unwrap_err();
    assert!(error.what.contains("window of 18446744073709551615 bytes"), "{error}");
}

#[test]
fn files_that_are_read_side_by_side_share_the_windows() {
    let packed = frame_of_window(64, &blktrace(false));
    let names: Vec<_> = (0..17).map(|at| format!("sdb.blktrace.{at}.zst")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), packed.clone())).collect();
    let requests = read_files("windows", &files[..16], Options::default()).unwrap();
    assert_eq!(requests.len(), 16 * PLACES.len());
    let error = read_files("windows-many", &files, Options::default()).unwrap_err();
    assert!(error.what.contains("as many files are read side by side"), "{error}");
    assert!(error.hint.contains("zstd -dc"), "{}", error.hint);
}

/// A stream of which every other read is interrupted by a signal.
struct Interrupted(Cursor<Vec<u8>>, bool);

impl Read for Interrupted {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let count = out.len().min(1000);
        self.0.read(&mut out[..count])
    }
}

#[test]
fn a_signal_between_two_reads_is_no_error() {
    let text = CSV.repeat(500);
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let packed = ruzstd::encoding::compress_to_vec(text.as_bytes(), level);
    for bytes in [text.clone().into_bytes(), packed, blktrace(false).repeat(100), vscsi(1)] {
        let wanted = read(&bytes, Options::default()).unwrap();
        let input = Interrupted(Cursor::new(bytes), false);
        let reader = Reader::over("interrupted", input, Options::default()).unwrap();
        assert_eq!(reader.collect::<Result<Vec<_>>>(), Ok(wanted));
    }
}
