//! The heap of our programs.
//!
//! An index is millions of small bodies that are replaced by others of nearly the same size. How an allocator lays them
//! out decides how many of the processor's caches and pages a request touches: docs/internals/performance.md has what
//! was measured. Each program names [`Jemalloc`] as its `#[global_allocator]`; tests and libraries leave that to whoever
//! links them.

use std::ffi::c_char;

pub use tikv_jemallocator::Jemalloc;

/// Unused memory goes back to the kernel by itself after some seconds, also while the program is idle: what is said
/// of a daemon's memory is then true after a burst as well. It is unmapped: memory that is locked, as a daemon's is
/// ([`crate::real::memory`]), the kernel takes back in no other way.
const OPTIONS: &[u8] =
    b"background_thread:true,max_background_threads:1,muzzy_decay_ms:0,retain:false\0";

/// What jemalloc reads before it allocates for the first time, a pointer to a C string.
// SAFETY: the name is jemalloc's own for exactly this, with the prefix of its crate; nothing else has it.
#[unsafe(export_name = "_rjem_malloc_conf")]
#[used]
static CONFIGURATION: Options = Options(OPTIONS.as_ptr().cast());

#[repr(transparent)]
struct Options(*const c_char);

// SAFETY: the string behind it is constant.
unsafe impl Sync for Options {}
