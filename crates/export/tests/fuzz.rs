//! Whatever bytes a client sends, the server neither panics nor hangs, and a bystander is
//! served. `fuzz/fuzz_targets/nbd.rs` does the same with a fuzzer's bytes.

mod support;

use proptest::collection::vec;
use proptest::prelude::*;
use support::hostile::{IN_TRANSMISSION, SIZE, Stage, play};
use support::protocol::{contexts, extended, option, request};

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
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

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
