//! The same requests in every format; and any bytes, which may be refused but harm nothing.

use std::io::{Cursor, Read, Write};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::{Error, Result};

mod damaged;
mod detection;
mod events;

/// Three requests as each format writes them. What a format does not keep (the time of a fio log
/// of version 2, the volume of ours) is 0.
const CSV: &str =
    "ts_us,op,offset,size\n0,R,4096,8192\n1000000,W,512,1024\n2000000,R,1048576,512\n";
const MSR: &str = "128166372000000000,usr,0,Read,4096,8192,17\n\
    128166372010000000,usr,0,Write,512,1024,9\n128166372020000000,usr,0,Read,1048576,512,11\n";
const SPC: &str = "0,8,8192,r,0.000000\n0,1,1024,W,1.000000\n0,2048,512,R,2.000000,extra\n";
const ALIBABA: &str = "419,R,4096,8192,1577808000000000\n\
    419,W,512,1024,1577808001000000\n419,R,1048576,512,1577808002000000\n";
const TENCENT: &str = "0,8,16,0,1063\n1,1,2,1,1063\n2,2048,1,0,1063\n";
const FIO_2: &str = "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb read 4096 8192\n\
    /dev/sdb write 512 1024\n/dev/sdb sync 0 0\n/dev/sdb read 1048576 512\n/dev/sdb close\n";
const FIO_3: &str = "fio version 3 iolog\n0 /dev/sdb add\n0 /dev/sdb read 4096 8192\n\
    1000000 /dev/sdb write 512 1024\n2000000 /dev/sdb read 1048576 512\n2000001 /dev/sdb close\n";
const BLKPARSE: &str = "  8,16   1        1     0.000000000  4162  Q   R 8 + 16 [fio]\n\
    \x20 8,16   1        2     0.000001000  4162  G   R 8 + 16 [fio]\n\
    \x20 8,16   1        3     0.000002000  4162  D   R 8 + 16 [fio]\n\
    \x20 8,16   1        4     1.000000000  4162  Q  WS 1 + 2 [fio]\n\
    \x20 8,16   1        5     1.500000000  4162  Q FWS [fio]\n\
    \x20 8,16   1        6     1.600000000  4162  Q  DS 1 + 2 [fio]\n\
    \x20 8,16   0        7     2.000000000  4162  Q  RA 2048 + 1 [fio]\n\
    CPU0 (sdb):\n Reads Queued:           2,        9KiB\n";

fn vscsi(version: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (serial, (sector, length, opcode, time)) in
        [(8u64, 8192u32, 0x28u8, 0u64), (1, 1024, 0x8A, 1_000_000), (2048, 512, 0x08, 2_000_000)]
            .into_iter()
            .enumerate()
    {
        let command = [opcode, 0, 0, version];
        if version == 2 {
            bytes.extend(command);
        }
        bytes.extend((serial as u32).to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        if version == 1 {
            bytes.extend(command);
        }
        bytes.extend(sector.to_le_bytes());
        bytes.extend(time.to_le_bytes());
        if version == 2 {
            bytes.extend(77u64.to_le_bytes());
        }
    }
    bytes
}

fn blktrace(big: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |value: &[u8]| {
        let mut value = value.to_vec();
        if big {
            value.reverse();
        }
        bytes.extend(value);
    };
    const QUEUED: u32 = 1;
    const ISSUED: u32 = 7;
    // Time, sector, bytes, action, bytes appended.
    let records: [(u64, u64, u32, u32, u16); 6] = [
        (0, 0, 0, 1 << 26, 12),
        (0, 8, 8192, QUEUED | 1 << 16, 0),
        (5, 8, 8192, ISSUED | 1 << 16, 0),
        (1_000_000_000, 1, 1024, QUEUED | 2 << 16, 4),
        (1_500_000_000, 1, 1024, QUEUED | 1 << 29 | 2 << 16, 0),
        (2_000_000_000, 2048, 512, QUEUED | 1 << 16, 0),
    ];
    for (sequence, (time, sector, length, action, appended)) in records.into_iter().enumerate() {
        put(&0x6561_7407u32.to_le_bytes());
        put(&(sequence as u32).to_le_bytes());
        put(&time.to_le_bytes());
        put(&sector.to_le_bytes());
        put(&length.to_le_bytes());
        put(&action.to_le_bytes());
        put(&4162u32.to_le_bytes());
        put(&0x0080_0010u32.to_le_bytes());
        put(&0u32.to_le_bytes());
        put(&0u16.to_le_bytes());
        put(&appended.to_le_bytes());
        put(&vec![0; appended.into()]);
    }
    bytes
}

fn samples() -> Vec<(Format, Vec<u8>)> {
    let text = [
        (Format::Forebay, CSV),
        (Format::Msr, MSR),
        (Format::Spc, SPC),
        (Format::Alibaba, ALIBABA),
        (Format::Tencent, TENCENT),
        (Format::Fio, FIO_2),
        (Format::Fio, FIO_3),
        (Format::Blkparse, BLKPARSE),
    ];
    let mut samples: Vec<_> =
        text.into_iter().map(|(format, text)| (format, text.as_bytes().to_vec())).collect();
    samples.extend([1, 2].map(|version| (Format::Vscsi, vscsi(version))));
    samples.extend([false, true].map(|big| (Format::Blktrace, blktrace(big))));
    samples
}

fn read(bytes: &[u8], options: Options) -> Result<Vec<Request>> {
    Reader::over("sample", Cursor::new(bytes.to_vec()), options)?.collect()
}

/// The requests of files of these names and contents, in a folder of the test's own.
fn read_files(test: &str, files: &[(&str, Vec<u8>)], options: Options) -> Result<Vec<Request>> {
    let folder = std::env::temp_dir().join(format!("forebay-lab-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let paths = files.iter().map(|(name, bytes)| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    });
    let paths: Vec<_> = paths.collect();
    let paths: Vec<&Path> = paths.iter().map(|path| path.as_path()).collect();
    let requests = Reader::open(&paths, options).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    requests
}

fn places(requests: &[Request]) -> Vec<(bool, u64, u64)> {
    requests.iter().map(|request| (request.write, request.offset, request.bytes)).collect()
}

const PLACES: [(bool, u64, u64); 3] =
    [(false, 4096, 8192), (true, 512, 1024), (false, 1 << 20, 512)];

#[test]
fn every_format_is_told_by_its_beginning_and_gives_the_same_requests() {
    for (format, bytes) in samples() {
        assert_eq!(detect::format_of(&bytes), detect::Told::Format(format));
        let requests = read(&bytes, Options::default()).unwrap();
        assert_eq!(places(&requests), PLACES, "{format:?}");
        let spans = requests[2].time_us - requests[0].time_us;
        assert!(spans == 2_000_000 || bytes == FIO_2.as_bytes(), "{format:?} {spans}");
        assert_eq!(read(&bytes, Options { format: Some(format), skip_bad: false }), Ok(requests));
    }
}

#[test]
fn names_of_formats_are_unique() {
    for format in Format::ALL {
        assert_eq!(Format::named(format.name()), Some(format));
    }
    assert_eq!(Format::named("tar"), None);
}

#[test]
fn compressed_files_give_the_same_requests() {
    for (format, bytes) in samples() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&bytes).unwrap();
        let gzip = gzip.finish().unwrap();
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let zstd = ruzstd::encoding::compress_to_vec(Cursor::new(bytes), level);
        for packed in [gzip, zstd] {
            let requests = read(&packed, Options::default()).unwrap();
            assert_eq!(places(&requests), PLACES, "{format:?}");
        }
    }
}

#[test]
fn several_members_or_frames_are_one_stream() {
    let (head, tail) = CSV.split_at(CSV.len() / 2);
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let frame = |text: &'static str| ruzstd::encoding::compress_to_vec(text.as_bytes(), level);
    let member = |text: &str| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap()
    };
    for packed in [[frame(head), frame(tail)].concat(), [member(head), member(tail)].concat()] {
        assert_eq!(places(&read(&packed, Options::default()).unwrap()), PLACES);
    }
}

#[test]
fn a_bad_line_is_named_by_file_line_and_field() {
    let cases: [(Format, &str, &str); 9] = [
        (Format::Forebay, "0,R,4096,8192\n1,X,0,512\n", "sample, line 2, field \"op\": \"X\" is"),
        (Format::Forebay, "0,R,4096\n", "line 1, field \"size\": missing"),
        (Format::Msr, "1,usr,0,Read,-4,8192,17\n", "field \"offset\": \"-4\" is not a number"),
        (Format::Spc, "0,8,8192,r,then\n", "field \"timestamp\": \"then\" is not a time"),
        (Format::Alibaba, "419,R,4096,99999999999,0\n", "field \"size\": 99999999999 bytes"),
        (Format::Tencent, "0,18446744073709551615,16,0,1\n", "field \"offset\""),
        (Format::Fio, "/dev/sdb read 0 512\n", "field \"version\""),
        (Format::Fio, "fio version 2 iolog\n/dev/sdb pat 0 512\n", "field \"action\": \"pat\""),
        (Format::Blkparse, "8,16 1 1 0.0 4162 Q R 8 - 16\n", "field \"sectors\": \"-\" instead"),
    ];
    for (format, text, expected) in cases {
        let options = Options { format: Some(format), skip_bad: false };
        let error = read(text.as_bytes(), options).unwrap_err();
        assert!(error.what.contains(expected), "{error}");
        assert!(error.hint.contains("--skip-bad"));
    }
    let error = read(b"what is this\n", Options::default()).unwrap_err();
    assert!(error.hint.contains("--format: csv, msr"), "{}", error.hint);
}

#[test]
fn bad_lines_are_counted_and_passed_over_if_asked() {
    let long = "9".repeat(LINE_BYTES_MAX + 1);
    let text = format!("0,R,4096,8192\nx\n1000000,W,512,1024\n{long}\n2000000,R,1048576,512\n\n");
    let options = Options { format: None, skip_bad: true };
    let mut reader = Reader::over("sample", Cursor::new(text), options).unwrap();
    let requests: Vec<_> = reader.by_ref().map(|request| request.unwrap()).collect();
    assert_eq!(places(&requests), PLACES);
    assert_eq!(reader.bad(), 2);
    assert!(reader.line.capacity() <= 2 * LINE_BYTES_MAX);
}

#[test]
fn records_that_are_cut_off_are_refused() {
    for (format, bytes) in samples().into_iter().filter(|(_, bytes)| bytes.contains(&0)) {
        let cut = &bytes[..bytes.len() - 5];
        let error = read(cut, Options::default()).unwrap_err();
        assert!(error.what.contains("record"), "{format:?} {error}");
        let options = Options { format: None, skip_bad: true };
        assert_eq!(places(&read(cut, options).unwrap()), PLACES[..2]);
    }
}

#[test]
fn several_files_are_one_workload_with_common_volumes() {
    let text = "7,R,0,512,1577808002000009\n419,W,0,512,1577808002000009\n";
    let files = [("a", ALIBABA.into()), ("b", text.into())];
    let requests = read_files("volumes", &files, Options::default()).unwrap();
    let volumes: Vec<_> = requests.iter().map(|request| request.volume).collect();
    assert_eq!(volumes, [0, 0, 0, 1, 0]);
    let error =
        Reader::open(&[Path::new("/nowhere")], Options::default()).next().unwrap().unwrap_err();
    assert!(error.what.contains("cannot read"), "{error}");
}

#[test]
fn the_number_of_volumes_is_bounded() {
    let mut volumes = Volumes::default();
    for number in 0..VOLUMES_MAX {
        let format = Format::ALL[number % 2];
        assert_eq!(volumes.number(format, &number.to_string()).unwrap() as usize, number);
    }
    assert!(volumes.number(Format::Msr, "one more").is_err());
    assert_eq!(volumes.number(Format::ALL[1], "5").unwrap(), 5);
}

#[test]
fn a_name_that_is_too_long_is_a_bad_line_but_that_of_a_file_is_not() {
    let name = "v".repeat(VOLUME_NAME_BYTES_MAX);
    let lines = [
        (Format::Tencent, "0,8,16,0,NAME\n"),
        (Format::Alibaba, "NAME,R,4096,8192,1577808000000000\n"),
        (Format::Msr, "0,NAME,1,Read,4096,8192,17\n"),
        (Format::Fio, "fio version 2 iolog\nNAME read 4096 8192\n"),
    ];
    for (format, text) in lines {
        let named = |name: &str| {
            let options = Options { format: Some(format), skip_bad: false };
            read(text.replace("NAME", name).as_bytes(), options)
        };
        assert!(named(&name[2..]).is_ok(), "{format:?}");
        let error = named(&format!("{name}v")).unwrap_err();
        assert!(error.what.contains("\"volume\": a name of more than 256 bytes"), "{error}");
    }
    let long = "f".repeat(VOLUME_NAME_BYTES_MAX + 1);
    let input = Cursor::new(CSV.as_bytes());
    let reader = Reader::over(&long, input, Options::default()).unwrap();
    assert_eq!(places(&reader.collect::<Result<Vec<_>>>().unwrap()), PLACES);
}

#[test]
fn what_is_passed_over_takes_no_number_of_a_volume() {
    let bad = (0..VOLUMES_MAX).map(|volume| format!("0,8,99999999999,0,v{volume}\n"));
    let text = format!("{}{TENCENT}", bad.collect::<String>());
    let options = Options { format: Some(Format::Tencent), skip_bad: true };
    assert_eq!(places(&read(text.as_bytes(), options).unwrap()), PLACES);
}

/// Bytes that are repeated for ever and counted.
struct Endless(Vec<u8>, u64);

impl Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = self.0[(self.1 as usize + at) % self.0.len()];
        }
        self.1 += out.len() as u64;
        Ok(out.len())
    }
}

#[test]
fn a_line_without_an_end_takes_no_more_memory_than_the_limit() {
    let input = Endless(b"12345678".to_vec(), 0).take(64 << 20);
    let options = Options { format: Some(Format::Msr), skip_bad: true };
    let mut reader = Reader::over("endless", input, options).unwrap();
    assert_eq!(reader.next(), None);
    assert_eq!(reader.bad(), 1);
    assert!(reader.line.capacity() <= 2 * LINE_BYTES_MAX);
}

fn any_format() -> impl Strategy<Value = Format> {
    (0..Format::ALL.len()).prop_map(|at| Format::ALL[at])
}

/// A sample with some bytes changed, cut or doubled; so most of it is still understood.
fn any_damage() -> impl Strategy<Value = Vec<u8>> {
    let edits = proptest::collection::vec((any::<u16>(), any::<u8>(), 0..4u8), 0..8);
    (0..12usize, any::<bool>(), edits).prop_map(|(sample, packed, edits)| {
        let mut bytes = samples().swap_remove(sample).1;
        if packed {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            bytes = ruzstd::encoding::compress_to_vec(Cursor::new(bytes), level);
        }
        for (at, byte, kind) in edits {
            let at = usize::from(at) % bytes.len().max(1);
            match kind {
                0 if at < bytes.len() => bytes[at] = byte,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, byte),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    })
}

fn check(bytes: &[u8], options: Options) {
    let Ok(mut reader) = Reader::over("any", Cursor::new(bytes.to_vec()), options) else { return };
    let mut steps = 0;
    while let Some(next) = reader.next() {
        steps += 1;
        if let Ok(request) = next {
            assert!(request.bytes > 0 && request.bytes <= REQUEST_BYTES_MAX);
            assert!(request.offset + request.bytes <= i64::MAX as u64);
        } else {
            assert!(reader.next().is_none(), "an error is the end");
        }
        assert!(reader.line.capacity() <= 2 * LINE_BYTES_MAX);
    }
    // Nothing is made of nothing: compressed, a byte may stand for many.
    assert!(steps <= bytes.len() || bytes.starts_with(&[0x28]) || bytes.starts_with(&[0x1F]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_do_no_harm(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        format in proptest::option::of(any_format()),
        skip_bad in any::<bool>(),
    ) {
        check(&bytes, Options { format, skip_bad });
    }

    #[test]
    fn damaged_traces_do_no_harm(
        bytes in any_damage(),
        format in proptest::option::of(any_format()),
        skip_bad in any::<bool>(),
    ) {
        check(&bytes, Options { format, skip_bad });
    }
}
