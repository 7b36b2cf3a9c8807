//! VHD: fixed, dynamic and differencing images of Virtual PC, Hyper-V and XenServer.
//!
//! Source: "Virtual Hard Disk Image Format Specification", version 1.0, Microsoft; the batmap is
//! XenServer's.
//!
//! # Words
//! - [`Footer`]: last 512 bytes of the file. Images with blocks have a copy at byte 0, which holds.
//! - [`Header`]: dynamic header of an image with blocks. It names the BAT and the parent.
//! - **Block**: unit of allocation, 2 MiB as a rule: a bitmap of its sectors, then its data.
//! - **BAT**: block allocation table. It has the first sector of each block.
//! - **Batmap**: XenServer's table of blocks that are stored as a whole. Not read, and cleared
//!   before it becomes wrong.
//! - **Parent**: the image below. Its identity must be the one that the header names.
//! - [`VhdFormat`]: an image that the owner of a map writes.
//!
//! # Invariants
//! - Nothing is written before the image has been accepted for writing.
//! - A block is used only after its place in the file is checked.
//! - Without a parent, data behind a clear bit is zero: QEMU does not read bitmaps.
//!
//! # Not supported
//! Blocks smaller than 512 KiB or larger than 256 MiB, disks of more than 2,040 GiB, and images that
//! are split into several files. VHDX is another format.

mod batmap;
mod check;
mod create;
mod export;
mod fields;
mod footer;
mod format;
mod header;
mod image;
mod info;
mod layout;
mod locator;
mod lookup;
mod parent;
#[cfg(test)]
pub(crate) mod sample;
mod stream;

/// Unit of a VHD in bytes.
pub const SECTOR: u64 = 512;
/// Largest disk in bytes: 2,040 GiB.
pub const MAX_DISK_BYTES: u64 = 0xff00_0000 * SECTOR;
/// Smallest and largest block in bytes.
const MIN_BLOCK_BYTES: u64 = 512 << 10;
const MAX_BLOCK_BYTES: u64 = 256 << 20;

pub use create::{CreateOptions, Parent, create, create_file};
pub use export::ExportLayout;
pub use footer::{DiskType, FOOTER_BYTES, Footer};
pub use format::{OpenOptions, VhdFormat};
pub use header::Header;
pub use image::Image;
pub use info::{Info, ParentInfo, id_text};
pub use lookup::Run;
pub use stream::{StreamBlock, StreamHead, StreamTable, has_sector};
