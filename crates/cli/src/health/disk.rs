//! Which disk a cache device is on: the one that can be asked how it is.

use std::path::{Path, PathBuf};

use forebay_device::real::hardware::disks_below;

/// The disk below a path, as /dev names it.
///
/// # Errors
/// Why it has none that could be asked, for people.
pub(super) fn below(path: &Path) -> Result<PathBuf, String> {
    std::fs::metadata(path).map_err(|error| error.to_string())?;
    let disks = disks_below(path)
        .map_err(|_| "its file system does not tell on which disk it is".to_owned())?;
    let mut disks = disks.iter();
    match (disks.next(), disks.len()) {
        (Some(one), 0) => name(one),
        (_, others) => Err(format!("it is made of {} devices", others + 1)),
    }
}

/// /sys has "!" where a name has a slash.
fn name(at: &Path) -> Result<PathBuf, String> {
    let name = at.file_name().map(|name| name.to_string_lossy().replace('!', "/"));
    name.map(|name| Path::new("/dev").join(name)).ok_or_else(|| "it has no disk".to_owned())
}
