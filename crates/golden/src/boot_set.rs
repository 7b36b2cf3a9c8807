//! Boot set: the blocks that the first machines read, in order. The next start fetches them ahead.

use std::io;
use std::path::Path;

use model::spec::{BOOT_SET_BLOCKS_MAX, BootSet};

use crate::files;

/// Longest file in bytes.
const FILE_MAX: u64 = 1 << 20;
/// New blocks after which the set is stored.
const STORE_EVERY: usize = 64;

/// Recorder of a boot set.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    blocks: Vec<u32>,
    /// Number of blocks at the last attempt to store them.
    tried: usize,
    has_failed: bool,
}

impl Recorder {
    /// Notes the first read of a block.
    pub(crate) fn note(&mut self, block: u32) {
        // The list is short, and a block that left the memory may come again.
        if self.blocks.len() < BOOT_SET_BLOCKS_MAX && !self.blocks.contains(&block) {
            self.blocks.push(block);
        }
    }

    /// Returns the blocks.
    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Returns the blocks if there are enough new ones to store, or any at a silence. Blocks that
    /// could not be stored count as new.
    pub(crate) fn take_new(&mut self, is_silent: bool) -> Option<Vec<u32>> {
        let new = self.blocks.len() - self.tried;
        let is_due = new >= STORE_EVERY || (is_silent && (new > 0 || self.has_failed));
        is_due.then(|| {
            self.tried = self.blocks.len();
            self.blocks.clone()
        })
    }

    /// Notes whether the blocks that were taken are stored. Returns whether this is a first failure.
    pub(crate) fn note_outcome(&mut self, is_stored: bool) -> bool {
        let had_failed = std::mem::replace(&mut self.has_failed, !is_stored);
        !is_stored && !had_failed
    }
}

/// Reads the boot set of an image with `count` blocks. `None` if there is none that fits.
pub(crate) fn read(path: &Path, identity: &str, count: u32) -> Option<Vec<u32>> {
    let set: BootSet = serde_json::from_slice(&files::read(path, FILE_MAX).ok()?).ok()?;
    set.validate().ok()?;
    let fits = set.identity == identity && set.blocks.iter().all(|block| *block < count);
    fits.then_some(set.blocks)
}

/// Stores a boot set.
///
/// # Errors
/// The storage is full or fails.
pub(crate) fn write(path: &Path, set: &BootSet) -> io::Result<()> {
    files::replace(path, &serde_json::to_vec(set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_could_not_be_stored_come_again() {
        let mut recorder = Recorder::default();
        assert_eq!(recorder.take_new(true), None);
        (0..64).for_each(|block| recorder.note(block));
        recorder.note(7);
        let all: Vec<u32> = (0..64).collect();
        assert_eq!(recorder.take_new(false).as_ref(), Some(&all));
        assert!(recorder.note_outcome(false), "a first failure is news");
        assert_eq!(recorder.take_new(false), None, "not at each block");
        assert_eq!(recorder.take_new(true), Some(all));
        assert!(!recorder.note_outcome(false));
        (64..128).for_each(|block| recorder.note(block));
        assert_eq!(recorder.take_new(false).unwrap().len(), 128);
        assert!(!recorder.note_outcome(true));
        assert_eq!(recorder.take_new(true), None);
    }
}
