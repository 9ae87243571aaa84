//! Every structure of the format with its way through decoder and encoder, for tests that change
//! bytes and for the fuzzers.

use std::fmt;

use forebay_engine::format::*;
use forebay_engine::ids::*;

use crate::samples;

/// A structure, a later version of it at the same place, and its way through decoder and encoder.
pub struct Case {
    pub name: &'static str,
    pub older: Vec<u8>,
    pub newer: Vec<u8>,
    pub reencode: fn(&[u8]) -> Result<Vec<u8>, FormatError>,
}

/// Its name alone: the bytes of a root or a superblock would bury the message of a failure.
impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

fn superblocks() -> Case {
    let newer = Superblock { generation: 43, epoch: 4, own_roots: true, ..samples::superblock() };
    Case {
        name: "superblock",
        older: samples::superblock().encode(),
        newer: newer.encode(),
        reencode: |bytes| Superblock::decode(bytes).map(|superblock| superblock.encode()),
    }
}

fn roots() -> Case {
    let mut newer = Root { generation: 13, clean_stop: false, own_roots: true, ..samples::root() };
    newer.images[63].sequence = Sequence(999);
    Case {
        name: "root",
        older: samples::root().encode(),
        newer: newer.encode(),
        reencode: |bytes| Root::decode(bytes).map(|root| root.encode()),
    }
}

fn segment_headers() -> Case {
    let incarnation = Incarnation { start: 8, counter: 1300 };
    let newer = SegmentHeader { incarnation, ..samples::segment_header() };
    Case {
        name: "segment header",
        older: samples::segment_header().encode(),
        newer: newer.encode(),
        reencode: |bytes| SegmentHeader::decode(bytes).map(|header| header.encode()),
    }
}

/// Headers of several blocks, so that a head and the rest can be of different versions.
pub fn record_headers() -> Case {
    let mut entries = samples::entries();
    entries.extend([samples::entry(EntryKind::Tombstone, 9, 9, NO_DATA); 150]);
    let older = samples::record(&entries, 20);
    entries[140].block = 10;
    Case {
        name: "record header",
        older,
        newer: samples::record(&entries, 20),
        reencode: |bytes| {
            let (header, entries, checksums) = decode_record(bytes)?;
            let mut out = vec![0; header.header_bytes()];
            encode_record_header(&header, &entries, &checksums, &mut out);
            Ok(out)
        },
    }
}

fn footers() -> Case {
    let mut records = samples::footer_records();
    records[1].entries = vec![samples::entry(EntryKind::Tombstone, 9, 9, NO_DATA); 98];
    let older = samples::encode(&records);
    records[1].sequence = Sequence(951);
    Case {
        name: "footer",
        older,
        newer: samples::encode(&records),
        reencode: |bytes| {
            let (trailer, records) = samples::decode_footer(bytes)?;
            Ok(encode_footer(&trailer, &records))
        },
    }
}

fn image_chunks() -> Case {
    let older: Vec<_> = (0..200).flat_map(|_| samples::regions()).collect();
    let mut newer = older.clone();
    newer[399].heat = 1;
    Case {
        name: "image chunk",
        older: samples::image_chunk(&older),
        newer: samples::image_chunk(&newer),
        reencode: |bytes| {
            let chunk = ImageChunk::decode(bytes)?;
            let regions: Vec<ImageRegion> = chunk.regions().collect::<Result<_, _>>()?;
            let mut writer =
                ImageChunkWriter::new(chunk.shard, chunk.chunk, chunk.opened, bytes.len());
            assert!(regions.iter().all(|region| writer.push(region)));
            Ok(writer.finish())
        },
    }
}

fn witnesses() -> Case {
    let newer = Witness { generation: 43, epoch: 4, ..samples::witness() };
    Case {
        name: "witness",
        older: samples::witness().encode(),
        newer: newer.encode(),
        reencode: |bytes| Witness::decode(bytes).map(|witness| witness.encode()),
    }
}

fn spares() -> Case {
    let newer = Spare { device: samples::device(8), name: "other".into(), ..samples::spare() };
    Case {
        name: "spare",
        older: samples::spare().encode(),
        newer: newer.encode(),
        reencode: |bytes| Spare::decode(bytes).map(|spare| spare.encode()),
    }
}

fn claims() -> Case {
    let newer = Claim { beat: 346, released: true, ..samples::claim() };
    Case {
        name: "claim",
        older: samples::claim().encode(),
        newer: newer.encode(),
        reencode: |bytes| Claim::decode(bytes).map(|claim| claim.encode()),
    }
}

fn event_pages() -> Case {
    let mut newer = EventPage { written: 4, ..samples::event_page() };
    newer.events.push(EventRecord { unix_s: 1_800_000_001, ..newer.events[0].clone() });
    Case {
        name: "event_page",
        older: samples::event_page().encode(),
        newer: newer.encode(),
        reencode: |bytes| EventPage::decode(bytes).map(|page| page.encode()),
    }
}

pub fn cases() -> [fn() -> Case; 10] {
    [
        superblocks,
        roots,
        segment_headers,
        record_headers,
        footers,
        image_chunks,
        spares,
        claims,
        event_pages,
        witnesses,
    ]
}

/// Puts right checksums into changed bytes, as a writer with a bug would.
pub fn reseal(name: &str, bytes: &mut [u8]) {
    let start = if name == "footer" { bytes.len() - 4096 } else { 0 };
    let (body, block) = bytes.split_at_mut(start);
    block[16..20].fill(0);
    if name == "footer" {
        block[20..24].copy_from_slice(&checksum(body).to_le_bytes());
    }
    if name == "record header" {
        block[20..24].fill(0);
        let sum = checksum(&block[..80]);
        block[20..24].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum(block);
    block[16..20].copy_from_slice(&sum.to_le_bytes());
}
