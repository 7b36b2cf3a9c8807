//! Reads by threads that may wait.

use std::io::{Error, ErrorKind, Result};
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::disk::Disk as _;
use rustix::io::Errno;

use crate::channel::place;
use crate::image::Reader;
use crate::mailbox::Mailbox;
use crate::state::Waiter;
use crate::{BLOCK_BYTES, GoldenDisk};

/// Time between two looks at `stop`.
const LOOK: Duration = Duration::from_millis(100);

impl GoldenDisk {
    /// Fills `out` with the bytes from `offset`. Waits for the source, also while it is gone. Its blocks
    /// do not become a part of the boot set. Not for reactors.
    ///
    /// # Errors
    /// The bytes are not inside the image, the source cannot read them, or `stop` became true
    /// ([`ErrorKind::Interrupted`]).
    pub fn read(&self, mut offset: u64, mut out: &mut [u8], stop: &AtomicBool) -> Result<()> {
        let inside = self.geometry().check_inside(offset, out.len() as u64);
        inside.map_err(|_| Error::from(Errno::INVAL))?;
        let mailbox = Mailbox::of_thread();
        // Parts of `out` by piece, with their places in their blocks. Those that are filled are gone.
        let mut parts: Vec<Option<(usize, &mut [u8])>> = Vec::new();
        while !out.is_empty() {
            let (block, skip) = place(offset);
            let len = out.len().min(BLOCK_BYTES as usize - skip);
            let (part, rest) = take(&mut out).split_at_mut(len);
            (out, offset) = (rest, offset + len as u64);
            // A piece is 64 KiB of a buffer in memory.
            let piece = parts.len() as u32;
            let waiter = || Waiter { mailbox: Arc::clone(&mailbox), piece };
            match self.image().find_or_load(block, Reader::Copy, waiter) {
                Some(found) => {
                    fill(part, &found, skip);
                    parts.push(None);
                }
                None => parts.push(Some((skip, part))),
            }
        }
        let end = wait_all(&mailbox, &mut parts, stop);
        mailbox.close();
        end
    }
}

/// Fills parts as their blocks arrive.
fn wait_all(
    mailbox: &Mailbox,
    parts: &mut [Option<(usize, &mut [u8])>],
    stop: &AtomicBool,
) -> Result<()> {
    while parts.iter().any(Option::is_some) {
        if stop.load(Ordering::Relaxed) {
            return Err(ErrorKind::Interrupted.into());
        }
        for (piece, outcome) in mailbox.wait(LOOK) {
            let block = outcome.map_err(|error| Error::other(error.to_string()))?;
            if let Some((skip, part)) = parts.get_mut(piece as usize).and_then(Option::take) {
                fill(part, &block, skip);
            }
        }
    }
    Ok(())
}

fn fill(part: &mut [u8], block: &[u8], skip: usize) {
    // The last block is as long as the image says, and `part` is inside the image.
    let found = block.get(skip..skip + part.len());
    found.into_iter().for_each(|found| part.copy_from_slice(found));
}
