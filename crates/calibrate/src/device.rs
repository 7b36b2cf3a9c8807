//! Identity of a device, from sysfs (Linux, Documentation/ABI/stable/sysfs-block).

use std::path::{Path, PathBuf};

use model::calibration::StorageDevice;
use rustix::fs::{Dev, major, minor};

/// Longest text that is taken from sysfs, in bytes.
const MAX_TEXT: usize = 64;

/// Returns the identity of the device with this number. A partition has that of its disk, with a
/// size of its own.
pub fn identity(device: Dev) -> StorageDevice {
    let place = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    std::fs::canonicalize(place)
        .map_or_else(|_| StorageDevice::default(), |place| of_folder(&place))
}

fn of_folder(place: &Path) -> StorageDevice {
    let is_part = place.join("partition").exists();
    let whole: PathBuf = match place.parent().filter(|_| is_part) {
        Some(parent) => parent.into(),
        None => place.into(),
    };
    let scheduler = text(&whole.join("queue/scheduler")).map(|all| chosen(&all).to_owned());
    StorageDevice {
        name: place.file_name().map(|name| name.to_string_lossy().into_owned()),
        model: text(&whole.join("device/model")),
        bytes: text(&place.join("size"))
            .and_then(|count| count.parse::<u64>().ok()?.checked_mul(512)),
        rotational: text(&whole.join("queue/rotational")).map(|flag| flag == "1"),
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
    use super::*;

    #[test]
    fn a_partition_has_the_identity_of_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sda");
        let part = disk.join("sda2");
        for (path, text) in [
            (disk.join("queue/scheduler"), "none [mq-deadline] kyber\n"),
            (disk.join("queue/rotational"), "1\n"),
            (disk.join("device/model"), "SPINDLE 9000  \n"),
            (disk.join("size"), "4096\n"),
            (part.join("size"), "1024\n"),
            (part.join("partition"), "2\n"),
        ] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let told = |name: &str, bytes| StorageDevice {
            name: Some(name.into()),
            model: Some("SPINDLE 9000".into()),
            bytes: Some(bytes),
            rotational: Some(true),
            scheduler: Some("mq-deadline".into()),
        };
        assert_eq!(of_folder(&disk), told("sda", 4096 * 512));
        assert_eq!(of_folder(&part), told("sda2", 1024 * 512));
        assert_eq!(of_folder(&folder.path().join("none")).bytes, None);
    }
}
