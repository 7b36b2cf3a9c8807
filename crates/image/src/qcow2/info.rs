//! Properties of an image, for users.

use super::bitmaps::Bitmap;
use super::feature::Incompatible;
use super::header::Header;
use super::image::Image;
use super::snapshots::Snapshot;
use crate::format::Backing;
use crate::{ImageError, ImageFile};

/// Most snapshots, and most bitmaps, that a report lists.
const MAX_LISTED: usize = 500;

/// Properties of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Version, 2 or 3.
    pub version: u32,
    /// Size of a cluster in bytes.
    pub cluster_bytes: u64,
    /// Size of a subcluster in bytes, if the image has subclusters.
    pub subcluster_bytes: Option<u64>,
    /// Width of a refcount in bits.
    pub refcount_bits: u32,
    /// Compression method of compressed clusters.
    pub compression: &'static str,
    /// Names of the feature bits that are set.
    pub features: Vec<&'static str>,
    /// Whether the image must be repaired before it is written.
    pub needs_repair: bool,
    /// Reference to the image below.
    pub backing: Option<Backing>,
    /// Number of internal snapshots.
    pub snapshot_count: u32,
    /// The first 500 of them.
    pub snapshots: Vec<Snapshot>,
    /// Number of persistent bitmaps.
    pub bitmap_count: u32,
    /// The first 500 of them.
    pub bitmaps: Vec<Bitmap>,
}

impl<F: ImageFile> Image<F> {
    /// Returns the properties of the image.
    ///
    /// # Errors
    /// The snapshot table or the bitmap directory is damaged, or the file fails.
    pub async fn info(&mut self) -> Result<Info, ImageError> {
        let snapshots = self.snapshots(MAX_LISTED).await?;
        let bitmaps = self.bitmaps(MAX_LISTED).await?;
        let header: &Header = &self.header;
        let bad = Incompatible::DIRTY | Incompatible::CORRUPT;
        Ok(Info {
            size: header.size,
            file_bytes: self.tables.len(),
            version: header.version,
            cluster_bytes: header.cluster_bytes(),
            subcluster_bytes: header.has_extended_l2().then(|| header.subcluster_bytes()),
            refcount_bits: 1 << header.refcount_order,
            compression: header.compression.name(),
            features: header.features.names(),
            needs_repair: header.features.incompatible & bad != 0,
            backing: header.backing().cloned(),
            snapshot_count: header.snapshot_count,
            snapshots,
            bitmap_count: header.bitmaps.map_or(0, |bitmaps| bitmaps.count),
            bitmaps,
        })
    }
}
