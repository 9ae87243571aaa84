//! The images of all shards that the newest root names.

use std::collections::BTreeMap;
use std::io::{self, Write};

use forebay_engine::format::{EntryKind, ImageChunk, ImageRef, ImageRegion, Root, SegmentHeader};
use forebay_engine::ids::{BLOCK_BYTES, Location, SegmentId};
use forebay_engine::limits::IMAGE_CHAIN_MAX;

use serde_json::{Value, json};

use super::member::{Damage, Member};
use super::segments::read_record;

const BLOCK: usize = BLOCK_BYTES as usize;

/// What one image, or all, hold.
#[derive(Default)]
struct Sums {
    records: u64,
    regions: u64,
    extents: u64,
    /// Blocks by the name of their state.
    blocks: BTreeMap<String, u64>,
}

impl Sums {
    fn add(&mut self, region: &ImageRegion) {
        self.regions += 1;
        self.extents += region.extents.len() as u64;
        for extent in &region.extents {
            let state = extent.state().map_or("LetGo".to_owned(), |state| format!("{state:?}"));
            *self.blocks.entry(state).or_default() += u64::from(extent.count());
        }
    }

    fn add_all(&mut self, other: &Sums) {
        self.records += other.records;
        self.regions += other.regions;
        self.extents += other.extents;
        for (state, count) in &other.blocks {
            *self.blocks.entry(state.clone()).or_default() += count;
        }
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (records, regions, extents) = (self.records, self.regions, self.extents);
        write!(f, "{records} records, {regions} regions, {extents} extents; blocks:")?;
        if self.blocks.is_empty() {
            return f.write_str(" none");
        }
        self.blocks.iter().try_for_each(|(state, count)| write!(f, " {count} {state}"))
    }
}

/// Which copies of a set can be read: the device and where the segment starts.
type Places<'a> = BTreeMap<SegmentId, Vec<(&'a Member, u64)>>;

fn places(members: &[Member]) -> Places<'_> {
    let mut places = Places::new();
    for member in members {
        let Some(record) = member.record() else { continue };
        for segment in record.segments.iter() {
            let Some(offset) = member.segment_offset(segment) else { continue };
            let header = member.read(offset, BLOCK).ok();
            let header = header.and_then(|bytes| SegmentHeader::decode(&bytes).ok());
            if let Some(header) = header {
                places.entry(header.set).or_default().push((member, offset));
            }
        }
    }
    places
}

/// The newest root of all members, and where it was found.
fn newest(members: &[Member]) -> Option<(&Member, Root)> {
    let roots = members.iter().flat_map(|member| {
        let roots = member.roots().into_iter().filter_map(std::result::Result::ok);
        roots.map(move |root| (member, root))
    });
    roots.max_by_key(|(_, root)| root.generation)
}

/// Prints a line for every shard and the sum of all.
pub(super) fn print(members: &[Member], out: &mut dyn Write) -> io::Result<()> {
    let Some((member, root)) = newest(members) else {
        return writeln!(out, "no root can be read");
    };
    let empty = root.images.iter().filter(|image| image.is_empty()).count();
    writeln!(
        out,
        "root generation {} of {}: {} images, {empty} of them empty",
        root.generation,
        member.path(),
        root.images.len()
    )?;
    let places = places(members);
    let mut total = Sums::default();
    let mut damaged = 0;
    for (shard, image) in root.images.iter().enumerate().filter(|(_, image)| !image.is_empty()) {
        let (sums, damage) = follow(member, &places, shard as u64, image);
        total.add_all(&sums);
        let place = format!("location {}, sequence {}", image.location.0, image.sequence.0);
        write!(out, "shard {shard}: {place}, watermark {}: {sums}", image.watermark.0)?;
        match damage {
            None => writeln!(out)?,
            Some(damage) => {
                damaged += 1;
                writeln!(out, "; damaged: {damage}")?;
            }
        }
    }
    writeln!(out, "all shards: {total}; {damaged} images damaged")
}

/// The same for `--json`.
pub(super) fn value(members: &[Member]) -> Value {
    let Some((member, root)) = newest(members) else { return Value::Null };
    let places = places(members);
    let images = root.images.iter().enumerate().filter(|(_, image)| !image.is_empty());
    let shards: Vec<Value> = images
        .map(|(shard, image)| {
            let (sums, damage) = follow(member, &places, shard as u64, image);
            json!({
                "shard": shard,
                "location": image.location.0,
                "sequence": image.sequence.0,
                "watermark": image.watermark.0,
                "records": sums.records,
                "regions": sums.regions,
                "extents": sums.extents,
                "blocks": sums.blocks,
                "damaged": damage,
            })
        })
        .collect();
    let (device, images) = (member.path().to_string(), root.images.len());
    json!({ "generation": root.generation, "device": device, "images": images, "shards": shards })
}

/// Sums up a chain of image records from its last to its first.
fn follow(
    member: &Member,
    places: &Places<'_>,
    shard: u64,
    image: &ImageRef,
) -> (Sums, Option<String>) {
    let mut sums = Sums::default();
    let (mut next, mut newest) = (Some(image.location), u64::MAX);
    while let Some(location) = next {
        if sums.records >= u64::from(IMAGE_CHAIN_MAX) {
            return (sums, Some("the chain does not end".to_owned()));
        }
        let copies = member
            .split(location)
            .and_then(|(set, block)| Some((places.get(&set)?, u64::from(block) * BLOCK_BYTES)));
        let Some((copies, within)) = copies else {
            return (sums, Some(format!("location {} is on no device given", location.0)));
        };
        let mut reason = String::new();
        let read = copies.iter().find_map(|(copy, offset)| {
            let step = read_step(copy, offset + within, shard, newest);
            step.map_err(|damage| reason = damage).ok()
        });
        let Some(step) = read else {
            return (sums, Some(format!("at location {}: {reason}", location.0)));
        };
        sums.records += 1;
        step.regions.iter().for_each(|region| sums.add(region));
        (next, newest) = (step.previous, step.sequence);
    }
    (sums, None)
}

struct Step {
    sequence: u64,
    previous: Option<Location>,
    regions: Vec<ImageRegion>,
}

fn read_step(member: &Member, at: u64, shard: u64, newest: u64) -> Result<Step, String> {
    let (header, entries, _) = read_record(member, at).map_err(|damage| damage.to_string())?;
    if header.sequence.0 >= newest {
        return Err(format!("sequence {} does not descend", header.sequence.0));
    }
    let entry = entries.iter().find(|e| e.kind == EntryKind::Image && e.block == shard);
    let entry = entry.ok_or("the record holds no image of this shard")?;
    let data_at = at + (header.header_bytes() + usize::from(entry.data) * BLOCK) as u64;
    let data = member.read(data_at, entry.count as usize * BLOCK);
    let data = data.map_err(|damage| damage.to_string())?;
    let chunk = ImageChunk::decode(&data).map_err(|error| Damage::Format(error).to_string())?;
    let regions: Result<Vec<_>, _> = chunk.regions().collect();
    let regions = regions.map_err(|error| error.to_string())?;
    if u64::from(chunk.shard) != shard {
        return Err(format!("the chunk is of shard {}", chunk.shard));
    }
    Ok(Step { sequence: header.sequence.0, previous: entry.from, regions })
}
