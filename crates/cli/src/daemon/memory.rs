//! The daemon's memory: how the kernel treats it, and how much it may become.

use forebay_control::api::{Memory, PoolPlan};
use forebay_control::error::Code;
use forebay_device::real::memory;
use forebay_engine::Pool;
use forebay_engine::format::Superblock;
use forebay_engine::limits::RAM_STEP_BYTES;

use super::plan::room;
use super::{Daemon, Open, Serving};
use crate::Result;
use crate::failure::Failure;
use crate::memory::{self as calculation, Buffers};
use crate::text;

/// What the kernel was asked for at the start.
pub(super) struct Kept {
    lock: std::io::Result<()>,
    io: std::io::Result<()>,
}

impl Kept {
    /// Asks for what is allowed. What is not is told and costs nothing but its benefit.
    pub(super) fn ask() -> Kept {
        Kept { io: memory::serve_io(), lock: memory::lock() }
    }
}

fn why(result: &std::io::Result<()>) -> String {
    result.as_ref().err().map_or_else(String::new, ToString::to_string)
}

/// What is wrong with a pool that takes so much for its index, its policy and its RAM tier.
fn too_much(
    name: &str,
    when: &str,
    (index, policy, ram): (u64, u64, u64),
    machine: u64,
    others: u64,
) -> String {
    let beside = match others {
        0 => String::new(),
        others => format!(", of which {} are other pools'", text::bytes(others)),
    };
    format!(
        "pool \"{name}\" may take {} of memory{when} (index {}, policy {}, RAM tier {}), and of this machine's \
         {} pools may have {}{beside}",
        text::bytes(calculation::sum(&[index, policy, ram])),
        text::bytes(index),
        text::bytes(policy),
        text::bytes(ram),
        text::bytes(machine),
        text::bytes(calculation::promisable(machine))
    )
}

impl Daemon {
    /// How much memory the daemon has, and the most that it takes.
    pub(super) fn memory(&self) -> Memory {
        let (mut index, mut index_max, mut serves) = (0, 0, false);
        let (mut policy, mut ram, mut ram_max) = (0, 0, 0);
        let mut buffers = Buffers { reactors: self.reactor_count(), volumes: 0, share_bytes: 0 };
        for slot in self.slots.borrow().values() {
            let Some(open) = slot.open() else { continue };
            let (now, most) = open.pool.index_memory();
            index += now;
            index_max = calculation::sum(&[index_max, most]);
            policy += open.pool.policy_memory();
            ram += open.pool.ram().memory_bytes;
            ram_max += Pool::ram_memory_bytes(open.pool.superblock().ram_bytes);
            serves |= open.exports.borrow().values().any(|one| matches!(one, Serving::Live(_)));
            buffers.volumes += open.volumes.borrow().len() as u64;
        }
        if serves {
            // All exports of a reactor share its part.
            buffers.share_bytes = self.config.share_bytes_max();
        }
        let buffers_max = buffers.most();
        Memory {
            locked: self.kept.lock.is_ok(),
            locked_reason: why(&self.kept.lock),
            io_flusher: self.kept.io.is_ok(),
            io_flusher_reason: why(&self.kept.io),
            resident_bytes: memory::resident_bytes(),
            index_bytes: index,
            index_bytes_max: index_max,
            policy_bytes: policy,
            ram_bytes: ram,
            ram_bytes_max: ram_max,
            buffers_bytes_max: buffers_max,
            total_bytes_max: calculation::sum(&[index_max, policy, ram_max, buffers_max]),
        }
    }

    fn reactor_count(&self) -> u64 {
        self.crew.hands().len() as u64 + 1
    }

    /// Adds to the plan of a pool what it takes of memory, and what the machine has room for.
    pub(super) fn plan_memory(&self, plan: &mut PoolPlan) {
        let index = calculation::Index::of(plan.capacity_bytes, plan.index_bytes_max);
        (plan.index_bytes_usual, plan.index_bytes_dense) = (index.usual, index.dense);
        plan.sparse_cache_bytes = index.sparse_cache;
        plan.policy_bytes = calculation::policy_bytes(plan.capacity_bytes);
        let share_bytes = self.config.share_bytes_max();
        // With a volume that is exported, without which nobody makes one.
        let buffers = Buffers { reactors: self.reactor_count(), volumes: 1, share_bytes };
        plan.buffers_bytes_max = buffers.most();
        plan.total_bytes_max = calculation::sum(&[plan.promised_bytes(), plan.buffers_bytes_max]);
        plan.machine_bytes = calculation::total();
        if let Some(machine) = plan.machine_bytes {
            let room = calculation::promisable(machine).saturating_sub(self.promised_bytes());
            plan.machine_cache_bytes =
                calculation::cache_for(room.saturating_sub(plan.ram_memory_bytes));
        }
    }

    /// What open pools may take.
    fn promised_bytes(&self) -> u64 {
        let memory = self.memory();
        calculation::sum(&[memory.index_bytes_max, memory.policy_bytes, memory.ram_bytes_max])
    }

    /// Refuses a pool that the machine's memory could not hold beside those that are open.
    pub(super) fn check_pool_memory(&self, plan: &PoolPlan) -> Result<()> {
        let Some(machine) = plan.machine_bytes else { return Ok(()) };
        let (most, others) = (calculation::promisable(machine), self.promised_bytes());
        let room = most.saturating_sub(others);
        if plan.promised_bytes() <= room {
            return Ok(());
        }
        let parts = (plan.index_bytes_max, plan.policy_bytes, plan.ram_memory_bytes);
        let what = too_much(plan.name.as_str(), "", parts, machine, others);
        let index = room.saturating_sub(plan.policy_bytes + plan.ram_memory_bytes);
        let cache = text::bytes(plan.machine_cache_bytes);
        let hint = match index >> 20 {
            0..4 => format!("use cache devices of {cache} in all, a smaller --ram, or add memory"),
            mib => format!(
                "use cache devices of {cache} in all, or a smaller --ram; or bound the index with \
                 `--index-max {mib}M`, and a cache that is full of small pieces takes in less"
            ),
        };
        Err(Failure::coded(Code::Refused, what).hint(hint))
    }

    /// Refuses a pool in use that is to become so large that the machine's memory could not hold it beside the others
    /// that are open, by the rule for a new one.
    pub(super) fn check_growth_memory(&self, open: &Open, next: &Superblock) -> Result<()> {
        let Some(machine) = calculation::total() else { return Ok(()) };
        let policy = calculation::policy_bytes(room(next, None).capacity_bytes);
        let ram = Pool::ram_memory_bytes(next.ram_bytes);
        let takes = calculation::sum(&[next.index_memory_max, policy, ram]);
        let has = calculation::sum(&[open.pool.index_memory().1, open.pool.policy_memory(), ram]);
        let others = self.promised_bytes().saturating_sub(has);
        let left = calculation::promisable(machine).saturating_sub(others);
        if takes <= left.max(has) {
            return Ok(());
        }
        let parts = (next.index_memory_max, policy, ram);
        let what = too_much(&next.name, " then", parts, machine, others);
        let more = calculation::cache_for(left.saturating_sub(has));
        Err(Failure::coded(Code::Refused, what).hint(format!(
            "at most {} more of cache fit; add memory, or make a RAM tier smaller: `forebay pool set {} ram=SIZE`",
            text::bytes(more),
            next.name
        )))
    }

    /// Says at the start what was asked for.
    pub(super) fn tell_memory(&self) {
        let one = |result: &std::io::Result<()>, yes: &str, no: &str| match result {
            Ok(()) => yes.to_owned(),
            Err(error) => format!("{no} ({error})"),
        };
        let what = format!(
            "memory {}; {}",
            one(&self.kept.lock, "is locked", "is not locked"),
            one(
                &self.kept.io,
                "the kernel makes room for it without I/O",
                "the kernel may wait for disks to make room for it"
            )
        );
        self.journal.note("daemon-memory", "", what);
    }

    /// Refuses a RAM tier that the machine has no memory for, beside what the indexes of open pools may
    /// still take. `now` is what the pool's tier has already.
    pub(super) fn check_ram(&self, bytes: u64, now: u64) -> Result<()> {
        Pool::check_ram_bytes(bytes)?;
        if !bytes.is_multiple_of(RAM_STEP_BYTES) {
            let below = bytes / RAM_STEP_BYTES * RAM_STEP_BYTES;
            return Err(Failure::new(format!("a RAM tier of {bytes} B cannot be made")).hint(
                format!("use a multiple of 2 MiB, as {}", text::bytes(below.max(RAM_STEP_BYTES))),
            ));
        }
        let memory = self.memory();
        let more = Pool::ram_memory_bytes(bytes).saturating_sub(now);
        let kept = memory.index_bytes_max.saturating_sub(memory.index_bytes);
        match calculation::available() {
            Some(available) if more > 0 && more > available.saturating_sub(kept) => {
                let what = format!(
                    "a RAM tier of {} needs {} more memory; {} are available, of which indexes may \
                     take {}",
                    text::bytes(bytes),
                    text::bytes(more),
                    text::bytes(available),
                    text::bytes(kept)
                );
                Err(Failure::coded(Code::Refused, what)
                    .hint("choose a smaller size, or free memory"))
            }
            _ => Ok(()),
        }
    }

    /// Says how much memory a pool that was opened may take.
    pub(super) fn tell_pool_memory(&self, pool: &str) {
        let Memory { index_bytes_max, ram_bytes_max, buffers_bytes_max, total_bytes_max, .. } =
            self.memory();
        tracing::info!(
            pool,
            "memory of all open pools: index up to {}, RAM tiers up to {}, buffers up to {}, in all \
             up to {}",
            text::bytes(index_bytes_max),
            text::bytes(ram_bytes_max),
            text::bytes(buffers_bytes_max),
            text::bytes(total_bytes_max)
        );
    }
}
