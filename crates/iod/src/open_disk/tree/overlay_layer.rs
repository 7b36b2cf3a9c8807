//! Opening of an overlay: its overflow file, its base, and the writes of a former process.

use std::sync::Arc;

use disk::{Disk, DiskError};
use model::spec::{Backend, FileRef, MIN_OVERLAY_RAM_BYTES, OnFull};
use overlay::{OverlayDisk, OverlayOptions};

use super::super::overlay_memory;
use super::files::Use;
use super::{OpenError, TreeOpener, label};

impl TreeOpener<'_> {
    /// Opens an overlay with this memory and overflow file over a base, of which the guest sees at most
    /// `told` bytes.
    pub(super) fn overlay_over(
        &mut self,
        base: &Backend,
        ram: u64,
        (overflow, overflow_size): (Option<&FileRef>, Option<u64>),
        told: Option<u64>,
    ) -> Result<Arc<dyn Disk>, OpenError> {
        let ram = if ram == 0 { MIN_OVERLAY_RAM_BYTES } else { ram };
        let preserved = self.sources.overlay.take();
        // A disk that is served has its memory: a reset takes what the former contents leave.
        if preserved.is_none() && self.sources.storage_disks.is_none() {
            overlay_memory::check(ram)?;
        }
        let overflow = match overflow {
            None => None,
            Some(name) => {
                if let (FileRef::Path(path), None) = (name, &preserved)
                    && path.symlink_metadata().is_err()
                {
                    overlay::create_file(path).map_err(DiskError::os("create", path))?;
                }
                let file = self.open_file(name, true, Use::Overflow)?;
                if file.is_in_memory() {
                    let note = format!(
                        "the overflow file {name} is in memory (tmpfs), so what it takes comes on \
                         top of `ram`; choose a folder on a disk"
                    );
                    self.tree.notes.push(note);
                }
                Some((file, label(name)))
            }
        };
        let base = self.node(base, false, told)?;
        if self.sources.journal_in_file {
            let note = "the writes of the disk end with this process; run it with --supervise to \
                        keep them over a crash";
            self.tree.notes.push(note.into());
        }
        let options = OverlayOptions {
            name: format!("the overlay of disk {}", self.spec.id).into(),
            ram,
            overflow_size,
            read_only: false,
            waits_for_room: self.spec.on_full == OnFull::Wait,
        };
        let disk = Arc::new(OverlayDisk::new(base, overflow, options, preserved)?);
        overlay_memory::add(&disk);
        self.tree.overlay = Some(Arc::clone(&disk));
        Ok(disk)
    }
}
