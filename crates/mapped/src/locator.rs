//! Locations of the data of a read-only image and of the layers below it.

use ::disk::{Location, Locator};
use image::channel::MapReader;
use image::map::{Base, Kind};

use crate::read::{blocks_run, byte_of};

/// Locator of an image that does not change.
pub(crate) struct LayerLocator {
    pub(crate) map: MapReader,
    /// Size of the disk in bytes.
    pub(crate) size: u64,
    pub(crate) below: Option<Box<dyn Locator>>,
    /// Size of the layer below in bytes, 0 if there is none.
    pub(crate) below_size: u64,
}

impl Locator for LayerLocator {
    fn locate(&mut self, offset: u64, len: u64) -> Option<Location> {
        let layout = *self.map.layout();
        let granule_bytes = 1_u64 << layout.granule_bits;
        let skip = offset % granule_bytes;
        let len = len.min(granule_bytes - skip).min(self.size.checked_sub(offset)?);
        let word = self.map.word(offset >> layout.granule_bits);
        match word.kind() {
            _ if len == 0 => None,
            Kind::Ask | Kind::Busy | Kind::Mixed => None,
            Kind::Below | Kind::Zero => self.locate_base(word.base(), offset, len),
            Kind::OverBelow | Kind::OverZero | Kind::Shared => {
                let (is_stored, len) = blocks_run(&layout, word.mask(), skip, len);
                if !is_stored {
                    return self.locate_base(word.base(), offset, len);
                }
                // The file of this image comes first.
                let file = word.lower_file().map_or(0, |file| file + 1);
                Some(Location { file: Some(file), offset: byte_of(&layout, word, skip), len })
            }
        }
    }
}

impl LayerLocator {
    fn locate_base(&mut self, base: Base, offset: u64, len: u64) -> Option<Location> {
        let room = self.below_size.saturating_sub(offset);
        if base == Base::Zero || room == 0 {
            return Some(Location { file: None, offset: 0, len });
        }
        let found = self.below.as_mut()?.locate(offset, len.min(room))?;
        Some(Location { file: found.file.map(|file| file + 1), ..found })
    }
}
