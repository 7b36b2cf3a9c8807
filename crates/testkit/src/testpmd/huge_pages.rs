//! Huge pages for DPDK.

use std::fs;
use std::io::ErrorKind;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::error::{Error, Result};

const LIMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";
const POOL: &str = "/proc/sys/vm/nr_hugepages";
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
        drop_caches()?;
    }
    Ok(())
}

/// Huge pages that are kept for whoever takes some, until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    /// Pages that were kept before.
    former: u64,
}

/// Keeps so many MiB in huge pages, as hosts with DPDK do: programs that come one after the other get the
/// same ones. Those that are made anew for each lie elsewhere each time, and its speed with them.
/// Needs root.
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
        // The kernel makes as many as it can.
        if count(read()?) >= wanted {
            return Ok(reserved);
        }
    }
    let what = format!("cannot keep {mib} MiB in huge pages ({POOL})");
    Err(Error::io(what, ErrorKind::OutOfMemory))
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Those that are in use are given up by whoever has them.
        let _ = fs::write(POOL, self.former.to_string());
    }
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
    let wanted = pages(mib)?;
    if text.trim().parse().unwrap_or(0) >= wanted {
        return Ok(());
    }
    fs::write(LIMIT, wanted.to_string()).map_err(|e| Error::io(at("raise"), e))
}

/// What is clean of the page cache is dropped.
fn drop_caches() -> Result<()> {
    fs::write(CACHES, "1").map_err(|e| Error::io(format!("cannot write {CACHES}"), e))
}

/// Huge pages of so many MiB.
fn pages(mib: u64) -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo");
    let meminfo = meminfo.map_err(|e| Error::io("cannot read /proc/meminfo", e))?;
    Ok((mib << 10).div_ceil(page_kib(&meminfo)))
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
