//! Round trips of arbitrary values.

use forebay_engine::Populate;
use forebay_engine::format::*;
use forebay_engine::ids::*;
use forebay_engine::limits::{COUNTER_MAX, RAM_BYTES_MAX};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::samples;

fn mode() -> impl Strategy<Value = Mode> {
    (1..=5_u8).prop_map(|number| Mode::from_number(number).unwrap())
}

fn stream() -> impl Strategy<Value = Stream> {
    (1..=5_u8).prop_map(|number| Stream::from_number(number).unwrap())
}

fn incarnation() -> impl Strategy<Value = Incarnation> {
    any::<(u64, u64)>().prop_map(|(start, counter)| Incarnation { start, counter })
}

fn pool() -> impl Strategy<Value = PoolId> {
    any::<[u8; 16]>().prop_map(PoolId)
}

fn location() -> impl Strategy<Value = Location> {
    (1..1_u64 << LOCATION_BITS).prop_map(Location)
}

fn fingerprint() -> impl Strategy<Value = Fingerprint> {
    (any::<(u64, [u8; 32], u64)>(), vec(any::<u32>(), 64)).prop_map(
        |((size, identity, taken), h)| Fingerprint {
            size_bytes: size,
            identity,
            taken,
            hashes: h.try_into().unwrap(),
        },
    )
}

fn settings() -> impl Strategy<Value = VolumeSettings> {
    let hours = (0..DAY_MINUTES, 1..=DAY_MINUTES).prop_map(|(from, until)| Hours::new(from, until));
    let counts = (prop::option::of(1..=4_u8), prop::option::of(1..=4_u8));
    let custom = counts.prop_map(|(on_read, on_write)| Populate::Custom { on_read, on_write });
    let populate = prop_oneof![
        Just(Populate::Auto),
        Just(Populate::Database),
        Just(Populate::FileSystem),
        Just(Populate::Web),
        custom,
    ];
    let streams = (
        any::<u64>(),
        any::<bool>(),
        prop_oneof![
            Just(SequentialWhen::Auto),
            Just(SequentialWhen::Always),
            Just(SequentialWhen::Full),
        ],
    );
    let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)];
    // A limit below the reservation is refused.
    let space = (any::<u64>(), any::<u64>()).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let all = (any::<u32>(), hours, streams, populate, space, priority);
    all.prop_map(|(dirty_age_max_s, destage_hours, streams, populate, space, priority)| {
        let (reservation_bytes, limit_bytes) = space;
        let (sequential_cutoff_bytes, sequential_writes, sequential_when) = streams;
        VolumeSettings {
            dirty_age_max_s,
            destage_hours,
            sequential_cutoff_bytes,
            sequential_writes,
            sequential_when,
            populate,
            reservation_bytes,
            limit_bytes,
            priority,
        }
    })
}

fn volume() -> impl Strategy<Value = VolumeRecord> {
    let rest = (1..1_u64 << 43, 12..=22_u32, any::<(bool, bool)>());
    let more = (settings(), prop::option::of(fingerprint()));
    let all = ("[a-zä ]{1,20}", "/\\PC{1,100}", mode(), rest, more);
    all.prop_map(|(name, origin, mode, (sectors, power, flags), more)| VolumeRecord {
        id: VolumeId(0),
        name,
        origin,
        size_bytes: sectors * 512,
        mode,
        may_be_dirty: flags.0,
        accept_single_copy: flags.1,
        cache_block_bytes: 1 << power,
        settings: more.0,
        fingerprint: more.1,
    })
}

fn volumes() -> impl Strategy<Value = Vec<VolumeRecord>> {
    vec(volume(), 0..=20).prop_map(|mut all| {
        for (volume, id) in all.iter_mut().zip(1..) {
            volume.id = VolumeId(id);
            volume.name.insert_str(0, &id.to_string());
        }
        all
    })
}

/// The numbers of a member in one to four ranges, the last ones first.
fn split(base: u32, count: u32) -> Numbers {
    let ranges = (count % 5).min(count).max(1);
    let part = count / ranges;
    let first = count - part * (ranges - 1);
    (1..ranges).fold(Numbers::new(base + count - first, first), |numbers, range| {
        let base = base + count - first - range * part;
        let more = NumberRange { base, count: part };
        numbers.with(more).expect("there is room for it")
    })
}

fn member() -> impl Strategy<Value = (u32, u64, u8)> {
    (1..100_000_u32, 0..5_u64, 1..=3_u8)
}

prop_compose! {
    fn superblock()(
        (pool, name) in (pool(), "\\PC{1,15}"),
        numbers in any::<(u64, u64, u64)>(),
        (power, shards) in (16..=25_u32, 64..=65_536_u32),
        (dirty, more, clean, percent) in (1..=3_u8, 0..=2_u8, 1..=2_u8, 100..=400_u16),
        ram_blocks in 0..=RAM_BYTES_MAX / 4096,
        (big, single, own_roots) in any::<(bool, bool, bool)>(),
        members in vec(member(), 1..=8),
        volumes in volumes(),
    ) -> Superblock {
        let layout = Layout::new(1 << 30, 1 << power, shards).unwrap();
        let mut base = 0;
        let members: Vec<_> = members.into_iter().zip(1..).map(|((count, epoch, state), number)| {
            base += count;
            MemberRecord {
                device: samples::device(number),
                segments: split(base - count, count),
                joined_epoch: epoch,
                state: MemberState::from_number(state).unwrap(),
                replaced: state > 1 && count % 2 == 0,
            }
        }).collect();
        Superblock {
            pool,
            name,
            device: members[members.len() / 2].device,
            generation: numbers.0,
            created_unix_s: numbers.1,
            epoch: 5,
            start_number: numbers.2,
            segment_bytes: layout.segment_bytes,
            segments_offset: layout.segments_offset,
            root_bytes: layout.root_bytes,
            shard_count: shards,
            index_memory_max: numbers.0.max(1),
            dirty_copies: dirty,
            dirty_copies_next: if more > 0 && dirty + more <= 3 { dirty + more } else { 0 },
            clean_copies: clean,
            write_amplification_max_percent: percent,
            ram_bytes: ram_blocks * 4096,
            scrub_rate_bytes_per_s: numbers.0 % (1 << 40),
            write_budget_bytes_per_day: numbers.0 % (1 << 60),
            retired_end: (numbers.1 % (1 << 23)) as u32,
            scrub_begun_unix_s: numbers.1,
            scrub_next: (numbers.2 % (1 << 20)) as u32,
            verify_reads: single != big,
            device_deadline_ms: if more > 0 { u32::from(percent) } else { 0 },
            sector_bytes: if big { 4096 } else { 512 },
            accept_single_copy: single,
            own_roots,
            marking_root: numbers.2 % 7,
            whole_since: numbers.2 % 6,
            next_volume: volumes.len() as u32 + 30,
            members,
            volumes,
        }
    }
}

prop_compose! {
    fn root()(
        pool in pool(),
        numbers in any::<(u64, u64, u64, u64, bool, bool)>(),
        sequence in 0..u64::MAX,
        images in vec((location(), any::<(u64, u64)>()), 64..=300),
    ) -> Root {
        let reference = |(location, (a, b)): (Location, (u64, u64))| ImageRef {
            location,
            sequence: Sequence(a.min(sequence)),
            watermark: Sequence(b.min(sequence)),
        };
        Root {
            pool,
            generation: numbers.0,
            epoch: numbers.1,
            start_number: numbers.2,
            sequence: Sequence(sequence),
            open_counter: numbers.3,
            clean_stop: numbers.4,
            own_roots: numbers.5,
            marks: numbers.5 && numbers.4,
            let_go: numbers.5 != numbers.4,
            images: images.into_iter().map(reference).collect(),
        }
    }
}

/// Any entry that the format allows in a record of `data_blocks` (at least 1).
fn entry(data_blocks: u16) -> impl Strategy<Value = Entry> {
    let place = (1..=u32::MAX, 0..VOLUME_BLOCKS_MAX - 300, 1..=255_u32, 0..data_blocks);
    let rest = (1..=7_u8, 1..=0xFF_u8, any::<bool>(), location(), any::<u64>());
    (1..=10_u8, place, rest).prop_map(move |(kind, (volume, block, count, data), rest)| {
        let kind = EntryKind::from_number(kind).unwrap();
        let (state, sectors, drop, from, extra) = rest;
        let with_state = matches!(kind, EntryKind::Move | EntryKind::CleanFact);
        let state = with_state.then(|| State::from_number(state).unwrap());
        let mut entry = samples::entry(kind, block, count, NO_DATA);
        entry.state = state;
        entry.volume.0 *= volume;
        use EntryKind::*;
        let with_data = matches!(kind, Write | Populate | Provisional | Image);
        if with_data || (kind == Move && state.is_some_and(State::has_data)) {
            entry.data = data;
            entry.count = count.min(u32::from(data_blocks - data));
            if entry.count == 1 && matches!(kind, Write | Move) {
                entry.sectors = sectors;
            }
        }
        match kind {
            Move | CleanFact => entry.from = Some(from),
            Image => {
                (entry.block, entry.extra) = (block % 6000, extra);
                entry.from = drop.then_some(from);
            }
            Recovery => (entry.block, entry.count, entry.extra) = (0, 0, extra),
            _ => {}
        }
        entry.drop = drop && kind == CleanFact;
        entry
    })
}

prop_compose! {
    fn record()(data_blocks in 1..=200_u16)(
        head in (pool(), 0..SEGMENTS_MAX, incarnation(), 1..=7000_u32, any::<u64>()),
        entries in vec(entry(data_blocks), 1..=250),
        checksums in vec(any::<u32>(), usize::from(data_blocks)),
    ) -> (RecordHeader, Vec<Entry>, Vec<u32>) {
        let header = RecordHeader {
            pool: head.0,
            set: SegmentId(head.1),
            incarnation: head.2,
            offset_blocks: head.3,
            sequence: Sequence(head.4),
            ..samples::record_header(entries.len(), checksums.len() as u16)
        };
        (header, entries, checksums)
    }
}

prop_compose! {
    fn footer()(
        records in vec((record(), 0..10_u32, 1..1000_u64), 0..=12),
    ) -> Vec<FooterRecord> {
        let (mut offset, mut sequence) = (1, 0);
        records.into_iter().map(|((header, entries, _), hole, step)| {
            let mut record = FooterRecord::new(&header, entries);
            sequence += step;
            record.sequence = Sequence(sequence);
            record.offset_blocks = offset + hole;
            offset = record.end_blocks();
            record
        }).collect()
    }
}

fn region() -> impl Strategy<Value = ImageRegion> {
    let one = (0..20_u32, 1..=16_u32, 0..=7_u8, location(), 1..=254_u8, any::<bool>());
    (1..=u32::MAX, any::<(u32, u32)>(), vec(one, 1..=40)).prop_map(
        |(volume, (region, heat), all)| {
            let mut out =
                ImageRegion { volume: VolumeId(volume), region, heat, ..Default::default() };
            let mut end = 0;
            for (gap, count, state, location, mask, partial) in all {
                let is_let_go = state == 0;
                let state = State::from_number(state.max(1)).unwrap();
                let partial = partial && matches!(state, State::Dirty | State::Written);
                let count = if partial { 1 } else { count };
                if end + gap + count <= 256 {
                    let extent = Extent::new(end + gap, count, state, location, mask);
                    let extent = if is_let_go { extent.let_go() } else { extent };
                    out.extents.push(extent.with_partial(partial));
                    out.masks.extend(partial.then_some(mask));
                    end += gap + count;
                }
            }
            out
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn superblocks_witnesses_spares_and_claims_round_trip(superblock in superblock()) {
        let bytes = superblock.encode();
        prop_assert_eq!(bytes.len(), SUPERBLOCK_BYTES);
        let witness = Witness {
            pool: superblock.pool,
            generation: superblock.generation,
            epoch: superblock.epoch,
            members: superblock.members.iter().map(|member| member.device).collect(),
            volumes: superblock.volumes.iter().map(|volume| WitnessVolume {
                id: volume.id,
                name: volume.name.clone(),
                origin: volume.origin.clone(),
                mode: volume.mode,
                may_be_dirty: volume.may_be_dirty,
                size_bytes: volume.size_bytes,
            }).collect(),
        };
        prop_assert_eq!(Witness::decode(&witness.encode()), Ok(witness));
        let (pool, device, name) = (superblock.pool, superblock.device, superblock.name.clone());
        let spare = Spare { pool, device, name };
        prop_assert_eq!(Spare::decode(&spare.encode()), Ok(spare));
        let host = Host { id: device.0, boot: pool.0, name: superblock.name.clone() };
        let (number, beat, beat_unix_s) =
            (superblock.generation >> 2, superblock.epoch, superblock.created_unix_s);
        let (claim, lease_ms, released) = (pool.0, superblock.sector_bytes, beat.is_multiple_of(2));
        let claim = Claim { pool, claim, number, beat, beat_unix_s, lease_ms, released, host };
        prop_assert_eq!(Claim::decode(&claim.encode()), Ok(claim));
        prop_assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    }

    #[test]
    fn event_pages_round_trip(
        (number, written) in (0..=COUNTER_MAX, 0..=COUNTER_MAX),
        told in vec((any::<u64>(), any::<u8>(), "[a-z-]{1,300}", ".{0,300}", ".{0,1500}"), 0..40),
    ) {
        let mut page = EventPage { pool: samples::POOL, number, written, events: Vec::new() };
        for (unix_s, severity, code, subject, what) in told {
            let event = EventRecord { unix_s, severity, code, subject, what }.cut();
            prop_assert_eq!(event.clone().cut(), event.clone());
            if page.has_room(&event) {
                page.events.push(event);
            }
        }
        prop_assert_eq!(EventPage::decode(&page.encode()), Ok(page));
    }

    #[test]
    fn roots_round_trip(root in root()) {
        prop_assert_eq!(Root::decode(&root.encode()), Ok(root));
    }

    #[test]
    fn segment_headers_round_trip(
        ids in (pool(), any::<[u8; 16]>(), incarnation(), stream(), any::<u64>()),
        (base, own, count) in (0..SEGMENTS_MAX - 8, 0..8_u32, 1..=8_u32),
    ) {
        let header = SegmentHeader {
            pool: ids.0,
            device: DeviceId(ids.1),
            segment: SegmentId(base + own % count),
            set: SegmentId(base),
            incarnation: ids.2,
            stream: ids.3,
            epoch: ids.4,
            partners: (base..base + count).map(SegmentId).collect(),
        };
        prop_assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn records_round_trip((header, entries, checksums) in record()) {
        let mut bytes = vec![0xEE; header.header_bytes()];
        encode_record_header(&header, &entries, &checksums, &mut bytes);
        prop_assert_eq!(RecordHeader::peek(&bytes[..4096]), Ok(header));
        bytes.extend([0xDD; 4096]);
        prop_assert_eq!(decode_record(&bytes), Ok((header, entries, checksums)));
    }

    #[test]
    fn footers_round_trip(records in footer()) {
        let bytes = samples::encode(&records);
        let (trailer, decoded) = samples::decode_footer(&bytes).unwrap();
        prop_assert_eq!(bytes.len() as u32, (trailer.body_blocks() + 1) * 4096);
        prop_assert_eq!(decoded, records);
    }

    #[test]
    fn image_chunks_round_trip(opened in any::<u32>(), regions in vec(region(), 0..=50)) {
        let regions: Vec<_> = regions.into_iter().filter(|r| !r.extents.is_empty()).collect();
        let chunk = samples::image_chunk_when(opened, &regions);
        prop_assert_eq!(ImageChunk::decode(&chunk).map(|chunk| chunk.opened), Ok(opened));
        prop_assert_eq!(samples::decode_chunk(&chunk), Ok(regions));
    }
}
