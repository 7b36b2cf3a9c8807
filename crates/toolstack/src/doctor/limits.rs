//! Checks of the kernel version and of resource limits.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, getrlimit};

use super::Finding;
use crate::qemu::Version;

/// Oldest Linux that works: it has the io_uring operations for disks.
const KERNEL_MIN: Version = Version { major: 5, minor: 19, micro: 0 };
/// Oldest Linux with all features: deferred task work, and direct I/O alignment in statx.
const KERNEL_FULL: Version = Version { major: 6, minor: 1, micro: 0 };
/// Open files for a thousand disks of a few queues.
const OPEN_FILES_MANY: u64 = 16_384;
/// Open files for a handful of disks.
const OPEN_FILES_MIN: u64 = 1_024;
/// Locked memory in bytes that the rings of one process need on a Linux before 5.12.
const LOCKED_MIN_BYTES: u64 = 1 << 20;
/// Memory in bytes for one default guest, its QEMU and the datapath.
const MEMORY_MIN_BYTES: u64 = 768 << 20;

pub(super) fn kernel() -> Finding {
    judge_kernel(&rustix::system::uname().release().to_string_lossy())
}

fn judge_kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    let found = format!("Linux {release}");
    match Version::find(release) {
        Some(version) if version >= KERNEL_FULL => Finding::ok(CHECK, found),
        Some(version) if version >= KERNEL_MIN => {
            let advice = "6.1 or newer saves wake-ups and reports the alignment of direct I/O";
            Finding::warning(CHECK, found, advice)
        }
        _ => Finding::failure(CHECK, found, "use Linux 6.1 or newer; 5.19 is the oldest"),
    }
}

/// Checks that memory can be shared by descriptor, as guest memory is.
pub(super) fn memfd() -> Finding {
    match memfd_create("ringway-doctor", MemfdFlags::CLOEXEC) {
        Ok(_) => Finding::ok("memfd", "can be made"),
        Err(error) => Finding::failure(
            "memfd",
            format!("cannot be made: {error}"),
            "allow memfd_create in the container's seccomp profile",
        ),
    }
}

pub(super) fn open_files() -> Finding {
    judge_open_files(getrlimit(Resource::Nofile).maximum)
}

fn judge_open_files(hard: Option<u64>) -> Finding {
    const CHECK: &str = "open files";
    const ADVICE: &str =
        "raise the hard limit: LimitNOFILE=1048576 in the service, or nofile in limits.conf";
    match hard {
        None => Finding::ok(CHECK, "no limit"),
        Some(hard) if hard >= OPEN_FILES_MANY => {
            Finding::ok(CHECK, format!("{hard} (hard limit, which our programs take whole)"))
        }
        Some(hard) if hard >= OPEN_FILES_MIN => Finding::warning(
            CHECK,
            format!("{hard} (hard limit, which our programs take whole): for some dozens of disks"),
            ADVICE,
        ),
        Some(hard) => Finding::failure(CHECK, format!("{hard} (hard limit)"), ADVICE),
    }
}

pub(super) fn locked_memory() -> Finding {
    judge_locked_memory(getrlimit(Resource::Memlock).maximum)
}

fn judge_locked_memory(hard: Option<u64>) -> Finding {
    const CHECK: &str = "locked memory";
    match hard {
        None => Finding::ok(CHECK, "no limit"),
        Some(hard) if hard >= LOCKED_MIN_BYTES => {
            Finding::ok(CHECK, format!("{} KiB (hard limit)", hard >> 10))
        }
        Some(hard) => Finding::warning(
            CHECK,
            format!("{} KiB (hard limit)", hard >> 10),
            "raise it to 8 MiB (LimitMEMLOCK=8M) if rings cannot be made",
        ),
    }
}

pub(super) fn memory() -> Finding {
    judge_memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn judge_memory(meminfo: &str) -> Finding {
    const CHECK: &str = "memory";
    let kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    match kib {
        None => Finding::warning(CHECK, "unknown", "mount /proc"),
        Some(kib) if kib >= MEMORY_MIN_BYTES >> 10 => {
            Finding::ok(CHECK, format!("{} MiB available", kib >> 10))
        }
        Some(kib) => Finding::warning(
            CHECK,
            format!("{} MiB available", kib >> 10),
            "a guest with the default 512 MiB does not fit: use a smaller --memory",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn kernels() {
        assert_eq!(judge_kernel("6.18.44-fc").level, Level::Ok);
        assert_eq!(judge_kernel("6.1.0-28-amd64").level, Level::Ok);
        assert_eq!(judge_kernel("5.19.0").level, Level::Warning);
        assert_eq!(judge_kernel("5.15.0").level, Level::Failure);
        assert_eq!(judge_kernel("unknown").level, Level::Failure);
    }

    #[test]
    fn limits() {
        assert_eq!(judge_open_files(None).level, Level::Ok);
        assert_eq!(judge_open_files(Some(1 << 20)).level, Level::Ok);
        assert_eq!(judge_open_files(Some(4096)).level, Level::Warning);
        assert_eq!(judge_open_files(Some(256)).level, Level::Failure);
        assert_eq!(judge_locked_memory(Some(8 << 20)).level, Level::Ok);
        assert_eq!(judge_locked_memory(Some(64 << 10)).level, Level::Warning);
    }

    #[test]
    fn memory_is_what_is_available() {
        let info = |kib: u32| format!("MemTotal: 99999999 kB\nMemAvailable:   {kib} kB\n");
        assert_eq!(judge_memory(&info(2_000_000)).level, Level::Ok);
        assert_eq!(judge_memory(&info(100_000)).level, Level::Warning);
        assert_eq!(judge_memory("").level, Level::Warning);
    }
}
