//! Guest memory: mapped regions, checked tables, and buffers that pin what the kernel sees.
//!
//! # Words
//! - [`Mapping`]: one `mmap`, unmapped when its last owner drops it.
//! - [`Region`]: a piece of guest physical memory with a mapping behind it.
//! - [`Table`]: an immutable, checked set of regions. A front-end that changes its memory makes a
//!   new table. The old table lives until the last request that uses it has ended.
//! - [`View`]: one thread's handle on a table. It resolves addresses, remembers the last region
//!   hit, and hands out pins without a counter that another thread touches.
//! - [`ThreadMapping`]: one thread's handle on memory of this process. It makes lists of pieces.
//! - [`Buffers`]: an owned scatter list in memory that stays mapped while the list lives. Buffers
//!   travel from the ring to the kernel and back. A [`Reader`] walks over them.
//!
//! # Design
//! **This crate is below `virtq`.** A ring, the reactor's operation slab and a memory disk all hold
//! pointers into guest memory. That memory must stay mapped until the kernel is done. [`Buffers`]
//! owns a scatter list together with a pin on its mapping, so `disk`, `blk` and `vhost-user` need
//! no unsafe code. Mapping and SIGBUS guard are here and not in `vhost-user`, because memory disks
//! and bounce buffers use them too.
//!
//! **The table is not `vm-memory`.** The table is on the path of every descriptor. This one
//! remembers the last region hit, counts pins per thread without atomics, and knows which mapping
//! was truncated. `vm-memory` and `virtio-queue` are the oracle in the tests of `virtq`.
//!
//! # Invariants
//! - Addresses and lengths from a guest are checked here, once, with checked arithmetic.
//! - Memory that a guest can write is never borrowed as `&[u8]`: it is copied, or given to the
//!   kernel. Nothing read from it is read twice.
//! - A pointer never outlives its mapping: each holder of a pointer holds a pin.
//! - If a front-end truncates the file behind its memory, accesses find a zero page and its table
//!   is marked [`faulted`](Table::faulted). No other front-end is affected ([`sigbus`]).
//!
//! # Errors
//! [`MemoryError`]: a mapping failed, a table contradicts itself, or an address is outside.
//!
//! # How to test
//! [`Mapping::memfd`] and [`Table::new`] make guest memory without a guest.
#![allow(unsafe_code)] // The bottom of the house: raw guest memory is made safe here.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod area;
mod backing;
mod budget;
mod buffers;
mod cursor;
mod frame;
mod map;
mod reader;
pub mod sigbus;
mod streaming;
mod table;
mod view;

use std::ptr::NonNull;

pub use area::ThreadMapping;
pub use budget::{MemoryAmount, MemoryBudget, MemoryCharge, MemoryShare, OverBudget};
pub use buffers::{Buffers, Byte};
pub use cursor::Cursor;
pub use map::{HUGE_PAGE, MAX_BYTES, Mapping};
pub use reader::Reader;
pub use table::{MAX_REGIONS, Region, RegionSpec, Table};
pub use view::View;

/// Prefetches the cache line at `ptr` for reading. A hint: it accesses nothing, whatever `ptr` is.
#[inline]
pub fn prefetch<T>(ptr: NonNull<T>) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has SSE; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ptr;
}

/// Prefetches the cache line at `ptr` for writing, which invalidates copies in other caches.
#[inline]
pub fn prefetch_to_write<T>(ptr: NonNull<T>) {
    // The compiler emits a plain prefetch for its own hint if it may not assume the instruction.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: processors without the instruction treat it as a no-op; a prefetch never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) ptr.as_ptr(), options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ptr;
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Calls `bring` with one byte of each cache line that contains any of `len` bytes at `ptr`.
/// `bring` may only prefetch it: the first byte may lie before `ptr`.
#[inline]
fn lines(ptr: NonNull<u8>, len: usize, mut bring: impl FnMut(NonNull<u8>)) {
    if len == 0 {
        return;
    }
    let into = ptr.as_ptr() as usize % LINE_BYTES;
    let (start, mut at) = (ptr.as_ptr().wrapping_sub(into), 0);
    while at < into + len {
        NonNull::new(start.wrapping_add(at)).into_iter().for_each(&mut bring);
        at += LINE_BYTES;
    }
}

/// Reason why memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A region has no bytes, or ends past the address space.
    #[error("memory region of {len:#x} bytes at {start:#x} is empty or wraps around")]
    BadRange {
        /// First address.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Two regions overlap in guest addresses.
    #[error("memory regions at {first:#x} and {second:#x} overlap")]
    Overlap {
        /// Guest address of the lower region.
        first: u64,
        /// Guest address of the upper region.
        second: u64,
    },
    /// There are more regions than [`MAX_REGIONS`].
    #[error("{count} memory regions, at most {MAX_REGIONS} are served")]
    TooMany {
        /// Requested number of regions.
        count: usize,
    },
    /// The file behind a region is shorter than the region.
    #[error("file behind the memory region has {file} bytes, the region needs {need}")]
    Truncated {
        /// Size of the file in bytes.
        file: u64,
        /// Offset plus length of the region in bytes.
        need: u64,
    },
    /// No region contains this range of guest addresses.
    #[error(
        "guest range of {len:#x} bytes at {addr:#x} is in no memory that the front-end shares with \
         this process: memory that was added later needs share=on (QEMU: \
         memory-backend-memfd,share=on or memory-backend-file,share=on; libvirt: <access \
         mode='shared'/>)"
    )]
    Outside {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A part of a ring is not aligned as the specification demands.
    #[error("guest address {addr:#x} is not aligned to {align}")]
    Misaligned {
        /// Address of the part.
        addr: u64,
        /// Required alignment in bytes.
        align: usize,
    },
    /// The file system could make an access wait for another process or machine.
    #[error(
        "memory on a file system of type {kind:#x} is refused, an access to it could wait for \
         another process or machine and hold up all disks: use memfd, /dev/shm, hugetlbfs, or for \
         guest memory a local disk"
    )]
    FileSystem {
        /// `f_type` of statfs(2).
        kind: u32,
    },
    /// All slots of the truncation guard are in use.
    #[error("too many memory mappings in this process (at most {max})")]
    TooManyMappings {
        /// Number of slots.
        max: usize,
    },
    /// A system call failed.
    #[error("cannot {action} guest memory")]
    Os {
        /// Failed action.
        action: &'static str,
        /// The kernel's error.
        #[source]
        source: rustix::io::Errno,
    },
}

impl MemoryError {
    /// Returns whether the owner of a file that was mapped before has caused this since: it has
    /// truncated or sealed the file.
    pub fn is_owner_fault(&self) -> bool {
        use rustix::io::Errno;
        match self {
            Self::Truncated { .. } => true,
            Self::Os { source, .. } => [Errno::PERM, Errno::ACCESS].contains(source),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
