//! Disks below another one, and where their data lies.

use std::sync::Arc;

use reactor::Context;

use crate::{Channel, Disk};

/// One reactor's access to a disk that is below another one and does not change.
pub struct Layer {
    /// Channel of the disk.
    pub channel: Box<dyn Channel>,
    /// Finds data of the disk in [`Self::files`]. `None` if nothing can.
    pub locator: Option<Box<dyn Locator>>,
    /// Files that have the data of the disk.
    pub files: Vec<Arc<dyn Disk>>,
}

/// Where the first bytes of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// File in [`Layer::files`]. `None` for zeroes.
    pub file: Option<usize>,
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes, at least one.
    pub len: u64,
}

/// Finds where the data of a disk lies. A location is valid for as long as the layer.
pub trait Locator {
    /// Returns where the first bytes of a range are. `None` if that is not known without I/O, or if
    /// the bytes are not stored as they are. Never waits.
    fn locate(&mut self, offset: u64, len: u64) -> Option<Location>;
}

impl Layer {
    /// Creates a layer that is read through its channel only.
    pub fn opaque(channel: Box<dyn Channel>) -> Self {
        Self { channel, locator: None, files: Vec::new() }
    }

    /// Creates a layer whose `size` bytes are those of one file.
    pub fn plain(file: Arc<dyn Disk>, size: u64, context: &mut Context<'_>) -> Self {
        let locator = Part { offset: 0, size, inner: None };
        Self {
            channel: file.open_channel(context),
            locator: Some(Box::new(locator)),
            files: vec![file],
        }
    }

    /// Returns the `size` bytes at `offset` of a layer. `narrow` makes the channel of the part.
    pub(crate) fn part(
        self,
        (offset, size): (u64, u64),
        narrow: impl FnOnce(Box<dyn Channel>) -> Box<dyn Channel>,
    ) -> Self {
        let within =
            |inner| Box::new(Part { offset, size, inner: Some(inner) }) as Box<dyn Locator>;
        let (channel, locator) = (narrow(self.channel), self.locator.map(within));
        Self { channel, locator, files: self.files }
    }
}

/// Range of the disk of another locator, or of a file.
struct Part {
    offset: u64,
    size: u64,
    inner: Option<Box<dyn Locator>>,
}

impl Locator for Part {
    fn locate(&mut self, offset: u64, len: u64) -> Option<Location> {
        let len = len.min(self.size.checked_sub(offset)?);
        let offset = self.offset.checked_add(offset)?;
        match &mut self.inner {
            _ if len == 0 => None,
            Some(inner) => inner.locate(offset, len),
            None => Some(Location { file: Some(0), offset, len }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_within_its_disk() {
        let inner = Part { offset: 0, size: 100, inner: None };
        let mut part = Part { offset: 10, size: 20, inner: Some(Box::new(inner)) };
        let found = |offset, len| Some(Location { file: Some(0), offset, len });
        assert_eq!(part.locate(0, 100), found(10, 20));
        assert_eq!(part.locate(15, 4), found(25, 4));
        assert_eq!((part.locate(20, 1), part.locate(21, 1)), (None, None));
        assert_eq!(part.locate(u64::MAX, 1), None);
    }
}
