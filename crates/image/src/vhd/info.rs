//! Properties of an image, for people.

use std::fmt::Write;

use super::footer::DiskType;
use super::image::{FooterState, Image};
use crate::{ImageError, ImageFile};

/// Properties of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Type of the image.
    pub disk_type: DiskType,
    /// Size of a block in bytes. `None` in fixed images.
    pub block_bytes: Option<u64>,
    /// Program that made the image, as it calls itself.
    pub creator: String,
    /// Time of its creation, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Identity of the content.
    pub unique_id: [u8; 16],
    /// Parent of a differencing image.
    pub parent: Option<ParentInfo>,
    /// Whether XenServer's batmap is there.
    pub has_batmap: bool,
    /// Whether a machine was suspended that uses the disk.
    pub in_saved_state: bool,
    /// Whether footer and copy are the same.
    pub has_same_footers: bool,
}

/// Parent as the image has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentInfo {
    /// Identity of the parent. Zeroes for a raw one.
    pub unique_id: [u8; 16],
    /// Time when it was last changed, in seconds since 1970.
    pub unix_seconds: u64,
    /// Path, if there is one that can be read. It is never followed.
    pub path: Option<String>,
}

/// Returns an identity as text.
pub fn id_text(id: &[u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in id.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Text never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl<F: ImageFile> Image<F> {
    /// Returns the properties of the image.
    ///
    /// # Errors
    /// The file fails.
    pub async fn info(&mut self) -> Result<Info, ImageError> {
        let path = self.parent_path().await;
        let has_same_footers = self.footers().await? == [FooterState::Same; 2];
        let footer = &self.footer;
        let is_differencing = footer.disk_type == DiskType::Differencing;
        let parent = self.header.as_ref().filter(|_| is_differencing).map(|header| ParentInfo {
            unique_id: header.parent_id,
            unix_seconds: header.parent_unix_seconds,
            path,
        });
        let creator = String::from_utf8_lossy(&footer.creator);
        Ok(Info {
            size: footer.size,
            file_bytes: self.tables.len(),
            disk_type: footer.disk_type,
            block_bytes: self.header.as_ref().map(|header| header.block_bytes),
            creator: creator.trim_end_matches(['\0', ' ']).into(),
            created_unix_seconds: footer.created_unix_seconds,
            unique_id: footer.unique_id,
            parent,
            has_batmap: self.batmap.is_some(),
            in_saved_state: footer.in_saved_state,
            has_same_footers,
        })
    }
}
