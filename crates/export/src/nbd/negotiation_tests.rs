use forebay_device::{Buf, Data};

use super::*;
use crate::{ExportError, Extent, Zeroing};

/// An export of 1 MiB that does nothing, with a name and a description.
pub(crate) struct Disk(pub(crate) &'static str, pub(crate) &'static str);

impl Export for Disk {
    fn name(&self) -> &str {
        self.0
    }
    fn description(&self) -> &str {
        self.1
    }
    fn size_bytes(&self) -> u64 {
        1 << 20
    }
    fn read_only(&self) -> bool {
        false
    }
    async fn read(&self, _: u64, buf: Buf) -> (Buf, Result<(), ExportError>) {
        (buf, Ok(()))
    }
    async fn write(&self, _: u64, _: Data, _: bool) -> Result<(), ExportError> {
        Ok(())
    }
    async fn flush(&self) -> Result<(), ExportError> {
        Ok(())
    }
    async fn trim(&self, _: u64, _: u64, _: bool) -> Result<(), ExportError> {
        Ok(())
    }
    async fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Result<(), ExportError> {
        Ok(())
    }
    async fn status(&self, _: u64, _: u64) -> Result<Vec<Extent>, ExportError> {
        Ok(Vec::new())
    }
    async fn prefetch(&self, _: u64, _: u64) -> Result<(), ExportError> {
        Ok(())
    }
}

/// What is announced for a [`Disk`]: 1 MiB, with and without structured replies.
const SIZE: [u8; 8] = [0, 0, 0, 0, 0, 0x10, 0, 0];
const FLAGS_SIMPLE: [u8; 2] = [0b1101, 0b0110_1101];
const FLAGS_STRUCTURED: [u8; 2] = [0b1101, 0b1110_1101];

fn exports(disks: &[(&'static str, &'static str)]) -> Exports<Disk> {
    let exports = Exports::default();
    for (name, description) in disks {
        exports.add(Rc::new(Disk(name, description))).unwrap();
    }
    exports
}

/// The replies to an option as (kind, body), and whether negotiation goes on.
fn replies(out: &[u8], number: u32) -> Vec<(u32, Vec<u8>)> {
    let mut fields = Fields(out);
    let mut list = Vec::new();
    while !fields.0.is_empty() {
        assert_eq!(fields.u64(), Some(0x0003_e889_0455_65a9));
        assert_eq!(fields.u32(), Some(number));
        let kind = fields.u32().unwrap();
        let len = fields.u32().unwrap() as usize;
        list.push((kind, fields.bytes(len).unwrap().to_vec()));
    }
    list
}

fn ask<'a>(
    negotiation: &mut Negotiation<'a, Disk>,
    number: u32,
    payload: &[u8],
) -> (Vec<(u32, Vec<u8>)>, Step<'a, Disk>) {
    let mut out = Vec::new();
    let step = negotiation.option(number, Some(payload), &mut out);
    (replies(&out, number), step)
}

fn info_payload(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut payload = u32_len(name).to_be_bytes().to_vec();
    payload.extend(name.as_bytes());
    payload.extend((kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| payload.extend(kind.to_be_bytes()));
    payload
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_padding() {
    assert_eq!(greeting(), *b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let exports = exports(&[("disk", "")]);
    for flags in [0, 1, 2, 3] {
        assert!(Negotiation::new(&exports, None, flags).is_some());
    }
    for flags in [4, 7, 1 << 31, 1 << 16] {
        assert!(Negotiation::new(&exports, None, flags).is_none());
    }
}

#[test]
fn export_name_is_answered_with_padding_unless_declined() {
    let exports = exports(&[("disk", ""), ("other", "")]);
    for (flags, padding) in [(0, 124), (1, 124), (3, 0)] {
        let mut negotiation = Negotiation::new(&exports, None, flags).unwrap();
        let mut out = Vec::new();
        let step = negotiation.option(1, Some(b"disk"), &mut out);
        assert!(matches!(step, Step::Transmit(seat, _) if seat.export().name() == "disk"));
        assert_eq!(out[..8], SIZE);
        assert_eq!(out[8..10], FLAGS_SIMPLE);
        assert_eq!(out[10..], vec![0; padding]);
    }
}

#[test]
fn a_wrong_export_name_ends_the_connection_silently() {
    let exports = exports(&[("disk", ""), ("other", "")]);
    for payload in [Some(&b"nothing"[..]), Some(b""), Some(b"\xff"), None] {
        let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
        let mut out = Vec::new();
        assert!(matches!(
            negotiation.option(1, payload, &mut out),
            Step::End(Some(Fault::UnknownExport))
        ));
        assert!(out.is_empty());
    }
}

#[test]
fn the_empty_name_means_the_only_export() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    let step = negotiation.option(1, Some(b""), &mut Vec::new());
    assert!(matches!(step, Step::Transmit(..)));
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_an_export() {
    let exports = exports(&[("disk", "")]);
    for number in [2, 3, 5, 7, 99] {
        let mut negotiation = Negotiation::new(&exports, None, 2).unwrap();
        let mut out = Vec::new();
        assert!(matches!(negotiation.option(number, Some(b""), &mut out), Step::End(Some(_))));
        assert!(out.is_empty());
    }
}

#[test]
fn abort_is_acknowledged() {
    let exports = exports(&[("disk", "")]);
    for payload in [Some(&b""[..]), Some(b"why"), None] {
        let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
        let mut out = Vec::new();
        assert!(matches!(negotiation.option(2, payload, &mut out), Step::End(None)));
        assert_eq!(replies(&out, 2), [(1, vec![])]);
    }
}

#[test]
fn list_names_and_describes_all_exports() {
    let exports = exports(&[("a", "first"), ("bc", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    let (list, step) = ask(&mut negotiation, 3, b"");
    assert!(matches!(step, Step::Next));
    assert_eq!(
        list,
        [(2, b"\0\0\0\x01afirst".to_vec()), (2, b"\0\0\0\x02bc".to_vec()), (1, vec![])]
    );
}

#[test]
fn options_without_data_refuse_data() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    for number in [3, 8, 11] {
        let (list, step) = ask(&mut negotiation, number, b"x");
        assert!(matches!(step, Step::Next));
        assert_eq!((list.len(), list[0].0), (1, 0x8000_0003));
    }
    assert_eq!(negotiation.form, Form::Simple);
}

#[test]
fn structured_replies_change_the_announced_flags() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    assert_eq!(ask(&mut negotiation, 8, b"").0, [(1, vec![])]);
    assert_eq!(ask(&mut negotiation, 8, b"").0, [(1, vec![])], "again does no harm");
    let (list, step) = ask(&mut negotiation, 7, &info_payload("disk", &[]));
    assert_eq!(list[0], (3, [&[0, 0][..], &SIZE, &FLAGS_STRUCTURED].concat()));
    assert!(matches!(step, Step::Transmit(_, session) if session.form == Form::Structured));
}

#[test]
fn info_and_go_tell_what_was_asked_for() {
    let exports = exports(&[("disk", "spare parts"), ("plain", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    let export = (3, [&[0, 0][..], &SIZE, &FLAGS_SIMPLE].concat());
    let sizes = (3, vec![0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    let ack = (1, vec![]);
    let (list, step) = ask(&mut negotiation, 6, &info_payload("disk", &[3, 1, 2, 77]));
    assert!(matches!(step, Step::Next));
    let name = (3, b"\0\x01disk".to_vec());
    let description = (3, b"\0\x02spare parts".to_vec());
    assert_eq!(list, [export.clone(), sizes.clone(), name, description, ack.clone()]);
    let (list, step) = ask(&mut negotiation, 7, &info_payload("plain", &[2]));
    assert!(matches!(step, Step::Transmit(seat, _) if seat.export().name() == "plain"));
    assert_eq!(list, [export, sizes, ack]);
}

#[test]
fn an_unknown_name_is_an_error_that_the_client_may_recover_from() {
    let exports = exports(&[("disk", ""), ("other", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    for number in [6, 7] {
        let (list, step) = ask(&mut negotiation, number, &info_payload("none", &[]));
        assert!(matches!(step, Step::Next));
        assert_eq!((list.len(), list[0].0), (1, 0x8000_0006));
    }
}

#[test]
fn malformed_info_is_refused() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    let good = info_payload("disk", &[3]);
    let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    cases.push([&good[..], &[0]].concat());
    cases.push([&[0xff; 4][..], &good[4..]].concat());
    cases.push(
        info_payload("disk", &[]).into_iter().map(|b| if b == b'd' { 0xff } else { b }).collect(),
    );
    for payload in cases {
        let (list, step) = ask(&mut negotiation, 7, &payload);
        assert!(matches!(step, Step::Next));
        assert_eq!((list.len(), list[0].0), (1, 0x8000_0003), "{payload:?}");
    }
}

#[test]
fn other_options_are_unsupported_whatever_their_data() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    for number in [0, 4, 5, 12, u32::MAX] {
        for payload in [Some(&b""[..]), Some(b"data"), None] {
            let mut out = Vec::new();
            assert!(matches!(negotiation.option(number, payload, &mut out), Step::Next));
            let list = replies(&out, number);
            assert_eq!((list.len(), list[0].0), (1, 0x8000_0001));
        }
    }
}

#[test]
fn too_long_data_of_known_options_is_refused_as_such() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    for number in [3, 6, 7, 8, 9, 10, 11] {
        let mut out = Vec::new();
        assert!(matches!(negotiation.option(number, None, &mut out), Step::Next));
        assert_eq!(replies(&out, number)[0].0, 0x8000_0009);
    }
}

fn contexts_payload(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut payload = u32_len(name).to_be_bytes().to_vec();
    payload.extend(name.as_bytes());
    payload.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        payload.extend(u32_len(query).to_be_bytes());
        payload.extend(query.as_bytes());
    }
    payload
}

const ACK: (u32, Vec<u8>) = (1, Vec::new());

/// The session that a client gets which asks for `export` now.
fn go(negotiation: &mut Negotiation<'_, Disk>, export: &str) -> Session {
    match ask(negotiation, 7, &info_payload(export, &[])).1 {
        Step::Transmit(_, session) => session,
        _ => panic!("the export is there"),
    }
}

#[test]
fn contexts_are_listed_all_or_by_namespace_or_name() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    ask(&mut negotiation, 8, b"");
    let allocation = (4, b"\0\0\0\0base:allocation".to_vec());
    let tier = (4, b"\0\0\0\0forebay:tier".to_vec());
    let table: [(&[&str], Vec<_>); 6] = [
        (&[], vec![allocation.clone(), tier.clone(), ACK]),
        (&["base:"], vec![allocation.clone(), ACK]),
        (&["forebay:tier"], vec![tier.clone(), ACK]),
        (&["forebay:", "base:", "base:allocation"], vec![allocation, tier, ACK]),
        (&["qemu:dirty-bitmap:b"], vec![ACK]),
        (&[""], vec![ACK]),
    ];
    for (queries, expected) in table {
        let (list, step) = ask(&mut negotiation, 9, &contexts_payload("disk", queries));
        assert!(matches!(step, Step::Next));
        assert_eq!(list, expected, "{queries:?}");
    }
    assert!(go(&mut negotiation, "disk").contexts.is_empty(), "listing chooses nothing");
}

#[test]
fn contexts_are_chosen_by_name_and_the_last_choice_counts() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    ask(&mut negotiation, 8, b"");
    let all = contexts_payload("disk", &["base:allocation", "forebay:tier", "base:allocation"]);
    let (list, _) = ask(&mut negotiation, 10, &all);
    let allocation = (4, b"\0\0\0\x01base:allocation".to_vec());
    let tier = (4, b"\0\0\0\x02forebay:tier".to_vec());
    assert_eq!(list, [allocation.clone(), tier, ACK]);
    assert_eq!(go(&mut negotiation, "disk").contexts, Contexts::all());
    let one = contexts_payload("", &["base:", "base:allocation"]);
    assert_eq!(ask(&mut negotiation, 10, &one).0, [allocation, ACK], "the only export");
    assert_eq!(go(&mut negotiation, "disk").contexts, Contexts::named(b"base:allocation", false));
    ask(&mut negotiation, 10, &contexts_payload("disk", &[]));
    assert!(go(&mut negotiation, "disk").contexts.is_empty());
}

#[test]
fn contexts_of_another_export_or_of_a_failed_choice_do_not_count() {
    let exports = exports(&[("disk", ""), ("other", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    ask(&mut negotiation, 11, b"");
    let good = contexts_payload("disk", &["base:allocation"]);
    ask(&mut negotiation, 10, &good);
    assert!(go(&mut negotiation, "other").contexts.is_empty());
    assert!(!go(&mut negotiation, "disk").contexts.is_empty());
    let mut bad = vec![
        (contexts_payload("none", &["base:allocation"]), 0x8000_0006),
        ([&good[..], &[0]].concat(), 0x8000_0003),
        ([&[0xff; 4][..], &good[4..]].concat(), 0x8000_0003),
    ];
    bad.extend((0..good.len()).map(|len| (good[..len].to_vec(), 0x8000_0003)));
    for (payload, error) in bad {
        ask(&mut negotiation, 10, &good);
        let (list, _) = ask(&mut negotiation, 10, &payload);
        assert_eq!((list.len(), list[0].0), (1, error), "{payload:?}");
        assert!(go(&mut negotiation, "disk").contexts.is_empty());
    }
}

#[test]
fn contexts_need_structured_replies() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    for number in [9, 10] {
        let (list, step) = ask(&mut negotiation, number, &contexts_payload("disk", &[]));
        assert!(matches!(step, Step::Next));
        assert_eq!((list.len(), list[0].0), (1, 0x8000_0003));
    }
}

#[test]
fn extended_headers_include_structured_replies_and_need_go() {
    let exports = exports(&[("disk", "")]);
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    for _ in 0..2 {
        assert_eq!(ask(&mut negotiation, 11, b"").0, [ACK]);
    }
    assert_eq!(ask(&mut negotiation, 8, b"").0[0].0, 0x8000_000a, "there is no way back");
    let session = go(&mut negotiation, "disk");
    assert_eq!(session.form, Form::Extended);
    assert_eq!(session.flags().to_be_bytes(), FLAGS_STRUCTURED);
    let mut out = Vec::new();
    assert!(
        matches!(negotiation.option(1, Some(b"disk"), &mut out), Step::End(_)) && out.is_empty()
    );
}

#[test]
fn an_export_has_a_limit_of_clients_and_another_one_has_its_own() {
    let exports = exports(&[("disk", ""), ("other", "")]);
    let open = |name| {
        let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
        match ask(&mut negotiation, 7, &info_payload(name, &[])) {
            (_, Step::Transmit(seat, _)) => Ok(seat),
            (list, _) => Err(list[0].0),
        }
    };
    let mut seats: Vec<_> = (0..crate::nbd::limits::EXPORT_CONNECTIONS_MAX)
        .map(|_| open("disk").expect("there is room"))
        .collect();
    assert_eq!(open("disk").err(), Some(0x8000_0002));
    let mut negotiation = Negotiation::new(&exports, None, 3).unwrap();
    let step = negotiation.option(1, Some(b"disk"), &mut Vec::new());
    assert!(matches!(step, Step::End(Some(Fault::ExportBusy))));
    let (list, _) = ask(&mut negotiation, 6, &info_payload("disk", &[]));
    assert_eq!(list[0].0, 3, "it may be asked about");
    assert!(open("other").is_ok());
    seats.pop();
    assert!(open("disk").is_ok(), "a place is free again");
}
