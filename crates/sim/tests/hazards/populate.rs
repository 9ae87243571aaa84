//! What brings blocks into the cache, and what does not.

use forebay_device::model::world::Crash;
use forebay_engine::Mode;

use super::rig::{Plan, Rig, SOON, same};

/// A rig whose volume has this mode.
fn rig(seed: u64, mode: Mode, ram_bytes: u64) -> std::rc::Rc<Rig> {
    Rig::new(seed, Plan { mode, ram_bytes, ..Plan::default() })
}

/// Bytes read from the origin by reading a block twice.
fn read_twice(rig: &Rig, block: u64, version: u64) -> u64 {
    let before = rig.pool().counters().read_origin_bytes.get();
    for _ in 0..2 {
        same("read", rig.read(block).unwrap(), version).unwrap();
        rig.pause(SOON);
    }
    rig.pool().counters().read_origin_bytes.get() - before
}

#[test]
fn in_writeonly_mode_reads_bring_nothing_and_writes_stay() {
    for ram_bytes in [0, 1 << 20] {
        let rig = rig(1, Mode::Writeonly, ram_bytes);
        assert_eq!(read_twice(&rig, 3, 1), 2 * 4096, "a miss stays one");
        rig.write(2, 5, 1).unwrap();
        assert_eq!(rig.pool().counters().bypass_mode_bytes.get(), 0);
        assert_eq!(rig.volume().owed_blocks(), 1, "dirty, not on the origin");
        assert_eq!(read_twice(&rig, 5, 2), 0);
        rig.destage().unwrap();
        assert_eq!(read_twice(&rig, 5, 2), 0, "clean, and still there");
        let volume = rig.volume();
        rig.run(async move { volume.prefetch(8 * 4096, 4096).await }).unwrap().unwrap();
        assert_eq!(read_twice(&rig, 8, 1), 2 * 4096, "asked for or not");
        let counters = rig.pool();
        assert_eq!(counters.counters().populate_bytes.get(), 0);
        assert_eq!(counters.counters().ram_demote_blocks.get(), 0);
    }
}

#[test]
fn writeonly_mode_comes_and_goes_while_in_use() {
    let rig = rig(2, Mode::Writeback, 0);
    assert_eq!(read_twice(&rig, 3, 1), 4096);
    let set = |mode| {
        let volume = rig.volume();
        rig.run(async move { volume.set_mode(mode).await }).unwrap().unwrap();
    };
    set(Mode::Writeonly);
    assert_eq!(read_twice(&rig, 3, 1), 0, "what is there is served");
    assert_eq!(read_twice(&rig, 4, 1), 2 * 4096);
    rig.write(2, 4, 1).unwrap();
    rig.flush().unwrap();
    rig.restart(Crash::PowerCut).unwrap();
    assert_eq!(rig.volume().mode(), Mode::Writeonly);
    same("after the power cut", rig.read(4).unwrap(), 2).unwrap();
    set(Mode::Writeback);
    assert_eq!(read_twice(&rig, 6, 1), 4096);
}

#[test]
fn writeonly_with_one_copy_has_to_be_agreed_to() {
    let rig = Rig::new(3, Plan { mode: Mode::Readonly, agreed: false, ..Plan::default() });
    let volume = rig.volume();
    let refused = rig.run(async move { volume.set_mode(Mode::Writeonly).await }).unwrap();
    assert!(refused.unwrap_err().to_string().contains("one dirty copy"));
}
