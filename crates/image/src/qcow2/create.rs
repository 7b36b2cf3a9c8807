//! Creation of images.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::extensions::Extensions;
use super::feature::{Features, Incompatible, name_table};
use super::header::{FIELD_BYTES, MAGIC, MAX_BACKING_BYTES};
use crate::file::create_new;
use crate::format::Backing;
use crate::{ImageError, ImageFile, run_now};

/// Largest disk in bytes: 64 TiB.
pub const MAX_DISK_BYTES: u64 = 64 << 40;
/// Smallest unit of a disk in bytes.
pub(super) const SECTOR: u64 = 512;
/// Smallest write to an image with extended L2 entries, in bytes.
const SUBCLUSTER_BLOCK: u64 = 4096;
/// Smallest file in bytes: a block of direct I/O on every storage.
const MIN_FILE_BYTES: u64 = 4096;
/// Refcounts have 16 bits.
const REFCOUNT_ORDER: u32 = 4;
/// Shift of the cluster size, unless the caller chooses another: 64 KiB.
const DEFAULT_CLUSTER_BITS: u32 = 16;

/// Properties of a new image. It has version 3, zlib compression and refcounts of 16 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Size of the disk in bytes: a multiple of 512, at most 64 TiB.
    pub size: u64,
    /// Shift of the cluster size, 9 to 21.
    pub cluster_bits: u32,
    /// Whether L2 entries have a bitmap of subclusters; needs clusters of at least 16 KiB.
    pub extended_l2: bool,
    /// Reference to the image below. Its format is required, and it is not opened.
    pub backing: Option<Backing>,
}

impl CreateOptions {
    /// Returns the properties of Ringway's own images: clusters of 64 KiB with extended L2 entries.
    /// These need blocks of 4 KiB to be written, so a disk of another size has plain entries.
    pub fn new(size: u64) -> Self {
        let cluster_bits = DEFAULT_CLUSTER_BITS;
        let extended_l2 = size.is_multiple_of(SUBCLUSTER_BLOCK);
        Self { size, cluster_bits, extended_l2, backing: None }
    }

    pub(super) fn check(&self) -> Result<(), ImageError> {
        let refuse = |problem: String| Err(ImageError::Create { problem });
        if self.size == 0 || !self.size.is_multiple_of(SECTOR) || self.size > MAX_DISK_BYTES {
            let problem = format!(
                "a disk has {SECTOR} bytes to 64 TiB, in multiples of {SECTOR} bytes, not {}",
                self.size
            );
            return refuse(problem);
        }
        let min = if self.extended_l2 { 14 } else { 9 };
        if !(min..=21).contains(&self.cluster_bits) {
            return refuse(format!("clusters have {} bytes to 2 MiB here", 1 << min));
        }
        let Some(backing) = &self.backing else { return Ok(()) };
        let name = backing.file.as_os_str().as_bytes();
        if name.is_empty() || name.len() > MAX_BACKING_BYTES as usize || name.contains(&0) {
            let problem = format!("the backing name has 1 to {MAX_BACKING_BYTES} bytes, none zero");
            return refuse(problem);
        }
        match backing.format.as_deref() {
            Some("raw" | "qcow2" | "vpc") => Ok(()),
            Some(other) => refuse(format!("the backing format {other:?} is not raw, qcow2 or vpc")),
            None => refuse("the format of the backing image is missing: raw, qcow2 or vpc".into()),
        }
    }
}

/// Places of the structures of an empty image, each behind the one before.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) cluster: u64,
    pub(super) refcount_table: u64,
    pub(super) refcount_table_clusters: u64,
    pub(super) block: u64,
    pub(super) blocks: u64,
    pub(super) l1: u64,
    pub(super) l1_words: u64,
    pub(super) clusters: u64,
}

impl Layout {
    fn new(options: &CreateOptions) -> Result<Self, ImageError> {
        let cluster = 1 << options.cluster_bits;
        let entry = if options.extended_l2 { 16 } else { 8 };
        let l2_covers = cluster / entry * cluster;
        let l1_words = options.size.div_ceil(l2_covers);
        if l1_words * 8 > 32 << 20 {
            let problem = "the L1 table would have more than 32 MiB; choose larger clusters".into();
            return Err(ImageError::Create { problem });
        }
        let l1_clusters = (l1_words * 8).div_ceil(cluster);
        // The table has an entry for every cluster that the full image will have, with its tables:
        // no writer has to move it.
        let per_block = (cluster * 8) >> REFCOUNT_ORDER;
        let data = options.size.div_ceil(cluster);
        let full = data + l1_words + l1_clusters + data.div_ceil(per_block) * 2 + 64;
        let table_clusters = full.div_ceil(per_block).div_ceil(cluster / 8);
        let first = 1 + table_clusters + l1_clusters;
        // Blocks count themselves.
        let mut blocks = first.div_ceil(per_block);
        while (first + blocks).div_ceil(per_block) > blocks {
            blocks += 1;
        }
        let block = (1 + table_clusters) * cluster;
        let l1 = block + blocks * cluster;
        Ok(Self {
            cluster,
            refcount_table: cluster,
            refcount_table_clusters: table_clusters,
            block,
            blocks,
            l1,
            l1_words,
            clusters: first + blocks,
        })
    }
}

/// Writes an empty image into an empty file, and makes it durable.
///
/// # Errors
/// [`ImageError::Create`] if the properties are not possible, or the file fails.
pub async fn create(file: &impl ImageFile, options: &CreateOptions) -> Result<(), ImageError> {
    options.check()?;
    let layout = Layout::new(options)?;
    let header = header_bytes(options, &layout)?;
    let write = |offset| ImageError::io("write", offset);
    let len = (layout.clusters * layout.cluster).max(MIN_FILE_BYTES);
    file.set_len(len).await.map_err(write(0))?;
    let table: Vec<u8> = (0..layout.blocks)
        .flat_map(|index| (layout.block + index * layout.cluster).to_be_bytes())
        .collect();
    let at = layout.refcount_table;
    file.write_at(at, &table).await.map_err(write(at))?;
    // All used clusters have one reference.
    let refcounts: Vec<u8> = (0..layout.clusters).flat_map(|_| 1u16.to_be_bytes()).collect();
    file.write_at(layout.block, &refcounts).await.map_err(write(layout.block))?;
    // An image with a header is complete, whenever the power fails.
    file.sync().await.map_err(ImageError::io("flush", 0))?;
    file.write_at(0, &header).await.map_err(write(0))?;
    file.sync().await.map_err(ImageError::io("flush", 0))
}

/// Creates a file that did not exist with an empty image, and makes both durable. After an error,
/// the file does not exist.
///
/// # Errors
/// As [`create`], or the file exists.
pub fn create_file(path: &Path, options: &CreateOptions) -> Result<(), ImageError> {
    options.check()?;
    create_new(path, |file| run_now(create(file, options)))
}

/// Returns the first cluster, without its zeroes at the end.
pub(super) fn header_bytes(
    options: &CreateOptions,
    layout: &Layout,
) -> Result<Vec<u8>, ImageError> {
    let too_large = |_| ImageError::Create { problem: "a table is too large".into() };
    let features = Features {
        incompatible: if options.extended_l2 { Incompatible::EXTENDED_L2 } else { 0 },
        ..Features::default()
    };
    let backing = options.backing.as_ref();
    let name = backing.map_or(&[][..], |backing| backing.file.as_os_str().as_bytes());
    let format = backing.and_then(|backing| backing.format.as_deref());
    let mut extensions = Extensions::to_bytes(format, &name_table());
    let room = layout.cluster as usize - FIELD_BYTES;
    if extensions.len() + name.len() > room {
        // Small clusters have no room for the names of the features, which are optional.
        extensions = Extensions::to_bytes(format, &[]);
    }
    if extensions.len() + name.len() > room {
        let problem = "the name of the backing file does not fit into the first cluster".into();
        return Err(ImageError::Create { problem });
    }
    let name_offset = (FIELD_BYTES + extensions.len()) as u64;
    let mut bytes = Vec::new();
    bytes.extend(MAGIC.to_be_bytes());
    bytes.extend(3u32.to_be_bytes());
    bytes.extend(if name.is_empty() { 0 } else { name_offset }.to_be_bytes());
    bytes.extend(u32::try_from(name.len()).map_err(too_large)?.to_be_bytes());
    bytes.extend(options.cluster_bits.to_be_bytes());
    bytes.extend(options.size.to_be_bytes());
    bytes.extend(0u32.to_be_bytes()); // no encryption
    bytes.extend(u32::try_from(layout.l1_words).map_err(too_large)?.to_be_bytes());
    bytes.extend(layout.l1.to_be_bytes());
    bytes.extend(layout.refcount_table.to_be_bytes());
    let table_clusters = u32::try_from(layout.refcount_table_clusters).map_err(too_large)?;
    bytes.extend(table_clusters.to_be_bytes());
    bytes.extend([0; 12]); // no snapshots
    bytes.extend(features.incompatible.to_be_bytes());
    bytes.extend(features.compatible.to_be_bytes());
    bytes.extend(features.autoclear.to_be_bytes());
    bytes.extend(REFCOUNT_ORDER.to_be_bytes());
    bytes.extend((FIELD_BYTES as u32).to_be_bytes());
    bytes.extend([0; 8]); // zlib
    bytes.extend(extensions);
    bytes.extend(name);
    Ok(bytes)
}
