//! What the beginning of a file tells, and when it does not tell enough.

use super::*;

fn requests(text: &str, format: Option<Format>) -> Result<Vec<Request>> {
    read(text.as_bytes(), Options { format, skip_bad: false })
}

fn refused(text: &str) -> Error {
    requests(text, None).unwrap_err()
}

#[test]
fn five_columns_are_alibabas_only_if_the_last_one_is_a_date() {
    for text in ["0,R,4096,4096,17\n1,W,0,4096,18\n", "1577808000000046,R,0,512,1577808000000099\n"]
    {
        let error = refused(text);
        assert_eq!(error.what, "sample may be csv with one more column, or alibaba");
        assert!(error.hint.contains("--format"), "{}", error.hint);
        for format in [Format::Forebay, Format::Alibaba] {
            assert!(requests(text, Some(format)).is_ok());
        }
    }
    let told = requests("419,W,8792731648,16384,1577808144360767\n", None).unwrap();
    assert_eq!(told[0].time_us, 1_577_808_144_360_767);
    assert!(refused("0,R,4096,4096,17,3\n").what.contains("of no format"));
}

#[test]
fn headers_comments_and_byte_order_marks_come_before_the_first_request() {
    let msr = format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{MSR}");
    let tencent = format!("Timestamp,Offset,Size,IOType,VolumeID\n{TENCENT}");
    let alibaba = format!("device_id,opcode,offset,length,timestamp\n{ALIBABA}");
    let samples = [
        (Format::Forebay, CSV.to_owned()),
        (Format::Msr, msr),
        (Format::Tencent, tencent),
        (Format::Alibaba, alibaba),
        (Format::Spc, SPC.to_owned()),
        (Format::Fio, FIO_2.to_owned()),
        (Format::Blkparse, BLKPARSE.to_owned()),
    ];
    for (format, text) in samples {
        for before in ["", "\u{feff}", "# recorded on monday\n\n# with care\n", "\u{feff}# so\n"] {
            let text = format!("{before}{text}");
            for format in [None, Some(format)] {
                let told = requests(&text, format).unwrap_or_else(|error| panic!("{error} {text}"));
                assert_eq!(places(&told), PLACES, "{format:?} {text}");
            }
        }
    }
}

#[test]
fn texts_with_a_header_each_may_be_joined_to_one_stream() {
    for between in ["", "\u{feff}"] {
        let told = requests(&format!("{CSV}{between}{CSV}"), None).unwrap();
        assert_eq!(places(&told), [PLACES, PLACES].concat());
    }
}

#[test]
fn every_word_for_an_operation_that_is_understood_is_told() {
    for op in ["R", "r", "read", "Read", "READ", "W", "w", "write", "Write", "WRITE"] {
        let text = format!("0,{op},0,4096\n");
        let told = requests(&text, None).unwrap_or_else(|error| panic!("{error} {op}"));
        assert_eq!(requests(&text, Some(Format::Forebay)), Ok(told));
    }
}

#[test]
fn times_of_a_fio_log_are_microseconds_and_its_other_actions_move_nothing() {
    let text = "fio version 3 iolog\n0 /dev/sdb add\n7 /dev/sdb read 0 512\n\
        9 /dev/sdb sync_file_range 0 512\n9 /dev/sdb syncfs 0 0\n12 /dev/sdb write 0 512\n\
        13 /dev/sdb unlink\n";
    let told = requests(text, None).unwrap();
    assert_eq!(told.iter().map(|request| request.time_us).collect::<Vec<_>>(), [7, 12]);
}

#[test]
fn a_file_without_anything_is_said_to_be_empty() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"").unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(Cursor::new(Vec::new()), level);
    for packed in [Vec::new(), gzip.finish().unwrap(), zstd] {
        let error = read(&packed, Options::default()).unwrap_err();
        assert_eq!(error.what, "sample is empty");
    }
    for format in Format::ALL {
        assert_eq!(requests("", Some(format)), Ok(Vec::new()), "{format:?}");
    }
}

#[test]
fn what_cannot_be_opened_again_is_read_as_it_was_looked_at() {
    use std::os::fd::AsRawFd;

    let (source, mut sink) = std::io::pipe().unwrap();
    sink.write_all(MSR.as_bytes()).unwrap();
    drop(sink);
    let path = format!("/proc/self/fd/{}", source.as_raw_fd());
    let requests: Result<Vec<_>> = Reader::open(&[Path::new(&path)], Options::default()).collect();
    assert_eq!(places(&requests.unwrap()), PLACES);
    let twice = [Path::new("-"), Path::new("-")];
    let error = Reader::open(&twice, Options::default()).next().unwrap().unwrap_err();
    assert_eq!(error.what, "standard input is named twice");
}

#[test]
fn files_whose_format_names_no_disk_are_a_disk_each() {
    let files = [
        ("a", b"0,R,0,512\n".to_vec()),
        ("b", b"0,R,0,512\n".to_vec()),
        ("c", vscsi(1)),
        ("d", vscsi(2)),
        ("e", b"0,0,512,r,0.0\n".to_vec()),
        ("f", b"0,R,0,512,1577808144360767\n".to_vec()),
        ("g", b"0,0,512,r,0.0\n".to_vec()),
    ];
    let requests = read_files("disks", &files, Options::default()).unwrap();
    let volumes: Vec<_> = requests.iter().map(|request| request.volume).collect();
    assert_eq!(volumes, [0, 1, 2, 2, 2, 3, 3, 3, 4, 5, 4]);
}

#[test]
fn a_file_is_the_same_disk_by_all_its_names() {
    let csv = || b"0,R,0,512\n".to_vec();
    let files = [("a", csv()), ("./a", csv()), (".//a", csv()), ("b", csv())];
    let requests = read_files("names", &files, Options::default()).unwrap();
    let volumes: Vec<_> = requests.iter().map(|request| request.volume).collect();
    assert_eq!(volumes, [0, 0, 0, 1]);
    let files = [("./sdb.blktrace.0", blktrace(false)), ("sdb.blktrace.1", blktrace(true))];
    let requests = read_files("named-pieces", &files, Options::default()).unwrap();
    assert!(requests.is_sorted_by_key(|request| request.time_us));
    let names = ["./a/.//b", "..//a", ".", "/a/."].map(|name| plan::normal(Path::new(name)));
    assert_eq!(names, ["a/b", "../a", ".", "/a"].map(|name| Path::new(name).to_owned()));
}
