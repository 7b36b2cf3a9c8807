//! Limit on the size of a log file.
//!
//! The file shrinks in place, because several processes append to it: a keeper, its workers and
//! their successors. A line that another process appends while this one shrinks the file can be
//! lost.

use std::fs::File;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FileType, fstat, ftruncate};

/// Removes the older half of the file's lines if the file is larger than `limit` bytes. The
/// descriptor must be for appending. Does nothing if it is not a regular file, or if the file cannot
/// be read.
pub fn limit_file(fd: BorrowedFd<'_>, limit: u64) {
    let Ok(stat) = fstat(fd) else { return };
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size <= limit {
        return;
    }
    if let Some(newer) = newer_half(fd, size, limit) {
        // A failed write loses old lines of the log, and nothing else.
        let _ = ftruncate(fd, 0).and_then(|()| rustix::io::write(fd, &newer));
    }
}

/// Reads the newest lines, at most half of `limit` bytes.
fn newer_half(fd: BorrowedFd<'_>, size: u64, limit: u64) -> Option<Vec<u8>> {
    // The descriptor itself may be for appending only.
    let file = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let mut newer = vec![0; usize::try_from(limit / 2).ok()?];
    file.read_exact_at(&mut newer, size.saturating_sub(limit / 2)).ok()?;
    let begin = newer.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    Some(newer.split_off(begin))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_file_loses_its_older_half() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = File::options().append(true).create(true).open(&path).unwrap();
        for number in 0..1000 {
            writeln!(log, "line {number}").unwrap();
            limit_file(log.as_fd(), 1000);
            assert!(log.metadata().unwrap().len() <= 1000);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("line ") && text.ends_with("line 999\n"), "{text}");
        assert!(text.len() > 400, "{text}");
    }

    #[test]
    fn a_pipe_has_no_limit() {
        let (_reader, writer) = std::io::pipe().unwrap();
        rustix::io::write(&writer, b"line\n").unwrap();
        limit_file(writer.as_fd(), 1);
    }
}
