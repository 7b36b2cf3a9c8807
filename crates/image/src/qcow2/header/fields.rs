//! Fields of the header.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{MAGIC, MAX_BACKING_BYTES};
use crate::ImageError;
use crate::qcow2::extensions::Extensions;
use crate::qcow2::feature::{Features, Incompatible, name_in_table};

/// Bytes of the header of version 2, and of the fields of version 3 without a compression method.
const V2_BYTES: u32 = 72;
const V3_BYTES: u32 = 104;
/// Shift of a cluster's size.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Refcounts of version 2 have 16 bits.
const V2_REFCOUNT_ORDER: u32 = 4;

/// Fields as they are in the file; only their ranges that parsing needs are checked.
pub(super) struct Fields {
    pub(super) version: u32,
    pub(super) backing_offset: u64,
    pub(super) backing_bytes: u32,
    pub(super) cluster_bits: u32,
    pub(super) size: u64,
    pub(super) crypt_method: u32,
    pub(super) l1_words: u32,
    pub(super) l1_offset: u64,
    pub(super) refcount_table_offset: u64,
    pub(super) refcount_table_clusters: u32,
    pub(super) snapshot_count: u32,
    pub(super) snapshots_offset: u64,
    pub(super) features: Features,
    pub(super) refcount_order: u32,
    pub(super) header_bytes: u32,
    pub(super) compression: u8,
}

impl Fields {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let u32_at = |at: usize| {
            let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
            u32::from_be_bytes(part.unwrap_or_default())
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        let wrong = |problem| Err(ImageError::WrongFormat { format: "qcow2", problem });
        if bytes.len() < V2_BYTES as usize || u32_at(0) != MAGIC {
            return wrong("it does not begin with the magic number of qcow2".into());
        }
        let version = u32_at(4);
        let (features, refcount_order, header_bytes) = match version {
            2 => (Features::default(), V2_REFCOUNT_ORDER, V2_BYTES),
            3 => {
                let (incompatible, compatible, autoclear) = (u64_at(72), u64_at(80), u64_at(88));
                (Features { incompatible, compatible, autoclear }, u32_at(96), u32_at(100))
            }
            version => return wrong(format!("its version is {version}; 2 and 3 are supported")),
        };
        let cluster_bits = u32_at(20);
        if !CLUSTER_BITS.contains(&cluster_bits) {
            let problem = format!("cluster_bits is {cluster_bits}, not 9 to 21");
            return Err(ImageError::header(problem));
        }
        let is_odd = version == 3 && (header_bytes < V3_BYTES || !header_bytes.is_multiple_of(8));
        if is_odd || header_bytes > 1 << cluster_bits {
            return Err(ImageError::header(format!("header_length is {header_bytes}")));
        }
        // Fields that a shorter header does not have are zero.
        let has_compression = header_bytes > V3_BYTES;
        Ok(Self {
            version,
            backing_offset: u64_at(8),
            backing_bytes: u32_at(16),
            cluster_bits,
            size: u64_at(24),
            crypt_method: u32_at(32),
            l1_words: u32_at(36),
            l1_offset: u64_at(40),
            refcount_table_offset: u64_at(48),
            refcount_table_clusters: u32_at(56),
            snapshot_count: u32_at(60),
            snapshots_offset: u64_at(64),
            features,
            refcount_order,
            header_bytes,
            compression: bytes.get(104).copied().filter(|_| has_compression).unwrap_or_default(),
        })
    }

    pub(super) fn backing_name(&self, first_cluster: &[u8]) -> Result<Option<PathBuf>, ImageError> {
        if self.backing_offset == 0 || self.backing_bytes == 0 {
            return Ok(None);
        }
        let (offset, bytes) = (self.backing_offset, self.backing_bytes);
        let name = usize::try_from(offset).ok().filter(|_| bytes <= MAX_BACKING_BYTES);
        let name = name.and_then(|offset| first_cluster.get(offset..)?.get(..bytes as usize));
        let name = name.filter(|name| !name.contains(&0)).ok_or_else(|| {
            let problem = format!("the name of the backing file has {bytes} bytes at {offset}");
            ImageError::header(problem)
        })?;
        Ok(Some(PathBuf::from(OsString::from_vec(name.into()))))
    }

    pub(super) fn refuse_unsupported(&self, extensions: &Extensions) -> Result<(), ImageError> {
        let refuse =
            |feature: &str, next| Err(ImageError::Unsupported { feature: feature.into(), next });
        let decrypt = "decrypt it with `qemu-img convert` and encrypt the device below instead";
        match self.crypt_method {
            0 if extensions.has_crypto_header => return refuse("a LUKS header", decrypt),
            0 => {}
            1 => return refuse("AES encryption", decrypt),
            2 => return refuse("LUKS encryption", decrypt),
            other => return refuse(&format!("encryption method {other}"), decrypt),
        }
        if self.features.incompatible & Incompatible::DATA_FILE != 0 {
            return refuse("an external data file", "copy it with `qemu-img convert`");
        }
        let unknown = self.features.incompatible & !Incompatible::KNOWN;
        if unknown != 0 {
            let bit = unknown.trailing_zeros();
            let name = name_in_table(&extensions.feature_names, bit);
            let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
            let feature = format!("the unknown incompatible feature {bit}{name}");
            return refuse(&feature, "open it with the program that made it");
        }
        Ok(())
    }
}
