//! Keeps a successor away until the kernel has ended everything that a dead process began.
//!
//! The kernel goes on with the I/O of a process that was killed: a write lands after whatever a
//! successor writes meanwhile, and a read lands in guest memory that is used for something else by
//! then. So a disk holds an OFD read lock on one byte, far above its last, by the open file that
//! its I/O uses. Every request holds that file, so the lock goes when the last of them has ended,
//! and not before. The byte is chosen by who serves what: two that share an image without being
//! successors of each other do not meet there.
//!
//! Waiting: a disk that may be written asks for a write lock on the byte, sleeps in the kernel
//! until it has it, and turns it into the read lock. Without the right to write a write lock is not
//! given, and to wait for the end of a read lock there is no other event; then the byte is looked
//! at with growing pauses.
//!
//! Locks are known to one host: a dead process on another one is not seen here.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::lock::range;

/// Lowest byte: above every disk and above QEMU's marks.
const LOWEST: u64 = 1 << 62;
/// Bytes from there on.
const COUNT: u64 = 1 << 61;
/// First pause between two looks.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause: what a guest waits longer than it had to.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Who serves what, as a byte to lock: the same for each successor, on every version of this
/// program (FNV-1a over both words).
pub fn fence_byte(id: &str, socket: &[u8]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = id.bytes().chain([0]).chain(socket.iter().copied());
    LOWEST + bytes.fold(0xcbf2_9ce4_8422_2325, step) % COUNT
}

/// The lock on one byte, by one open file.
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

    /// Takes it unless I/O of a predecessor is under way.
    pub(crate) fn try_take(&mut self, file: &OwnedFd) -> Result<bool, Errno> {
        // Marked first and compared then: of two that start at once none overlooks the other.
        self.set(file, libc::F_RDLCK)?;
        self.held = !is_others(file, self.byte)?;
        if !self.held {
            self.set(file, libc::F_UNLCK)?;
        }
        Ok(self.held)
    }

    /// It was taken by [`wait`].
    pub(crate) fn taken(&mut self) {
        self.held = true;
    }

    pub(crate) fn release(&mut self, file: &OwnedFd) {
        if std::mem::take(&mut self.held) {
            // Nothing can be done about a failure; the end of the file releases it at last.
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

/// Sleeps until nobody else has the byte, and takes it.
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
    // From one kind to the other in one step: nobody comes between.
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, byte))).map(drop)
}

/// Another open file has a lock on the byte.
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
