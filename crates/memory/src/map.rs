//! One `mmap` of shared memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{MemoryError, backing, sigbus};

/// Largest mapping: what is asked for beyond it would take the address space from other guests.
pub const MAX_BYTES: u64 = 16 << 40;
/// Smallest page of every supported host.
const PAGE: usize = 4096;

/// Shared memory mapped into this process; unmapped on drop.
///
/// Both sides may write it at any time, so it is only copied to and from, never borrowed.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Bytes that are mapped: `len` in whole pages of the file's own size.
    whole: usize,
    /// Absent where nobody else can truncate.
    guard: Option<sigbus::SigbusGuard>,
    /// Kept where it is to be handed on.
    file: Option<OwnedFd>,
}

// SAFETY: the mapping is plain shared memory that other processes write anyway; every access
// goes through raw copies or atomics, and the range stays mapped until drop.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference into the memory.
unsafe impl Sync for Mapping {}

fn os(action: &'static str) -> impl FnOnce(rustix::io::Errno) -> MemoryError {
    move |source| MemoryError::Os { action, source }
}

impl Mapping {
    /// Maps `len` bytes of `fd` from byte 0 on, shared and writable.
    ///
    /// # Errors
    /// The file is on a file system whose accesses could wait for another process or machine, is
    /// shorter than `len`, `len` is 0 or above [`MAX_BYTES`], the kernel refuses, or
    /// the process has no slot left to guard the mapping.
    pub fn file(fd: BorrowedFd<'_>, len: u64) -> Result<Self, MemoryError> {
        Self::window(fd, 0, len).map(|(mapping, _)| mapping)
    }

    /// Maps the pages of `fd` that hold `len` bytes from byte `offset` on; returns with them where
    /// in the mapping these bytes begin.
    ///
    /// # Errors
    /// As [`Mapping::file`].
    pub(crate) fn window(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
    ) -> Result<(Self, usize), MemoryError> {
        backing::check(fd, false)?;
        let found = fstat(fd).map_err(os("inspect"))?;
        let size = u64::try_from(found.st_size).unwrap_or(0);
        let bad = MemoryError::BadRange { start: offset, len };
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else { return Err(bad) };
        if size < end {
            return Err(MemoryError::Truncated { file: size, need: end });
        }
        // Huge pages are mapped and unmapped whole; their file system tells their size.
        let page = u64::try_from(found.st_blksize).unwrap_or(PAGE as u64);
        let page = if page.is_power_of_two() { page.max(PAGE as u64) } else { PAGE as u64 };
        let skip = offset % page;
        let bytes = usize::try_from(skip + len).ok().filter(|_| skip + len <= MAX_BYTES);
        let len = bytes.ok_or(bad)?;
        let whole = len.next_multiple_of(page as usize);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(std::ptr::null_mut(), whole, prot, flags, fd, offset - skip) };
        let base = base.map_err(os("map"))?.cast::<u8>();
        let base = NonNull::new(base).ok_or(MemoryError::BadRange { start: 0, len: 0 })?;
        match sigbus::SigbusGuard::new(base.as_ptr() as usize, whole) {
            Ok(guard) => {
                let mapping = Self { base, len, whole, guard: Some(guard), file: None };
                Ok((mapping, skip as usize))
            }
            Err(error) => {
                // SAFETY: mapped above with this length, and nobody else has seen it.
                let _ = unsafe { munmap(base.as_ptr().cast(), whole) };
                Err(error)
            }
        }
    }

    /// As [`Mapping::file`], with a descriptor of its own, so that it can be handed on; only of a
    /// memory file system.
    ///
    /// # Errors
    /// As [`Mapping::file`], and the process may open no more descriptors.
    pub fn keeping(fd: BorrowedFd<'_>, len: u64) -> Result<Self, MemoryError> {
        backing::check(fd, true)?;
        let mut mapping = Self::file(fd, len)?;
        mapping.file = Some(fcntl_dupfd_cloexec(fd, 0).map_err(os("hold"))?);
        Ok(mapping)
    }

    /// Makes new zeroed memory of `len` bytes that only this process has.
    ///
    /// # Errors
    /// `len` is 0, or the kernel refuses.
    pub fn private(len: usize) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::BadRange { start: 0, len: 0 });
        }
        let whole = len.next_multiple_of(PAGE);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, prot, MapFlags::PRIVATE) };
        let base = base.map_err(os("map"))?.cast::<u8>();
        let base = NonNull::new(base).ok_or(MemoryError::BadRange { start: 0, len: 0 })?;
        Ok(Self { base, len, whole, guard: None, file: None })
    }

    /// Makes new zeroed shared memory of `len` bytes behind a memfd named `name`.
    ///
    /// # Errors
    /// As [`Mapping::file`].
    pub fn memfd(name: &str, len: u64) -> Result<Self, MemoryError> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC).map_err(os("create"))?;
        ftruncate(&fd, len).map_err(os("size"))?;
        let mut mapping = Self::file(fd.as_fd(), len)?;
        mapping.file = Some(fd);
        Ok(mapping)
    }

    /// As [`Mapping::memfd`], sealed: nobody who gets the descriptor can change its size.
    ///
    /// # Errors
    /// As [`Mapping::file`].
    pub fn sealed(name: &str, len: u64) -> Result<Self, MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(name, flags).map_err(os("create"))?;
        ftruncate(&fd, len).map_err(os("size"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(os("seal"))?;
        let mut mapping = Self::file(fd.as_fd(), len)?;
        mapping.file = Some(fd);
        Ok(mapping)
    }

    /// The file, for memory made by [`Mapping::memfd`], [`Mapping::sealed`] or
    /// [`Mapping::keeping`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file behind it was truncated and an access found a hole.
    pub fn faulted(&self) -> bool {
        self.guard.as_ref().is_some_and(sigbus::SigbusGuard::faulted)
    }

    /// Pointer to `count` values of `T` that begin at byte `offset`.
    ///
    /// The pointer is good as long as this mapping lives. Others may write the memory at any
    /// time: access it only by volatile reads and writes or atomics.
    ///
    /// # Errors
    /// [`MemoryError::Outside`], [`MemoryError::Misaligned`].
    pub fn array<T>(&self, offset: usize, count: usize) -> Result<NonNull<T>, MemoryError> {
        let len = size_of::<T>().saturating_mul(count);
        let (addr, outside) = (offset as u64, len as u64);
        let found = self.at(offset, len).ok_or(MemoryError::Outside { addr, len: outside })?;
        let found = found.cast::<T>();
        if !found.is_aligned() {
            return Err(MemoryError::Misaligned { addr, align: align_of::<T>() });
        }
        Ok(found)
    }

    /// Address of the byte at `offset` if `len` bytes from there are inside.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: offset <= end <= len, so the result is inside the mapping or one past it.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            guard.release();
        }
        // SAFETY: mapped by us with this length; every user held this mapping alive until now.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.whole) };
    }
}
