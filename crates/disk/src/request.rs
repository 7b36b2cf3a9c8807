//! Requests and their completions.

use memory::Buffers;

use crate::IoError;

/// Size and limits of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes.
    pub size: u64,
    /// Logical block size in bytes: ranges are multiples of it.
    pub block_size: u32,
    /// Writes, discards and zeroes are refused.
    pub read_only: bool,
    /// A discard frees something.
    pub discard: bool,
}

/// A piece of a disk that is stored, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is stored: it reads zeroes and takes no room.
    pub hole: bool,
}

impl Extent {
    /// All of a range is stored, as far as anybody knows.
    pub(crate) fn stored(geometry: &Geometry, offset: u64, len: u64) -> Result<Vec<Self>, IoError> {
        geometry.check_inside(offset, len)?;
        Ok(vec![Self { len, hole: false }])
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Fill the buffers.
    Read,
    /// Store the buffers.
    Write {
        /// Durable on completion: the driver will not flush.
        durable: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// The range is not needed; later reads may return anything that was there or zeroes.
    Discard,
    /// The range reads zeroes.
    WriteZeroes {
        /// It may be unmapped.
        unmap: bool,
        /// Durable on completion.
        durable: bool,
    },
}

/// One request. Its range has been checked by [`Geometry::check`].
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Bytes; for reads and writes as many as the buffers hold.
    pub len: u64,
    /// Data; empty for other kinds.
    pub buffers: Buffers,
    /// The submitter's name for it.
    pub tag: u32,
}

/// One request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The submitter's name for it.
    pub tag: u32,
    /// How it ended.
    pub outcome: Result<(), IoError>,
    /// Its buffers, whole or consumed.
    pub buffers: Buffers,
}

/// Answer of [`crate::Channel::submit`].
#[derive(Debug)]
#[must_use = "a request that is not done must be kept"]
pub enum SubmitOutcome {
    /// It has ended already.
    Done(Completion),
    /// It ends through [`crate::Channel::reap`].
    Pending,
    /// The channel is out of something: try again after the next completion.
    Full(Request),
}

impl Request {
    /// Ends the request.
    pub fn complete(self, outcome: Result<(), IoError>) -> Completion {
        Completion { tag: self.tag, outcome, buffers: self.buffers }
    }
}

impl Geometry {
    /// Checks that a request of `kind` over `len` bytes at `offset` may be submitted.
    ///
    /// # Errors
    /// [`IoError::ReadOnly`], [`IoError::Range`].
    pub fn check(&self, kind: RequestKind, offset: u64, len: u64) -> Result<(), IoError> {
        let changes = !matches!(kind, RequestKind::Read | RequestKind::Flush);
        if changes && self.read_only {
            return Err(IoError::ReadOnly);
        }
        if kind == RequestKind::Flush {
            return Ok(());
        }
        let mask = u64::from(self.block_size).wrapping_sub(1);
        if (offset | len) & mask != 0 {
            return Err(IoError::Range);
        }
        self.check_inside(offset, len)
    }

    /// Checks that there are `len` bytes at `offset`, and at least one, whatever the block size.
    ///
    /// # Errors
    /// [`IoError::Range`].
    pub fn check_inside(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let end = offset.checked_add(len).ok_or(IoError::Range)?;
        if len == 0 || end > self.size { Err(IoError::Range) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let disk = Geometry { size: 8192, block_size: 4096, read_only: true, discard: true };
        let write = RequestKind::Write { durable: false };
        let cases = [
            (RequestKind::Read, 0, 8192, Ok(())),
            (RequestKind::Read, 4096, 4096, Ok(())),
            (RequestKind::Read, 4096, 8192, Err(IoError::Range)),
            (RequestKind::Read, 512, 4096, Err(IoError::Range)),
            (RequestKind::Read, 0, 512, Err(IoError::Range)),
            (RequestKind::Read, 0, 0, Err(IoError::Range)),
            (RequestKind::Read, u64::MAX - 4095, 4096, Err(IoError::Range)),
            (RequestKind::Flush, 0, 0, Ok(())),
            (write, 0, 4096, Err(IoError::ReadOnly)),
            (RequestKind::Discard, 0, 4096, Err(IoError::ReadOnly)),
        ];
        for (kind, offset, len, expected) in cases {
            assert_eq!(disk.check(kind, offset, len), expected, "{kind:?} {offset} {len}");
        }
    }
}
