//! Fence: makes a successor wait until the kernel has completed all I/O of a dead process.
//!
//! The kernel continues the I/O of a process that was killed. A write lands after whatever the
//! successor writes meanwhile. A read lands in guest memory that may have another use by then. So a
//! disk holds an OFD read lock on one byte, far beyond its end, through the open file that its I/O
//! uses. Every request references that file, so the kernel releases the lock when the last request
//! has completed, and not before. The byte is derived from the disk's id and socket. Two processes
//! that share an image without succeeding each other use different bytes.
//!
//! A writable disk requests a write lock on the byte, sleeps in the kernel until it has the lock,
//! and converts it to a read lock. The kernel grants no write lock through a read-only descriptor,
//! and no other event reports the end of a read lock. So a read-only disk polls the byte with
//! growing pauses.
//!
//! Locks are local to one host: a dead process on another host is not detected.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::lock::range;

/// Lowest byte: above every disk and above QEMU's marks.
const LOWEST: u64 = 1 << 62;
/// Number of bytes from there on.
const COUNT: u64 = 1 << 61;
/// First pause between two polls.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause: the largest unnecessary wait of a guest.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Returns the byte to lock for a disk id and a socket. The byte is the same for each successor and
/// for every version of this program (FNV-1a over both).
pub fn fence_byte(id: &str, socket: &[u8]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = id.bytes().chain([0]).chain(socket.iter().copied());
    LOWEST + bytes.fold(0xcbf2_9ce4_8422_2325, step) % COUNT
}

/// Lock on one byte, through one open file.
#[derive(Debug)]
pub(crate) struct Fence {
    byte: i64,
    held: bool,
}

impl Fence {
    pub(crate) fn new(byte: u64) -> Self {
        Self { byte: i64::try_from(byte).unwrap_or(i64::MAX), held: false }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Takes the lock unless I/O of a predecessor is in flight. Returns whether it was taken.
    pub(crate) fn try_take(&mut self, file: &OwnedFd) -> Result<bool, Errno> {
        // Lock first, then check: of two processes that start at once, at least one sees the other.
        self.set(file, libc::F_RDLCK)?;
        self.held = !is_others(file, self.byte)?;
        if !self.held {
            self.set(file, libc::F_UNLCK)?;
        }
        Ok(self.held)
    }

    /// Records that [`wait`] has taken the lock.
    pub(crate) fn taken(&mut self) {
        self.held = true;
    }

    pub(crate) fn release(&mut self, file: &OwnedFd) {
        if std::mem::take(&mut self.held) {
            // A failure needs no action: closing the file releases the lock.
            let _ = self.set(file, libc::F_UNLCK);
        }
    }

    pub(crate) fn byte(&self) -> i64 {
        self.byte
    }

    fn set(&self, file: &OwnedFd, kind: libc::c_int) -> Result<(), Errno> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, self.byte))).map(drop)
    }
}

/// Sleeps until no other open file has a lock on the byte, and takes the lock.
pub(crate) fn wait(file: &OwnedFd, byte: i64, may_write: bool) -> Result<(), Errno> {
    if may_write {
        loop {
            match fcntl(file, FcntlArg::F_OFD_SETLKW(&range(libc::F_WRLCK, byte))) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    } else {
        let mut pause = FIRST_PAUSE;
        while is_others(file, byte)? {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    // One step converts the lock: no other process can take it in between.
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, byte))).map(drop)
}

/// Returns whether another open file has a lock on the byte.
fn is_others(file: &OwnedFd, byte: i64) -> Result<bool, Errno> {
    let mut found = range(libc::F_WRLCK, byte);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_apart_and_stay_the_same() {
        let all = [fence_byte("a", b"/s"), fence_byte("b", b"/s"), fence_byte("a", b"/t")];
        assert!(all.iter().all(|byte| (LOWEST..LOWEST + COUNT).contains(byte)));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        // A successor may be of another version.
        assert_eq!(fence_byte("disk", b"/run/d.sock"), 5_531_165_627_751_664_449);
    }
}
