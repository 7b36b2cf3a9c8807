//! Disk images: block maps with journal and owner, and formats. No I/O of their own.
//!
//! # Words
//! - [`ImageFile`]: the bytes of an image, read and written at offsets. [`PlainFile`] is a file or
//!   block device of the host.
//! - **Cluster**: the unit of allocation of a qcow2 image, 512 bytes to 2 MiB.
//! - **Parent**: the backing of a VHD, which it names by an identity.
//! - **Subcluster**: a 32nd of a cluster in images with extended L2 entries.
//! - **Slice**: 4 KiB of a table. Tables are read, cached and written in slices.
//! - **Backing**: the image below, which has the bytes that this image does not have.
//! - **Granule**: what one [word](map::Word) of the [map](map::Map) locates: one cluster, or 64 KiB of
//!   a VHD's block. Its **blocks** are the bits of the word's mask.
//! - **Channel**: one reactor's side of a map ([`channel::MapChannel`]). It reads words without a
//!   lock, and commits what it wrote.
//! - **Owner**: the one writer of references ([`owner::Owner`]). Channels ask it.
//! - **Journal**: references that are committed and not durable, in memory that outlives the process
//!   ([`journal::Journal`]).
//! - **Round**: makes what is committed durable ([`owner::Round`]).
//!
//! # Model
//! Format code consists of `async fn` over [`ImageFile`], and never blocks by itself. In production
//! every future of [`PlainFile`] is ready at once, and [`run_now`] polls it once. A simulation
//! suspends at each operation, and ends a life of the image between any two of them. So one source
//! runs in both.
//!
//! # Design
//! **An image is hostile.** Headers, tables and compressed data are parsed once into checked types.
//! Sizes are bounded before memory is allocated. An image that is refused is never changed.
//!
//! **The caller says what an image is.** No format is guessed from content, and the reference to a
//! backing image is reported, never followed.
//!
//! **Tables are never loaded whole.** L1, L2 and refcount tables share one cache of slices with a
//! budget, so an image of 64 TiB needs no more memory than a small one.
//!
//! **References follow data.** Channels write data, and one owner writes references in rounds
//! ([`owner`], [`format::Format`]): refcounts and new tables, then references, then frees, with a sync
//! between each. So a power cut leaks clusters at worst. What is acknowledged and not yet referenced is
//! in the [`journal`], which outlives the process.
//!
//! **A place may be fixed.** A granule of a VHD lies where its block lies. Such a place is given again only
//! after it is reclaimed, and what the map takes for absent may have one on disk
//! ([`format::Format::has_fixed_places`]).
//!
//! **One word says everything about a granule.** So a reader needs one load, and a writer one
//! compare-exchange. An answer of the owner says only "look again", never a place.
//!
//! **Epochs say when nothing uses an old word.** A channel shows the epoch of its oldest request that
//! the kernel has. Space that was taken out of the map waits until every channel shows a later one.
//! `map::order` has the steps whose memory order matters, and `loom` walks through them.
//!
//! **A commit survives the process, a flush survives the host.** The channel records what it wrote,
//! then changes the word, counts the commit, and only then acknowledges. A round writes a snapshot of
//! the committed references, and no newer ones: their data may not be durable.
//!
//! **Freed space waits for three things**: the cleared reference is durable, its epoch has passed, it
//! is punched. A successor syncs first, because references that a dead process cleared may not be
//! durable.
//!
//! # Errors
//! [`ImageError`] names the cause, and the next step if there is one. It does not know the path.
//!
//! # How to test
//! `simulation` runs map, journal, owner and formats on a simulated file with a volatile cache: kills
//! and power cuts between any two calls of the file, full and failing storage, requests that take
//! long. `RINGWAY_SOAK=1` makes it run longer. It must find each bug that `planted` plants.
//!
//! `qemu-img` and `qemu-io` are the oracle (`tests/suite`): content, map and check must agree.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bit_set;
pub mod channel;
mod error;
mod extent;
mod file;
pub mod format;
mod growth;
pub mod journal;
pub mod map;
pub mod owner;
mod planted;
pub mod qcow2;
mod report;
pub mod shared;
#[cfg(test)]
mod simulation;
mod tables;
pub mod vhd;
mod writer;

pub use bit_set::BitSet;
pub use error::ImageError;
pub use extent::{Extent, ExtentKind};
pub use file::{ImageFile, NewFile, PlainFile, folder_of, run_now};
pub use report::{CheckReport, Fault};
pub use tables::TableRange;
pub use writer::{ImageWriter, Presence};
