//! What runs in the guest, as the first process of its kernel.

use std::fs;
use std::process::Command;

use super::ground::{Ground, PATH, unique_name};
use super::protocol::Line;
use super::rig::{Asked, Rig, Ssd};
use crate::bench::Result;

/// Where there is nothing yet. The root is the host's, and not to be written to.
const MOUNTS: [(&str, &str); 4] =
    [("proc", "/proc"), ("devtmpfs", "/dev"), ("sysfs", "/sys"), ("tmpfs", "/run")];

/// The kernel's modules, below a directory as modprobe wants it.
const MODPROBE: &str = "modprobe -d /run/modules";
const MODULES: &str = "
mkdir -p /run/modules/lib
ln -s /usr/lib/uml/modules /run/modules/lib/modules";

const SSD: &str = "/dev/vda";

/// What serves it says at first that it has no cache, and FLUSH would not reach it.
const WRITE_BACK: &str = "
echo 'write back' >/sys/block/vda/cache_type
cat /sys/block/vda/queue/write_cache";

fn start(asked: &Asked) -> Result<(Rig<'static>, Ssd)> {
    for (kind, at) in MOUNTS {
        // Some kernels have mounted the first two themselves.
        let _ = Command::new("mount").env("PATH", PATH).args(["-t", kind, kind, at]).output();
    }
    let mut ground = Ground::new(unique_name()?, MODPROBE, None, asked.origins_bytes())?;
    ground.shell(MODULES, &[])?;
    // What is missing is noticed by whoever needs it; it may be built in.
    for name in ["virtio_blk", "dm-mod", "dm-delay", "loop"] {
        let _ = ground.module(name);
    }
    let cache = ground.shell(WRITE_BACK, &[])?;
    let mut rig = Rig::new(ground, asked.clone(), |line| line.print());
    rig.tell_where("guest", cache.trim())?;
    Ok((rig, Ssd { device: SSD.into(), is_given: false }))
}

/// Measures everything, tells it, and ends the guest.
///
/// # Errors
/// If the guest cannot end.
pub fn run(asked: &Asked) -> Result<()> {
    match start(asked) {
        Ok((mut rig, ssd)) => {
            rig.set_up(&ssd);
            rig.measure_all();
            rig.tell(Line::End);
        }
        Err(reason) => Line::Fact(format!("the guest cannot work: {reason}")).print(),
    }
    fs::write("/proc/sysrq-trigger", "o").map_err(|e| format!("/proc/sysrq-trigger: {e}"))?;
    // The first process must not end before its kernel.
    let slept = Command::new("sleep").arg("60").status();
    slept.map(|_| ()).map_err(|e| format!("sleep: {e}"))
}
