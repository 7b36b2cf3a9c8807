//! Volatile write layer over a read-only disk: memory first, then an overflow file.
//!
//! # Words
//! - **Granule**: 4 KiB of the disk. Each is in one place.
//! - **Slot**: 4 KiB of memory for a written granule.
//! - **Place**: 4 KiB of the overflow file.
//! - **Word**: says where a granule is: in the base, nowhere (zeroes), in a slot, or at a place.
//! - **Cleaner**: thread of a disk that copies slots to the overflow file and prepares memory.
//!
//! # Model
//! ```text
//! write -> free slot of the channel's stock -> copy -> exchange the word -> the former slot is free
//! read  -> word of each granule: slot (copied at once), zeroes, overflow file, base
//! cleaner: slots that were written longest ago -> overflow file, in runs -> exchange the words
//! ```
//! Map and slots are in one memfd ([`OverlayDisk::memory`]) that survives a killed process. The bytes
//! end with the last process that has it open, so they end with the host. The overflow file means
//! nothing without it.
//!
//! # Design
//! **A published slot is never written.** A write takes a fresh slot and exchanges the word. So the
//! cleaner copies slots while guests write, and a process that dies in between leaves the old bytes or
//! the new ones.
//!
//! **What leaves the map is reused when no one reads it any more.** Channels and the cleaner show the
//! epoch of their oldest reader ([`image::map::Epochs`]). A slot or place that left the map in epoch
//! `e` is free when all show 0 or more than `e`. A write of a whole granule reads no slot and shows
//! none.
//!
//! **Channels have stocks.** A channel takes up to 64 slots at a time from the disk's pool, under a
//! lock that is held for microseconds. A write in memory makes no system call and allocates nothing.
//!
//! **The pool knows the order of writes.** Slots are in the order in which they went to channels, which
//! is almost the order in which they were written. The cleaner begins when an eighth of the memory is
//! free, and ends when a quarter is.
//!
//! **Full memory makes writes wait, never fail.** They wait until the cleaner has freed slots. If the
//! overflow file is full, too, they count as waiting for space ([`::disk::Disk::stalled`]), until a guest
//! discards or the file gets space: the cleaner tries twice a second, only while writes wait.
//!
//! **Space that is not used goes back.** The cleaner gives memory of free slots back to the host, and
//! punches free places out of the overflow file, when there are more of them than the next writes need.
//!
//! # How to test
//! `disk::conformance`, and a model that compares random requests with a flat buffer while disks are
//! dropped and opened again on the same memory.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod channel;
mod cleaner;
mod counters;
mod disk;
mod extents;
mod fill_rate;
mod memory;
mod overflow;
mod places;
mod pool;
mod shared;
mod slot_order;
#[cfg(test)]
mod tests;
mod waker;
mod word;
mod written;

pub use self::disk::{OverlayDisk, OverlayOptions};
pub use self::overflow::{HEADER_BYTES, create_file};

/// Bytes of a granule, a slot and a place.
pub const GRANULE: u64 = 4096;
/// The same as a length in memory.
pub(crate) const BYTES: usize = GRANULE as usize;
