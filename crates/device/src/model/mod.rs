//! Modelled devices, fault layers and virtual time.

pub mod array;
pub mod disk;
pub mod fault;
pub mod hdd;
pub mod modelled;
pub mod ssd;
pub mod store;
pub mod thrifty;
pub mod world;
