//! An origin that stops answering.
#![allow(clippy::disallowed_methods, reason = "a test waits")]

use std::process::{Child, Command, Stdio};

use super::daemon::{VOLUME_BYTES, until};
use super::{Dir, have, signal};

/// An origin whose requests can be held up: a file that nbdfuse shows of an nbdkit.
pub struct HeldOrigin {
    pub path: std::path::PathBuf,
    servers: Vec<Child>,
}

impl HeldOrigin {
    /// `None` where the machine cannot do it.
    pub fn new(dir: &Dir) -> Option<HeldOrigin> {
        if !have("nbdkit") || !have("nbdfuse") {
            return None;
        }
        let (socket, path) = (dir.path("kit"), dir.path("held"));
        std::fs::write(&path, b"").unwrap();
        let mut kit = Command::new("nbdkit");
        kit.args(["--foreground", "--unix"]).arg(&socket).args(["memory", "32M"]);
        let mut origin = HeldOrigin { path, servers: vec![kit.spawn().unwrap()] };
        until("nbdkit listens", || socket.exists());
        let mut fuse = Command::new("nbdfuse");
        fuse.arg(&origin.path).arg(format!("nbd+unix:///?socket={}", socket.display()));
        origin.servers.push(fuse.stderr(Stdio::null()).spawn().unwrap());
        let path = origin.path.clone();
        let size = || std::fs::metadata(&path).map_or(0, |meta| meta.len());
        for _ in 0..200 {
            if size() == VOLUME_BYTES as u64 {
                return Some(origin);
            }
            if origin.servers[1].try_wait().unwrap().is_some() {
                println!("skipped: nbdfuse cannot mount here");
                return None;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("nbdfuse shows nothing");
    }

    pub fn hold(&self) {
        signal(self.servers[0].id(), "STOP");
    }

    pub fn release(&self) {
        signal(self.servers[0].id(), "CONT");
    }
}

impl Drop for HeldOrigin {
    fn drop(&mut self) {
        self.release();
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        for server in self.servers.iter_mut().rev() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
