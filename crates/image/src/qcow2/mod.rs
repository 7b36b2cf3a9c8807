//! qcow2, versions 2 and 3.
//!
//! # Words
//! - [`Header`]: checked first cluster. It names all tables.
//! - [`L2Entry`]: state of one cluster of the disk in the image.
//! - [`Mapping`]: where the bytes of a range are.
//! - [`Qcow2Format`]: an image that the owner of a map writes.
//! - [`Refcounts`]: number of references to each cluster of the file.
//!
//! # Invariants
//! - Nothing is written before the header has been accepted for writing.
//! - An entry is used only after its reserved bits, alignment and position in the file are checked.
//! - No structure is larger than QEMU accepts: L1 32 MiB, refcount table 8 MiB, snapshot table and
//!   bitmap directory 64 MiB.
//!
//! # Not supported
//! Encryption and external data files are refused by name. Images of version 1 (QCOW) are not qcow2.

mod bitmaps;
mod check;
mod compressed;
mod create;
mod export;
mod extensions;
mod feature;
mod format;
mod header;
mod image;
mod info;
mod l2;
mod lookup;
mod map;
mod refcounts;
mod snapshots;

pub use crate::format::{Access, Backing};
pub use bitmaps::Bitmap;
pub use compressed::Compression;
pub use create::{CreateOptions, MAX_DISK_BYTES, create, create_file};
pub use export::{ExportLayout, export_cluster_bits};
pub use extensions::{BitmapsExtension, Extension};
pub use feature::{Features, Incompatible};
pub use format::Qcow2Format;
pub use header::{Header, stated_size};
pub use image::Image;
pub use info::Info;
pub use l2::{Cluster, Compressed, EntryFormat, L2Entry, Mapping, SUBCLUSTERS};
pub use lookup::Run;
pub use refcounts::Refcounts;
pub use snapshots::Snapshot;
