//! The real world: io_uring, files, block devices, sockets.
