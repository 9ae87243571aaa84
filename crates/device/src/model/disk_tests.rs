//! What the simulated disk promises, and that it uses every freedom it has.

use super::*;
use crate::model::world::Cause;
use std::collections::BTreeSet;

fn filled(byte: u8, len: usize) -> Data {
    let mut buf = Buf::new(len);
    buf.fill(byte);
    buf.freeze()
}

fn disk(seed: u64) -> (Rc<World>, Rc<SimDisk>) {
    let world = World::new(seed);
    let disk = SimDisk::new(&world, DiskSettings::ssd(1 << 20, 512), seed);
    (world, disk)
}

fn device(disk: &Rc<SimDisk>) -> Rc<dyn BlockDevice> {
    Rc::clone(disk) as Rc<dyn BlockDevice>
}

fn write(world: &World, disk: &Rc<SimDisk>, offset: u64, byte: u8, len: usize) {
    let device = device(disk);
    world
        .run_until(async move { device.write(offset, filled(byte, len)).done().await })
        .unwrap()
        .unwrap();
}

fn flush(world: &World, disk: &Rc<SimDisk>) {
    let device = device(disk);
    world.run_until(async move { device.flush().done().await }).unwrap().unwrap();
}

fn read(world: &World, disk: &Rc<SimDisk>, offset: u64, len: usize) -> Vec<u8> {
    let device = device(disk);
    let outcome = world.run_until(async move { device.read(offset, Buf::new(len)).await }).unwrap();
    outcome.buf.unwrap().to_vec()
}

/// The distinct contents of the first sectors over many seeds.
fn outcomes(run: impl Fn(u64) -> Vec<u8>) -> BTreeSet<Vec<u8>> {
    (0..300).map(run).collect()
}

#[test]
fn a_completed_write_is_read_back() {
    let (world, disk) = disk(1);
    write(&world, &disk, 512, 7, 8192);
    assert_eq!(read(&world, &disk, 0, 1024)[511..513], [0, 7]);
    assert_eq!(disk.peek(8192, 1024)[511..513], [7, 0]);
}

#[test]
fn a_flushed_write_survives_a_power_cut() {
    for seed in 0..50 {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 4096);
        flush(&world, &disk);
        world.crash(Crash::PowerCut);
        assert_eq!(disk.peek(0, 4096), vec![7; 4096]);
    }
}

#[test]
fn zeroes_where_durable_zeroes_are_change_nothing() {
    let (world, disk) = disk(1);
    let would = |byte| {
        let data = filled(byte, 512);
        disk.would_change(&Request::Write { offset: 512, data, durable: false })
    };
    assert!(!would(0) && would(7) && disk.would_change(&Request::Flush));
    assert!(!disk.would_change(&Request::Read { offset: 0, buf: Buf::new(512) }));
    write(&world, &disk, 512, 7, 512);
    flush(&world, &disk);
    assert!(would(0) && would(7), "what is garbled on its way is neither");
    write(&world, &disk, 512, 0, 512);
    assert!(would(0), "a power cut may take it or leave it");
    flush(&world, &disk);
    assert!(!would(0));
    write(&world, &disk, 512, 8, 512);
    disk.lose(512..1024);
    flush(&world, &disk);
    assert!(would(0), "reads show what a power cut takes");
}

#[test]
fn an_unflushed_write_is_kept_dropped_or_torn_but_never_garbled() {
    let seen = outcomes(|seed| {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 1024);
        world.crash(Crash::PowerCut);
        let image = disk.peek(0, 1024);
        vec![image[0], image[512], u8::from(image.iter().any(|b| ![0, 7].contains(b)))]
    });
    let expected = [[0, 0, 0], [0, 7, 0], [7, 0, 0], [7, 7, 0]];
    assert_eq!(seen, expected.iter().map(|e| e.to_vec()).collect());
}

#[test]
fn what_a_failed_flush_lost_no_later_flush_brings_back() {
    let seen = outcomes(|seed| {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 512);
        write(&world, &disk, 512, 7, 512);
        disk.fail_flush();
        flush(&world, &disk);
        assert_eq!(disk.peek(0, 1024), vec![7; 1024], "reads show it until the power goes");
        write(&world, &disk, 1024, 8, 512);
        flush(&world, &disk);
        world.crash(Crash::PowerCut);
        assert_eq!(disk.peek(1024, 512), vec![8; 512], "what was written later is safe");
        vec![disk.peek(0, 1)[0], disk.peek(512, 1)[0]]
    });
    let expected = [[0, 0], [0, 7], [7, 0], [7, 7]];
    assert_eq!(seen, expected.iter().map(|e| e.to_vec()).collect());
}

#[test]
fn a_failed_flush_spares_what_a_flush_under_way_covers() {
    for seed in 0..50 {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 512);
        let under_way = device(&disk).flush();
        write(&world, &disk, 512, 8, 512);
        disk.fail_flush();
        world.run_until(under_way.done()).unwrap().unwrap();
        world.crash(Crash::PowerCut);
        assert_eq!(disk.peek(0, 512), vec![7; 512], "seed {seed}");
    }
}

#[test]
fn lost_bytes_are_read_until_the_power_goes() {
    let (world, disk) = disk(1);
    write(&world, &disk, 0, 7, 4096);
    disk.lose(512..1024);
    flush(&world, &disk);
    assert_eq!(disk.peek(0, 4096), vec![7; 4096]);
    world.crash(Crash::PowerCut);
    assert_eq!((disk.peek(0, 512), disk.peek(1024, 3072)), (vec![7; 512], vec![7; 3072]));
    assert_eq!(disk.peek(512, 512), vec![0; 512]);
}

#[test]
fn without_a_write_cache_a_failed_flush_loses_nothing() {
    for seed in 0..50 {
        let world = World::new(seed);
        let settings = DiskSettings { write_cache: false, ..DiskSettings::ssd(1 << 20, 512) };
        let disk = SimDisk::new(&world, settings, seed);
        write(&world, &disk, 0, 7, 512);
        disk.fail_flush();
        world.crash(Crash::PowerCut);
        assert_eq!(disk.peek(0, 512), vec![7; 512]);
    }
}

#[test]
fn a_write_in_flight_may_also_be_garbled_by_a_power_cut() {
    let garbled = |garbles: bool| {
        (0..200).any(|seed| {
            let world = World::new(seed);
            let settings = DiskSettings { garbles, ..DiskSettings::ssd(1 << 20, 512) };
            let disk = SimDisk::new(&world, settings, seed);
            let io = device(&disk).write(0, filled(7, 4096));
            world.crash(Crash::PowerCut);
            drop(io);
            disk.peek(0, 4096).iter().any(|b| ![0, 7].contains(b))
        })
    };
    assert!(garbled(true) && !garbled(false));
}

#[test]
fn a_killed_process_loses_no_completed_write_but_the_power_may_still_go() {
    let seen = outcomes(|seed| {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 512);
        world.crash(Crash::ProcessKill);
        assert_eq!(disk.peek(0, 512), vec![7; 512]);
        world.crash(Crash::PowerCut);
        disk.peek(0, 1)
    });
    assert_eq!(seen.len(), 2, "kept and dropped");
}

#[test]
fn a_flush_after_a_kill_covers_what_the_dead_process_wrote() {
    for seed in 0..50 {
        let (world, disk) = disk(seed);
        let io = device(&disk).write(0, filled(7, 1024));
        world.crash(Crash::ProcessKill);
        drop(io);
        let before = disk.peek(0, 1024);
        flush(&world, &disk);
        world.crash(Crash::PowerCut);
        assert_eq!(disk.peek(0, 1024), before);
    }
}

#[test]
fn a_flush_need_not_cover_writes_in_flight() {
    let seen = outcomes(|seed| {
        let (world, disk) = disk(seed);
        let (a, b) = (device(&disk), device(&disk));
        let io = a.write(0, filled(7, 512));
        world.run_until(async move { b.flush().done().await }).unwrap().unwrap();
        world.run_until(io).unwrap().result.unwrap();
        world.crash(Crash::PowerCut);
        disk.peek(0, 1)
    });
    assert_eq!(seen.len(), 2);
}

#[test]
fn overlapping_unflushed_writes_end_as_any_version_since_the_flush() {
    let seen = outcomes(|seed| {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 1, 512);
        write(&world, &disk, 0, 2, 512);
        flush(&world, &disk);
        write(&world, &disk, 0, 3, 512);
        write(&world, &disk, 0, 4, 512);
        world.crash(Crash::PowerCut);
        disk.peek(0, 1)
    });
    assert_eq!(seen, [[2], [3], [4]].iter().map(|e| e.to_vec()).collect());
}

#[test]
fn a_durable_version_is_never_replaced_by_one_that_took_effect_before_it() {
    // Two overlapping writes in flight at once: whatever is read after both and flushed stays.
    for seed in 0..300 {
        let (world, disk) = disk(seed);
        let (a, b) = (device(&disk), device(&disk));
        let (first, second) = (a.write(0, filled(1, 512)), b.write(0, filled(2, 512)));
        world.run_until(second).unwrap().result.unwrap();
        let io = a.flush();
        world.run_until(first).unwrap().result.unwrap();
        world.run_until(io).unwrap().result.unwrap();
        let current = disk.peek(0, 1)[0];
        flush(&world, &disk);
        world.crash(Crash::PowerCut);
        assert_eq!(disk.peek(0, 1)[0], current, "seed {seed}");
    }
}

#[test]
fn requests_complete_out_of_order() {
    let (world, disk) = disk(3);
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..10 {
        let (device, order) = (device(&disk), Rc::clone(&order));
        world.spawn(Box::pin(async move {
            device.write(number * 512, filled(1, 512)).await;
            order.borrow_mut().push(number);
        }));
    }
    world.run_until_idle().unwrap();
    assert!(!order.borrow().is_sorted() && order.borrow().len() == 10);
}

#[test]
fn discarded_sectors_hold_old_data_zeroes_or_garbage() {
    let seen = outcomes(|seed| {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 4096);
        let dev = device(&disk);
        world.run_until(async move { dev.discard(0, 4096).done().await }).unwrap().unwrap();
        let image = disk.peek(0, 4096);
        assert_eq!(read(&world, &disk, 0, 4096), image, "reads agree");
        vec![[0, 7].into_iter().find(|b| image[..512].iter().all(|i| i == b)).unwrap_or(1)]
    });
    assert_eq!(seen, [[0], [1], [7]].iter().map(|e| e.to_vec()).collect());
}

#[test]
fn a_discard_that_keeps_old_data_does_not_undo_the_write_before_it() {
    for seed in 0..300 {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 4096);
        let (a, b) = (device(&disk), device(&disk));
        let zeroes = a.write_zeroes(0, 4096);
        let discard = b.discard(0, 4096);
        world.run_until(discard).unwrap().result.unwrap();
        flush(&world, &disk);
        world.run_until(zeroes).unwrap().result.unwrap();
        flush(&world, &disk);
        let current = disk.peek(0, 4096);
        world.crash(Crash::PowerCut);
        assert_eq!(disk.peek(0, 4096), current, "seed {seed}: all of it was flushed");
    }
}

#[test]
fn a_durable_write_stays_whatever_becomes_of_those_beside_it() {
    let mut lost = 0;
    for seed in 0..40 {
        let (world, disk) = disk(seed);
        write(&world, &disk, 0, 7, 8192);
        write(&world, &disk, 8192, 7, 4096);
        let dev = device(&disk);
        let durable = async move { dev.write_durable(4096, filled(9, 4096)).done().await };
        world.run_until(durable).unwrap().unwrap();
        world.crash(Crash::PowerCut);
        assert!(disk.peek(4096, 4096).iter().all(|&byte| byte == 9), "seed {seed}");
        lost += usize::from(disk.peek(8192, 1)[0] != 7);
    }
    assert!((10..35).contains(&lost), "{lost}: nothing is said of other writes");
}

#[test]
fn the_chosen_io_stops_the_world_and_later_ones_never_happen() {
    let (world, disk) = disk(1);
    world.crash_at(Some(2));
    let dev = device(&disk);
    let stopped = world
        .run_until(async move {
            dev.write(0, filled(1, 512)).await;
            let second = dev.write(512, filled(2, 512));
            let third = dev.write(1024, filled(3, 512));
            second.await;
            third.await;
        })
        .unwrap_err();
    assert_eq!((stopped.cause, world.io_count()), (Cause::Crashed, 2));
    world.crash(Crash::ProcessKill);
    assert_eq!((disk.peek(0, 1)[0], disk.peek(1024, 1)[0]), (1, 0));
    write(&world, &disk, 0, 9, 512);
    assert_eq!(disk.peek(0, 1)[0], 9, "the next run works");
}

#[test]
fn a_copied_state_goes_on_independently() {
    let (world, first) = disk(1);
    write(&world, &first, 0, 1, 512);
    let io = device(&first).write(512, filled(2, 512));
    let state = first.state();
    world.run_until(io).unwrap().result.unwrap();
    let elsewhere = World::new(9);
    let copy = SimDisk::with_state(&elsewhere, first.settings, 9, state);
    elsewhere.crash(Crash::ProcessKill);
    write(&elsewhere, &copy, 0, 5, 512);
    assert_eq!((first.peek(0, 1)[0], copy.peek(0, 1)[0]), (1, 5));
    assert_eq!(first.peek(512, 1)[0], 2);
}

#[test]
fn zeroing_a_part_of_a_page_leaves_the_rest() {
    let (world, disk) = disk(1);
    write(&world, &disk, 0, 7, 12288);
    let dev = device(&disk);
    world.run_until(async move { dev.write_zeroes(512, 8192).done().await }).unwrap().unwrap();
    let image = disk.peek(0, 12288);
    let zeroes = image.iter().filter(|&&b| b == 0).count();
    assert_eq!((zeroes, image[511], image[512], image[8703], image[8704]), (8192, 7, 0, 0, 7));
}
