//! File systems that are accepted behind memory shared with a front-end.
//!
//! An access to a mapping of a FUSE or network file system may wait for another process or machine.
//! It waits in a page fault that nothing ends, and blocks its reactor. Memory file systems never
//! wait. Local disk file systems wait only when the front-end's host swaps. User-Mode Linux may
//! have its memory there, and QEMU with `memory-backend-file`.

use std::os::fd::BorrowedFd;

use rustix::fs::fstatfs;

use crate::MemoryError;

/// Types of tmpfs (with memfd and /dev/shm), hugetlbfs and ramfs.
const MEMORY: [u32; 3] = [0x0102_1994, 0x9584_58f6, 0x8584_58f6];
/// Types of ext2 to ext4, XFS, btrfs, overlayfs (containers), F2FS, ZFS and bcachefs.
const LOCAL: [u32; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x794c_7630, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];

/// Refuses files that are not known to be local. With `in_memory`, refuses local disks too.
pub(crate) fn check(fd: BorrowedFd<'_>, in_memory: bool) -> Result<(), MemoryError> {
    let found = fstatfs(fd)
        .map_err(|source| MemoryError::Os { action: "find the file system of", source })?;
    // The field has other widths on other hosts. The number fits in 32 bits on all of them.
    let kind = found.f_type as u32;
    if is_allowed(kind, in_memory) {
        return Ok(());
    }
    Err(MemoryError::FileSystem { kind })
}

fn is_allowed(kind: u32, in_memory: bool) -> bool {
    MEMORY.contains(&kind) || (!in_memory && LOCAL.contains(&kind))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::Mapping;

    #[test]
    fn only_what_is_local_backs_memory() {
        // FUSE, NFS, CIFS, 9p, Ceph.
        for kind in [0x6573_5546, 0x6969, 0xff53_4d42, 0x0102_1997, 0x00c3_6400] {
            assert!(!is_allowed(kind, false), "{kind:#x}");
        }
        assert!(is_allowed(0xef53, false) && !is_allowed(0xef53, true));
        assert!(is_allowed(0x0102_1994, true) && is_allowed(0x9584_58f6, true));
        // Files of this file system are not memory. The check detects that before it maps anything.
        let file = std::fs::File::open("/proc/self/status").unwrap();
        for mapped in [Mapping::file(file.as_fd(), 1), Mapping::keeping(file.as_fd(), 1)] {
            let error = mapped.unwrap_err();
            assert!(matches!(error, MemoryError::FileSystem { .. }), "{error}");
        }
        let memory = Mapping::memfd("test", 4096).unwrap();
        assert!(Mapping::keeping(memory.fd().unwrap(), 4096).is_ok());
    }
}
