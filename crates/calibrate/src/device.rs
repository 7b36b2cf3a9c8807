//! Identity of a device, from sysfs (Linux, Documentation/ABI/stable/sysfs-block).

use std::path::{Path, PathBuf};

use model::calibration::StorageDevice;
use rustix::fs::{Dev, major, makedev, minor};

/// Links to the folders of all block devices, by their numbers.
const DEVICES: &str = "/sys/dev/block";
/// Longest text that is taken from sysfs, in bytes.
const MAX_TEXT: usize = 64;
/// Most devices that are looked at below one another.
const LAYERS: usize = 16;
/// Prefixes of the `dm/uuid` of volumes that only place their requests on another device: logical volumes
/// and partitions. Other volumes have a speed of their own (encryption), or change the device below
/// (multipath).
const PLACED: [&str; 2] = ["LVM-", "part"];

/// Returns the identity of the device with this number, or of the whole device below it
/// ([`whole_device`]).
pub fn identity(device: Dev) -> StorageDevice {
    std::fs::canonicalize(place(Path::new(DEVICES), whole_device(device)))
        .map_or_else(|_| StorageDevice::default(), |place| of_folder(&place))
}

/// Returns the number of the disk below a partition or logical volume, whose requests all compete for it. A
/// volume on several devices is one of its own, and so is each other device.
pub fn whole_device(device: Dev) -> Dev {
    whole_device_in(Path::new(DEVICES), device)
}

fn whole_device_in(devices: &Path, device: Dev) -> Dev {
    let layers = std::iter::successors(Some(device), |&above| below(devices, above));
    layers.take(LAYERS).last().unwrap_or(device)
}

/// Returns the only device that a partition or volume is on.
fn below(devices: &Path, device: Dev) -> Option<Dev> {
    let place = std::fs::canonicalize(place(devices, device)).ok()?;
    if place.join("partition").exists() {
        return number(place.parent()?);
    }
    let uuid = text(&place.join("dm/uuid"))?;
    let mut slaves = std::fs::read_dir(place.join("slaves")).ok()?;
    let slave = slaves.next()?.ok()?.path();
    let is_placed = PLACED.iter().any(|start| uuid.starts_with(start)) && slaves.next().is_none();
    is_placed.then(|| number(&slave)).flatten()
}

fn place(devices: &Path, device: Dev) -> PathBuf {
    devices.join(format!("{}:{}", major(device), minor(device)))
}

/// Returns the number of the device with this folder.
fn number(place: &Path) -> Option<Dev> {
    let text = text(&place.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn of_folder(place: &Path) -> StorageDevice {
    let scheduler = text(&place.join("queue/scheduler")).map(|all| chosen(&all).to_owned());
    StorageDevice {
        name: place.file_name().map(|name| name.to_string_lossy().into_owned()),
        model: text(&place.join("device/model")),
        bytes: text(&place.join("size"))
            .and_then(|count| count.parse::<u64>().ok()?.checked_mul(512)),
        rotational: text(&place.join("queue/rotational")).map(|flag| flag == "1"),
        scheduler,
    }
}

fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text: String = text.trim().chars().take(MAX_TEXT).collect();
    (!text.is_empty()).then_some(text)
}

/// Returns the scheduler in brackets: `none [mq-deadline] kyber`.
fn chosen(all: &str) -> &str {
    let in_brackets = all.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    in_brackets.map_or(all, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Writes files of sysfs.
    fn write(files: &[(PathBuf, &str)]) {
        for (path, text) in files {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_device_has_the_identity_that_sysfs_tells() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sda");
        write(&[
            (disk.join("queue/scheduler"), "none [mq-deadline] kyber\n"),
            (disk.join("queue/rotational"), "1\n"),
            (disk.join("device/model"), "SPINDLE 9000  \n"),
            (disk.join("size"), "4096\n"),
        ]);
        let told = StorageDevice {
            name: Some("sda".into()),
            model: Some("SPINDLE 9000".into()),
            bytes: Some(4096 * 512),
            rotational: Some(true),
            scheduler: Some("mq-deadline".into()),
        };
        assert_eq!(of_folder(&disk), told);
        assert_eq!(of_folder(&folder.path().join("none")).bytes, None);
    }

    /// Tree of sysfs with links by number, as the kernel makes it.
    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        /// Adds a device at a path below `devices`. A volume of the device mapper has a `uuid`.
        fn add(&self, path: &str, number: &str, uuid: Option<&str>, slaves: &[&str]) {
            let devices = self.0.path().join("devices");
            let place = devices.join(path);
            write(&[(place.join("dev"), &format!("{number}\n"))]);
            if let Some(uuid) = uuid {
                write(&[(place.join("dm/uuid"), uuid)]);
            }
            std::fs::create_dir_all(place.join("slaves")).unwrap();
            for slave in slaves {
                let name = Path::new(slave).file_name().unwrap();
                symlink(devices.join(slave), place.join("slaves").join(name)).unwrap();
            }
            symlink(place, self.0.path().join(number)).unwrap();
        }

        fn whole(&self, device: (u32, u32)) -> (u32, u32) {
            let whole = whole_device_in(self.0.path(), makedev(device.0, device.1));
            (major(whole), minor(whole))
        }
    }

    #[test]
    fn partitions_and_volumes_are_on_the_disk_below() {
        let sysfs = Sysfs(tempfile::tempdir().unwrap());
        let lvm = Some("LVM-8cVfQ2\n");
        sysfs.add("sda", "8:0", None, &[]);
        for (number, part) in [(1, "sda/sda1"), (2, "sda/sda2")] {
            sysfs.add(part, &format!("8:{number}"), None, &[]);
            write(&[(sysfs.0.path().join("devices").join(part).join("partition"), "1\n")]);
        }
        sysfs.add("sdb", "8:16", None, &[]);
        sysfs.add("dm-0", "254:0", lvm, &["sda/sda2"]);
        sysfs.add("dm-1", "254:1", lvm, &["dm-0"]);
        sysfs.add("dm-2", "254:2", Some("part1-mpath-3600\n"), &["dm-3"]);
        sysfs.add("dm-3", "254:3", Some("mpath-3600\n"), &["sdb"]);
        sysfs.add("dm-4", "254:4", lvm, &["sda/sda1", "sdb"]);
        sysfs.add("dm-5", "254:5", Some("CRYPT-LUKS2-1\n"), &["sdb"]);
        sysfs.add("dm-6", "254:6", None, &["sdb"]);
        sysfs.add("dm-7", "254:7", lvm, &[]);
        for on_disk in [(8, 0), (8, 1), (8, 2), (254, 0), (254, 1)] {
            assert_eq!(sysfs.whole(on_disk), (8, 0), "{on_disk:?}");
        }
        assert_eq!(sysfs.whole((254, 2)), (254, 3));
        for own in [(8, 16), (254, 3), (254, 4), (254, 5), (254, 6), (254, 7), (0, 42)] {
            assert_eq!(sysfs.whole(own), own);
        }
    }

    #[test]
    fn volumes_on_one_another_in_a_circle_end() {
        let sysfs = Sysfs(tempfile::tempdir().unwrap());
        sysfs.add("dm-0", "254:0", Some("LVM-a"), &["dm-1"]);
        sysfs.add("dm-1", "254:1", Some("LVM-b"), &["dm-0"]);
        assert_eq!(sysfs.whole((254, 0)).0, 254);
    }
}
