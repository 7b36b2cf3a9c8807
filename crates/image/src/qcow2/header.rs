//! Header: the checked first cluster.

mod fields;

use super::compressed::Compression;
use super::extensions::{BitmapsExtension, Extension, Extensions};
use super::feature::{AUTOCLEAR_BITMAPS, Features, Incompatible};
use super::l2::{EntryFormat, SUBCLUSTERS};
use crate::format::{Access, Backing};
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};
use fields::Fields;

/// First four bytes of an image.
pub(super) const MAGIC: u32 = 0x5146_49fb;
/// Bytes that contain every field.
pub(super) const FIELD_BYTES: usize = 112;
/// Largest L1 table in bytes, as in QEMU.
pub(super) const MAX_L1_BYTES: u64 = 32 << 20;
/// Largest refcount table in bytes, as in QEMU.
pub(super) const MAX_REFCOUNT_TABLE_BYTES: u64 = 8 << 20;
const MAX_REFCOUNT_ORDER: u32 = 6;
const MAX_SNAPSHOTS: u32 = 65_536;
/// Longest name of a backing image in bytes.
pub(super) const MAX_BACKING_BYTES: u32 = 1023;

/// Checked header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version, 2 or 3.
    pub version: u32,
    /// Shift of the cluster size, 9 to 21.
    pub cluster_bits: u32,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Active L1 table.
    pub l1: TableRange,
    /// Refcount table.
    pub refcount_table: TableRange,
    /// Shift of the number of bits of a refcount, 0 to 6.
    pub refcount_order: u32,
    /// Offset of the snapshot table.
    pub snapshots_offset: u64,
    /// Number of internal snapshots.
    pub snapshot_count: u32,
    /// Feature bits.
    pub features: Features,
    /// Compression method of compressed clusters.
    pub compression: Compression,
    /// Directory of bitmaps. `None` if the image has none, or if a foreign writer invalidated them.
    pub bitmaps: Option<BitmapsExtension>,
    /// Extensions that this module does not interpret.
    pub extensions: Vec<Extension>,
    backing: Option<Backing>,
}

/// Returns the size of the disk, in bytes, that the first bytes of an image state. The rest of the
/// header is not checked.
///
/// # Errors
/// The bytes are not those of a qcow2 image, or the image needs another one below it.
pub fn stated_size(first: &[u8]) -> Result<u64, ImageError> {
    let fields = Fields::parse(first)?;
    if fields.backing_offset != 0 {
        let problem = "it needs an image below it, which is not followed; write the whole disk to \
                       it, as `qemu-img convert` does";
        return Err(ImageError::Parent { problem: problem.into() });
    }
    Ok(fields.size)
}

impl Header {
    /// Reads and checks the header of a file.
    ///
    /// # Errors
    /// The file fails, is not a qcow2 image, has an invalid header, or needs a feature that is not
    /// supported.
    pub async fn read(file: &impl ImageFile) -> Result<Self, ImageError> {
        let len = file.len().await.map_err(ImageError::io("measure", 0))?;
        let mut bytes = vec![0; usize::try_from(len.min(512)).unwrap_or(512)];
        file.read_at(0, &mut bytes).await.map_err(ImageError::io("read", 0))?;
        let fields = Fields::parse(&bytes)?;
        let first = len.min(1 << fields.cluster_bits);
        bytes.resize(usize::try_from(first).unwrap_or(512), 0);
        file.read_at(0, &mut bytes).await.map_err(ImageError::io("read", 0))?;
        Self::check(&fields, &bytes, len)
    }

    /// Checks that the image may be used in this way.
    ///
    /// # Errors
    /// [`ImageError::NeedsRepair`] if the image is dirty or corrupt and will be written.
    pub fn check_access(&self, access: Access) -> Result<(), ImageError> {
        let has = |bit| access == Access::Write && self.features.incompatible & bit != 0;
        if has(Incompatible::CORRUPT) {
            let next = "repair a copy of it with `qemu-img check -r all`";
            return Err(ImageError::NeedsRepair { state: "corrupt", next });
        }
        if has(Incompatible::DIRTY) {
            let next = "repair its refcounts with `qemu-img check -r all` first";
            return Err(ImageError::NeedsRepair { state: "dirty", next });
        }
        Ok(())
    }

    /// Returns the reference to the image below.
    pub fn backing(&self) -> Option<&Backing> {
        self.backing.as_ref()
    }

    /// Returns the size of a cluster in bytes.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the bytes of a block: a part of a cluster whose presence the map notes.
    pub fn block_bytes(&self) -> u32 {
        1 << super::format::words::block_bits(self)
    }

    /// Returns whether L2 entries have a bitmap of subclusters.
    pub fn has_extended_l2(&self) -> bool {
        self.features.incompatible & Incompatible::EXTENDED_L2 != 0
    }

    /// Returns the unit that is present or absent: bytes of a subcluster, or of a cluster.
    pub fn subcluster_bytes(&self) -> u64 {
        if self.has_extended_l2() {
            self.cluster_bytes() / u64::from(SUBCLUSTERS)
        } else {
            self.cluster_bytes()
        }
    }

    /// Returns the size of an L2 entry in bytes.
    pub fn l2_entry_bytes(&self) -> u64 {
        if self.has_extended_l2() { 16 } else { 8 }
    }

    /// Returns the number of bytes of the disk that one L2 table maps.
    pub fn l2_table_covers(&self) -> u64 {
        self.cluster_bytes() / self.l2_entry_bytes() * self.cluster_bytes()
    }

    /// Returns the number of refcounts in a refcount block.
    pub fn refcounts_per_block(&self) -> u64 {
        (self.cluster_bytes() * 8) >> self.refcount_order
    }

    /// Returns how L2 entries are encoded.
    pub fn entry_format(&self) -> EntryFormat {
        EntryFormat {
            cluster_bits: self.cluster_bits,
            is_extended: self.has_extended_l2(),
            has_zero_flag: self.version >= 3,
        }
    }

    fn check(fields: &Fields, first_cluster: &[u8], len: u64) -> Result<Self, ImageError> {
        let cluster_bytes = 1 << fields.cluster_bits;
        let backing_name = fields.backing_name(first_cluster)?;
        let end = match (fields.backing_offset, &backing_name) {
            (offset, Some(_)) => usize::try_from(offset).unwrap_or(usize::MAX),
            _ => first_cluster.len(),
        };
        let area = first_cluster.get(fields.header_bytes as usize..end);
        let short = || ImageError::header("the file or the backing name's offset lies within it");
        let extensions = Extensions::parse(area.ok_or_else(short)?)?;
        fields.refuse_unsupported(&extensions)?;
        let compression = Compression::from_header(fields.features, fields.compression)?;
        let format = extensions.backing_format;
        let bitmaps =
            extensions.bitmaps.filter(|_| fields.features.autoclear & AUTOCLEAR_BITMAPS != 0);
        let header = Self {
            version: fields.version,
            cluster_bits: fields.cluster_bits,
            size: fields.size,
            l1: TableRange { offset: fields.l1_offset, bytes: u64::from(fields.l1_words) * 8 },
            refcount_table: TableRange {
                offset: fields.refcount_table_offset,
                bytes: u64::from(fields.refcount_table_clusters) * cluster_bytes,
            },
            refcount_order: fields.refcount_order,
            snapshots_offset: fields.snapshots_offset,
            snapshot_count: fields.snapshot_count,
            features: fields.features,
            compression,
            bitmaps,
            extensions: extensions.others,
            backing: backing_name.map(|file| Backing { file, format }),
        };
        header.check_tables(len)?;
        Ok(header)
    }

    fn check_tables(&self, len: u64) -> Result<(), ImageError> {
        if self.has_extended_l2() && self.subcluster_bytes() < 512 {
            return Err(ImageError::header("extended L2 entries need clusters of at least 16 KiB"));
        }
        if self.refcount_order > MAX_REFCOUNT_ORDER {
            let problem = format!("refcount_order is {}, above 6", self.refcount_order);
            return Err(ImageError::header(problem));
        }
        let needed = self.size.div_ceil(self.l2_table_covers());
        if self.l1.words() < needed {
            let problem = format!(
                "the L1 table has {} entries, a disk of {} bytes needs {needed}",
                self.l1.words(),
                self.size
            );
            return Err(ImageError::header(problem));
        }
        self.check_table("L1 table", self.l1, MAX_L1_BYTES, len)?;
        let table = self.refcount_table;
        self.check_table("refcount table", table, MAX_REFCOUNT_TABLE_BYTES, len)?;
        if table.bytes == 0 || table.offset == 0 {
            return Err(ImageError::header("it has no refcount table"));
        }
        if self.snapshot_count > MAX_SNAPSHOTS {
            let problem =
                format!("it has {} snapshots, above {MAX_SNAPSHOTS}", self.snapshot_count);
            return Err(ImageError::header(problem));
        }
        let bytes = u64::from(self.snapshot_count > 0);
        let snapshots = TableRange { offset: self.snapshots_offset, bytes };
        self.check_table("snapshot table", snapshots, bytes, len)
    }

    /// Checks size, alignment and position of a table. Its last cluster may end behind the file.
    fn check_table(
        &self,
        name: &str,
        table: TableRange,
        max: u64,
        len: u64,
    ) -> Result<(), ImageError> {
        let TableRange { offset, bytes } = table;
        if bytes > max {
            return Err(ImageError::header(format!("the {name} has {bytes} bytes, above {max}")));
        }
        if bytes > 0 && !offset.is_multiple_of(self.cluster_bytes()) {
            let problem = format!("the {name} begins at {offset}, within a cluster");
            return Err(ImageError::header(problem));
        }
        let last = offset.checked_add(bytes.saturating_sub(self.cluster_bytes()));
        if bytes > 0 && last.is_none_or(|last| last >= len) {
            let problem = format!(
                "the {name} of {bytes} bytes at {offset} ends behind the file, which has {len}"
            );
            return Err(ImageError::header(problem));
        }
        Ok(())
    }
}
