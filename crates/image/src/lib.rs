//! Disk image formats: qcow2 that is read and written, compressed clusters, check, create, resize.
//!
//! # Words
//! - [`ImageFile`]: the bytes of an image, read and written at offsets. [`PlainFile`] is a file or
//!   block device of the host.
//! - **Cluster**: the unit of allocation of a qcow2 image, 512 bytes to 2 MiB.
//! - **Subcluster**: a 32nd of a cluster in images with extended L2 entries.
//! - **Slice**: 4 KiB of a table. Tables are read, cached and written in slices.
//! - **Backing**: the image below, which has the bytes that this image does not have.
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
//! # Errors
//! [`ImageError`] names the cause, and the next step if there is one. It does not know the path.
//!
//! # How to test
//! `qemu-img` and `qemu-io` are the oracle (`tests/suite`): content, map and check must agree. The
//! simulation (`src/simulation`) kills the process and cuts the power between any two calls of the
//! file; `RINGWAY_SOAK=1` makes it run longer. It must find every planted bug.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod channel;
mod error;
mod file;
pub mod format;
pub mod journal;
pub mod map;
pub mod owner;
mod planted;
pub mod qcow2;
pub mod shared;
#[cfg(test)]
mod simulation;

pub use error::ImageError;
pub use file::{ImageFile, PlainFile, run_now};
