//! Mappings: one `mmap` each.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, Stat, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{MemoryError, backing, sigbus};

/// Largest mapping in bytes. A larger one would take address space from other guests.
pub const MAX_BYTES: u64 = 16 << 40;
/// Smallest page size of every supported host, in bytes.
const PAGE: usize = 4096;
/// Size of the smallest huge page of every supported host, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// Shared memory mapped into this process. Drop unmaps it.
///
/// Other processes may write it at any time, so it is copied, never borrowed.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Number of bytes mapped: `len` rounded up to pages of the file's page size.
    whole: usize,
    /// SIGBUS guard. `None` if no other process can truncate the file.
    guard: Option<sigbus::SigbusGuard>,
    /// Descriptor of the file, stored if it will be passed to another process.
    file: Option<OwnedFd>,
}

// SAFETY: the mapping is plain shared memory that other processes write anyway; every access
// goes through raw copies or atomics, and the range stays mapped until drop.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference into the memory, but to atomics.
unsafe impl Sync for Mapping {}

fn os(action: &'static str) -> impl FnOnce(rustix::io::Errno) -> MemoryError {
    move |source| MemoryError::Os { action, source }
}

/// Returns the page size of a file in bytes. Huge pages are mapped and unmapped whole. Their file
/// system reports their size.
fn page_of(found: &Stat) -> u64 {
    let page = u64::try_from(found.st_blksize).unwrap_or(PAGE as u64);
    if page.is_power_of_two() { page.max(PAGE as u64) } else { PAGE as u64 }
}

/// Returns the most addresses, in bytes, that a mapping of `len` bytes of a file takes.
pub(crate) fn addresses(fd: BorrowedFd<'_>, len: u64) -> Result<u64, MemoryError> {
    let page = page_of(&fstat(fd).map_err(os("inspect"))?);
    // The bytes may begin and end in the middle of a page.
    Ok(len.saturating_add(page.saturating_mul(2)))
}

/// Returns an address at which `len` bytes of a file from `offset` can be mapped so that its huge pages
/// are mapped whole: both have the same distance to a huge page. Other threads may take the place.
fn aligned_place(len: usize, offset: u64) -> Result<*mut c_void, MemoryError> {
    let (all, flags) = (len + HUGE_PAGE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::empty(), flags) };
    let base = base.map_err(os("map"))?;
    // SAFETY: mapped above, and nothing uses it.
    let _ = unsafe { munmap(base, all) };
    let head = (offset as usize).wrapping_sub(base as usize) % HUGE_PAGE;
    Ok(base.wrapping_byte_add(head))
}

impl AsRef<[AtomicU64]> for Mapping {
    fn as_ref(&self) -> &[AtomicU64] {
        self.cells()
    }
}

impl Mapping {
    /// Maps `len` bytes of `fd` from byte 0, shared and writable.
    ///
    /// # Errors
    /// The file system could make an access wait for another process or machine; the file is
    /// shorter than `len`; `len` is 0 or above [`MAX_BYTES`]; a system call failed; or the process
    /// has no slot left to guard the mapping.
    pub fn file(fd: BorrowedFd<'_>, len: u64) -> Result<Self, MemoryError> {
        Self::window(fd, 0, len).map(|(mapping, _)| mapping)
    }

    /// Maps the pages of `fd` that contain `len` bytes from byte `offset`. Returns the mapping, and
    /// the position of the first of these bytes in it.
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
        let page = page_of(&found);
        let skip = offset % page;
        let bytes = usize::try_from(skip + len).ok().filter(|_| skip + len <= MAX_BYTES);
        let len = bytes.ok_or(bad)?;
        let whole = len.next_multiple_of(page as usize);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let place = match page as usize {
            PAGE if whole >= HUGE_PAGE => aligned_place(whole, offset - skip)?,
            // The kernel chooses addresses that fit larger pages.
            _ => std::ptr::null_mut(),
        };
        // SAFETY: a new mapping touches no memory of ours: `place` is a wish, which the kernel fulfils
        // if the addresses are free.
        let base = unsafe { mmap(place, whole, prot, flags, fd, offset - skip) };
        let base = base.map_err(os("map"))?.cast::<u8>();
        let base = NonNull::new(base).ok_or(MemoryError::BadRange { start: 0, len: 0 })?;
        match sigbus::SigbusGuard::new(base.as_ptr() as usize, whole) {
            Ok(guard) => {
                let mapping = Self { base, len, whole, guard: Some(guard), file: None };
                Ok((mapping, skip as usize))
            }
            Err(error) => {
                // SAFETY: mapped above with this length, and not published yet.
                let _ = unsafe { munmap(base.as_ptr().cast(), whole) };
                Err(error)
            }
        }
    }

    /// Maps a file like [`Mapping::file`] and stores a descriptor of it, for another process.
    /// Accepts files of memory file systems only.
    ///
    /// # Errors
    /// As [`Mapping::file`], or the process may open no more descriptors.
    pub fn keeping(fd: BorrowedFd<'_>, len: u64) -> Result<Self, MemoryError> {
        backing::check(fd, true)?;
        let mut mapping = Self::file(fd, len)?;
        mapping.file = Some(fcntl_dupfd_cloexec(fd, 0).map_err(os("hold"))?);
        Ok(mapping)
    }

    /// Allocates `len` bytes of zeroed memory that only this process has.
    ///
    /// # Errors
    /// `len` is 0, or a system call failed.
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

    /// Allocates `len` bytes of zeroed shared memory, in a memfd named `name`.
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

    /// Allocates memory like [`Mapping::memfd`], sealed: no process can change its size.
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

    /// Returns the file, for memory made by [`Mapping::memfd`], [`Mapping::sealed`] or
    /// [`Mapping::keeping`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns the whole mapping as atomic numbers of 8 bytes. Other processes may change them at any
    /// time.
    pub fn cells(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to pages, stays mapped as long as `self`, and atomics may
        // be changed by others. Nothing else makes a plain reference to it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// Collapses the pages of a range into huge pages. Takes up to a millisecond for each, in which
    /// accesses to it wait. Fills holes of the file in the range.
    ///
    /// # Errors
    /// [`MemoryError::BadRange`]; the kernel has no free huge page now, or cannot do it at all
    /// (`EINVAL`).
    pub fn collapse(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.advise("collapse", (offset, len), libc::MADV_COLLAPSE)
    }

    /// Makes the kernel provide the pages of a range, so that later accesses cause no page fault. Takes
    /// about a microsecond for each page. Does nothing to pages that are there.
    ///
    /// # Errors
    /// [`MemoryError::BadRange`]; there is no memory, or the kernel cannot do it (`EINVAL`).
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.advise("populate", (offset, len), libc::MADV_POPULATE_WRITE)
    }

    /// Gives the memory of a range back to the host. It reads as zeroes afterwards, in all processes
    /// that share it.
    ///
    /// # Errors
    /// [`MemoryError::BadRange`], or the kernel refuses.
    pub fn remove(&self, offset: usize, len: usize) -> Result<(), MemoryError> {
        self.advise("release", (offset, len), libc::MADV_REMOVE)
    }

    fn advise(
        &self,
        action: &'static str,
        (offset, len): (usize, usize),
        advice: i32,
    ) -> Result<(), MemoryError> {
        let (start, bytes) = (offset as u64, len as u64);
        let at = self.at(offset, len).ok_or(MemoryError::BadRange { start, len: bytes })?;
        // SAFETY: the range is inside this mapping, which is shared memory that others may change, and
        // is only accessed by copies and atomics.
        let done = unsafe { libc::madvise(at.as_ptr().cast(), len, advice) };
        if done == 0 {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error();
        let source = rustix::io::Errno::from_io_error(&errno).unwrap_or(rustix::io::Errno::INVAL);
        Err(MemoryError::Os { action, source })
    }

    /// Fills a range with zeroes. Returns false if the mapping ends before.
    #[must_use]
    pub fn zero(&self, offset: usize, len: usize) -> bool {
        let Some(at) = self.at(offset, len) else { return false };
        // SAFETY: the mapping has as many bytes there.
        unsafe { std::ptr::write_bytes(at.as_ptr(), 0, len) };
        true
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the file was truncated and an access found a hole.
    pub fn faulted(&self) -> bool {
        self.guard.as_ref().is_some_and(sigbus::SigbusGuard::faulted)
    }

    /// Returns a pointer to `count` values of `T` at byte `offset`.
    ///
    /// The pointer is valid as long as this mapping lives. Other processes may write the memory at
    /// any time: access it only by volatile reads and writes or atomics.
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

    /// Returns the address of the byte at `offset` if `len` bytes from there are inside.
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
        // SAFETY: mapped by us with this length; every user kept this mapping alive until now.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.whole) };
    }
}
