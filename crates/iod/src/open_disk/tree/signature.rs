//! First bytes of files that are served as raw images, and the mark of those that were.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use disk::{FileDisk, open_image};
use image::{ImageError, ImageFile as _, PlainFile, run_now};
use model::signature::{HEAD_BYTES, MARK, Signature};
use model::spec::FileRef;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

/// Alignment of reads that is enough for direct I/O on every storage.
const ALIGNMENT: usize = 4096;

/// Returns what a raw image file begins like. A device is not read: it may hang, and an attach must
/// not wait for it.
pub(super) fn of_disk(disk: &FileDisk) -> Option<Signature> {
    if disk.identity().ok()?.inode == 0 {
        return None;
    }
    read(Arc::clone(disk.handover().0))
}

/// Returns the advice for a file that is an image with metadata or compressed: then its size is not
/// that of a disk.
pub(super) fn container(name: &FileRef) -> Option<String> {
    let FileRef::Path(path) = name else { return None };
    match read(Arc::new(open_image(path, true).ok()?))? {
        Signature::Luks => None,
        signature => Some(advice(signature, name)),
    }
}

/// Returns what a file begins like, and what to do if it is that.
pub(super) fn advice(signature: Signature, name: &FileRef) -> String {
    format!("begins like {}; {}", signature.title(), signature.remedy(name))
}

/// Returns whether a guest could write the file as a raw image before.
pub(super) fn is_marked(disk: &FileDisk) -> bool {
    fgetxattr(disk.handover().0.as_fd(), MARK, &mut [0_u8; 8][..]).is_ok()
}

/// Marks a file that a guest can write as a raw image from now on. Storage without extended
/// attributes has no marks.
pub(super) fn mark(disk: &FileDisk) {
    let is_file = disk.identity().is_ok_and(|identity| identity.inode != 0);
    if is_file && !is_marked(disk) {
        let _unmarked = fsetxattr(disk.handover().0.as_fd(), MARK, b"1", XattrFlags::empty());
    }
}

/// Reads the signature of a file. An image that cannot be read says so when it is served.
fn read(file: Arc<OwnedFd>) -> Option<Signature> {
    let mut head = [0; HEAD_BYTES];
    let file = PlainFile::direct(file, ALIGNMENT).ok()?;
    let read = async { file.read_at(0, &mut head).await.map_err(ImageError::io("read", 0)) };
    run_now(read).ok()?;
    Signature::of(&head)
}
