//! Bytes that nobody wrote, given to the decoders of the disk format: as they are, and with right
//! checksums, as a writer with a bug would leave them. `make soak` runs the fuzzers.

#[path = "../../crates/engine/tests/format/cases.rs"]
mod cases;
#[path = "../../crates/engine/tests/format/samples.rs"]
#[allow(dead_code, reason = "the tests of the format use the rest")]
mod samples;

const BLOCK: usize = 4096;

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

/// The names of all structures, each with two written ones.
pub fn seeds() -> Vec<(&'static str, [Vec<u8>; 2])> {
    let cases = cases::cases().into_iter().map(|case| case());
    cases.map(|case| (case.name, [case.older, case.newer])).collect()
}
