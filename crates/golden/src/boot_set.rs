//! Boot set: the blocks that the first machines read, in order. The next start fetches them ahead.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Most blocks of a boot set: 512 MiB.
const BLOCKS_MAX: usize = 8192;
/// Longest file in bytes.
const FILE_MAX: u64 = 1 << 20;
/// New blocks after which the set is stored.
const STORE_EVERY: usize = 64;

/// File of a boot set.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BootSet {
    format: u32,
    identity: String,
    blocks: Vec<u32>,
}

/// Recorder of a boot set.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    blocks: Vec<u32>,
    stored: usize,
}

impl Recorder {
    /// Notes the first read of a block.
    pub(crate) fn note(&mut self, block: u32) {
        // The list is short, and a block that left the memory may come again.
        if self.blocks.len() < BLOCKS_MAX && !self.blocks.contains(&block) {
            self.blocks.push(block);
        }
    }

    /// Returns the blocks if there are enough new ones to store, or any at a silence.
    pub(crate) fn take_new(&mut self, is_silent: bool) -> Option<Vec<u32>> {
        let new = self.blocks.len() - self.stored;
        if new == 0 || (new < STORE_EVERY && !is_silent) {
            return None;
        }
        self.stored = self.blocks.len();
        Some(self.blocks.clone())
    }
}

/// Reads the boot set of an image with `count` blocks. `None` if there is none that fits.
pub(crate) fn read(path: &Path, identity: &str, count: u32) -> Option<Vec<u32>> {
    if std::fs::metadata(path).ok()?.len() > FILE_MAX {
        return None;
    }
    let set: BootSet = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let fits = set.format == 1
        && set.identity == identity
        && set.blocks.len() <= BLOCKS_MAX
        && set.blocks.iter().all(|block| *block < count);
    fits.then_some(set.blocks)
}

/// Stores a boot set.
///
/// # Errors
/// The storage is full or fails.
pub(crate) fn write(path: &Path, identity: &str, blocks: Vec<u32>) -> io::Result<()> {
    let set = BootSet { format: 1, identity: identity.into(), blocks };
    let new = path.with_extension(format!("boot.{}", std::process::id()));
    std::fs::write(&new, serde_json::to_vec(&set)?)?;
    std::fs::rename(&new, path)
}
