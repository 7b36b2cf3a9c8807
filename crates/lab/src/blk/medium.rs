//! Media of disks.

/// Medium of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Null disk, which moves no data.
    Null,
    /// Memory. Ours uses process memory, and the peer uses a file on tmpfs.
    Memory,
    /// File in the page cache.
    Cached,
    /// File with direct I/O.
    Direct,
}

impl Medium {
    /// Returns the medium's part of a cell id.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Memory => "memory",
            Self::Cached => "cached",
            Self::Direct => "direct",
        }
    }

    /// Returns the name for the reader.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Memory => "memory",
            Self::Cached => "file in the page cache",
            Self::Direct => "file by direct I/O",
        }
    }

    /// Returns whether cache modes apply to the medium.
    pub(crate) fn is_file(self) -> bool {
        matches!(self, Self::Cached | Self::Direct)
    }
}
