//! A cache device whose writes can be made to fail: a loop device that is set read-only while it is in use.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dir, run, stderr};

pub struct LoopSsd {
    pub path: PathBuf,
}

impl LoopSsd {
    /// One of so many bytes; `None` where the machine has none, with the reason printed.
    pub fn new(dir: &Dir, name: &str, bytes: usize) -> Option<LoopSsd> {
        LoopSsd::on(&dir.full(name, bytes))
    }

    /// One on this file.
    pub fn on(file: &Path) -> Option<LoopSsd> {
        let mut command = Command::new("losetup");
        // What it is asked for goes to the file, and no cache stands between.
        command.args(["--find", "--show", "--direct-io=on"]).arg(file);
        let Ok(output) = command.output() else {
            println!("skipped: there is no losetup");
            return None;
        };
        if !output.status.success() {
            println!("skipped: no loop device: {}", stderr(&output).trim());
            return None;
        }
        let path = String::from_utf8(output.stdout).unwrap().trim().into();
        Some(LoopSsd { path })
    }

    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// From now on its writes fail.
    pub fn fail(&self) {
        assert!(run(Command::new("blockdev").arg("--setro").arg(&self.path)).status.success());
    }

    /// They do not any more.
    pub fn mend(&self) {
        assert!(run(Command::new("blockdev").arg("--setrw").arg(&self.path)).status.success());
    }
}

impl Drop for LoopSsd {
    fn drop(&mut self) {
        // Once whoever has it has gone, at the latest.
        let _ = Command::new("blockdev").arg("--setrw").arg(&self.path).status();
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}
