//! Huge pages for DPDK.

use std::fs;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::error::{Error, Result};

const LIMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";
const CACHES: &str = "/proc/sys/vm/drop_caches";

/// Lets programs of this host take so many MiB in huge pages, where fewer are allowed. None is
/// reserved: they are ordinary memory when nobody has them, so the limit stays raised. If memory is so full
/// of files that they cannot be had, after a build for example, what is clean of those is dropped.
/// Needs root.
///
/// # Errors
/// [`Error::Io`] if the limit cannot be read or raised.
pub fn allow(mib: u64) -> Result<()> {
    raise(mib)?;
    if !can_be_had(mib) {
        // Others may have taken them all just now: whoever gets none says so.
        fs::write(CACHES, "1").map_err(|e| Error::io(format!("cannot write {CACHES}"), e))?;
    }
    Ok(())
}

/// Whether there are so many MiB in huge pages: takes them for a moment.
fn can_be_had(mib: u64) -> bool {
    let name = "huge pages";
    memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)
        .and_then(|fd| fallocate(&fd, FallocateFlags::empty(), 0, mib << 20))
        .is_ok()
}

fn raise(mib: u64) -> Result<()> {
    let at = |what: &str| format!("cannot {what} {LIMIT}");
    let text = fs::read_to_string(LIMIT).map_err(|e| Error::io(at("read"), e))?;
    let meminfo = fs::read_to_string("/proc/meminfo").map_err(|e| Error::io(at("use"), e))?;
    let wanted = (mib << 10).div_ceil(page_kib(&meminfo));
    if text.trim().parse().unwrap_or(0) >= wanted {
        return Ok(());
    }
    fs::write(LIMIT, wanted.to_string()).map_err(|e| Error::io(at("raise"), e))
}

/// Size of a huge page in KiB; that of x86 if nothing is said.
fn page_kib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(2048).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_page_is_read() {
        assert_eq!(page_kib("MemTotal: 9 kB\nHugepagesize:    1024 kB\n"), 1024);
        assert_eq!(page_kib("MemTotal: 9 kB\n"), 2048);
    }
}
