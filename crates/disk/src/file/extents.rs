//! Data and holes of a file.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::{Extent, IoError};

/// Asks the file system for the extents of a range. Only whole blocks count as a hole: a block with
/// any data is data.
pub(crate) fn map(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    block: u64,
    limit: usize,
) -> Result<Vec<Extent>, IoError> {
    let end = offset.saturating_add(len);
    let mut found: Vec<Extent> = Vec::new();
    let mut at = offset;
    while at < end && found.len() < limit.max(1) {
        // A result before the start of the search means that this is no regular file.
        let data = next(file, SeekFrom::Data(at), end)?.max(at);
        // A hole that ends within its first block does not count.
        let hole_end = if data >= end { end } else { data - data % block };
        if hole_end > at {
            push(&mut found, Extent { len: hole_end - at, hole: true });
            at = hole_end;
            continue;
        }
        // Another process may punch that very byte between two queries: advance in any case.
        let hole = next(file, SeekFrom::Hole(data), end)?.max(data.saturating_add(1));
        let hole = hole.checked_next_multiple_of(block).unwrap_or(end).min(end);
        push(&mut found, Extent { len: hole - at, hole: false });
        at = hole;
    }
    Ok(found)
}

/// Appends an extent, or extends the last one if it is of the same kind.
fn push(found: &mut Vec<Extent>, next: Extent) {
    match found.last_mut() {
        Some(last) if last.hole == next.hole => last.len += next.len,
        _ => found.push(next),
    }
}

/// Returns the next byte of the requested kind, at most `end`.
fn next(file: BorrowedFd<'_>, from: SeekFrom, end: u64) -> Result<u64, IoError> {
    match seek(file, from) {
        Ok(at) => Ok(at.min(end)),
        // There is none up to the end of the file.
        Err(Errno::NXIO) => Ok(end),
        // The device or file system cannot report holes: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(match from {
            SeekFrom::Data(at) => at,
            _ => end,
        }),
        Err(error) => Err(IoError::Storage(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn extent(len: u64, hole: bool) -> Extent {
        Extent { len, hole }
    }

    #[test]
    fn holes_and_data_are_told_apart_in_whole_blocks() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let whole = map(file.as_fd(), 0, 1 << 20, 4096, 100).unwrap();
        assert_eq!(whole, [extent(1 << 20, true)]);
        file.write_all_at(&[1; 65536], 65536).unwrap();
        file.write_all_at(&[1; 65536], 262_144).unwrap();
        let (k64, k128) = (65536, 131_072);
        let expected = [
            extent(k64, true),
            extent(k64, false),
            extent(k128, true),
            extent(k64, false),
            extent((1 << 20) - 327_680, true),
        ];
        let ask = |at, len, limit| map(file.as_fd(), at, len, 4096, limit).unwrap();
        assert_eq!(ask(0, 1 << 20, 100), expected);
        assert_eq!(ask(0, 1 << 20, 1), expected[..1]);
        assert_eq!(ask(0, 1 << 20, 3), expected[..3]);
        assert_eq!(ask(k64 + 512, 512, 100), [extent(512, false)]);
        assert_eq!(ask(k64 + k64 / 2, k64, 100), [extent(k64 / 2, false), extent(k64 / 2, true)]);
        // In blocks of 128 KiB the only whole holes are those after the second piece.
        let coarse = map(file.as_fd(), 0, 1 << 20, 131_072, 100).unwrap();
        let tail = (1 << 20) - 393_216;
        assert_eq!(
            coarse,
            [
                extent(131_072, false),
                extent(131_072, true),
                extent(131_072, false),
                extent(tail, true)
            ]
        );
    }

    #[test]
    fn what_cannot_tell_is_all_data() {
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let found = map(zero.as_fd(), 4096, 8192, 4096, 100);
        let sum = found.unwrap().iter().map(|extent| extent.len).sum::<u64>();
        assert_eq!(sum, 8192);
    }
}
