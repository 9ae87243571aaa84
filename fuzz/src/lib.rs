//! Bytes that nobody wrote: given to the decoders of the disk format, as they are and with right
//! checksums, as a writer with a bug would leave them; sent to the NBD server by a client; and read
//! as traces.
//! `make soak` runs the fuzzers.

#[path = "../../crates/engine/tests/format/cases.rs"]
mod cases;
#[path = "../../crates/engine/tests/format/samples.rs"]
#[allow(dead_code, reason = "the tests of the format use the rest")]
mod samples;
#[path = "../../crates/export/tests/support/mod.rs"]
mod support;

use forebay_lab::trace::{Format, Options, REQUEST_BYTES_MAX, Reader};
use support::hostile::{Stage, play};
use support::protocol::{contexts, extended, option, request};

const BLOCK: usize = 4096;
/// Bytes of a trace that are read: compressed, they may stand for 32,768 times as many.
const TRACE_BYTES_MAX: usize = 4096;

/// Decodes `bytes` as the structure called `name`.
///
/// # Panics
/// If what was decoded cannot be written and read again, or a decoder panics.
pub fn decode(name: &str, bytes: &[u8]) {
    let case = cases::cases().into_iter().map(|case| case()).find(|case| case.name == name);
    let case = case.expect("every target is named after a structure");
    let again = |bytes: &[u8]| {
        if let Ok(written) = (case.reencode)(bytes) {
            assert_eq!((case.reencode)(&written).as_ref(), Ok(&written));
        }
    };
    again(bytes);
    // Structures are whole blocks; the fuzzer is not made to find that out.
    let mut blocks = bytes.to_vec();
    blocks.resize(bytes.len().next_multiple_of(BLOCK).max(BLOCK), 0);
    cases::reseal(case.name, &mut blocks);
    again(&blocks);
}

/// Lets a client send bytes to an NBD server: the first one says how far it has come before, the
/// second one in which order tasks run.
///
/// # Panics
/// If the server does not serve another client, or keeps anything of this one when it has gone.
pub fn converse(bytes: &[u8]) {
    let [stage, seed, bytes @ ..] = bytes else { return };
    let stage = match stage % 7 {
        0 => Stage::Connected,
        1 => Stage::Simple,
        2 => Stage::Structured,
        3 => Stage::Contexts,
        4 => Stage::Extended,
        5 => Stage::Handshake,
        _ => Stage::Encrypted,
    };
    play(u64::from(*seed), stage, bytes.to_vec());
}

/// What a client sends that does everything right: from the beginning, and with extended headers.
fn conversations() -> [Vec<u8>; 2] {
    let mut first = vec![0, 0, 0, 0, 0, 3];
    let all = contexts(&["base:allocation", "forebay:tier"]);
    for (number, payload) in [(8, &[][..]), (3, &[]), (9, &contexts(&[])), (10, &all), (7, &[0; 6])]
    {
        first.extend(option(number, payload));
    }
    let mut second = vec![4, 0];
    for kind in [0, 1, 3, 4, 5, 6, 7] {
        let len = if kind == 3 { 0 } else { 512 };
        first.extend(request(kind, 0, 1, 0, len));
        second.extend(extended(kind, 0, 1, 0, u64::from(len)));
        if kind == 1 {
            first.extend([7; 512]);
            second.extend([7; 512]);
        }
    }
    [first, second]
}

/// Reads bytes as a trace: the first one says of which format, and whether bad lines are passed over.
///
/// # Panics
/// If a request is beyond what readers promise, or a reader panics.
pub fn read_trace(bytes: &[u8]) {
    let [how, bytes @ ..] = bytes else { return };
    let format = Format::ALL.get(usize::from(how >> 1)).copied();
    let options = Options { format, skip_bad: how & 1 == 1 };
    let input = std::io::Cursor::new(bytes[..bytes.len().min(TRACE_BYTES_MAX)].to_vec());
    let Ok(reader) = Reader::over("fuzz", input, options) else { return };
    for request in reader.map_while(Result::ok) {
        assert!((1..=REQUEST_BYTES_MAX).contains(&request.bytes));
        assert!(request.offset + request.bytes <= i64::MAX as u64);
    }
}

/// Two traces whose beginning tells their format.
fn traces() -> [Vec<u8>; 2] {
    let csv = b"\xFEts_us,op,offset,size\n0,R,4096,8192\n1,W,512,1024\n".to_vec();
    let events = b"\xFFInput file sdb.blktrace.0 added\n8,16 1 1 0.1 7 Q R 8 + 16 [fio]\n".to_vec();
    [csv, events]
}

/// The names of all structures, each with two written ones; of the NBD server; and of traces.
pub fn seeds() -> Vec<(&'static str, [Vec<u8>; 2])> {
    let cases = cases::cases().into_iter().map(|case| case());
    let structures = cases.map(|case| (case.name, [case.older, case.newer]));
    structures.chain([("nbd", conversations()), ("trace", traces())]).collect()
}
