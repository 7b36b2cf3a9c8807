//! Image lock that excludes a second writer, compatible with QEMU.
//!
//! QEMU marks its use of an image by OFD read locks on single bytes. Byte 100 + n means "I use
//! permission n", byte 200 + n means "no other process may use permission n". Marks are set first
//! and then compared with those of other processes. So of two processes that start at once, at most
//! one continues. This module sets the same marks for a guest's disk, so both sides see each other
//! (QEMU, block/file-posix.c; permissions in include/block/block-common.h).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::DiskError;

const USES: i64 = 100;
const FORBIDS: i64 = 200;
/// Numbers of QEMU's permissions.
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Marks of one user on an image, removed on drop.
#[derive(Debug)]
pub struct ImageLock {
    file: Arc<OwnedFd>,
    marks: Vec<i64>,
}

impl ImageLock {
    /// Marks the image that `file` has open: from now on no other process may write it. With
    /// `writes`, this process may, which excludes readers that allow no writer.
    ///
    /// # Errors
    /// [`DiskError::Locked`] if another process uses it in a way that excludes this one, or the
    /// storage has no locks.
    pub fn take(path: &Path, file: Arc<OwnedFd>, writes: bool) -> Result<Self, DiskError> {
        let uses: &[i64] =
            if writes { &[CONSISTENT_READ, WRITE, RESIZE] } else { &[CONSISTENT_READ] };
        let forbids = [WRITE, RESIZE];
        let mut lock = Self { file, marks: Vec::new() };
        let own = uses.iter().map(|n| USES + n).chain(forbids.iter().map(|n| FORBIDS + n));
        for byte in own {
            lock.mark(path, byte)?;
        }
        let rivals = uses.iter().map(|n| FORBIDS + n).chain(forbids.iter().map(|n| USES + n));
        for byte in rivals {
            lock.refuse_rival(path, byte)?;
        }
        Ok(lock)
    }

    /// Removes the marks of a writer. Those of a reader stay.
    pub fn allow_readers(&mut self) {
        let writes = |byte: &i64| [USES + WRITE, USES + RESIZE].contains(byte);
        for byte in self.marks.iter().filter(|byte| writes(byte)) {
            // A failure only keeps readers away that could be let in.
            let _ = fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, *byte)));
        }
        self.marks.retain(|byte| !writes(byte));
    }

    /// Returns whether another open file has marked the image as written. Takes no lock, so it
    /// keeps no other process from the image.
    ///
    /// # Errors
    /// The storage has no locks.
    pub fn is_written(path: &Path, file: &Arc<OwnedFd>) -> Result<bool, DiskError> {
        let unmarked = Self { file: Arc::clone(file), marks: Vec::new() };
        match unmarked.refuse_rival(path, USES + WRITE) {
            Err(DiskError::Locked { .. }) => Ok(true),
            other => other.map(|()| false),
        }
    }

    fn mark(&mut self, path: &Path, byte: i64) -> Result<(), DiskError> {
        fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, byte)))
            .map_err(|errno| os(path, "lock", errno))?;
        self.marks.push(byte);
        Ok(())
    }

    /// Fails if another open file has a mark on `byte`.
    fn refuse_rival(&self, path: &Path, byte: i64) -> Result<(), DiskError> {
        let mut found = range(libc::F_WRLCK, byte);
        fcntl(&*self.file, FcntlArg::F_OFD_GETLK(&mut found))
            .map_err(|errno| os(path, "test the lock of", errno))?;
        if i32::from(found.l_type) == libc::F_UNLCK {
            return Ok(());
        }
        let holder = if byte >= FORBIDS {
            "another process has it open and allows no other writer"
        } else {
            "another process writes it"
        };
        Err(DiskError::Locked { path: path.into(), holder: holder.into() })
    }
}

impl Drop for ImageLock {
    fn drop(&mut self) {
        for byte in &self.marks {
            // A failure needs no action: closing the descriptor releases the lock.
            let _ = fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, *byte)));
        }
    }
}

pub(crate) fn range(kind: libc::c_int, byte: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn os(path: &Path, action: &'static str, errno: nix::errno::Errno) -> DiskError {
    let source = rustix::io::Errno::from_raw_os_error(errno as i32);
    DiskError::Os { action, path: path.into(), source }
}
