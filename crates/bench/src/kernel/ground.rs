//! A directory in memory, a shell, the kernel's modules, and who takes down what is made.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::keeper::Keeper;
use crate::bench::Result;

/// Where tools of the system are.
pub(super) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the directory of a run is made: in memory, and empty whenever a system starts.
const RUNS: &str = "/run";

/// Seconds that a step of setting up may take; warming dm-cache is the longest.
const STEP_MAX: &str = "180";

/// Bytes of the directory beside the slow disks: logs, witnesses.
const FILES_BYTES: u64 = 64 << 20;

/// Gives a command the system's tools, as they work there.
pub(super) fn with_tools(command: &mut Command) -> &mut Command {
    command.env("PATH", PATH);
    // Who makes the nodes of dm devices: udev where it runs, else dmsetup.
    if !Path::new("/run/udev/control").exists() {
        command.env("DM_DISABLE_UDEV", "1");
    }
    command
}

/// Variables of a shell.
pub(super) type Variables = Vec<(&'static str, String)>;

/// What a run stands on.
pub(super) struct Ground {
    /// What everything is called that has a name: no other run has it.
    name: String,
    /// Begins a command that loads a module.
    modprobe: &'static str,
    /// Nobody where all of it ends with its kernel.
    keeper: Option<Keeper>,
}

/// A name that no run of this system has had.
///
/// # Errors
/// If the kernel gives no random number.
pub(super) fn unique_name() -> Result<String> {
    const SOURCE: &str = "/proc/sys/kernel/random/uuid";
    let uuid = fs::read_to_string(SOURCE).map_err(|e| format!("{SOURCE}: {e}"))?;
    let first = uuid.split('-').next().unwrap_or_default();
    Ok(format!("forebay-bench-{first}"))
}

/// The modules that the kernel has loaded.
fn loaded() -> Vec<String> {
    let text = fs::read_to_string("/proc/modules").unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// The modules that modprobe says it would insert, those that need others first, and not those that are there.
fn new_modules(shown: &str, there: &[String]) -> Vec<String> {
    let files = shown.lines().filter_map(|line| line.strip_prefix("insmod ")?.split(' ').next());
    let names = files.filter_map(|file| file.rsplit('/').next()?.split_once(".ko"));
    let names = names.map(|(name, _)| name.replace('-', "_"));
    let mut new: Vec<_> = names.filter(|name| !there.contains(name)).collect();
    new.reverse();
    new
}

impl Ground {
    /// Makes the directory, with room for so many bytes of slow disks.
    ///
    /// # Errors
    /// If it cannot be made, or memory not be mounted there.
    pub(super) fn new(
        name: String,
        modprobe: &'static str,
        keeper: Option<Keeper>,
        bytes: u64,
    ) -> Result<Self> {
        let mut ground = Self { name, modprobe, keeper };
        let dir = ground.dir();
        ground.undo(&[], &format!("unmount {}", dir.display()))?;
        fs::create_dir(&dir).map_err(|e| format!("making {}: {e}", dir.display()))?;
        let mut mount = Command::new("mount");
        mount.env("PATH", PATH).args(["-t", "tmpfs", "-o"]);
        mount.arg(format!("mode=700,size={}", bytes + FILES_BYTES)).arg(&ground.name).arg(&dir);
        let output = mount.output().map_err(|e| format!("mount: {e}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("mounting memory at {}: {}", dir.display(), said.trim()));
        }
        Ok(ground)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether nobody else works on this system.
    pub(super) fn is_alone(&self) -> bool {
        self.keeper.is_none()
    }

    /// The directory.
    pub(super) fn dir(&self) -> PathBuf {
        Path::new(RUNS).join(&self.name)
    }

    /// The variables that all steps have.
    fn own(&self) -> Variables {
        vec![("NAME", self.name.clone()), ("RUN", self.dir().display().to_string())]
    }

    /// Runs lines of shell in the directory.
    ///
    /// # Errors
    /// The last things that it said.
    pub(super) fn shell(&self, text: &str, variables: &[(&str, String)]) -> Result<String> {
        let dir = self.dir();
        let mut command = Command::new("timeout");
        command.args(["-k", "5", STEP_MAX, "sh", "-ec", text]).current_dir(&dir);
        with_tools(&mut command).stdin(Stdio::null()).envs(self.own());
        // What stays in the background must not hold the pipes.
        let (out, errors) = (dir.join("out"), dir.join("errors"));
        let create =
            |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
        command.stdout(create(&out)?).stderr(create(&errors)?);
        let status = command.envs(variables.iter().map(|(k, v)| (k, v))).status();
        let status = status.map_err(|e| format!("sh: {e}"))?;
        if status.success() {
            return Ok(fs::read_to_string(&out).unwrap_or_default());
        }
        let said = fs::read_to_string(&errors).unwrap_or_default();
        Err(format!("{status}: {}", said.lines().rev().take(3).collect::<Vec<_>>().join(" / ")))
    }

    /// Notes what undoes that which is about to be done, in the words of [`Keeper`].
    ///
    /// # Errors
    /// If nobody is there to note it.
    pub(super) fn undo(&mut self, variables: &[(&'static str, String)], text: &str) -> Result<()> {
        let all = [&self.own()[..], variables].concat();
        self.keeper.as_mut().map_or(Ok(()), |keeper| keeper.undo(&all, text))
    }

    /// Loads a module, if it is not there.
    ///
    /// # Errors
    /// Why it cannot be loaded. It may be built in all the same.
    pub(super) fn module(&mut self, name_and_parameters: &str) -> Result<()> {
        if self.keeper.is_some() {
            let name = name_and_parameters.split(' ').next().unwrap_or_default();
            let shown = self.shell(&format!("{} --show-depends {name}", self.modprobe), &[])?;
            let new = new_modules(&shown, &loaded());
            if !new.is_empty() {
                self.undo(&[], &format!("unload {}", new.join(" ")))?;
            }
        }
        self.shell(&format!("{} {name_and_parameters}", self.modprobe), &[]).map(|_| ())
    }

    /// Has everything taken down.
    ///
    /// # Errors
    /// If something is left.
    pub(super) fn end(&mut self) -> Result<()> {
        self.keeper.take().map_or(Ok(()), Keeper::end)
    }

    /// The last of the kernel's messages, which are behind an error of its caches.
    pub(super) fn kernel_said(&self) -> String {
        let said = self.shell("dmesg | tail -n 2", &[]).unwrap_or_default();
        said.trim().replace('\n', " / ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_were_there_are_not_unloaded() {
        let shown = "\
insmod /lib/modules/6.1/kernel/drivers/md/dm-mod.ko
insmod /lib/modules/6.1/kernel/drivers/md/dm-bio-prison.ko.xz
builtin crc32c
insmod /lib/modules/6.1/kernel/drivers/md/dm-cache.ko migration_threshold=1
";
        let there = ["dm_mod".to_owned(), "loop".to_owned()];
        assert_eq!(new_modules(shown, &there), ["dm_cache", "dm_bio_prison"]);
        assert!(new_modules("builtin nbd\n", &there).is_empty());
    }
}
