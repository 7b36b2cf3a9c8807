//! Memory that a test shares with the backend: a memfd, accessed by plain reads and writes.
//!
//! The test maps nothing, so it needs no `unsafe`. The kernel keeps `pread`/`pwrite` on a memfd
//! coherent with the backend's mapping. Guest, user and file addresses of the default region all
//! differ, so that a test detects a backend that confuses them.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Error, Result};

/// Guest address of the default region.
pub const GUEST_BASE: u64 = 0x10_0000;
/// User address of the default region, the address space of SET_VRING_ADDR.
pub const USER_BASE: u64 = 0x7f00_0000_0000;
/// Offset of the default region in the memfd.
pub const FILE_BASE: u64 = 0x1000;

/// One region as the protocol describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Guest physical address.
    pub guest_addr: u64,
    /// Length in bytes.
    pub size: u64,
    /// Address in the front-end's address space.
    pub user_addr: u64,
    /// Offset of the region in the file.
    pub mmap_offset: u64,
}

impl Region {
    /// Returns the region's 32 bytes in a message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [self.guest_addr, self.size, self.user_addr, self.mmap_offset]
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect()
    }

    /// Returns the first guest address past the region.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.guest_addr.saturating_add(self.size)
    }
}

/// Guest memory: a memfd and the regions in it. Allocations only grow, because a test is short.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    regions: Vec<Region>,
    used_bytes: Vec<u64>,
}

impl SharedMemory {
    /// Creates one region of `size` bytes at [`GUEST_BASE`].
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no memory for it.
    pub fn new(size: u64) -> Result<Self> {
        let (guest_addr, user_addr, mmap_offset) = (GUEST_BASE, USER_BASE, FILE_BASE);
        Self::with_regions(vec![Region { guest_addr, size, user_addr, mmap_offset }])
    }

    /// Creates one region of `size` bytes, as [`Self::new`] does, in a file of the caller.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be that large.
    pub fn in_file(file: File, size: u64) -> Result<Self> {
        let (guest_addr, user_addr, mmap_offset) = (GUEST_BASE, USER_BASE, FILE_BASE);
        let end = mmap_offset + size;
        file.set_len(end).map_err(|e| Error::io(format!("cannot grow a file to {end}"), e))?;
        let regions = vec![Region { guest_addr, size, user_addr, mmap_offset }];
        Ok(Self { file, regions, used_bytes: vec![0] })
    }

    /// Creates any regions, also overlapping or impossible ones. The file ends with the last of
    /// them.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be that large.
    pub fn with_regions(regions: Vec<Region>) -> Result<Self> {
        let end = regions.iter().map(|r| r.mmap_offset.saturating_add(r.size)).max().unwrap_or(0);
        let fd =
            memfd_create("testkit-guest-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(|e| Error::io("cannot create a memfd", e))?;
        let file = File::from(fd);
        file.set_len(end).map_err(|e| Error::io(format!("cannot grow a memfd to {end}"), e))?;
        let used_bytes = vec![0; regions.len()];
        Ok(Self { file, regions, used_bytes })
    }

    /// Returns the regions.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the first guest address past all regions, which is outside of memory.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.regions.iter().map(Region::end).max().unwrap_or(0)
    }

    /// Allocates `len` bytes in the first region. They are zero unless they were released before.
    ///
    /// # Errors
    /// [`Error::Full`] if they do not fit.
    pub fn alloc(&mut self, len: u64, align: u64) -> Result<u64> {
        self.alloc_in(0, len, align)
    }

    /// Allocates `len` bytes in a region; `align` is a power of two.
    ///
    /// # Errors
    /// [`Error::Full`] if they do not fit or there is no such region.
    pub fn alloc_in(&mut self, region: usize, len: u64, align: u64) -> Result<u64> {
        let full = || Error::Full { what: format!("{len} bytes of shared memory") };
        let at = self.regions.get(region).ok_or_else(full)?;
        let used = self.used_bytes.get_mut(region).ok_or_else(full)?;
        let start = (at.guest_addr + *used).next_multiple_of(align.max(1));
        let end = start.checked_add(len).filter(|e| *e <= at.end()).ok_or_else(full)?;
        *used = end - at.guest_addr;
        Ok(start)
    }

    /// Returns the number of bytes allocated in the first region; see [`SharedMemory::release`].
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.used_bytes.first().copied().unwrap_or(0)
    }

    /// Releases the bytes of the first region allocated since `mark`, without zeroing them. The
    /// backend must not use them any more.
    pub fn release(&mut self, mark: u64) {
        if let Some(used) = self.used_bytes.first_mut() {
            *used = mark.min(*used);
        }
    }

    /// Returns the user address of a guest address.
    ///
    /// # Errors
    /// [`Error::Outside`] if no region contains it.
    pub fn user_addr(&self, guest_addr: u64) -> Result<u64> {
        let region = self.region_of(guest_addr, 1)?;
        Ok(region.user_addr + (guest_addr - region.guest_addr))
    }

    fn region_of(&self, addr: u64, len: u64) -> Result<Region> {
        let fits = |r: &&Region| {
            addr >= r.guest_addr && addr.checked_add(len).is_some_and(|end| end <= r.end())
        };
        self.regions.iter().find(fits).copied().ok_or(Error::Outside { addr, len })
    }

    fn file_offset(&self, addr: u64, len: usize) -> Result<u64> {
        let region = self.region_of(addr, len as u64)?;
        Ok(region.mmap_offset + (addr - region.guest_addr))
    }

    /// Writes bytes at a guest address.
    ///
    /// # Errors
    /// [`Error::Outside`] or [`Error::Io`].
    pub fn write(&self, guest_addr: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.file_offset(guest_addr, bytes.len())?;
        let done = self.file.write_all_at(bytes, offset);
        done.map_err(|e| Error::io("cannot write to shared memory", e))
    }

    /// Reads bytes at a guest address.
    ///
    /// # Errors
    /// [`Error::Outside`] or [`Error::Io`] (for example after [`SharedMemory::truncate`]).
    pub fn read(&self, guest_addr: u64, len: usize) -> Result<Vec<u8>> {
        let offset = self.file_offset(guest_addr, len)?;
        let mut bytes = vec![0; len];
        let done = self.file.read_exact_at(&mut bytes, offset);
        done.map_err(|e| Error::io("cannot read shared memory", e))?;
        Ok(bytes)
    }

    /// Reads a fixed number of bytes at a guest address.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn read_array<const N: usize>(&self, guest_addr: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.read(guest_addr, N)?);
        Ok(bytes)
    }

    /// Truncates the file under the backend's mapping, like a hostile front-end.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn truncate(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| Error::io("cannot truncate shared memory", e))
    }

    /// Returns the file, to pass or inspect it.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_the_borders_hold() {
        let mut memory = SharedMemory::new(8192).unwrap();
        let a = memory.alloc(10, 1).unwrap();
        let b = memory.alloc(10, 16).unwrap();
        assert_eq!((a, b), (GUEST_BASE, GUEST_BASE + 16));
        memory.write(b, b"0123456789").unwrap();
        assert_eq!(memory.read(b, 10).unwrap(), b"0123456789");
        assert_eq!(memory.user_addr(b).unwrap(), USER_BASE + 16);
        assert!(memory.alloc(8192, 1).is_err());
        assert!(memory.write(memory.end() - 4, b"12345").is_err());
        assert!(memory.read(u64::MAX, 2).is_err());
    }
}
