//! The daemon's memory: how the kernel treats it, and how much it may become.

use forebay_control::api::Memory;
use forebay_control::error::Code;
use forebay_device::buf::POOL_BYTES_MAX;
use forebay_device::real::memory;
use forebay_engine::Pool;
use forebay_engine::limits::{DESTAGE_BYTES_MAX, POPULATE_BYTES_MAX, RAM_STEP_BYTES};
use forebay_export::nbd::limits::{SHARE_BYTES_INFLIGHT_MAX, SHARE_CONNECTION_BYTES_MAX};

use super::{Daemon, Serving};
use crate::Result;
use crate::doctor::memory_available;
use crate::failure::Failure;
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

impl Daemon {
    /// How much memory the daemon has, and the most that it takes.
    pub(super) fn memory(&self) -> Memory {
        let (mut index, mut index_max, mut buffers_max, mut serves) = (0, 0, 0, false);
        let (mut policy, mut ram, mut ram_max) = (0, 0, 0);
        let reactors = self.crew.hands().len() as u64 + 1;
        // Each keeps some for reuse.
        buffers_max += reactors * POOL_BYTES_MAX as u64;
        for slot in self.slots.borrow().values() {
            let Some(open) = slot.open() else { continue };
            let (now, most) = open.pool.index_memory();
            index += now;
            index_max += most;
            policy += open.pool.policy_memory();
            ram += open.pool.ram().memory_bytes;
            ram_max += Pool::ram_memory_bytes(open.pool.superblock().ram_bytes);
            serves |= open.exports.borrow().values().any(|one| matches!(one, Serving::Live(_)));
            buffers_max +=
                POPULATE_BYTES_MAX + open.volumes.borrow().len() as u64 * DESTAGE_BYTES_MAX;
        }
        if serves {
            // All exports of a reactor share its part.
            buffers_max += reactors * (SHARE_BYTES_INFLIGHT_MAX + SHARE_CONNECTION_BYTES_MAX);
        }
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
            total_bytes_max: index_max + policy + ram_max + buffers_max,
        }
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
        match memory_available() {
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
