//! Deterministic simulation of Forebay: one seed is one run, with its geometry, workload, faults
//! and crashes.
//!
//! * [`subject`]: what is tested, and what it is given.
//! * [`swarm`]: a seed's configuration. [`workload`]: its requests. [`content`]: their bytes.
//! * [`oracle`]: which contents each sector may have.
//! * [`faults`]: what breaks meanwhile.
//! * [`runner`]: one seed from beginning to end.
//! * [`passthrough`]: a cache that caches nothing, right or deliberately wrong, to test all this.
#![forbid(unsafe_code)]

pub mod content;
pub mod engine;
pub mod faults;
pub mod oracle;
pub mod passthrough;
pub mod runner;
pub mod subject;
pub mod swarm;
pub mod workload;
