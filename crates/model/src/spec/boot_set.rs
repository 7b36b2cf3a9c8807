//! Boot set of a golden image.

use serde::{Deserialize, Serialize};

/// Most blocks of a boot set: 512 MiB.
pub const BOOT_SET_BLOCKS_MAX: usize = 8192;
/// Format of a boot set.
const FORMAT: u32 = 1;

/// Blocks of 64 KiB that the first machines on a golden image read, in order. On the wire and in a
/// file: `{"format":1,"identity":TEXT,"blocks":[N,..]}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootSet {
    format: u32,
    /// Identity of the image.
    pub identity: String,
    /// Numbers of the blocks.
    pub blocks: Vec<u32>,
}

impl BootSet {
    /// Creates a boot set of this format.
    pub fn new(identity: &str, blocks: Vec<u32>) -> Self {
        Self { format: FORMAT, identity: identity.into(), blocks }
    }

    /// Checks the format and the number of blocks.
    ///
    /// # Errors
    /// The text says what is wrong and what to do.
    pub fn validate(&self) -> Result<(), String> {
        if self.format != FORMAT {
            let format = self.format;
            return Err(format!("a boot set of format {format}; export it with this version"));
        }
        if self.blocks.len() > BOOT_SET_BLOCKS_MAX {
            let count = self.blocks.len();
            return Err(format!("a boot set of {count} blocks; at most {BOOT_SET_BLOCKS_MAX}"));
        }
        super::golden::check_identity(&self.identity)
    }
}
