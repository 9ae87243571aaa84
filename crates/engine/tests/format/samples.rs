//! One example of every structure, fixed for ever: the golden images are made of them.

use forebay_engine::format::*;
use forebay_engine::ids::*;

pub const POOL: PoolId = PoolId(*b"pool-0123456789a");
pub const INCARNATION: Incarnation = Incarnation { start: 7, counter: 1234 };

/// A structure's name, its bytes, and how to read them.
pub struct Sample {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    pub decode: fn(&[u8]) -> Result<(), FormatError>,
}

pub fn device(number: u8) -> DeviceId {
    DeviceId([number; 16])
}

pub fn all() -> Vec<Sample> {
    let sample = |name, bytes, decode| Sample { name, bytes, decode };
    vec![
        sample("superblock", superblock().encode(), |b| Superblock::decode(b).map(drop)),
        sample("root", root().encode(), |b| Root::decode(b).map(drop)),
        sample("segment_header", segment_header().encode(), |b| SegmentHeader::decode(b).map(drop)),
        sample("record_header", record(&entries(), 20), |b| decode_record(b).map(drop)),
        sample("footer", footer(), |b| decode_footer(b).map(drop)),
        sample("image_chunk", image_chunk(&regions()), |b| decode_chunk(b).map(drop)),
        sample("spare", spare().encode(), |b| Spare::decode(b).map(drop)),
        sample("claim", claim().encode(), |b| Claim::decode(b).map(drop)),
        sample("event_page", event_page().encode(), |b| EventPage::decode(b).map(drop)),
        sample("witness", witness().encode(), |b| Witness::decode(b).map(drop)),
    ]
}

/// The witness with what its reserved bytes are for since.
pub fn witness_sizes() -> Sample {
    let mut witness = witness();
    witness.volumes.iter_mut().for_each(|volume| volume.size_bytes = 5 << 30);
    let decode = |bytes: &[u8]| Witness::decode(bytes).map(drop);
    Sample { name: "witness_sizes", bytes: witness.encode(), decode }
}

/// The structures that may use features, with all of them.
pub fn featured() -> Vec<Sample> {
    let superblock = Superblock { own_roots: true, ..superblock() };
    let root = Root { own_roots: true, ..root() };
    let named = Root { let_go: true, ..root.clone() };
    let mut all = regions();
    all[0].extents[0] = all[0].extents[0].let_go();
    let chunk = image_chunk_when(1234, &all);
    let mut grown = superblock.clone();
    for (base, count) in [(3000, 100), (50, 7), (5000, 1)] {
        let segments = &mut grown.members[1].segments;
        *segments = segments.with(NumberRange { base, count }).unwrap();
    }
    let sample = |name, bytes, decode| Sample { name, bytes, decode };
    vec![
        sample("superblock_own_roots", superblock.encode(), |b| Superblock::decode(b).map(drop)),
        sample("superblock_grown", grown.encode(), |b| Superblock::decode(b).map(drop)),
        sample("root_own_roots", root.encode(), |b| Root::decode(b).map(drop)),
        sample("root_let_go", named.encode(), |b| Root::decode(b).map(drop)),
        sample("chunk_let_go", chunk, |b| decode_chunk(b).map(drop)),
    ]
}

pub fn claim() -> Claim {
    Claim {
        pool: POOL,
        claim: [3; 16],
        number: 12,
        beat: 345,
        beat_unix_s: 1_800_000_000,
        lease_ms: 24_000,
        released: false,
        host: Host { id: [4; 16], boot: [5; 16], name: "nas".into() },
    }
}

pub fn event_page() -> EventPage {
    let event = |severity, subject: &str| EventRecord {
        unix_s: 1_800_000_000,
        severity,
        code: "member-failed".into(),
        subject: subject.into(),
        what: "writing to /dev/sdb: I/O error".into(),
    };
    let events = vec![event(2, "/dev/sdb"), event(1, "")];
    EventPage { pool: POOL, number: 40, written: 3, events }
}

pub fn spare() -> Spare {
    Spare { pool: POOL, device: device(9), name: "fast".into() }
}

/// As versions without features wrote it.
pub fn superblock() -> Superblock {
    let layout = Layout::new(600 << 20, 1 << 20, 64).unwrap();
    let member = |number: u8, state| MemberRecord {
        device: device(number),
        segments: Numbers::new(u32::from(number) * 1000, layout.segment_count),
        joined_epoch: 1,
        state,
        replaced: false,
    };
    Superblock {
        pool: POOL,
        device: device(2),
        name: "fast".into(),
        generation: 42,
        created_unix_s: 1_763_596_800,
        epoch: 3,
        start_number: 7,
        segment_bytes: layout.segment_bytes,
        segments_offset: layout.segments_offset,
        root_bytes: layout.root_bytes,
        shard_count: 64,
        index_memory_max: 64 << 20,
        dirty_copies: 2,
        dirty_copies_next: 0,
        scrub_rate_bytes_per_s: 0,
        write_budget_bytes_per_day: 0,
        retired_end: 0,
        scrub_begun_unix_s: 0,
        scrub_next: 0,
        verify_reads: false,
        clean_copies: 1,
        write_amplification_max_percent: 150,
        sector_bytes: 512,
        accept_single_copy: false,
        ram_bytes: 0,
        device_deadline_ms: 0,
        own_roots: false,
        marking_root: 0,
        whole_since: 0,
        next_volume: 6,
        members: vec![member(1, MemberState::Failed), member(2, MemberState::Present)],
        volumes: vec![
            volume(1, Mode::Writeback, true, Some(fingerprint())),
            volume(5, Mode::Readonly, false, None),
        ],
    }
}

fn volume(id: u32, mode: Mode, may_be_dirty: bool, print: Option<Fingerprint>) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(id),
        name: format!("volume {id}"),
        origin: format!("/dev/disk/by-id/wwn-0x500000000000000{id}"),
        size_bytes: (4 << 40) + 512,
        mode,
        may_be_dirty,
        accept_single_copy: !may_be_dirty,
        cache_block_bytes: 64 << 10,
        settings: VolumeSettings::default(),
        fingerprint: print,
    }
}

fn fingerprint() -> Fingerprint {
    Fingerprint {
        size_bytes: (4 << 40) + 512,
        identity: [0xAB; 32],
        taken: 0x8000_0000_0000_0001,
        hashes: std::array::from_fn(|index| if index % 63 == 0 { 0xC0FF_EE00 } else { 0 }),
    }
}

/// As versions without features wrote it.
pub fn root() -> Root {
    let reference = |number: u64| ImageRef {
        location: Location(0x1000 + number),
        sequence: Sequence(500 + number),
        watermark: Sequence(400 + number),
    };
    let mut images: Vec<ImageRef> = (0..64).map(reference).collect();
    images[3] = ImageRef { watermark: Sequence(9), ..ImageRef::default() };
    Root {
        pool: POOL,
        generation: 12,
        epoch: 3,
        start_number: 7,
        sequence: Sequence(1000),
        open_counter: 1240,
        clean_stop: true,
        own_roots: false,
        marks: false,
        let_go: false,
        images,
    }
}

pub fn segment_header() -> SegmentHeader {
    SegmentHeader {
        pool: POOL,
        device: device(2),
        segment: SegmentId(2005),
        set: SegmentId(1003),
        incarnation: INCARNATION,
        stream: Stream::Dirty,
        epoch: 3,
        partners: vec![SegmentId(1003), SegmentId(2005)],
    }
}

pub fn entry(kind: EntryKind, block: u64, count: u32, data: u16) -> Entry {
    Entry {
        kind,
        state: None,
        sectors: SECTORS_ALL,
        drop: false,
        volume: VolumeId(u32::from(kind.names_blocks())),
        block,
        count,
        data,
        from: None,
        extra: 0,
    }
}

/// One entry of every kind; 20 data blocks.
pub fn entries() -> Vec<Entry> {
    use EntryKind::*;
    let from = Some(Location(0x9_1234_5678));
    vec![
        Entry { sectors: 0b0001_1000, ..entry(Write, 1, 1, 0) },
        entry(Populate, 256, 10, 1),
        entry(Provisional, 1 << 32, 2, 11),
        Entry { state: Some(State::Written), from, ..entry(Move, 77, 3, 13) },
        Entry { state: Some(State::Zero), ..entry(Move, 80, 9, NO_DATA) },
        entry(Tombstone, 5, 100_000, NO_DATA),
        entry(Zero, 5, 256, NO_DATA),
        Entry { from, state: Some(State::Written), ..entry(CleanFact, 77, 3, NO_DATA) },
        Entry {
            drop: true,
            from,
            state: Some(State::ZeroWritten),
            ..entry(CleanFact, 77, 1, NO_DATA)
        },
        entry(Lost, 99, 1, NO_DATA),
        Entry { extra: 7, ..entry(Recovery, 0, 0, NO_DATA) },
        Entry { extra: 400, from, ..entry(Image, 63, 4, 16) },
    ]
}

pub fn record_header(entry_count: usize, data_blocks: u16) -> RecordHeader {
    RecordHeader {
        pool: POOL,
        set: SegmentId(1003),
        incarnation: INCARNATION,
        offset_blocks: 1,
        sequence: Sequence(900),
        header_blocks: header_blocks_for(entry_count, data_blocks.into()) as u8,
        data_blocks,
        entry_count: entry_count as u16,
    }
}

pub fn record(entries: &[Entry], data_blocks: u16) -> Vec<u8> {
    let header = record_header(entries.len(), data_blocks);
    let checksums: Vec<u32> = (0..u32::from(data_blocks)).map(|n| 0xDA7A_0000 + n).collect();
    let mut out = vec![0xEE; header.header_bytes()];
    encode_record_header(&header, entries, &checksums, &mut out);
    out
}

pub fn footer_records() -> Vec<FooterRecord> {
    let first = FooterRecord::new(&record_header(entries().len(), 20), entries());
    let second = FooterRecord {
        sequence: Sequence(950),
        offset_blocks: first.end_blocks() + 3,
        header_blocks: 1,
        data_blocks: 1,
        entries: vec![entry(EntryKind::Write, 9, 1, 0)],
    };
    vec![first, second]
}

pub fn encode(records: &[FooterRecord]) -> Vec<u8> {
    let trailer = FooterTrailer::new(POOL, SegmentId(1003), INCARNATION, Stream::Dirty, records);
    encode_footer(&trailer, records)
}

fn footer() -> Vec<u8> {
    encode(&footer_records())
}

/// Reads a whole footer: the trailer from the end, then the body in front of it.
pub fn decode_footer(bytes: &[u8]) -> Result<(FooterTrailer, Vec<FooterRecord>), FormatError> {
    let body_end = bytes.len().checked_sub(4096).ok_or(FormatError::Truncated)?;
    let trailer = decode_footer_trailer(&bytes[body_end..])?;
    let body_start = body_end.checked_sub(trailer.body_blocks() as usize * 4096);
    let body = &bytes[body_start.ok_or(FormatError::Truncated)?..body_end];
    Ok((trailer, decode_footer_body(&trailer, body)?))
}

pub fn regions() -> Vec<ImageRegion> {
    let extent =
        |first, count, state, location| Extent::new(first, count, state, Location(location), 1);
    vec![
        ImageRegion {
            volume: VolumeId(1),
            region: 17,
            heat: 3,
            extents: vec![
                extent(0, 16, State::Clean, 0x1234),
                extent(16, 1, State::Dirty, 0x5678).with_partial(true),
                extent(20, 236, State::Zero, 0),
            ],
            masks: vec![0b1100_0000],
        },
        ImageRegion {
            volume: VolumeId(5),
            region: u32::MAX,
            heat: 0,
            extents: vec![extent(255, 1, State::Lost, 0)],
            masks: vec![],
        },
    ]
}

/// As versions wrote it that did not say how many sets had been opened.
pub fn image_chunk(regions: &[ImageRegion]) -> Vec<u8> {
    image_chunk_when(0, regions)
}

pub fn image_chunk_when(opened: u32, regions: &[ImageRegion]) -> Vec<u8> {
    let mut writer = ImageChunkWriter::new(63, 2, opened, 255 * 4096);
    for region in regions {
        assert!(writer.push(region));
    }
    writer.finish()
}

pub fn decode_chunk(bytes: &[u8]) -> Result<Vec<ImageRegion>, FormatError> {
    ImageChunk::decode(bytes)?.regions().collect()
}

/// As versions wrote it that noted no sizes.
pub fn witness() -> Witness {
    let volumes = superblock().volumes.into_iter().map(|volume| WitnessVolume {
        id: volume.id,
        name: volume.name,
        origin: volume.origin,
        mode: volume.mode,
        may_be_dirty: volume.may_be_dirty,
        size_bytes: 0,
    });
    Witness {
        pool: POOL,
        generation: 42,
        epoch: 3,
        members: vec![device(2), device(3)],
        volumes: volumes.collect(),
    }
}
