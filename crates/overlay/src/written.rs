//! Reading of what guests have written, without a reactor.

use std::os::fd::AsFd;

use ::disk::DiskError;
use ::memory::ThreadMapping;
use image::Presence;
use rustix::io::{pread, retry_on_intr};

use crate::overflow::AlignedBytes;
use crate::word::Word;
use crate::{BYTES, GRANULE, OverlayDisk};

impl OverlayDisk {
    /// Returns the first byte from `offset` on that does not come from the base, or the size of the
    /// disk. The result is a multiple of [`GRANULE`].
    pub fn next_written(&self, offset: u64) -> u64 {
        let (shared, size) = self.parts();
        let mut next = size;
        shared.memory.each_word(offset / GRANULE, |granule, _| {
            next = granule * GRANULE;
            false
        });
        next.min(size)
    }

    /// Reads the written blocks of a range into `out`, and zeroes for all others. `offset` is a multiple
    /// of [`GRANULE`], and `out` ends with the disk or is one, too. Returns what each block is. No request
    /// changes the disk meanwhile. Waits for the storage of the overflow file.
    ///
    /// # Errors
    /// The overflow file cannot be read.
    pub fn read_written(&self, offset: u64, out: &mut [u8]) -> Result<Vec<Presence>, DiskError> {
        let (shared, _) = self.parts();
        let mut epochs = shared.epochs.open_slot();
        let memory = ThreadMapping::over(shared.memory.mapping().clone());
        // The cleaner may move blocks: what a word names here stays until the end.
        let hold = epochs.enter();
        let blocks = out.chunks_mut(BYTES).zip(offset / GRANULE..);
        let found = blocks.map(|(block, granule)| {
            block.fill(0);
            match shared.memory.word(granule) {
                Word::Base => return Ok(Presence::Below),
                Word::Zero => return Ok(Presence::Zero),
                // Slots are inside of the memory.
                Word::Slot(slot) => drop(memory.read(shared.memory.slot_at(slot), block)),
                Word::Place(place) => self.read_place(place, block)?,
            }
            Ok(Presence::Data)
        });
        let found = found.collect();
        epochs.leave(hold);
        found
    }

    fn read_place(&self, place: u64, out: &mut [u8]) -> Result<(), DiskError> {
        let (shared, _) = self.parts();
        let Some(overflow) = &shared.overflow else {
            let problem = "its map names the overflow file, and there is none".into();
            return Err(DiskError::Image { path: self.name().into(), problem });
        };
        let mut bytes = AlignedBytes::new(1);
        let granule = bytes.granule(0);
        let file = overflow.disk.handover().0;
        let read = retry_on_intr(|| pread(file.as_fd(), &mut *granule, place * GRANULE));
        match read.map_err(DiskError::os("read", self.name()))? {
            BYTES => out.copy_from_slice(granule.get(..out.len()).unwrap_or_default()),
            count => {
                let problem = format!("its overflow file has {count} of {BYTES} bytes of a block");
                return Err(DiskError::Image { path: self.name().into(), problem });
            }
        }
        Ok(())
    }
}
