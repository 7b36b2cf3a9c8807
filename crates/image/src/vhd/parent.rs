//! Parent of a differencing image: is the image below it the one that it names?

use super::footer::DiskType;
use super::image::Image;
use super::info::id_text;
use crate::format::Backing;
use crate::{ImageError, ImageFile};

/// Identity of a parent that has none: a raw image.
const NO_ID: [u8; 16] = [0; 16];

impl<F: ImageFile> Image<F> {
    /// Checks that an image may lie below this one. `parent_id` is its identity, if it is a VHD.
    ///
    /// # Errors
    /// [`ImageError::Parent`].
    pub fn check_parent(
        &self,
        has_below: bool,
        parent_id: Option<[u8; 16]>,
    ) -> Result<(), ImageError> {
        let refuse = |problem: String| Err(ImageError::Parent { problem });
        if !has_below {
            return Ok(());
        }
        let Some(header) = self.header.as_ref().filter(|_| self.is_differencing()) else {
            let problem = "it is no differencing image and has all of its disk; state none";
            return refuse(problem.into());
        };
        let (wanted, name) = (header.parent_id, header.parent_name.escape_debug());
        let wanted_text = id_text(&wanted);
        match parent_id {
            Some(id) if id == wanted => Ok(()),
            Some(id) => refuse(format!(
                "its parent is {wanted_text} ({name}), and this is {}; give the image with that \
                 identity, as `ringway image info` shows it",
                id_text(&id)
            )),
            None if wanted != NO_ID => refuse(format!(
                "its parent is the VHD {wanted_text} ({name}), and this is no VHD; state the parent \
                 with format vhd"
            )),
            None => Ok(()),
        }
    }

    /// Returns the reference to the parent: its path, or its identity if no path can be read.
    pub async fn reference(&mut self) -> Option<Backing> {
        let id = self.header.as_ref().filter(|_| self.is_differencing())?.parent_id;
        let format = if id == NO_ID { "raw" } else { "vhd" };
        let file = self.parent_path().await.unwrap_or_else(|| id_text(&id));
        Some(Backing { file: file.into(), format: Some(format.into()) })
    }

    fn is_differencing(&self) -> bool {
        self.footer.disk_type == DiskType::Differencing
    }
}
