//! Disks behind a block map: the data path of all image layers that redirect.
//!
//! # Words
//! - [`MappedDisk`]: a `disk::Disk` over the file of an image and the disk below it.
//! - **Owner**: thread that answers questions about the map ([`image::owner::Owner`]).
//! - **Piece**: part of a request that goes to one place. A request has one piece if it can.
//! - **Below**: the disk that has the blocks that this layer does not have.
//! - **Direct request**: a request to known blocks of one granule. The file gets it as it is.
//!
//! # Model
//! ```text
//! request -> word of the map: all blocks known -> the file, or a file of a layer below
//! request -> pieces -> word of the map
//!              |-- place known:  submit to the file, guest memory to storage without a copy
//!              |-- below:        submit to the layer below
//!              |-- zero:         fill the buffers
//!              `-- not known, or not writable: ask the owner, then look again
//! ```
//! Requests never travel between threads; questions do. A request to a known place asks nothing.
//!
//! # Design
//! **The number of layers does not matter.** A channel that reads a granule of the layers below asks
//! their locators in which file it lies, and notes the answer in the word of the top's map. Later
//! requests go to that file. Layers below never change, so a note holds until the top gets a cluster
//! of its own; the owner takes noted words for words of the layer below. A granule that lies in
//! several files is located for each request.
//!
//! **A piece that waits holds nothing.** It has no epoch, no word and no place in the kernel. So an
//! owner that waits for space can always free some.
//!
//! **A grant fills a whole granule with one write.** The channel that has the grant reads from
//! below, copies the guest's data over it, writes, and commits. Other requests on the granule wait
//! with the owner.
//!
//! **Owners run when there are questions.** The first question starts the thread; it ends after some
//! seconds of silence. At most 256 threads run at a time, and silent ones make way. A thread that
//! hung storage blocks counts for one second only.
//!
//! **Maps have a budget.** The pages of all maps come from one pool. At its limit, a map unlinks its
//! oldest page for a new one; the journal and the image have all that the page says. The largest map
//! gives pages back to maps with less than their share.
//!
//! # How to test
//! `disk::conformance` runs on images of every kind.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod below;
mod broken;
mod channel;
mod charged_file;
mod counters;
mod disk;
mod extents;
mod fill;
mod locator;
mod mailbox;
mod mailboxes;
mod piece;
mod qcow2;
mod read;
mod service;
mod source;
#[cfg(test)]
mod tests;
mod threads;
mod vhd;
mod write;

pub use self::disk::{JOURNAL, MappedDisk, MappedOptions, READ_ONLY_JOURNAL};
pub use self::qcow2::LayerOptions;
pub use self::source::{ImageSource, JournalSource};
pub use self::vhd::VhdHead;
