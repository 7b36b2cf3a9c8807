//! Clones that share blocks with their disk by the file system (reflinks of XFS and btrfs), and no
//! image. So neither has a chain.

use std::fs::File;
use std::io;

use fiemap::{Fiemap, FiemapFlags};
use model::id::VdiId;
use model::image::ImageFormat;
use model::signature::MARK;
use rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, ioctl_ficlone, openat};
use rustix::io::Errno;

use super::directory::{SrDirectory, name};
use super::tree::refused;
use crate::sr::{SrError, Volume};

/// Most extents of a file that is cloned. The file system copies each reference, and each write to
/// either file splits them further: a chain is better for a file in many pieces.
const MAX_EXTENTS: usize = 4096;

impl SrDirectory<'_> {
    /// Adds a writable volume with the content of another one, which no program writes: its file shares
    /// the blocks. Returns `None` if a chain has to do it, because the volume has several images or one
    /// that is not raw, its file is in many pieces, or the file system cannot do it.
    ///
    /// # Errors
    /// The other volume does not exist, the new one exists, the space does not suffice, or a system call
    /// failed.
    pub(crate) fn clone_file(&self, vdi: VdiId, of: VdiId) -> Result<Option<Volume>, SrError> {
        let _lock = self.lock_records();
        if self.record(vdi)?.is_some() || self.has(&name(vdi))? {
            return Err(refused(format!("volume {vdi} exists")));
        }
        let source = self.resolved(self.known(of)?)?;
        let &[image] = source.images.as_slice() else { return Ok(None) };
        if image.format() != ImageFormat::Raw || source.incomplete || source.next.is_some() {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.fd, image.to_string(), flags, Mode::empty());
        let file = File::from(file.map_err(|error| self.os("open", &image.to_string(), error))?);
        if !is_in_few_pieces(&file) {
            return Ok(None);
        }
        self.check_room(source.bytes)?;
        self.copy_storage_blocks(vdi, of)?;
        let mut is_possible = true;
        let made = self.put(&name(vdi), source.bytes, |new| {
            ioctl_ficlone(new, &file).map_err(|error| {
                is_possible = !matches!(error, Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY);
                io::Error::from(error)
            })?;
            // It is raw, whatever the guest of the other one has written. Not all storage has marks.
            let _unmarked = fsetxattr(new, MARK, b"1", XattrFlags::empty());
            Ok(())
        });
        if !is_possible {
            return Ok(None);
        }
        made?;
        self.volume(vdi).map(Some)
    }
}

/// Returns whether a file has few extents. Where the file system does not tell, it has not.
fn is_in_few_pieces(file: &File) -> bool {
    let extents = Fiemap::with_flags(file, FiemapFlags::SYNC).take(MAX_EXTENTS.saturating_add(1));
    let counted = extents.collect::<Result<Vec<_>, _>>();
    counted.is_ok_and(|extents| extents.len() <= MAX_EXTENTS)
}
