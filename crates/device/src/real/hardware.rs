//! Which hardware a block device is made of, as /sys tells: its disks, and what dies with them.
//!
//! What cannot be found is unknown, and nothing is refused for that.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Layers between a block device and its disks that are gone through: more than anybody stacks, and an end
/// where /sys were to lead in a circle.
const LAYERS_MAX: usize = 8;

/// Where /sys has a name that stays with a device, by its directory: of an NVMe namespace, of a SCSI or SATA disk,
/// of the device mapper, of md, of virtio. What they say first counts.
const NAMES: [&str; 5] = ["wwid", "device/wwid", "dm/uuid", "md/uuid", "serial"];

/// Set in the number of a controller that has no PCI address of its own.
const SUBSYSTEM: u64 = 1 << 63;

/// Disks, by their directories under /sys/devices: those that a block device is made of, through partitions,
/// the device mapper and md; of a file, those that its file system is on. Blocks.
///
/// # Errors
/// If /sys does not tell.
pub fn disks_below(path: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let meta = std::fs::metadata(path)?;
    disks_in(Path::new("/sys"), if is_block(&meta) { meta.rdev() } else { meta.dev() })
}

/// The first of these other block devices that is on one SSD with the one at `path`, with that SSD's name: as
/// another partition of it, or as another namespace. Files are left out, and so is what /sys says nothing about.
/// Blocks.
pub fn on_one_ssd<'a>(path: &Path, others: &'a [PathBuf]) -> Option<(&'a Path, String)> {
    let device = |path: &Path| Some(std::fs::metadata(path).ok().filter(is_block)?.rdev());
    let ssds = |path: &Path| -> BTreeSet<PathBuf> {
        let found = device(path).and_then(|_| disks_below(path).ok());
        found.into_iter().flatten().map(|disk| ssd_of(&disk).to_owned()).collect()
    };
    let own = device(path);
    let others = others.iter().map(PathBuf::as_path);
    first_shared(path, others.filter(|&other| device(other) != own), ssds)
}

fn first_shared<'a>(
    path: &Path,
    mut others: impl Iterator<Item = &'a Path>,
    ssds: impl Fn(&Path) -> BTreeSet<PathBuf>,
) -> Option<(&'a Path, String)> {
    let own = ssds(path);
    others.find_map(|other| {
        let name =
            ssds(other).intersection(&own).next()?.file_name()?.to_string_lossy().into_owned();
        Some((other, name))
    })
}

/// A number for the controller that all disks of the block device `number` are behind, the same for all
/// devices behind it; `None` if that is unknown, or if there are several.
pub(super) fn controller(number: u64) -> Option<u64> {
    controller_of(&disks_in(Path::new("/sys"), number).ok()?)
}

/// A hash of what names the block device `number`, the same wherever it is attached; `None` if nothing does.
pub(super) fn identity(number: u64) -> Option<[u8; 32]> {
    identity_in(Path::new("/sys"), number)
}

fn identity_in(sys: &Path, number: u64) -> Option<[u8; 32]> {
    let mut at = std::fs::canonicalize(node(sys, number)).ok()?;
    let mut part = String::new();
    if let Ok(text) = std::fs::read_to_string(at.join("partition")) {
        part = text.trim().to_owned();
        at.pop();
    }
    NAMES.iter().find_map(|place| {
        let text = std::fs::read_to_string(at.join(place)).ok()?;
        let name = Some(text.trim()).filter(|name| !name.is_empty())?;
        Some(Sha256::digest(format!("{place} {name} {part}")).into())
    })
}

fn controller_of(disks: &BTreeSet<PathBuf>) -> Option<u64> {
    let mut all = disks.iter().map(|disk| controller_above(disk));
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

fn is_block(meta: &Metadata) -> bool {
    meta.file_type().is_block_device()
}

fn node(sys: &Path, number: u64) -> PathBuf {
    let (major, minor) = (libc::major(number), libc::minor(number));
    sys.join("dev/block").join(format!("{major}:{minor}"))
}

fn disks_in(sys: &Path, number: u64) -> io::Result<BTreeSet<PathBuf>> {
    let first = std::fs::canonicalize(node(sys, number))?;
    let (mut layer, mut disks) = (BTreeSet::from([first]), BTreeSet::new());
    for _ in 0..LAYERS_MAX {
        let mut below = BTreeSet::new();
        for mut at in std::mem::take(&mut layer) {
            if at.join("partition").exists() {
                at.pop();
            }
            let slaves: Vec<_> =
                std::fs::read_dir(at.join("slaves")).into_iter().flatten().flatten().collect();
            for slave in &slaves {
                below.insert(std::fs::canonicalize(slave.path())?);
            }
            if slaves.is_empty() {
                disks.insert(at);
            }
        }
        if below.is_empty() {
            return Ok(disks);
        }
        layer = below;
    }
    Err(io::Error::other("too many layers are between it and its disks"))
}

/// The namespaces of one NVMe SSD have its directory in common; any other disk is by itself, and so is a
/// namespace that is said to be reached over a network: behind a target may be many SSDs.
fn ssd_of(disk: &Path) -> &Path {
    let is_nvme = disk.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvme"));
    disk.parent().filter(|parent| is_nvme && !is_remote(parent)).unwrap_or(disk)
}

/// Whether an NVMe controller, or one of a subsystem's, is reached by something else than PCI.
fn is_remote(controller: &Path) -> bool {
    let says = |at: &Path| {
        std::fs::read_to_string(at.join("transport")).is_ok_and(|text| text.trim() != "pcie")
    };
    let beneath = || std::fs::read_dir(controller).into_iter().flatten().flatten();
    says(controller) || beneath().any(|entry| says(&entry.path()))
}

/// The last PCI function on the way to a disk, or the NVMe subsystem, in which a disk of several paths is.
fn controller_above(disk: &Path) -> Option<u64> {
    let number = |name: std::borrow::Cow<'_, str>| {
        let subsystem = name.strip_prefix("nvme-subsys").and_then(|number| number.parse().ok());
        pci_function(&name).or(subsystem.map(|number: u64| SUBSYSTEM | number))
    };
    disk.components().rev().find_map(|part| number(part.as_os_str().to_string_lossy()))
}

/// The number of a PCI function from its address: "0000:01:00.0", domain, bus, device, function.
fn pci_function(name: &str) -> Option<u64> {
    let (domain, rest) = name.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hex = |text: &str, max: u64| u64::from_str_radix(text, 16).ok().filter(|&n| n <= max);
    let (domain, bus) = (hex(domain, 0xffff_ffff)?, hex(bus, 0xff)?);
    Some(domain << 16 | bus << 8 | hex(device, 0x1f)? << 3 | hex(function, 7)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A tree like /sys, gone when dropped.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str) -> Sys {
            let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
            std::fs::create_dir_all(path.join("dev/block")).unwrap();
            Sys(std::fs::canonicalize(path).unwrap())
        }

        fn device(&self, minor: u32, path: &str) -> PathBuf {
            let at = self.0.join("devices").join(path);
            std::fs::create_dir_all(&at).unwrap();
            symlink(&at, self.0.join(format!("dev/block/8:{minor}"))).unwrap();
            at
        }

        fn partition(&self, minor: u32, path: &str) {
            std::fs::write(self.device(minor, path).join("partition"), "1\n").unwrap();
        }

        fn made_of(&self, minor: u32, path: &str, slaves: &[&str]) {
            let at = self.device(minor, path).join("slaves");
            std::fs::create_dir(&at).unwrap();
            for (index, slave) in slaves.iter().enumerate() {
                symlink(self.0.join("devices").join(slave), at.join(index.to_string())).unwrap();
            }
        }

        fn disks(&self, minor: u32) -> BTreeSet<PathBuf> {
            disks_in(&self.0, libc::makedev(8, minor)).unwrap()
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    const SDA: &str = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda";
    const SDB: &str = "pci0000:00/0000:00:1f.2/ata2/host1/target1:0:0/1:0:0:0/block/sdb";
    const NVME: &str = "pci0000:00/0000:00:01.1/0000:01:00.0/nvme/nvme0";
    const FABRIC: &str = "virtual/nvme-fabrics/ctl/nvme5";
    const SUBSYS: &str = "virtual/nvme-subsystem/nvme-subsys3";

    fn tree(name: &str) -> Sys {
        let sys = Sys::new(name);
        sys.device(0, SDA);
        sys.partition(1, &format!("{SDA}/sda1"));
        sys.partition(2, &format!("{SDA}/sda2"));
        sys.device(3, SDB);
        sys.device(4, &format!("{NVME}/nvme0n1"));
        sys.device(5, &format!("{NVME}/nvme0n2"));
        sys.partition(6, &format!("{NVME}/nvme0n1/nvme0n1p1"));
        sys.made_of(7, "virtual/block/md0", &[&format!("{SDA}/sda2"), SDB]);
        sys.made_of(8, "virtual/block/dm-0", &["virtual/block/md0"]);
        sys.made_of(9, "virtual/block/dm-1", &[&format!("{NVME}/nvme0n1/nvme0n1p1"), SDB]);
        sys.device(10, &format!("{SUBSYS}/nvme3n1"));
        sys.device(11, &format!("{SUBSYS}/nvme3n2"));
        sys.device(12, "virtual/block/loop0");
        sys.device(14, &format!("{FABRIC}/nvme5n1"));
        sys.device(15, &format!("{FABRIC}/nvme5n2"));
        // The subsystem says nothing, as with an older kernel.
        let transports = [(NVME, "pcie"), (FABRIC, "tcp")];
        for (controller, transport) in transports {
            let at = sys.0.join("devices").join(controller);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("transport"), format!("{transport}\n")).unwrap();
        }
        sys
    }

    #[test]
    fn disks_are_found_below_partitions_and_what_is_made_of_several() {
        let sys = tree("disks");
        let at = |paths: &[&str]| -> BTreeSet<PathBuf> {
            paths.iter().map(|path| sys.0.join("devices").join(path)).collect()
        };
        assert_eq!(sys.disks(0), at(&[SDA]));
        assert_eq!(sys.disks(2), at(&[SDA]));
        assert_eq!(sys.disks(6), at(&[&format!("{NVME}/nvme0n1")]));
        assert_eq!(sys.disks(8), at(&[SDA, SDB]));
        assert!(disks_in(&sys.0, libc::makedev(8, 99)).is_err(), "nothing is known of it");
        sys.made_of(13, "virtual/block/dm-2", &[]);
        symlink(
            sys.0.join("devices/virtual/block/dm-2"),
            sys.0.join("devices/virtual/block/dm-2/slaves/0"),
        )
        .unwrap();
        let error = disks_in(&sys.0, libc::makedev(8, 13)).unwrap_err();
        assert!(error.to_string().contains("too many layers"), "a circle has an end: {error}");
    }

    #[test]
    fn controllers_are_told_apart() {
        let sys = tree("controllers");
        let of = |minor| controller_of(&sys.disks(minor));
        let hba = of(0);
        assert_eq!(hba, pci_function("0000:00:1f.2"));
        assert!(hba.is_some() && of(1) == hba && of(3) == hba && of(8) == hba);
        assert_eq!(of(4), pci_function("0000:01:00.0"));
        assert_eq!(of(9), None, "it has two");
        assert_eq!((of(10), of(10)), (Some(SUBSYSTEM | 3), of(11)));
        assert_eq!(of(12), None);
        for not in ["0:0:0:0", "pci0000:00", "ata1", "0000:00:20.0", "0000:100:00.0", "::."] {
            assert_eq!(pci_function(not), None, "{not}");
        }
    }

    #[test]
    fn a_disk_keeps_its_name_and_each_partition_has_its_own() {
        let sys = tree("names");
        let of = |minor| identity_in(&sys.0, libc::makedev(8, minor));
        let name = |path: &str, text: &str| {
            let at = sys.0.join("devices").join(path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(at, text).unwrap();
        };
        assert_eq!((of(0), of(1), of(12), of(99)), (None, None, None, None));
        name(&format!("{SDA}/device/wwid"), "naa.5000c500a1b2c3d4\n");
        name(&format!("{SDB}/device/wwid"), "naa.5000c500a1b2c3d5\n");
        name(&format!("{NVME}/nvme0n1/wwid"), "eui.0025385b71b0d1a5\n");
        name("virtual/block/dm-0/dm/uuid", "\n");
        let all = [of(0), of(3), of(4), of(1), of(6)];
        assert!(all.iter().all(Option::is_some), "{all:?}");
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
        name(&format!("{SDA}/sda2/partition"), "2\n");
        assert_ne!(of(1), of(2));
        assert_eq!((of(8), of(0)), (None, all[0]), "an empty one is none");
        name("virtual/block/dm-0/dm/uuid", "LVM-xyz\n");
        let before = of(8);
        name("virtual/block/dm-0/dm/uuid", "LVM-xyzz\n");
        assert!(before.is_some() && of(8) != before);
    }

    #[test]
    fn parts_of_one_ssd_are_found_out() {
        let sys = tree("ssds");
        let number = |path: &Path| -> u32 { path.to_str().unwrap().parse().unwrap() };
        let ssds = |path: &Path| -> BTreeSet<PathBuf> {
            sys.disks(number(path)).iter().map(|disk| ssd_of(disk).to_owned()).collect()
        };
        let shared = |own: u32, others: &[u32]| {
            let others: Vec<PathBuf> =
                others.iter().map(|minor| minor.to_string().into()).collect();
            let others = others.iter().map(PathBuf::as_path);
            first_shared(Path::new(&own.to_string()), others, ssds)
                .map(|(other, name)| (number(other), name))
        };
        assert_eq!(shared(0, &[3, 4, 10, 12]), None);
        assert_eq!(shared(2, &[3, 1, 4]), Some((1, "sda".to_owned())), "two partitions");
        assert_eq!(shared(4, &[0, 5]), Some((5, "nvme0".to_owned())), "two namespaces");
        assert_eq!(shared(10, &[11]), Some((11, "nvme-subsys3".to_owned())));
        assert_eq!(shared(14, &[15]), None, "behind a target");
        assert_eq!(shared(8, &[3]), Some((3, "sdb".to_owned())), "below an array");
    }
}
