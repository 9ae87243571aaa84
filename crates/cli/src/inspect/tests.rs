//! `inspect` on random and mutated images: it never panics and calls damage by its name.

use std::io::ErrorKind;

use std::path::Path;
use std::rc::Rc;

use forebay_device::model::store::MemoryStore;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::runtime::Runtime;
use forebay_device::{BlockDevice, Buf};
use forebay_engine::ids::SegmentId;
use forebay_engine::{CreateOptions, MemoryWitness, Mode, Tuning, VolumeSpec};

use serde_json::json;

use super::member::{Bytes, Member};
use super::*;

const MEMBER_BYTES: u64 = 8 << 20;

impl Bytes for Vec<u8> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = start.checked_add(buf.len()).and_then(|end| self.get(start..end));
        buf.copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Images of the members of a pool that was written to and stopped.
fn images() -> Vec<Vec<u8>> {
    let reactor = Reactor::new(Config::default()).unwrap();
    let stores: Vec<Rc<dyn BlockDevice>> =
        (0..2).map(|_| Rc::new(MemoryStore::new(MEMBER_BYTES, 512)) as _).collect();
    let origin = Rc::new(MemoryStore::new(1 << 20, 512));
    let witness = Rc::new(MemoryWitness::default());
    reactor.block_on(async {
        let runtime = Rc::clone(&reactor) as Rc<dyn Runtime>;
        let options = CreateOptions {
            segment_bytes: Some(64 << 10),
            dirty_copies: 2,
            ..CreateOptions::named("images")
        };
        forebay_engine::create(&*runtime, &stores, &*witness, &options).await.unwrap();
        let open = forebay_engine::open(runtime, stores.clone(), witness, Tuning::default());
        let pool = open.await.unwrap();
        let spec = VolumeSpec {
            name: "disk".to_owned(),
            origin: "memory".to_owned(),
            mode: Mode::Writeback,
            cache_block_bytes: 64 << 10,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: false,
        };
        let volume = pool.add_volume(&spec, origin).await.unwrap();
        for block in 0..40 {
            let data = Buf::copy_of(&[block as u8; 4096]).freeze();
            volume.write(block * 8192, data, block % 8 == 0).await.unwrap();
        }
        drop(volume);
        pool.stop().await.unwrap();
        let mut images = Vec::new();
        for store in &stores {
            let outcome = store.read(0, Buf::new(MEMBER_BYTES as usize)).await;
            images.push(outcome.buf.unwrap().to_vec());
        }
        images
    })
}

fn options(segment: Option<u32>, images: bool) -> Options {
    Options { files: Vec::new(), segment, images, json: false }
}

fn shown(images: &[Vec<u8>], options: &Options) -> String {
    let members: Vec<_> = images
        .iter()
        .map(|image| Member::of(Path::new("image"), Box::new(image.clone())))
        .collect();
    let mut out = Vec::new();
    print(&members, options, &mut out).unwrap();
    // As JSON it is shown without a panic, too.
    let as_json = value(&members, options);
    assert_eq!(as_json["schema"], 1);
    String::from_utf8(out).unwrap()
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn a_pool_is_shown_with_its_records_and_images() {
    let images = images();
    let all = shown(&images, &options(None, false));
    assert!(all.contains("\"images\"") && all.contains("volume 1 \"disk\": Writeback"), "{all}");
    assert!(all.contains("clean_stop 1") && all.contains("closed: Dirty"), "{all}");
    let line = all.lines().find(|line| line.contains("closed: Dirty")).unwrap();
    let number = line.split(&[' ', ':'][..]).nth(1).unwrap().parse().unwrap();
    let records = shown(&images, &options(Some(number), false));
    assert!(records.contains("footer body: intact") && records.contains("Write volume 1 block"));
    let summary = shown(&images, &options(None, true));
    assert!(summary.contains("40 ") && summary.contains("; 0 images damaged"), "{summary}");
    let members = [Member::of(Path::new("image"), Box::new(images[0].clone()))];
    let device = &value(&members, &options(None, false))["devices"][0];
    assert_eq!(device["superblocks"][0]["volumes"][0]["name"], "disk");
    let told = device["segments"].as_array().unwrap().len();
    assert_eq!(told, all.split("\nsegment").count() / 2, "as many as lines of one of two: {all}");
    let segment = &value(&members, &options(Some(number), false))["segment"];
    assert_eq!(segment["closed"], true);
    let first = &segment["records"][0];
    assert_eq!((&first["block"], &first["data_blocks_damaged"]), (&json!(1), &json!([])));
    assert!(first["entries"][0]["kind"].is_string(), "{first}");
}

#[test]
fn damage_is_shown_with_its_reason() {
    let mut images = images();
    images[0][100] ^= 1;
    let all = shown(&images[..1], &options(None, false));
    assert!(all.contains("superblock slot 0: damaged: checksum does not match"), "{all}");
    assert!(all.contains("slot 1 counts"), "{all}");
    images[0].truncate(1 << 20);
    let all = shown(&images[..1], &options(None, false));
    assert!(all.contains("the device ends before byte"), "{all}");
    images[0].truncate(1000);
    let all = shown(&images[..1], &options(None, false));
    assert!(all.contains("no slot can be read"), "{all}");
}

/// An image in which some bytes cannot be read.
struct Scratched(Vec<u8>, std::ops::Range<u64>);

impl Bytes for Scratched {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        if offset < self.1.end && offset + buf.len() as u64 > self.1.start {
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.0.read_at(buf, offset)
    }
}

#[test]
fn what_cannot_be_read_of_one_segment_hides_no_other_one() {
    let image = images().remove(0);
    let lines = |bytes: Box<dyn Bytes>| {
        let mut out = Vec::new();
        print(&[Member::of(Path::new("image"), bytes)], &options(None, false), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let of = |line: &&str| line.starts_with("segment");
        text.lines().filter(of).map(str::to_owned).collect::<Vec<_>>()
    };
    let whole = lines(Box::new(image.clone()));
    let member = Member::of(Path::new("image"), Box::new(image.clone()));
    let number = whole[0].split(&[' ', ':', '.'][..]).nth(1).unwrap().parse().unwrap();
    let at = member.segment_offset(SegmentId(number)).unwrap();
    let scratched = lines(Box::new(Scratched(image, at..at + 512)));
    assert!(scratched[0].starts_with(&format!("segments {number}..{}: ", number + 1)));
    assert_eq!(scratched[1..], whole[1..]);
}

#[test]
fn no_bytes_make_it_panic() {
    let intact = images();
    let mut state = 11;
    for round in 0..60 {
        let mut images = intact.clone();
        for image in &mut images {
            // The first 64 KiB behind the superblocks are dense with structures, the rest is wide.
            for _ in 0..1 << (round % 12) {
                let at = random(&mut state) as usize % image.len();
                let at = if round % 2 == 0 { at } else { (256 << 10) + at % (2 << 20) };
                image[at] = random(&mut state) as u8;
            }
        }
        shown(&images, &options(None, false));
        shown(&images, &options(None, true));
        for segment in 0..6 {
            shown(&images, &options(Some(random(&mut state) as u32 % 200 + segment), false));
        }
    }
    for len in [0, 1, 4096, 1 << 17, 1 << 18, 1 << 20] {
        let noise: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
        shown(std::slice::from_ref(&noise), &options(None, false));
        shown(std::slice::from_ref(&noise), &options(Some(1), false));
        shown(&[noise], &options(None, true));
    }
}
