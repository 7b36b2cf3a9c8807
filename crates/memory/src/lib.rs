//! Guest memory: mapped regions, counted tables, and buffers that pin what the kernel sees.
//!
//! # Words
//! - [`Mapping`]: one `mmap`, unmapped when its last owner goes.
//! - [`Region`]: a piece of guest physical memory that a mapping backs.
//! - [`Table`]: an immutable, checked set of regions. A front-end that changes its memory makes a
//!   new table; the old one lives until the last request that uses it has ended (design 4.8).
//! - [`View`]: one thread's handle on a table. It finds addresses, remembers the last region that
//!   was hit, and hands out pins without touching a counter that another thread uses.
//! - [`ThreadMapping`]: one thread's handle on memory of its own, from which it makes lists of pieces.
//! - [`Buffers`]: an owned scatter list in memory that stays mapped as long as it lives. This is
//!   what travels from the ring to the kernel and back. A [`Reader`] walks over one.
//!
//! # Invariants
//! - Addresses and lengths from a guest are checked here, once, with checked arithmetic.
//! - Memory that a guest can write is never borrowed as `&[u8]`: it is copied, or given to the
//!   kernel. Nothing read from it is read twice.
//! - A pointer never outlives its mapping: whatever holds one holds a pin.
//! - A front-end that truncates the file behind its memory gets a zero page and its table is
//!   marked [`faulted`](Table::faulted); nobody else is touched ([`sigbus`]).
//!
//! # Errors
//! [`MemoryError`]: a mapping that cannot be made, a table that contradicts itself, an address
//! outside.
//!
//! # How to test
//! [`Mapping::memfd`] and [`Table::new`] make guest memory without a guest.
#![allow(unsafe_code)] // The bottom of the house: raw guest memory is made safe here.

mod area;
mod backing;
mod buffers;
mod frame;
mod map;
mod reader;
pub mod sigbus;
mod table;
mod view;

use std::ptr::NonNull;

pub use area::ThreadMapping;
pub use buffers::{Buffers, Byte};
pub use map::{MAX_BYTES, Mapping};
pub use reader::Reader;
pub use table::{MAX_REGIONS, Region, RegionSpec, Table};
pub use view::View;

/// What lies there will be read or written soon. A hint: nothing is accessed, whatever `ptr` is.
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

/// As [`prefetch`], for what will be written too: the others' copies go.
#[inline]
pub fn prefetch_to_write<T>(ptr: NonNull<T>) {
    // The compiler's own hint becomes a plain prefetch where it may not assume the instruction.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: processors without it take it for no operation; a prefetch never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) ptr.as_ptr(), options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ptr;
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Tells `bring` a byte of each cache line that `len` bytes from `ptr` on lie in. It may prefetch them and
/// nothing else: the first may lie before `ptr`.
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

/// Why memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A region of no bytes, or one that ends past the address space.
    #[error("memory region of {len:#x} bytes at {start:#x} is empty or wraps around")]
    BadRange {
        /// First address.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Two regions claim the same guest addresses.
    #[error("memory regions at {first:#x} and {second:#x} overlap")]
    Overlap {
        /// Guest address of the lower region.
        first: u64,
        /// Guest address of the upper region.
        second: u64,
    },
    /// More regions than [`MAX_REGIONS`].
    #[error("{count} memory regions, at most {MAX_REGIONS} are served")]
    TooMany {
        /// How many were asked for.
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
    /// Guest address range that no region holds.
    #[error("guest range of {len:#x} bytes at {addr:#x} is outside its memory")]
    Outside {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Address of a ring part that is not aligned as the specification demands.
    #[error("guest address {addr:#x} is not aligned to {align}")]
    Misaligned {
        /// The address.
        addr: u64,
        /// Required alignment in bytes.
        align: usize,
    },
    /// An access to the memory could wait for another process or machine.
    #[error(
        "memory on a file system of type {kind:#x} is refused, an access to it could wait for \
         another process or machine and hold up all disks: use memfd, /dev/shm, hugetlbfs, or for \
         guest memory a local disk"
    )]
    FileSystem {
        /// `f_type` of statfs(2).
        kind: u32,
    },
    /// Every slot of the truncation guard is taken.
    #[error("too many memory mappings in this process (at most {max})")]
    TooManyMappings {
        /// The limit.
        max: usize,
    },
    /// The kernel refused.
    #[error("cannot {action} guest memory")]
    Os {
        /// What was tried.
        action: &'static str,
        /// Its answer.
        #[source]
        source: rustix::io::Errno,
    },
}

#[cfg(test)]
mod tests;
