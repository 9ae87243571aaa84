//! Which disk a cache device is on, as /sys tells: a partition's disk, the disk below a file's file system,
//! the one disk that a device of the device mapper or md is made of.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Layers between a device and its disk that are gone through: more than anybody stacks, and an end where
/// /sys were to lead in a circle.
const LAYERS_MAX: usize = 8;

/// The disk below a path, as /dev names it.
///
/// # Errors
/// Why it has none that could be asked, for people.
pub(super) fn below(path: &Path) -> Result<PathBuf, String> {
    let meta = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let mut at = std::fs::canonicalize(node(&meta))
        .map_err(|_| "its file system does not tell on which disk it is".to_owned())?;
    for _ in 0..LAYERS_MAX {
        if at.join("partition").exists() {
            at.pop();
        }
        let slaves: Vec<_> = std::fs::read_dir(at.join("slaves"))
            .map(|slaves| slaves.flatten().map(|slave| slave.path()).collect())
            .unwrap_or_default();
        match &slaves[..] {
            [] => return name(&at),
            [one] => at = std::fs::canonicalize(one).map_err(|error| error.to_string())?,
            several => return Err(format!("it is made of {} devices", several.len())),
        }
    }
    Err("too many layers are between it and its disk".to_owned())
}

fn node(meta: &Metadata) -> PathBuf {
    let is_block = meta.file_type().is_block_device();
    let number = if is_block { meta.rdev() } else { meta.dev() };
    let (major, minor) = (libc::major(number), libc::minor(number));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

/// /sys has "!" where a name has a slash.
fn name(at: &Path) -> Result<PathBuf, String> {
    let name = at.file_name().map(|name| name.to_string_lossy().replace('!', "/"));
    name.map(|name| Path::new("/dev").join(name)).ok_or_else(|| "it has no disk".to_owned())
}
