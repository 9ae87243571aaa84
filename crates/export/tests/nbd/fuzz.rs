//! Whatever bytes a client sends, the server neither panics nor hangs, and a bystander is
//! served. `fuzz/fuzz_targets/nbd.rs` does the same with a fuzzer's bytes, where there is a nightly
//! toolchain; `scripts/fuzz.sh` runs this for long, with more cases.

use crate::support::hostile::{IN_TRANSMISSION, SIZE, Stage, play};
use crate::support::protocol::{contexts, extended, option, request};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// As many cases as `PROPTEST_CASES` says, or a few minutes' worth.
fn config() -> ProptestConfig {
    let cases = ProptestConfig::default().cases;
    let is_told = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig::with_cases(if is_told { cases } else { 300 })
}

/// What is changed in a conversation that is right.
#[derive(Clone, Debug)]
enum Change {
    /// A message does not come, comes again, or comes in another's place.
    Drop(Index),
    Again(Index),
    Swap(Index, Index),
    /// A byte of a message is another one, near the bounds of a field where that tells more.
    Byte(Index, Index, u8),
    /// A message is cut short, or goes on.
    Cut(Index, Index),
    More(Index, Vec<u8>),
}

fn some_change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let byte = || prop_oneof![proptest::sample::select(vec![0, 1, 0x7F, 0x80, 0xFF]), any::<u8>()];
    prop_oneof![
        1 => at().prop_map(Change::Drop),
        1 => at().prop_map(Change::Again),
        1 => (at(), at()).prop_map(|(a, b)| Change::Swap(a, b)),
        4 => (at(), at(), byte()).prop_map(|(at, of, byte)| Change::Byte(at, of, byte)),
        1 => (at(), at()).prop_map(|(at, of)| Change::Cut(at, of)),
        1 => (at(), vec(any::<u8>(), 1..40)).prop_map(|(at, more)| Change::More(at, more)),
    ]
}

impl Change {
    fn apply(&self, messages: &mut Vec<Vec<u8>>) {
        if messages.is_empty() {
            return;
        }
        let count = messages.len();
        match self {
            Change::Drop(at) => drop(messages.remove(at.index(count))),
            Change::Again(at) => messages.push(messages[at.index(count)].clone()),
            Change::Swap(a, b) => messages.swap(a.index(count), b.index(count)),
            Change::Byte(at, of, byte) => {
                let message = &mut messages[at.index(count)];
                if !message.is_empty() {
                    // What stands in the header decides more than a payload.
                    let head = message.len().min(32);
                    message[of.index(head)] = *byte;
                }
            }
            Change::Cut(at, of) => {
                let message = &mut messages[at.index(count)];
                let length = of.index(message.len() + 1);
                message.truncate(length);
            }
            Change::More(at, more) => messages[at.index(count)].extend(more),
        }
    }
}

/// A client that does everything right, message by message: from its flags to a disconnect.
fn conversation(is_extended: bool) -> Vec<Vec<u8>> {
    let all = contexts(&["base:allocation", "forebay:tier"]);
    let mut messages = vec![vec![0, 0, 0, 3]];
    let options = [
        (8, &[][..]),
        (if is_extended { 11 } else { 3 }, &[]),
        (9, &contexts(&[])),
        (10, &all),
        (6, b"\0\0\0\x04disk\0\x01\0\x03"),
        (7, b"\0\0\0\x04disk\0\0"),
    ];
    messages.extend(options.map(|(number, payload)| option(number, payload)));
    for (cookie, kind) in [1, 0, 3, 5, 6, 7, 4, 2].into_iter().enumerate() {
        let len = if kind == 3 || kind == 2 { 0 } else { 4096 };
        let flags = if is_extended && kind == 1 { 32 } else { 0 };
        let mut message = match is_extended {
            true => extended(kind, flags, cookie as u64, 0, u64::from(len)),
            false => request(kind, flags, cookie as u64, 0, len),
        };
        if kind == 1 {
            message.resize(message.len() + len as usize, 0x33);
        }
        messages.push(message);
    }
    messages
}

fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        Just(b"".to_vec()),
        Just(b"disk".to_vec()),
        Just(b"\0\0\0\x04disk\0\x01\0\x03".to_vec()),
        Just(contexts(&[])),
        Just(contexts(&["base:allocation", "forebay:", "?"])),
        vec(any::<u8>(), 0..40),
        vec(any::<u8>(), 16_000..17_000),
    ];
    (0_u32..13, payload).prop_map(|(number, payload)| option(number, &payload))
}

fn some_request() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => Just(0), 2 => 0_u16..64, 1 => any::<u16>()];
    let kind = prop_oneof![8 => 0_u16..8, 1 => any::<u16>()];
    let sectors = SIZE as u64 / 512;
    let offset = prop_oneof![8 => (0..sectors + 2).prop_map(|s| s * 512), 1 => any::<u64>()];
    let len = prop_oneof![
        8 => (0_u32..16).prop_map(|sectors| sectors * 512),
        1 => 0_u32..10_000,
        1 => any::<u32>()
    ];
    let parts = (flags, kind, any::<u64>(), offset, len, any::<bool>());
    parts.prop_map(|(flags, kind, cookie, offset, len, is_extended)| {
        let mut bytes = if is_extended {
            extended(kind, flags, cookie, offset, u64::from(len))
        } else {
            request(kind, flags, cookie, offset, len)
        };
        if kind == 1 || is_extended && flags & 32 != 0 {
            bytes.resize(bytes.len() + len.min(20_000) as usize, 0x33);
        }
        bytes
    })
}

fn in_transmission() -> impl Strategy<Value = Stage> {
    proptest::sample::select(&IN_TRANSMISSION)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_conversation_that_is_right_but_for_some_changes(
        seed: u64,
        is_extended: bool,
        changes in vec(some_change(), 1..6),
    ) {
        let mut messages = conversation(is_extended);
        changes.iter().for_each(|change| change.apply(&mut messages));
        play(seed, Stage::Connected, messages.concat());
    }

    #[test]
    fn random_bytes_in_place_of_a_handshake(seed: u64, bytes in vec(any::<u8>(), 0..400)) {
        play(seed, Stage::Handshake, bytes);
    }

    #[test]
    fn records_of_any_kind_in_place_of_a_handshake(
        seed: u64,
        records in vec((20_u8..25, vec(any::<u8>(), 0..40)), 1..8),
    ) {
        let record = |(kind, body): &(u8, Vec<u8>)| {
            [&[*kind, 3, 3, 0, body.len() as u8][..], body].concat()
        };
        play(seed, Stage::Handshake, records.iter().flat_map(record).collect());
    }

    #[test]
    fn options_and_requests_under_tls(
        seed: u64,
        options in vec(some_option(), 0..6),
        requests in vec(some_request(), 0..6),
    ) {
        let bytes = [options.concat(), option(1, b"disk"), requests.concat()].concat();
        play(seed, Stage::Encrypted, bytes);
    }

    #[test]
    fn random_bytes_from_the_first_on(seed: u64, bytes in vec(any::<u8>(), 0..400)) {
        play(seed, Stage::Connected, bytes);
    }

    #[test]
    fn random_bytes_after_the_flags(
        seed: u64,
        flags in 0_u8..8,
        mut bytes in vec(any::<u8>(), 4..400),
    ) {
        bytes[..4].copy_from_slice(&[0, 0, 0, flags]);
        play(seed, Stage::Connected, bytes);
    }

    #[test]
    fn options_in_any_order(seed: u64, options in vec(some_option(), 0..12), cut in 0..100_usize) {
        let mut bytes = [vec![0, 0, 0, 3], options.concat()].concat();
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(50)));
        play(seed, Stage::Connected, bytes);
    }

    #[test]
    fn random_bytes_in_transmission(
        seed: u64,
        stage in in_transmission(),
        bytes in vec(any::<u8>(), 0..400),
    ) {
        play(seed, stage, bytes);
    }

    #[test]
    fn requests_in_any_order(
        seed: u64,
        stage in in_transmission(),
        requests in vec(some_request(), 0..60),
        cut in 0..100_usize,
    ) {
        let mut bytes = requests.concat();
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(50)));
        play(seed, stage, bytes);
    }
}
