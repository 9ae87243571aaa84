//! The same as JSON: the fields have the names of the format's specification, what cannot be shown has
//! `damaged` with the reason, or `later` if it is whole and of a later version.

use forebay_engine::format::{
    Entry, FooterTrailer, MemberRecord, Root, SegmentHeader, SlotChoice, Superblock, VolumeRecord,
};
use forebay_engine::ids::BLOCK_BYTES;
use serde_json::{Value, json};

use super::member::{Damage, Member, root_features, superblock_features};
use super::segments::{self, Ends, Found, Piece, Record, life};

fn or_damage<T>(found: &Result<T, Damage>, show: impl FnOnce(&T) -> Value) -> Value {
    match found {
        Ok(found) => show(found),
        Err(damage) if damage.is_later() => json!({ "later": damage.to_string() }),
        Err(damage) => json!({ "damaged": damage.to_string() }),
    }
}

/// A cache device.
pub(super) fn device(member: &Member) -> Value {
    let mut segments = Vec::new();
    let listed = segments::each(member, &mut |found| {
        segments.push(match found {
            Found::Blank(from, end) => json!({ "from": from, "end": end, "blank": true }),
            Found::Unreadable(from, end, reason) => {
                json!({ "from": from, "end": end, "damaged": reason })
            }
            Found::Used(segment, ends) => with_ends(json!({ "segment": segment.0 }), &ends),
        });
        Ok(())
    });
    debug_assert!(listed.is_ok(), "nothing is written");
    let counts = match member.choice() {
        SlotChoice::Slot0 => json!(0),
        SlotChoice::Slot1 => json!(1),
        SlotChoice::Conflict | SlotChoice::Neither | SlotChoice::Refused(_) => Value::Null,
    };
    json!({
        "path": member.path().to_string(),
        "superblocks": member.slots().iter().map(|s| or_damage(s, superblock)).collect::<Vec<_>>(),
        "superblock_slot": counts,
        "spare": member.spare().map(|spare| json!({
            "pool": spare.pool.to_string(),
            "device": spare.device.to_string(),
            "name": spare.name,
        })),
        "claims": member.claims().iter().map(|claim| json!({
            "host": claim.host.name,
            "number": claim.number,
            "beat": claim.beat,
            "beat_unix_s": claim.beat_unix_s,
            "lease_ms": claim.lease_ms,
            "released": claim.released,
        })).collect::<Vec<_>>(),
        "roots": member.roots().iter().map(|r| or_damage(r, root)).collect::<Vec<_>>(),
        "segments": segments,
    })
}

fn superblock(s: &Superblock) -> Value {
    json!({
        "generation": s.generation,
        "pool": s.pool.to_string(),
        "name": s.name,
        "device": s.device.to_string(),
        "created_unix_s": s.created_unix_s,
        "epoch": s.epoch,
        "whole_since": s.whole_since,
        "marking_root": s.marking_root,
        "start_number": s.start_number,
        "features": superblock_features(s),
        "segment_bytes": s.segment_bytes,
        "segments_offset": s.segments_offset,
        "root_bytes": s.root_bytes,
        "shard_count": s.shard_count,
        "dirty_copies": s.dirty_copies,
        "clean_copies": s.clean_copies,
        "accept_single_copy": s.accept_single_copy,
        "write_amplification_max_percent": s.write_amplification_max_percent,
        "sector_bytes": s.sector_bytes,
        "index_memory_max": s.index_memory_max,
        "ram_bytes": s.ram_bytes,
        "scrub_rate_bytes_per_s": s.scrub_rate_bytes_per_s,
        "write_budget_bytes_per_day": s.write_budget_bytes_per_day,
        "scrub_begun_unix_s": s.scrub_begun_unix_s,
        "scrub_next": s.scrub_next,
        "verify_reads": s.verify_reads,
        "device_deadline_ms": s.device_deadline_ms,
        "next_volume": s.next_volume,
        "members": s.members.iter().map(member_record).collect::<Vec<_>>(),
        "volumes": s.volumes.iter().map(volume).collect::<Vec<_>>(),
    })
}

fn member_record(m: &MemberRecord) -> Value {
    let mut ranges = m.segments.ranges();
    let first = ranges.next();
    json!({
        "device": m.device.to_string(),
        "state": format!("{:?}", m.state),
        "segment_base": first.map(|range| range.base),
        "segment_count": first.map(|range| range.count),
        "more_segments": ranges.map(|range| [range.base, range.count]).collect::<Vec<_>>(),
        "joined_epoch": m.joined_epoch,
        "replaced": m.replaced,
    })
}

fn volume(v: &VolumeRecord) -> Value {
    json!({
        "id": v.id.0,
        "name": v.name,
        "mode": format!("{:?}", v.mode),
        "size_bytes": v.size_bytes,
        "cache_block_bytes": v.cache_block_bytes,
        "populate": format!("{:?}", v.settings.populate),
        "origin": v.origin,
        "may_be_dirty": v.may_be_dirty,
        "accept_single_copy": v.accept_single_copy,
        "has_fingerprint": v.fingerprint.is_some(),
    })
}

fn root(r: &Root) -> Value {
    json!({
        "pool": r.pool.to_string(),
        "generation": r.generation,
        "epoch": r.epoch,
        "start_number": r.start_number,
        "sequence": r.sequence.0,
        "open_counter": r.open_counter,
        "clean_stop": r.clean_stop,
        "features": root_features(r),
        "images": r.images.len(),
        "images_empty": r.images.iter().filter(|image| image.is_empty()).count(),
    })
}

fn header(h: &SegmentHeader) -> Value {
    json!({
        "pool": h.pool.to_string(),
        "segment": h.segment.0,
        "stream": format!("{:?}", h.stream),
        "set": h.set.0,
        "incarnation": life(h.incarnation),
        "epoch": h.epoch,
        "partners": h.partners.iter().map(|partner| partner.0).collect::<Vec<_>>(),
    })
}

fn trailer(t: &FooterTrailer) -> Value {
    json!({
        "set": t.set.0,
        "incarnation": life(t.incarnation),
        "record_count": t.record_count,
        "entry_count": t.entry_count,
        "first_sequence": t.first_sequence.0,
        "last_sequence": t.last_sequence.0,
        "end_offset_blocks": t.end_offset_blocks,
    })
}

fn with_ends(mut value: Value, ends: &Ends) -> Value {
    value["header"] = or_damage(&ends.header, header);
    value["footer"] = or_damage(&ends.trailer, trailer);
    value["closed"] = json!(ends.closed().is_some());
    value
}

/// A segment with its records, if one of the members has it.
pub(super) fn records(members: &[Member], number: u32) -> Value {
    let Some((member, superblock, offset)) = segments::find(members, number) else {
        return Value::Null;
    };
    let bytes = u64::from(superblock.segment_bytes);
    let ends = Ends::read(member, offset, bytes);
    let path = member.path().to_string();
    let segment = json!({ "segment": number, "device": path, "offset_bytes": offset });
    let mut value = with_ends(segment, &ends);
    if let Some(trailer) = ends.closed() {
        let found = segments::footer_records(member, offset + bytes - BLOCK_BYTES, trailer);
        value["footer_body"] = or_damage(&found, |count| json!({ "records": count }));
    }
    let mut pieces = Vec::new();
    let walked = segments::walk(member, offset, ends.end(bytes), &mut |piece| {
        pieces.push(match piece {
            Piece::Hole(from, end) => json!({ "block": from, "end": end, "blank": true }),
            Piece::Damaged(block, damage) => {
                json!({ "block": block, "damaged": damage.to_string() })
            }
            Piece::Record(found) => record(member, &found),
        });
        Ok(())
    });
    debug_assert!(walked.is_ok(), "nothing is written");
    value["records"] = pieces.into();
    value
}

fn record(member: &Member, record: &Record) -> Value {
    let header = &record.header;
    json!({
        "block": record.block,
        "offset_blocks": header.offset_blocks,
        "incarnation": life(header.incarnation),
        "sequence": header.sequence.0,
        "header_blocks": header.header_blocks,
        "data_blocks": header.data_blocks,
        "data_blocks_damaged": record.damaged(member),
        "entries": record.entries.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn entry(e: &Entry) -> Value {
    json!({
        "kind": format!("{:?}", e.kind),
        "state": e.state.map(|state| format!("{state:?}")),
        "volume": e.kind.names_blocks().then_some(e.volume.0),
        "block": e.block,
        "count": e.count,
        "sectors": e.sectors,
        "data": e.has_data().then_some(e.data),
        "from": e.from.map(|from| from.0),
        "drop": e.drop,
        "extra": e.extra,
    })
}
