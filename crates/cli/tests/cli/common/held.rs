//! Devices that can be made to fail while they are in use: files that nbdfuse shows of an nbdkit, and loop devices on
//! such files, for a cache device has no holes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::daemon::{SSD_BYTES, VOLUME_BYTES, until};
use super::looped::LoopSsd;
use super::{Dir, have, signal};

/// A file behind two processes.
struct Shown {
    path: PathBuf,
    /// The one that answers, and the one that shows it.
    servers: Vec<Child>,
}

impl Shown {
    /// What nbdkit serves with these arguments; `None` where the machine cannot do it.
    fn new(dir: &Dir, name: &str, bytes: usize, kit: &[&str]) -> Option<Shown> {
        if !have("nbdkit") || !have("nbdfuse") {
            return None;
        }
        let (socket, path) = (dir.path(&format!("{name}.kit")), dir.path(name));
        std::fs::write(&path, b"").unwrap();
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket).args(kit);
        let server = command.stderr(Stdio::null()).spawn().unwrap();
        let mut shown = Shown { path, servers: vec![server] };
        until("nbdkit listens", || socket.exists());
        let mut fuse = Command::new("nbdfuse");
        fuse.arg(&shown.path).arg(format!("nbd+unix:///?socket={}", socket.display()));
        shown.servers.push(fuse.stderr(Stdio::null()).spawn().unwrap());
        for _ in 0..200 {
            let size = std::fs::metadata(&shown.path).map_or(0, |meta| meta.len());
            if size == bytes as u64 {
                return Some(shown);
            }
            if shown.servers[1].try_wait().unwrap().is_some() {
                println!("skipped: nbdfuse cannot mount here");
                return None;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("nbdfuse shows nothing");
    }

    fn hold(&self) {
        signal(self.servers[0].id(), "STOP");
    }

    /// Also whoever shows it: a process that waits for what that has not seen yet can be ended.
    fn hold_all(&self) {
        self.servers.iter().for_each(|server| signal(server.id(), "STOP"));
    }

    fn release(&mut self) {
        for server in &mut self.servers {
            if server.try_wait().is_ok_and(|ended| ended.is_none()) {
                signal(server.id(), "CONT");
            }
        }
    }

    fn vanish(&mut self) {
        self.servers[0].kill().unwrap();
        self.servers[0].wait().unwrap();
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.release();
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        for server in self.servers.iter_mut().rev() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// An origin whose requests can be held up, or fail.
pub struct HeldOrigin {
    pub path: PathBuf,
    shown: Shown,
    /// What makes its requests fail where it is there.
    error: PathBuf,
}

impl HeldOrigin {
    /// `None` where the machine cannot do it.
    pub fn new(dir: &Dir) -> Option<HeldOrigin> {
        let error = dir.path("held.error");
        let when = format!("error-file={}", error.display());
        let kit = ["--filter=error", "memory", "32M", "error=EIO", "error-rate=1", &when];
        let shown = Shown::new(dir, "held", VOLUME_BYTES, &kit)?;
        Some(HeldOrigin { path: shown.path.clone(), shown, error })
    }

    /// Of one that fails, reads do; and writes take two seconds.
    pub fn of_reads(dir: &Dir) -> Option<HeldOrigin> {
        let error = dir.path("held.error");
        let when = format!("error-pread-file={}", error.display());
        let filters = ["--filter=error", "--filter=delay", "memory", "32M", "wdelay=2"];
        let errors = ["error-pread=EIO", "error-pread-rate=1", &when];
        let shown = Shown::new(dir, "held", VOLUME_BYTES, &[&filters[..], &errors].concat())?;
        Some(HeldOrigin { path: shown.path.clone(), shown, error })
    }

    pub fn fail(&self) {
        std::fs::write(&self.error, b"").unwrap();
    }

    pub fn mend(&self) {
        std::fs::remove_file(&self.error).unwrap();
    }

    pub fn hold(&self) {
        self.shown.hold();
    }

    /// The same, and who has asked for something can be ended.
    pub fn hold_all(&self) {
        self.shown.hold_all();
    }

    pub fn release(&mut self) {
        self.shown.release();
    }
}

/// How a cache device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every request fails.
    Error,
    /// Every write fails: it has become read-only.
    ReadOnly,
    /// No request is answered.
    Hang,
    /// It is gone.
    Vanish,
    /// A bit of every other block is another one.
    Flip,
}

/// A cache device that can be made to fail in any way.
pub struct FaultySsd {
    // In the order in which they have to go.
    device: LoopSsd,
    shown: Shown,
    /// Its bytes, what makes its requests fail where it is there, and what makes its writes.
    bytes: PathBuf,
    error: PathBuf,
    write_error: PathBuf,
}

impl FaultySsd {
    /// `None` where the machine cannot do it.
    pub fn new(dir: &Dir, name: &str) -> Option<FaultySsd> {
        let bytes = dir.full(&format!("{name}.bytes"), SSD_BYTES);
        let file = bytes.to_str().unwrap();
        let (error, write_error) =
            (dir.path(&format!("{name}.error")), dir.path(&format!("{name}.write-error")));
        let when = format!("error-file={}", error.display());
        let when_written = format!("error-pwrite-file={}", write_error.display());
        let kit =
            ["--filter=error", "file", file, "error=EIO", "error-rate=1", &when, &when_written];
        let shown = Shown::new(dir, name, SSD_BYTES, &kit)?;
        let device = LoopSsd::on(&shown.path)?;
        Some(FaultySsd { device, shown, bytes, error, write_error })
    }

    pub fn path(&self) -> &Path {
        &self.device.path
    }

    pub fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Error => {
                for when in [&self.error, &self.write_error] {
                    std::fs::write(when, b"").unwrap();
                }
            }
            Fault::ReadOnly => std::fs::write(&self.write_error, b"").unwrap(),
            Fault::Hang => self.shown.hold(),
            Fault::Vanish => self.shown.vanish(),
            Fault::Flip => self.flip(),
        }
    }

    /// It answers again, unless it has vanished.
    pub fn mend(&mut self) {
        let _ = [&self.error, &self.write_error].map(std::fs::remove_file);
        self.shown.release();
    }

    /// Where the log is; the superblocks stay as they are.
    fn flip(&self) {
        use std::os::unix::fs::FileExt;
        const BLOCK: usize = 4096;
        const LOG: std::ops::Range<usize> = 6 << 20..96 << 20;
        let file = std::fs::File::options().read(true).write(true).open(&self.bytes).unwrap();
        for at in LOG.step_by(2 * BLOCK) {
            let at = (at + 77) as u64;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        }
    }
}

impl Drop for FaultySsd {
    fn drop(&mut self) {
        // What waits for it has an end, so that the loop device can go.
        self.mend();
    }
}
