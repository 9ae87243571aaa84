//! What is told of a range without reading it, and what is fetched before it is asked for.

use std::rc::Rc;

use forebay_device::io::Completer;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::{BlockDevice, Buf, Geometry, Request};
use forebay_engine::limits::{STATUS_EXTENTS_MAX, STATUS_STRIPES_MAX, STRIPE_BYTES};
use forebay_engine::{Client, Extent, Mode, Place, VolumeSpec};

use crate::rig::{BLOCK, Plan, Rig, SOON, lazy, same};

const B: u64 = BLOCK as u64;

fn places(rig: &Rig, offset: u64, len: u64) -> Vec<(u64, Place)> {
    let mut extents = vec![Extent { len: 1, place: Place::Lost }];
    rig.volume().status(offset, len, &mut extents).unwrap();
    extents.into_iter().map(|extent| (extent.len, extent.place)).collect()
}

fn zero(rig: &Rig, offset: u64, len: u64) {
    let volume = rig.volume();
    rig.run(async move { volume.write_zeroes(offset, len, false).await }).unwrap().unwrap();
}

/// Writes whole sectors of a pattern.
fn write(rig: &Rig, offset: u64, len: usize) {
    let (volume, mut data) = (rig.volume(), Buf::new(len));
    data.fill(0x5a);
    rig.run(async move { volume.write(offset, data.freeze(), false).await }).unwrap().unwrap();
}

/// A volume whose blocks 0 to 7 are: origin, clean, dirty, zeroes, origin with two dirty sectors,
/// zeroes with one dirty sector, dirty, origin.
fn mixed(mode: Mode) -> Rc<Rig> {
    let rig = Rig::new(1, Plan { mode, ..Plan::default() });
    rig.start_read(1);
    rig.pause(SOON);
    rig.write(2, 2, 1).unwrap();
    zero(&rig, 3 * B, B);
    write(&rig, 4 * B + 1024, 1024);
    zero(&rig, 5 * B, B);
    write(&rig, 5 * B + 512, 512);
    rig.write(2, 6, 1).unwrap();
    rig
}

#[test]
fn each_place_is_told_to_the_sector() {
    use Place::{Clean, Dirty, Origin, Zeroes};
    let rig = mixed(Mode::Writeback);
    let told = places(&rig, 0, 8 * B);
    let expected = [
        (B, Origin),
        (B, Clean),
        (B, Dirty),
        (B, Zeroes),
        (1024, Origin),
        (1024, Dirty),
        (2048, Origin),
    ];
    assert_eq!(told[..7], expected);
    let rest: u64 = told[7..].iter().map(|(len, _)| len).sum();
    assert_eq!(rest, 3 * B, "{told:?}");
    assert_eq!(told.last(), Some(&(B, Origin)));
    assert_eq!(places(&rig, 2 * B + 512, 1024), [(1024, Dirty)]);
    let end = rig.volume().size_bytes();
    assert_eq!(places(&rig, end - 512, 512), [(512, Origin)]);
}

#[test]
fn zeroes_that_were_partly_overwritten_are_not_zeroes_there() {
    let rig = mixed(Mode::Writeback);
    let (mut at, volume) = (5 * B, rig.volume());
    for (len, place) in places(&rig, 5 * B, B) {
        let reader = Rc::clone(&volume);
        let read = async move { reader.read(at, Buf::new(len as usize)).await };
        let (buf, result) = rig.run(read).unwrap();
        result.unwrap();
        let is_zero = buf.iter().all(|&byte| byte == 0);
        assert!(is_zero || place != Place::Zeroes, "{len} B at {at}");
        at += len;
    }
    assert_eq!(at, 6 * B);
}

#[test]
fn what_the_origin_has_got_is_never_said_to_be_zeroes() {
    let rig = mixed(Mode::Writeback);
    rig.destage().unwrap();
    let told = places(&rig, 0, 8 * B);
    assert!(
        told.iter().all(|(_, place)| matches!(place, Place::Origin | Place::Clean)),
        "{told:?}"
    );
    assert_eq!(places(&rig, 2 * B, B), [(B, Place::Clean)]);
    assert_eq!(places(&rig, 3 * B, B), [(B, Place::Origin)]);
}

#[test]
fn a_kill_does_not_change_what_is_told_of_flushed_data() {
    let rig = mixed(Mode::Writeback);
    rig.flush().unwrap();
    let before = places(&rig, 2 * B, 6 * B);
    rig.restart(Crash::ProcessKill).unwrap();
    assert_eq!(places(&rig, 2 * B, 6 * B), before);
}

#[test]
fn a_direct_write_ends_what_was_known() {
    let rig = mixed(Mode::Writeback);
    rig.destage().unwrap();
    let volume = rig.volume();
    rig.run(async move { volume.set_mode(Mode::Bypass).await }).unwrap().unwrap();
    write(&rig, 2 * B, BLOCK);
    assert_eq!(places(&rig, 0, 8 * B), [(8 * B, Place::Origin)]);
}

#[test]
fn nothing_is_said_to_be_zeroes_once_writing_has_stopped() {
    let rig = mixed(Mode::Writeback);
    rig.broken[0].failing.arm(Trigger::every(Ops::Writes));
    let volume = rig.volume();
    let failed = async move { volume.write(3 * B, Buf::zeroed(BLOCK).freeze(), false).await };
    assert!(rig.run(failed).unwrap().is_err() && rig.pool().is_latched());
    assert_eq!(places(&rig, 2 * B, 2 * B), [(2 * B, Place::Dirty)]);
}

#[test]
fn another_reactor_is_told_the_same() {
    let rig = mixed(Mode::Writeback);
    let expected = places(&rig, 0, 8 * B);
    let client = rig.volume().share().open(rig.runtime(), Vec::new());
    let ask = async move {
        let (extents, result) = client.status(0, 8 * B, Vec::new()).await;
        result.map(|()| extents)
    };
    let told = rig.run(ask).unwrap().unwrap();
    let told: Vec<_> = told.into_iter().map(|extent| (extent.len, extent.place)).collect();
    assert_eq!(told, expected);
}

#[test]
fn an_answer_has_bounds_and_the_next_one_goes_on() {
    let rig = Rig::new(1, Plan { members: 4, origin_bytes: 4 << 20, ..Plan::default() });
    let end = (STATUS_EXTENTS_MAX as u64 + 100) * B;
    for offset in (0..end).step_by(2 * BLOCK) {
        zero(&rig, offset, B);
    }
    let (mut at, mut counts) = (0, Vec::new());
    while at < end {
        let told = places(&rig, at, end - at);
        at += told.iter().map(|(len, _)| len).sum::<u64>();
        counts.push(told.len());
    }
    assert_eq!((at, counts), (end, vec![STATUS_EXTENTS_MAX, 100]));
}

/// An origin of 1 TiB that keeps nothing.
struct Huge;

impl BlockDevice for Huge {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: 1 << 40,
            sector_bytes: 512,
            discard: false,
            stripe: None,
            controller: None,
            durable_writes: false,
        }
    }

    fn submit(&self, request: Request, completer: Completer) {
        request.finish(Ok(()), completer);
    }
}

#[test]
fn an_answer_about_an_empty_volume_has_bounds_too() {
    let rig = Rig::new(1, Plan::default());
    let spec = VolumeSpec {
        name: "huge".into(),
        origin: "nothing".into(),
        mode: Mode::Writeback,
        cache_block_bytes: 4096,
        settings: Default::default(),
        accept_data_loss_on_ssd_failure: true,
    };
    let pool = rig.pool();
    let volume = rig.run(async move { pool.add_volume(&spec, Rc::new(Huge)).await });
    let (volume, mut extents) = (volume.unwrap().unwrap(), Vec::new());
    volume.status(5 << 30, 1 << 39, &mut extents).unwrap();
    let len = STATUS_STRIPES_MAX as u64 * STRIPE_BYTES;
    assert_eq!(extents, [Extent { len, place: Place::Origin }]);
}

#[test]
fn ranges_that_do_not_fit_are_refused() {
    let rig = Rig::new(1, Plan::default());
    let (volume, end) = (rig.volume(), rig.volume().size_bytes());
    for (offset, len) in [(0, 0), (1, 512), (512, 3), (end, 512), (0, end + 512), (512, u64::MAX)] {
        assert!(volume.status(offset, len, &mut Vec::new()).is_err(), "{offset}+{len}");
        let it = Rc::clone(&volume);
        assert!(rig.run(async move { it.prefetch(offset, len).await }).unwrap().is_err());
    }
}

#[test]
fn what_was_prefetched_is_read_from_the_cache() {
    for mode in [Mode::Writeback, Mode::Readonly, Mode::Bypass] {
        let rig = Rig::new(1, Plan { mode, ..Plan::default() });
        rig.write(2, 5, 1).unwrap();
        rig.flush().unwrap();
        let volume = rig.volume();
        rig.run(async move { volume.prefetch(2 * B + 512, 10 * B).await }).unwrap().unwrap();
        rig.pause(SOON);
        let pool = rig.pool();
        let read = pool.counters().read_origin_bytes.get();
        let (first, last) = (2, 12); // it begins and ends within blocks
        for block in first..=last {
            same("read", rig.read(block).unwrap(), if block == 5 { 2 } else { 1 }).unwrap();
        }
        let from_origin = pool.counters().read_origin_bytes.get() - read;
        assert_eq!(from_origin == 0, mode != Mode::Bypass, "{mode:?}: {from_origin} B");
        assert_eq!(read == 0, mode == Mode::Bypass, "{mode:?}: nothing is read in vain");
    }
}

#[test]
fn a_prefetch_takes_only_what_is_missing_and_tells_of_errors() {
    let rig = Rig::new(1, Plan::default());
    rig.write(2, 0, 16).unwrap();
    let volume = rig.volume();
    rig.run(async move { volume.prefetch(0, 32 * B).await }).unwrap().unwrap();
    assert_eq!(rig.pool().counters().read_origin_bytes.get(), 16 * B);
    rig.origin_broken.failing.arm(Trigger::every(Ops::Reads));
    let volume = rig.volume();
    assert!(rig.run(async move { volume.prefetch(40 * B, B).await }).unwrap().is_err());
}

/// One client writes and never flushes, another one flushes: the data is there after a power cut,
/// whichever reactor either is on. That is what NBD_FLAG_CAN_MULTI_CONN promises.
#[test]
fn a_flush_covers_what_was_acknowledged_to_other_clients() {
    for (mode, seed) in [Mode::Writeback, Mode::Writethrough, Mode::Readonly, Mode::Bypass]
        .into_iter()
        .flat_map(|mode| (0..8).map(move |seed| (mode, seed)))
    {
        let rig = Rig::new(seed, Plan { mode, tuning: lazy(), ..Plan::default() });
        let client = |far: bool| -> Client {
            let devices = || vec![Rc::clone(&rig.gates[0]) as Rc<dyn BlockDevice>];
            if far {
                rig.volume().share().open(rig.runtime(), devices())
            } else {
                rig.volume().client()
            }
        };
        let (writer, flusher) = (client(seed % 2 == 0), client(seed % 4 < 2));
        let work = async move {
            let mut data = Buf::new(BLOCK);
            forebay_sim::content::fill(7, 0, 3 * 8, &mut data);
            writer.write(3 * B, data.freeze(), false).await?;
            flusher.flush().await?;
            Ok::<_, forebay_engine::Error>(())
        };
        rig.run(work).unwrap().unwrap();
        rig.restart(Crash::PowerCut).unwrap();
        same("after the power cut", rig.read(3).unwrap(), 7).unwrap();
    }
}
