//! A member that takes long is told of, and nothing else comes of it.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::runtime::SECOND;
use forebay_engine::EventKind;

use crate::rig::{Plan, Rig, SOON, survive};

/// A minute in which clients write and read.
fn a_minute(rig: &Rc<Rig>) -> Result<(), String> {
    for turn in 0..600 {
        for block in 0..12 {
            rig.write(2 + turn, turn * 12 % 192 + block, 1)?;
        }
        rig.read(turn % 64)?;
        rig.pause(SOON);
        rig.pool().look_for_slow();
    }
    rig.pause(SECOND);
    rig.pool().look_for_slow();
    Ok(())
}

fn told(rig: &Rig) -> Vec<EventKind> {
    let kinds = rig.pool().events().into_iter().map(|event| event.kind);
    kinds.filter(|kind| matches!(kind, EventKind::MemberSlow | EventKind::MemberQuick)).collect()
}

#[test]
fn a_member_that_takes_ten_times_as_long_is_told_of_once() {
    survive(2, |seed| {
        let rig = Rig::new(seed, Plan { members: 3, copies: 2, ..Plan::default() });
        a_minute(&rig)?;
        assert_eq!(told(&rig), [], "all are alike");
        rig.broken[1].slow.arm(Trigger::every(Ops::All));
        // The first minute may have begun before.
        (0..3).try_for_each(|_| a_minute(&rig))?;
        assert_eq!(told(&rig), [EventKind::MemberSlow]);
        let slow = rig.pool().superblock().members[1].device;
        assert_eq!(rig.pool().slow_members(), [slow]);
        rig.broken[1].mend();
        (0..3).try_for_each(|_| a_minute(&rig))?;
        assert_eq!(told(&rig), [EventKind::MemberSlow, EventKind::MemberQuick]);
        assert!(rig.pool().slow_members().is_empty());
        Ok(())
    });
}

#[test]
fn a_slow_member_is_told_of_also_where_every_read_is_checked_and_nobody_writes() {
    survive(2, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        for at in 0..32 {
            rig.write(2, 6 * at, 6)?;
        }
        rig.flush()?;
        let pool = rig.pool();
        rig.run(async move { pool.set_verify_reads(true).await })?.map_err(|e| e.to_string())?;
        let slow = (seed % 2) as usize;
        rig.broken[slow].slow.arm(Trigger::every(Ops::Reads));
        for turn in 0..1800 {
            for block in 0..4 {
                // Beside each other, for a lone reader asks the first copy only.
                rig.start_read((turn * 8 + 2 * block) % 192);
                rig.read((turn * 8 + 2 * block + 1) % 192)?;
            }
            rig.pause(SOON);
            rig.pool().look_for_slow();
        }
        assert_eq!(told(&rig), [EventKind::MemberSlow]);
        assert_eq!(rig.pool().slow_members(), [rig.pool().superblock().members[slow].device]);
        Ok(())
    });
}
