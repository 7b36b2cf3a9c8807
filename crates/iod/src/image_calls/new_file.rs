//! New files of images, and files that are read or written without the page cache.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use image::PlainFile;
pub(super) use image::{NewFile, folder_of};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Alignment that is enough for direct I/O on every storage, in bytes.
pub(super) const DIRECT_BLOCK: usize = 4096;

/// Returns the file for reads and writes, without the page cache if `direct` and if that is possible.
pub(super) fn plain(file: OwnedFd, direct: bool) -> PlainFile {
    let set = || fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT);
    if direct && set().is_ok() {
        let file = Arc::new(file);
        return PlainFile::direct(Arc::clone(&file), DIRECT_BLOCK)
            .unwrap_or_else(|_| PlainFile::shared(file));
    }
    PlainFile::new(file)
}
