//! The cache engine: a log on SSDs in front of slow origins.
//!
//! It knows no operating system: devices, time, spawning and randomness are handed in
//! ([`forebay_device`]), so the code that runs in production is the code that is simulated.
#![forbid(unsafe_code)]

mod acceptance;
mod addition;
mod adoption;
mod apply;
mod checkpoint;
mod chunked;
mod client;
mod copies;
mod core;
mod creation;
mod deadline;
mod departure;
mod destage;
mod direct;
mod error;
mod event;
mod failure;
mod fingerprint;
mod growth;
mod images;
mod lock;
mod log;
mod losses;
mod marks;
mod member;
mod membership;
mod origin;
mod pull;
mod ram;
mod read;
mod reclaim;
mod recovery;
mod removal;
mod scrub;
mod segment;
mod sequential;
mod share;
mod sound;
mod spare;
mod status;
mod superblock;
mod throttle;
mod verify;
mod wait;
mod walk;
mod write;

pub mod bypass;
pub mod counters;
pub mod format;
pub mod ids;
pub mod index;
pub mod limits;
pub mod planted;
pub mod policy;
pub mod pool;
mod populate;
pub mod tuning;
pub mod volume;
pub mod witness;

pub use client::{Client, Port, Readers};
pub use copies::CopiesChange;
pub use creation::{CreateOptions, create, plan};
pub use departure::Departure;
pub use destage::Delay;
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventKind};
pub use format::{CUTOFF_NEVER, Hours, Mode, VolumeSettings};
pub use membership::OpenOptions;
pub use policy::Populate;
pub use pool::{Pool, VolumeSpec, open, open_with};
pub use pull::{Hold, Pull};
pub use ram::{FRAME_META_BYTES, RamStatus};
pub use recovery::RecoveryReport;
pub use scrub::{ScrubFound, ScrubStatus};
pub use spare::{read_spare, unmark};
pub use status::{Extent, Place};
pub use superblock::read_superblock;
pub use tuning::Tuning;
pub use volume::Volume;
pub use witness::{MemoryWitness, Witness};
