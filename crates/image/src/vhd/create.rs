//! Creation of images.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::footer::{DiskType, Footer};
use super::header::{HEADER_BYTES, Header, NewParent};
use super::locator::{Locator, Platform};
use super::{MAX_DISK_BYTES, SECTOR};
use crate::file::create_new;
use crate::{ImageError, ImageFile, run_now};

/// Size of a block in bytes: XenServer reads no other.
pub(super) const BLOCK_BYTES: u32 = 2 << 20;
/// Place of the dynamic header.
pub(super) const HEADER_OFFSET: u64 = SECTOR;
/// Alignment of the BAT and of what follows.
const ALIGNMENT: u64 = 4096;
/// Longest path of a parent in bytes.
const MAX_PATH_BYTES: usize = 2048;

/// Properties of a new image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Size of the disk in bytes: a multiple of 512, at most 2,040 GiB.
    pub size: u64,
    /// Type of the image.
    pub disk_type: DiskType,
    /// Parent of a differencing image.
    pub parent: Option<Parent>,
    /// Identity of the image, by which images over it name it. A random one if absent.
    pub unique_id: Option<[u8; 16]>,
}

/// Reference to a parent. It is not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Path, absolute or relative to the image's directory.
    pub file: PathBuf,
    /// Identity, [`Footer::unique_id`] of its image. Zeroes for a raw parent.
    pub unique_id: [u8; 16],
    /// Time when the parent was last changed, in seconds since 1970.
    pub unix_seconds: u64,
}

impl CreateOptions {
    /// Returns the properties of a dynamic image.
    pub fn dynamic(size: u64) -> Self {
        Self { size, disk_type: DiskType::Dynamic, parent: None, unique_id: None }
    }

    /// Returns the properties of a fixed image.
    pub fn fixed(size: u64) -> Self {
        Self { size, disk_type: DiskType::Fixed, parent: None, unique_id: None }
    }

    /// Returns the properties of a differencing image.
    pub fn differencing(size: u64, parent: Parent) -> Self {
        Self { size, disk_type: DiskType::Differencing, parent: Some(parent), unique_id: None }
    }

    pub(super) fn check(&self) -> Result<Option<String>, ImageError> {
        let refuse = |problem: String| Err(ImageError::Create { problem });
        if self.size == 0 || !self.size.is_multiple_of(SECTOR) || self.size > MAX_DISK_BYTES {
            let problem = format!(
                "a disk in a VHD has {SECTOR} bytes to 2,040 GiB, in multiples of {SECTOR} bytes, \
                 not {}; larger disks fit into qcow2 images",
                self.size
            );
            return refuse(problem);
        }
        match (&self.parent, self.disk_type) {
            (None, DiskType::Fixed | DiskType::Dynamic) => Ok(None),
            (Some(parent), DiskType::Differencing) => match parent.file.to_str() {
                Some(path) if (1..=MAX_PATH_BYTES).contains(&path.len()) => Ok(Some(path.into())),
                _ => refuse(format!("the parent's path is text of 1 to {MAX_PATH_BYTES} bytes")),
            },
            _ => refuse("a differencing image has a parent, and others have none".into()),
        }
    }
}

/// Returns a random identity (UUID version 4).
fn random_id() -> [u8; 16] {
    let half = |number: u64| RandomState::new().hash_one(number).into();
    let random: u128 = u128::wrapping_shl(half(0), 64) | half(1);
    let (version, variant) = (0xf_u128 << 76, 0x3_u128 << 62);
    (random & !version & !variant | 4 << 76 | 2 << 62).to_be_bytes()
}

/// Writes an empty image into an empty file, and makes it durable.
///
/// # Errors
/// [`ImageError::Create`] if the properties are not possible, or the file fails.
pub async fn create(file: &impl ImageFile, options: &CreateOptions) -> Result<(), ImageError> {
    let path = options.check()?;
    let write = |offset| ImageError::io("write", offset);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let id = options.unique_id.unwrap_or_else(random_id);
    let footer = Footer::new(options.disk_type, options.size, id, now);
    if options.disk_type == DiskType::Fixed {
        file.set_len(options.size + SECTOR).await.map_err(write(0))?;
        file.write_at(options.size, &footer.bytes).await.map_err(write(options.size))?;
        return file.sync().await.map_err(ImageError::io("flush", 0));
    }
    // At most 1,044,480.
    let entries = options.size.div_ceil(BLOCK_BYTES.into()) as u32;
    let (locators, texts) = locators(path.as_deref().unwrap_or_default());
    let parent = options.parent.as_ref().map(|parent| NewParent {
        id: parent.unique_id,
        unix_seconds: parent.unix_seconds,
        name: path.clone().unwrap_or_default(),
        locators,
    });
    let texts = if parent.is_some() { texts } else { Vec::new() };
    let locators_at = HEADER_OFFSET + HEADER_BYTES as u64;
    let table = (locators_at + texts.len() as u64).next_multiple_of(ALIGNMENT);
    // The table may become as large as the largest disk's, in space that takes no storage.
    let largest = MAX_DISK_BYTES / u64::from(BLOCK_BYTES) * 4;
    let end = (table + largest).next_multiple_of(ALIGNMENT);
    file.set_len(end + SECTOR).await.map_err(write(0))?;
    let unused = vec![0xff; (u64::from(entries) * 4).next_multiple_of(SECTOR) as usize];
    file.write_at(table, &unused).await.map_err(write(table))?;
    file.write_at(locators_at, &texts).await.map_err(write(locators_at))?;
    let header = Header::to_bytes(table, entries, BLOCK_BYTES, parent.as_ref());
    file.write_at(HEADER_OFFSET, &header).await.map_err(write(HEADER_OFFSET))?;
    // An image with a footer is complete, whenever the power fails.
    file.sync().await.map_err(ImageError::io("flush", 0))?;
    file.write_at(end, &footer.bytes).await.map_err(write(end))?;
    file.write_at(0, &footer.bytes).await.map_err(write(0))?;
    file.sync().await.map_err(ImageError::io("flush", 0))
}

/// Returns the locators of a path and their texts, which follow the header.
pub(super) fn locators(path: &str) -> (Vec<Locator>, Vec<u8>) {
    let (mut locators, mut texts) = (Vec::new(), Vec::new());
    for platform in Platform::ALL {
        let text = platform.encode(path);
        let offset = HEADER_OFFSET + (HEADER_BYTES + texts.len()) as u64;
        // A path has at most 2,048 bytes.
        locators.push(Locator { platform, len: text.len() as u32, offset });
        texts.extend(text);
        texts.resize(texts.len().next_multiple_of(SECTOR as usize), 0);
    }
    (locators, texts)
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
