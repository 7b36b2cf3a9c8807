//! Huge pages for DPDK.

use std::fs;
use std::io::ErrorKind;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::error::{Error, Result};

const LIMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";
const POOL: &str = "/proc/sys/vm/nr_hugepages";
const CACHES: &str = "/proc/sys/vm/drop_caches";
/// Huge pages that other tests and experiments may use at the same time, in MiB.
const OTHERS_MIB: u64 = 4096;

/// Raises the host's limit of huge pages, if it is lower, so that `mib` MiB are available beside
/// other tests. Needs root.
///
/// Reserves none: the pages are ordinary memory while no program uses them, so the limit stays
/// raised. If page cache fills the memory, for example after a build, this drops its clean pages.
///
/// # Errors
/// [`Error::Io`] if the limit cannot be read or raised.
pub fn allow(mib: u64) -> Result<()> {
    raise(mib + OTHERS_MIB)?;
    if !can_be_had(mib) {
        // Other processes may have taken all pages just now. A program that gets none reports that.
        drop_caches()?;
    }
    Ok(())
}

/// Reserved huge pages, for programs of the test, until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    /// Number of pages that were reserved before.
    former: u64,
}

/// Reserves `mib` MiB in huge pages, as hosts with DPDK do. Needs root.
///
/// Programs that run one after the other then get the same pages. Fresh pages lie elsewhere each
/// time, which changes a program's speed.
///
/// # Errors
/// [`Error::Io`] if the pool cannot be read or changed, or there is no memory for it.
pub fn reserve(mib: u64) -> Result<Reserved> {
    let at = |what: &str| format!("cannot {what} {POOL}");
    let read = || fs::read_to_string(POOL).map_err(|e| Error::io(at("read"), e));
    let count = |text: String| text.trim().parse::<u64>().unwrap_or(0);
    let reserved = Reserved { former: count(read()?) };
    let wanted = reserved.former + pages(mib)?;
    for drops in [false, true] {
        if drops {
            drop_caches()?;
        }
        fs::write(POOL, wanted.to_string()).map_err(|e| Error::io(at("raise"), e))?;
        // The kernel provides as many pages as it can.
        if count(read()?) >= wanted {
            return Ok(reserved);
        }
    }
    let what = format!("cannot keep {mib} MiB in huge pages ({POOL})");
    Err(Error::io(what, ErrorKind::OutOfMemory))
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Pages in use are released by the programs that use them.
        let _ = fs::write(POOL, self.former.to_string());
    }
}

/// Returns whether `mib` MiB of huge pages are available. Takes them for a moment.
fn can_be_had(mib: u64) -> bool {
    let name = "huge pages";
    memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)
        .and_then(|fd| fallocate(&fd, FallocateFlags::empty(), 0, mib << 20))
        .is_ok()
}

fn raise(mib: u64) -> Result<()> {
    let at = |what: &str| format!("cannot {what} {LIMIT}");
    let text = fs::read_to_string(LIMIT).map_err(|e| Error::io(at("read"), e))?;
    let wanted = pages(mib)?;
    if text.trim().parse().unwrap_or(0) >= wanted {
        return Ok(());
    }
    fs::write(LIMIT, wanted.to_string()).map_err(|e| Error::io(at("raise"), e))
}

/// Drops the clean pages of the page cache.
fn drop_caches() -> Result<()> {
    fs::write(CACHES, "1").map_err(|e| Error::io(format!("cannot write {CACHES}"), e))
}

/// Returns the number of huge pages for `mib` MiB.
fn pages(mib: u64) -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo");
    let meminfo = meminfo.map_err(|e| Error::io("cannot read /proc/meminfo", e))?;
    Ok((mib << 10).div_ceil(page_kib(&meminfo)))
}

/// Returns the size of a huge page in KiB. Without an entry, returns the size of x86.
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
