//! Modelled devices, fault layers and virtual time.

pub mod disk;
pub mod fault;
pub mod world;
