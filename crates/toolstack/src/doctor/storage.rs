//! Checks of direct I/O at the images' path.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

use super::Finding;

/// Support of direct I/O that the file system reports for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectIo {
    /// Required alignment of offsets and memory, in bytes.
    Aligned { offset_bytes: u32, memory_bytes: u32 },
    /// Direct I/O works, but the file system does not report the alignment.
    Unreported,
    /// The file system refuses direct I/O.
    Refused,
}

/// Checks that files at `path` can be opened with O_DIRECT, as `cache=none` does. In a directory,
/// uses a temporary file without a name.
pub(super) fn direct_io(path: &Path) -> Finding {
    judge(path, probe(path))
}

fn probe(path: &Path) -> io::Result<DirectIo> {
    let metadata = std::fs::metadata(path)?;
    let direct = OFlags::DIRECT.bits().cast_signed();
    let opened = if metadata.is_dir() {
        let unnamed = OFlags::TMPFILE.bits().cast_signed();
        File::options().read(true).write(true).custom_flags(direct | unnamed).open(path)
    } else {
        File::options().read(true).custom_flags(direct).open(path)
    };
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(DirectIo::Refused),
        Err(error) => return Err(error),
    };
    let Ok(answer) = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Ok(DirectIo::Unreported);
    };
    if StatxFlags::from_bits_retain(answer.stx_mask).contains(StatxFlags::DIOALIGN) {
        let (offset_bytes, memory_bytes) = (answer.stx_dio_offset_align, answer.stx_dio_mem_align);
        if offset_bytes == 0 {
            return Ok(DirectIo::Refused);
        }
        return Ok(DirectIo::Aligned { offset_bytes, memory_bytes });
    }
    Ok(DirectIo::Unreported)
}

fn judge(path: &Path, answer: io::Result<DirectIo>) -> Finding {
    const CHECK: &str = "direct I/O";
    let place = path.display();
    match answer {
        Ok(DirectIo::Aligned { offset_bytes, memory_bytes }) if offset_bytes <= 4096 => {
            let found = format!("{place}: in units of {offset_bytes}, memory {memory_bytes} bytes");
            Finding::ok(CHECK, found)
        }
        Ok(DirectIo::Aligned { offset_bytes, .. }) => Finding::warning(
            CHECK,
            format!("{place}: only in units of {offset_bytes} bytes"),
            "guests take blocks of at most 4096 bytes: use cache=writeback here",
        ),
        Ok(DirectIo::Unreported) => {
            Finding::ok(CHECK, format!("{place}: works; alignment unknown"))
        }
        Ok(DirectIo::Refused) => Finding::warning(
            CHECK,
            format!("{place}: refused by the file system"),
            "use cache=writeback for images here, or keep them on ext4, XFS or a block device",
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("{place}: {error}"),
            "give a readable image or a writable directory with --path",
        ),
    }
}

/// Checks how the device under `path` reports completions. `root` is `/` except in tests.
pub(super) fn completion(path: &Path, root: &Path) -> Finding {
    let device = std::fs::metadata(path).map(|found| {
        let is_device = found.file_type().is_block_device();
        if is_device { found.rdev() } else { found.dev() }
    });
    judge_completion(path, device.ok().and_then(|device| polled(device, root)))
}

/// Returns whether a device has poll queues; `None` if the kernel does not say.
fn polled(device: u64, root: &Path) -> Option<bool> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = root.join(format!("sys/dev/block/{major}:{minor}"));
    // A partition has the queue of its disk.
    let places = ["queue/io_poll", "../queue/io_poll"].map(|place| folder.join(place));
    let text = places.iter().find_map(|place| std::fs::read_to_string(place).ok())?;
    Some(text.trim() == "1")
}

fn judge_completion(path: &Path, polled: Option<bool>) -> Finding {
    const CHECK: &str = "completion";
    let what = match polled {
        Some(true) => "the device also has polled queues (io_poll is 1), which are not used",
        Some(false) => "the device has no polled queues (io_poll is 0), so IOPOLL is out",
        None => "not a disk of this host, so IOPOLL is out",
    };
    Finding::ok(CHECK, format!("{}: by interrupt; {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn every_answer_has_a_verdict() {
        let judge = |answer| judge(Path::new("/img"), answer).level;
        let aligned = |offset_bytes| Ok(DirectIo::Aligned { offset_bytes, memory_bytes: 4 });
        assert_eq!(judge(aligned(512)), Level::Ok);
        assert_eq!(judge(aligned(4096)), Level::Ok);
        assert_eq!(judge(aligned(65536)), Level::Warning);
        assert_eq!(judge(Ok(DirectIo::Unreported)), Level::Ok);
        assert_eq!(judge(Ok(DirectIo::Refused)), Level::Warning);
        assert_eq!(judge(Err(io::ErrorKind::NotFound.into())), Level::Warning);
    }

    #[test]
    fn a_directory_is_tried_and_nothing_stays_there() {
        let dir = tempfile::tempdir().unwrap();
        let finding = direct_io(dir.path());
        assert!(finding.found.contains(dir.path().to_str().unwrap()), "{finding:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_has_no_direct_io_is_told() {
        // procfs does not support O_DIRECT.
        assert_eq!(probe(Path::new("/proc/self/status")).unwrap(), DirectIo::Refused);
    }

    #[test]
    fn a_device_tells_whether_it_can_be_polled() {
        let root = tempfile::tempdir().unwrap();
        let device = rustix::fs::makedev(259, 3);
        let disk = root.path().join("sys/devices/nvme0n1");
        std::fs::create_dir_all(disk.join("nvme0n1p3")).unwrap();
        std::fs::create_dir(disk.join("queue")).unwrap();
        let links = root.path().join("sys/dev/block");
        std::fs::create_dir_all(&links).unwrap();
        assert_eq!(polled(device, root.path()), None);
        std::os::unix::fs::symlink(disk.join("nvme0n1p3"), links.join("259:3")).unwrap();
        for (text, polls) in [("1\n", true), ("0\n", false)] {
            std::fs::write(disk.join("queue/io_poll"), text).unwrap();
            assert_eq!(polled(device, root.path()), Some(polls));
        }
        for answer in [None, Some(false), Some(true)] {
            let finding = judge_completion(Path::new("/img"), answer);
            assert!(finding.level == Level::Ok && finding.found.contains("by interrupt"));
        }
    }
}
