//! What disks are made of.

/// What is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Nothing; no data moves.
    Null,
    /// Memory: ours of the process, the peer's a file on tmpfs.
    Memory,
    /// A file that is in the page cache.
    Cached,
    /// The same file, read past the page cache.
    Direct,
}

impl Medium {
    /// In the ids of cells.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Memory => "memory",
            Self::Cached => "cached",
            Self::Direct => "direct",
        }
    }

    /// What a reader calls it.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Memory => "memory",
            Self::Cached => "file in the page cache",
            Self::Direct => "file by direct I/O",
        }
    }

    /// Whether cache modes are of any meaning.
    pub(crate) fn is_file(self) -> bool {
        matches!(self, Self::Cached | Self::Direct)
    }
}
