//! Deterministic simulation of Forebay: one seed is one run, with its geometry, workload, faults
//! and crashes.
//!
//! * [`subject`]: what is tested, and what it is given.
//! * [`swarm`]: a seed's configuration. [`workload`]: its requests. [`content`]: their bytes.
//! * [`oracle`]: which contents each sector may have.
//! * [`faults`]: what breaks meanwhile. [`hosts`]: whose pool it is.
//! * [`runner`]: one seed from beginning to end.
//! * [`jobs`]: many seeds. [`coverage`]: what they reach. [`alarm`]: whether they notice.
//! * [`every_io`]: one workload, crashed everywhere.
//! * [`passthrough`]: a cache that caches nothing, right or deliberately wrong, to test all this.
#![forbid(unsafe_code)]

pub mod alarm;
pub mod content;
pub mod coverage;
pub mod engine;
pub mod every_io;
pub mod faults;
pub mod hosts;
pub mod jobs;
mod machine;
pub mod oracle;
pub mod passthrough;
pub mod runner;
pub mod subject;
pub mod swarm;
pub mod workload;
