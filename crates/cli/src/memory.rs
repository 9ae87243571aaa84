//! Memory as a calculation: what a cache takes, and how much cache a machine's memory has room for.
//!
//! * The index is bounded. What it takes below its bound depends on how small the pieces are that the cache is full of;
//!   at the bound the cache takes in less, and nothing else happens.
//! * All that is promised to pools is what their indexes may take, what they remember of what is asked for, and their
//!   RAM tiers. Buffers are for all pools together, and only clients with that much under way make them so large.

use std::path::{Path, PathBuf};

use forebay_device::buf::POOL_BYTES_MAX;
use forebay_engine::limits::{
    DESTAGE_MEMORY_MAX, INDEX_BYTES_PER_GIB, INDEX_BYTES_PER_GIB_SPARSE, INDEX_BYTES_PER_GIB_USUAL,
    POLICY_BYTES_PER_GIB, POPULATE_BYTES_MAX,
};
use forebay_export::nbd::limits::SHARE_CONNECTION_BYTES_MAX;

/// The part of a machine's memory that is not promised to pools: an eighth, for the kernel, for programs, and for the
/// requests of clients that do nothing out of the ordinary.
const KEPT_PART: u64 = 8;

/// The most that one setting may say of memory, in bytes: more than any machine has. Sums of such values are numbers.
pub(crate) const MEMORY_BYTES_MAX: u64 = 1 << 50;

/// Bytes for so much of the cache, in MiB, which no pool has too many of to be multiplied.
fn per_gib(bytes_per_gib: u64, cache_bytes: u64) -> u64 {
    ((cache_bytes >> 20) * bytes_per_gib) >> 10
}

/// Memory of a cache that is full, by what it is full of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// Pieces of 64 KiB on average, the usual case.
    pub(crate) usual: u64,
    /// Pieces of 4 KiB.
    pub(crate) dense: u64,
    /// The most that it takes.
    pub(crate) max: u64,
    /// Bytes of cache that this is enough for where each piece is 4 KiB and far from all others.
    pub(crate) sparse_cache: u64,
}

impl Index {
    /// Of a cache of so many bytes, with this bound.
    pub(crate) fn of(cache_bytes: u64, max: u64) -> Index {
        let least = |per: u64| per_gib(per, cache_bytes).min(max);
        let sparse = u128::from(max) << 30;
        let sparse = sparse / u128::from(INDEX_BYTES_PER_GIB_SPARSE);
        Index {
            usual: least(INDEX_BYTES_PER_GIB_USUAL),
            dense: least(INDEX_BYTES_PER_GIB),
            max,
            sparse_cache: u64::try_from(sparse).unwrap_or(u64::MAX).min(cache_bytes),
        }
    }
}

/// What a pool of so many bytes remembers of what is asked for, if its volumes count no accesses.
pub(crate) fn policy_bytes(cache_bytes: u64) -> u64 {
    per_gib(POLICY_BYTES_PER_GIB, cache_bytes)
}

/// What is promised together. A pool may have been made with a bound that no sum can hold.
pub(crate) fn sum(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
}

/// What a machine of so much memory can promise to all of its pools.
pub(crate) fn promisable(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / KEPT_PART
}

/// Bytes of cache whose index, at the bound that is usual, and policy take no more than this.
pub(crate) fn cache_for(memory_bytes: u64) -> u64 {
    let each = u128::from(INDEX_BYTES_PER_GIB + POLICY_BYTES_PER_GIB);
    u64::try_from((u128::from(memory_bytes) << 30) / each).unwrap_or(u64::MAX)
}

/// The most that requests, populations and destaging take.
pub(crate) struct Buffers {
    pub(crate) reactors: u64,
    pub(crate) volumes: u64,
    /// What requests of clients may take on one reactor; 0 if nothing is exported.
    pub(crate) share_bytes: u64,
}

impl Buffers {
    /// All of them.
    pub(crate) fn most(&self) -> u64 {
        let clients = match self.share_bytes {
            0 => 0,
            // A request that is not aligned, or of which a part is damaged, takes as much again inside.
            bytes => 2 * bytes + SHARE_CONNECTION_BYTES_MAX,
        };
        self.reactors * (POOL_BYTES_MAX as u64 + clients)
            + self.volumes * (POPULATE_BYTES_MAX + DESTAGE_MEMORY_MAX)
    }
}

/// A value of /proc/meminfo, in bytes.
pub(crate) fn meminfo(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory that can be had without taking it from anybody.
pub(crate) fn available() -> Option<u64> {
    meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// Memory that this process can have at all: the machine's, or less where its control group has a limit.
pub(crate) fn total() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = meminfo(&table, "MemTotal")?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = group_limit(&groups, Path::new("/sys/fs/cgroup"), |path| {
        std::fs::read_to_string(path).ok()
    });
    Some(limit.map_or(total, |limit| limit.min(total)))
}

/// The smallest limit of the control group of a process and of those above it.
fn group_limit(
    groups: &str,
    root: &Path,
    read: impl Fn(&PathBuf) -> Option<String>,
) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let all = Path::new(own).ancestors().map(|group| root.join(group).join("memory.max"));
    all.filter_map(|path| read(&path)?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;
    const TUNING: &str = include_str!("../../../docs/user/tuning.md");

    #[test]
    fn what_an_index_takes_is_never_more_than_its_bound() {
        for cache in [512 << 20, GIB, 3 * TIB / 2, 256 * TIB] {
            for max in [4 << 20, per_gib(INDEX_BYTES_PER_GIB, cache).max(4 << 20), TIB] {
                let index = Index::of(cache, max);
                assert!(index.usual <= index.dense && index.dense <= max, "{index:?}");
                assert!(index.sparse_cache <= cache);
                assert!(per_gib(INDEX_BYTES_PER_GIB_SPARSE, index.sparse_cache) <= max);
            }
        }
        let small = Index::of(512 << 20, 4 << 20);
        assert_eq!(small.sparse_cache, 512 << 20, "the smallest bound is enough for all of it");
        assert!(Index::of(TIB, per_gib(INDEX_BYTES_PER_GIB, TIB)).sparse_cache < TIB / 2);
    }

    #[test]
    fn the_cache_that_a_memory_has_room_for_is_the_largest_one() {
        for memory in [0, 1, 5 << 20, 4 * GIB, 100 * GIB, TIB] {
            let cache = cache_for(memory);
            let takes = |cache| per_gib(INDEX_BYTES_PER_GIB, cache) + policy_bytes(cache);
            assert!(takes(cache) <= memory, "{memory}: {cache}");
            assert!(
                takes(cache + (2 << 20)) >= memory.saturating_sub(1 << 12),
                "{memory}: {cache}"
            );
        }
        assert_eq!(cache_for(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_limit_of_a_control_group_counts_wherever_it_is_set() {
        let read = |path: &PathBuf| match path.to_str()? {
            "/g/system.slice/forebay.service/memory.max" => Some("max\n".to_owned()),
            "/g/system.slice/memory.max" => Some("4096\n".to_owned()),
            _ => None,
        };
        let limit = |groups: &str| group_limit(groups, Path::new("/g"), read);
        assert_eq!(limit("0::/system.slice/forebay.service\n"), Some(4096));
        assert_eq!(limit("0::/user.slice\n"), None);
        assert_eq!(limit("3:memory:/x\n0::/system.slice\n"), Some(4096));
        assert_eq!(limit(""), None);
    }

    #[test]
    fn the_tables_of_the_documentation_are_what_is_calculated() {
        let mut by_cache = String::from(
            "| cache | full of pieces of 64 KiB | full of pieces of 4 KiB: the bound | in pieces of 4 KiB far from each other the bound is enough for |\n|---|---|---|---|\n",
        );
        for cache in [GIB, 100 * GIB, TIB, 4 * TIB, 16 * TIB, 64 * TIB] {
            let index = Index::of(cache, per_gib(INDEX_BYTES_PER_GIB, cache).max(4 << 20));
            let policy = policy_bytes(cache);
            let memory = [index.usual + policy, index.max + policy].map(text::bytes);
            let [cache, sparse] = [cache, index.sparse_cache].map(text::bytes);
            by_cache += &format!("| {cache} | {} | {} | {sparse} |\n", memory[0], memory[1]);
        }
        let mut by_memory = String::from(
            "| memory | largest cache, all of its pools together | with a RAM tier of a quarter of the memory |\n|---|---|---|\n",
        );
        for memory in [2, 4, 8, 16, 32, 64, 128, 256].map(|gib| gib * GIB) {
            let all = promisable(memory);
            let caches = [all, all - memory / 4].map(|memory| text::bytes(cache_for(memory)));
            by_memory += &format!("| {} | {} | {} |\n", text::bytes(memory), caches[0], caches[1]);
        }
        for table in [by_cache, by_memory] {
            assert!(TUNING.contains(&table), "docs/user/tuning.md is to have:\n{table}");
        }
    }
}
