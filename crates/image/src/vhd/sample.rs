//! Images for tests, in the layout of XenServer: data of blocks at multiples of 4 KiB.

use super::footer::{DiskType, Footer};
use super::header::{HEADER_BYTES, Header, NewParent};

const SECTOR: usize = 512;
/// Identity that the header of a differencing image names.
pub(crate) const PARENT_ID: [u8; 16] = [5; 16];

/// A block: its bitmap in whole sectors, and its data.
pub(crate) type Block = Option<(Vec<u8>, Vec<u8>)>;

/// Returns an image with these blocks.
pub(crate) fn image(size: u64, block_bytes: u32, has_parent: bool, blocks: &[Block]) -> Vec<u8> {
    let disk_type = if has_parent { DiskType::Differencing } else { DiskType::Dynamic };
    let footer = Footer::new(disk_type, size, [9; 16], 0);
    let table = SECTOR + HEADER_BYTES;
    let mut bytes = footer.bytes.to_vec();
    let parent = NewParent {
        id: PARENT_ID,
        unix_seconds: 0,
        name: "parent.vhd".into(),
        locators: Vec::new(),
    };
    let parent = has_parent.then_some(&parent);
    bytes.extend(Header::to_bytes(table as u64, blocks.len() as u32, block_bytes, parent));
    let mut data = Vec::new();
    let first = (table + blocks.len() * 4).next_multiple_of(SECTOR);
    for block in blocks {
        let Some((bitmap, content)) = block else {
            bytes.extend(u32::MAX.to_be_bytes());
            continue;
        };
        let behind = (first + data.len() + bitmap.len()).next_multiple_of(4096);
        data.resize(behind - bitmap.len() - first, 0);
        bytes.extend((((first + data.len()) / SECTOR) as u32).to_be_bytes());
        data.extend(bitmap);
        data.extend(content);
    }
    bytes.resize(first, 0xff);
    bytes.extend(data);
    bytes.extend(footer.bytes);
    bytes
}
