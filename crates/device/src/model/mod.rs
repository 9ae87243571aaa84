//! Modelled devices, fault layers and virtual time.
