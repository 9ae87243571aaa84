//! Whoever of a pool's members is there at a start, with or without what the host remembers: it opens by itself exactly
//! where the rule allows that. One that is too bold shows old data for new, one that is too careful wakes somebody up.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::model::world::Crash;
use forebay_engine::format::{Superblock, Witness};

use crate::changing::{add, id_of, note_clean, remove};
use crate::rig::{KINDS, Plan, Rig, same, survive};

/// What stands on a device, if it can be read.
pub fn superblock_of(rig: &Rc<Rig>, device: usize) -> Option<Superblock> {
    let device = Rc::clone(&rig.gates[device]);
    rig.run(async move { forebay_engine::read_superblock(&*device).await }).unwrap().ok()
}

/// The row of `docs/internals/recovery.md`, "May the pool open?", that a start with these devices comes to, told from
/// nothing but what stands on them and in the witness: D and F ask, those before open. Nobody accepts a loss here, and no
/// two groups go on without each other, so the others are not reached.
///
/// The rule itself: a pool opens by itself only if the newest epoch is known, that is, all its members are there, or
/// more than half, or the witness names the newest that is found; and fewer are missing than what may be dirty has
/// copies, or nothing may be dirty. The table is stricter in two things, each with a reason:
///
/// * A witness that names a newer epoch than all that is found says that these are who was left behind, however many.
/// * A member that the epoch names and that has not heard of it counts for "all", not for "more than half": it is no
///   evidence that nobody has gone further.
pub fn row(rig: &Rc<Rig>, offered: &[usize]) -> char {
    let found: Vec<_> = offered.iter().map(|&device| superblock_of(rig, device).unwrap()).collect();
    let newest = found.iter().max_by_key(|s| (s.epoch, s.generation)).expect("one is offered");
    let witness = rig.recall().map(|bytes| Witness::decode(&bytes).unwrap().epoch);
    let named: Vec<_> = newest.present().map(|member| member.device).collect();
    let there = || found.iter().filter(|s| named.contains(&s.device));
    let missing = named.len() - there().count();
    let current = there().filter(|s| s.epoch == newest.epoch).count();
    let named_by_witness = witness == Some(newest.epoch);
    let overtaken = witness.is_some_and(|epoch| epoch > newest.epoch);
    let known = missing == 0 || 2 * current > named.len() || named_by_witness;
    // What is dirty lacks a copy for each that was lost before and has not been made good.
    let lost = newest.members.iter().filter(|m| is_failed(m.state)).count();
    let copies = usize::from(newest.dirty_copies).saturating_sub(lost);
    match () {
        () if overtaken || !known => 'F',
        () if missing == 0 => 'A',
        () if missing < copies => 'B',
        () if !newest.may_be_dirty() => 'C',
        () => 'D',
    }
}

fn is_failed(state: forebay_engine::format::MemberState) -> bool {
    state == forebay_engine::format::MemberState::Failed
}

/// Starts with these devices and compares what comes of it with the table. Whether the pool has opened.
pub fn starts_by_the_rule(rig: &Rc<Rig>, offered: &[usize]) -> Result<(bool, char), String> {
    let (row, epoch) = (row(rig, offered), newest_epoch(rig, offered));
    rig.offer(offered);
    let opened = rig.open();
    let wrong = |what: String| Err(format!("row {row}, {offered:?} are there: {what}"));
    match (row < 'D', opened) {
        (true, Ok(())) => {}
        (false, Err(error)) if error.starts_with("NeedsDecision") => return Ok((false, row)),
        (_, opened) => return wrong(format!("{opened:?}")),
    }
    // A new epoch exactly if somebody is missing, and the witness knows.
    let now = rig.pool().superblock().epoch;
    let witness = Witness::decode(&rig.recall().unwrap()).unwrap().epoch;
    if now != epoch + u64::from(row != 'A') || witness != now {
        return wrong(format!("epoch {epoch} before, {now} now, {witness} in the witness"));
    }
    Ok((true, row))
}

fn newest_epoch(rig: &Rc<Rig>, devices: &[usize]) -> u64 {
    devices.iter().map(|&device| superblock_of(rig, device).unwrap().epoch).max().unwrap()
}

/// What the host remembers at the start.
#[derive(Clone, Copy, Debug)]
enum Memory {
    There,
    Gone,
    /// As of an epoch before: it was restored from a backup.
    Older,
}

/// A pool before the start.
#[derive(Clone, Copy, Debug)]
struct Before {
    members: usize,
    copies: u8,
    /// Whether something is dirty.
    dirty: bool,
    /// How many of the members the pool has lost at once and gone on without; they are back.
    lost: usize,
}

const BLOCKS: u64 = 16;

impl Before {
    /// The rig, with the process or the power ended, and the witness of an older epoch.
    fn lives(self, seed: u64) -> Result<(Rc<Rig>, Option<Vec<u8>>), String> {
        let Before { members, copies, dirty, lost } = self;
        let rig = Rig::new(seed, Plan { members, spares: 1, copies, ..Plan::default() });
        let older = rig.recall();
        // One that comes and goes: the same members, in a later epoch.
        add(&rig, members)?.map_err(|error| error.to_string())?;
        let joined = id_of(&rig, members);
        remove(&rig, joined)?.map_err(|error| error.to_string())?;
        let lost = (0..lost).map(|nth| (seed as usize + usize::from(copies) + nth) % members);
        let write = |version, blocks: u64| {
            (0..blocks).try_for_each(|block| rig.write(version, block, 1))?;
            rig.flush()
        };
        write(2, BLOCKS)?;
        rig.destage()?;
        note_clean(&rig)?.map_err(|error| error.to_string())?;
        lost.clone().for_each(|member| rig.broken[member].gone.set(true));
        write(3, BLOCKS / 2)?;
        if !dirty {
            rig.destage()?;
            note_clean(&rig)?.map_err(|error| error.to_string())?;
        }
        assert_eq!(rig.pool().superblock().may_be_dirty(), dirty, "{self:?}");
        assert_eq!(rig.pool().superblock().present().count(), members - self.lost, "{self:?}");
        rig.crash(KINDS[(seed % 2) as usize]);
        lost.for_each(|member| rig.broken[member].gone.set(false));
        Ok((rig, older))
    }
}

fn verify(rig: &Rc<Rig>) -> Result<(), String> {
    (0..BLOCKS + 2).try_for_each(|block| {
        let newest = if block < BLOCKS / 2 { 3 } else { 2 - u64::from(block >= BLOCKS) };
        same(&format!("block {block}"), rig.read(block)?, newest).map(drop)
    })
}

/// Each subset, with each kind of memory. Counts the rows.
fn each_subset(before: Before, seed: u64, rows: &mut BTreeMap<char, u32>) -> Result<(), String> {
    for mask in 1..1 << before.members {
        let some: Vec<_> = (0..before.members).filter(|member| mask >> member & 1 == 1).collect();
        for memory in [Memory::There, Memory::Gone, Memory::Older] {
            let at = |error: String| format!("{before:?}, witness {memory:?}: {error}");
            let (rig, older) = before.lives(seed).map_err(at)?;
            let (all, remembered) = ((0..before.members).collect::<Vec<_>>(), rig.recall());
            match memory {
                Memory::There => {}
                Memory::Gone => rig.remember(None),
                Memory::Older => rig.remember(older),
            }
            let behind = newest_epoch(&rig, &some) < newest_epoch(&rig, &all);
            let (opened, row) = starts_by_the_rule(&rig, &some).map_err(at)?;
            *rows.entry(row).or_default() += 1;
            // Only who was left behind, and a memory that is not of their end either: nothing tells.
            if opened && behind {
                assert!(!matches!(memory, Memory::There), "{before:?}: {some:?}");
                continue;
            }
            if !opened {
                // Nothing has changed.
                rig.remember(remembered);
                rig.offer(&all);
                rig.open().map_err(at)?;
            }
            verify(&rig).map_err(at)?;
            rig.destage().map_err(at)?;
            rig.restart(Crash::PowerCut).map_err(at)?;
            verify(&rig).map_err(|error| at(format!("after another crash: {error}")))?;
        }
    }
    Ok(())
}

#[test]
fn a_pool_opens_by_itself_exactly_where_the_rule_allows_it() {
    survive(2, |seed| {
        let mut rows = BTreeMap::new();
        for members in 1..=4 {
            for copies in 1..=members.min(3) as u8 {
                for lost in 0..members.min(3) {
                    for dirty in [false, true] {
                        let before = Before { members, copies, dirty, lost };
                        each_subset(before, seed, &mut rows)?;
                    }
                }
            }
        }
        assert_eq!(rows.keys().collect::<String>(), "ABCDF", "{rows:?}");
        Ok(())
    });
}
