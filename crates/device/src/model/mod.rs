//! Modelled devices, fault layers and virtual time.

pub mod array;
pub mod hdd;
pub mod modelled;
pub mod ssd;
pub mod store;
