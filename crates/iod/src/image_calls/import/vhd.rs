//! A VHD that arrives as a stream.

use image::vhd::{DiskType, Footer, StreamHead, StreamTable, has_sector};

use model::image_stream::ImageImport;

use super::incoming::Incoming;
use super::new_content::{NewContent, UNIT};
use super::{ImportError, PIECE, check_size};

/// Unit of bitmaps in bytes.
const SECTOR: usize = 512;
/// Most bytes between the last block and the footer.
const MAX_TAIL_BYTES: u64 = 64 << 20;

/// Receives a VHD. A differencing one changes a part of the disk.
pub(super) fn receive(
    incoming: &mut Incoming<'_>,
    content: &mut NewContent<'_>,
    call: &ImageImport,
) -> Result<(), ImportError> {
    let mut first = [0; StreamHead::BYTES];
    incoming.fill("first sector", &mut first)?;
    let head = match StreamHead::parse(&first).map_err(ImportError::received)? {
        Some(head) => head,
        None if call.open_end => {
            let why = "a fixed VHD needs the length of its stream (Content-Length)";
            return Err(ImportError::Refused(why.into()));
        }
        None => {
            let footer = first.len() as u64;
            if let Some(size) = call.length.and_then(|length| length.checked_sub(footer)) {
                check_fixed_size(size, content)?;
            }
            return receive_fixed(first, incoming, content);
        }
    };
    check_size(head.size(), content)?;
    let is_delta = head.is_differencing();
    let (offset, len) = head.header_place().map_err(ImportError::received)?;
    let mut header = vec![0; len];
    incoming.skip_to("dynamic header", offset)?;
    incoming.fill("dynamic header", &mut header)?;
    let size = head.size();
    let table = head.into_table(header).map_err(ImportError::received)?;
    let (offset, len) = table.place();
    if offset < incoming.position() {
        let why = "its block allocation table lies in its header";
        return Err(ImportError::Refused(why.into()));
    }
    incoming.skip_to("block allocation table", offset)?;
    let mut entries = vec![0; len];
    incoming.fill("block allocation table", &mut entries)?;
    if is_delta {
        content.begin_delta()?;
    } else {
        content.begin_whole()?;
    }
    let mut bitmap = vec![0; table.bitmap_bytes()];
    for block in table.blocks(&entries).map_err(ImportError::received)? {
        incoming.skip_to("block", block.offset())?;
        incoming.fill("sector bitmap", &mut bitmap)?;
        let start = block.number() * table.block_bytes();
        let end = (start + table.block_bytes()).min(size);
        receive_block(incoming, content, &bitmap, (start, end), is_delta)?;
        // A block may end behind its disk.
        let behind = block.offset() + bitmap.len() as u64 + table.block_bytes();
        incoming.skip_to("last block", behind)?;
    }
    if call.open_end { Ok(()) } else { receive_end(incoming, &table) }
}

/// Receives the data of a block of the disk from `start` to `end`.
fn receive_block(
    incoming: &mut Incoming<'_>,
    content: &mut NewContent<'_>,
    bitmap: &[u8],
    (start, end): (u64, u64),
    is_delta: bool,
) -> Result<(), ImportError> {
    let mut piece = vec![0; PIECE];
    let mut at = start;
    while at < end {
        let len = (end - at).min(PIECE as u64) as usize;
        let part = piece.get_mut(..len).unwrap_or_default();
        incoming.fill("block", part)?;
        // All but the last unit of the disk are whole.
        for (offset, unit) in (at..).step_by(UNIT as usize).zip(part.chunks_mut(UNIT as usize)) {
            let first = (offset - start) / SECTOR as u64;
            let sectors = unit.len().div_ceil(SECTOR) as u64;
            let has = |sector: u64| has_sector(bitmap, first + sector);
            let count = (0..sectors).filter(|sector| has(*sector)).count() as u64;
            if count == 0 {
                continue;
            }
            if count < sectors {
                let mut present = vec![0; unit.len()];
                if is_delta {
                    content.read_present(offset, &mut present)?;
                }
                let pairs = unit.chunks_mut(SECTOR).zip(present.chunks(SECTOR));
                for (sector, (sent, present)) in (0..).zip(pairs) {
                    if !has(sector) {
                        sent.copy_from_slice(present);
                    }
                }
            }
            content.write(offset, unit)?;
        }
        at += len as u64;
    }
    Ok(())
}

/// Receives the rest of an image with blocks, whose end is a footer.
fn receive_end(incoming: &mut Incoming<'_>, table: &StreamTable) -> Result<(), ImportError> {
    let begin = incoming.position().max(table.end());
    incoming.skip_to("block allocation table", begin)?;
    let mut last = [0; StreamHead::BYTES];
    incoming.fill("footer", &mut last)?;
    let mut next = [0; StreamHead::BYTES];
    while incoming.position() - begin < MAX_TAIL_BYTES {
        match incoming.read(&mut next)? {
            0 => return table.check_end(&last).map_err(ImportError::received),
            len => {
                last.copy_within(len.., 0);
                let kept = last.len() - len;
                let place = last.get_mut(kept..).unwrap_or_default();
                place.copy_from_slice(next.get(..len).unwrap_or_default());
            }
        }
    }
    Err(ImportError::Refused("more than 64 MiB follow its last block".into()))
}

/// Checks that a disk can take `size` bytes of what can only be a fixed image.
fn check_fixed_size(size: u64, content: &NewContent<'_>) -> Result<(), ImportError> {
    if size <= content.size() {
        return Ok(());
    }
    Err(ImportError::Refused(format!(
        "the image does not begin as a dynamic VHD does, and as a fixed one it has more than the {} \
         bytes of this disk: state its format, or make a larger disk",
        content.size()
    )))
}

/// Receives a fixed image: the disk, then a footer. `first` is its first sector.
fn receive_fixed(
    first: [u8; StreamHead::BYTES],
    incoming: &mut Incoming<'_>,
    content: &mut NewContent<'_>,
) -> Result<(), ImportError> {
    content.begin_whole()?;
    let (mut at, mut data) = (0, Vec::with_capacity(PIECE + first.len()));
    data.extend(first);
    loop {
        let had = data.len();
        data.resize(PIECE + first.len(), 0);
        let found = incoming.read(data.get_mut(had..).unwrap_or_default())?;
        data.truncate(had + found);
        if data.len() < PIECE + first.len() {
            break;
        }
        check_fixed_size(at + PIECE as u64, content)?;
        content.write(at, data.get(..PIECE).unwrap_or_default())?;
        data.drain(..PIECE);
        at += PIECE as u64;
    }
    let Some(end) = data.len().checked_sub(first.len()) else { return Ok(()) };
    let (rest, last) = data.split_at(end);
    let last = last.first_chunk().ok_or_else(|| ImportError::Refused("it is empty".into()))?;
    let footer = Footer::parse(last).map_err(ImportError::received)?;
    let size = at + rest.len() as u64;
    if footer.disk_type != DiskType::Fixed || footer.size != size {
        let why = format!(
            "its footer is that of a {} disk of {} bytes, and {size} bytes came before it",
            footer.disk_type.name(),
            footer.size
        );
        return Err(ImportError::Refused(why));
    }
    check_size(size, content)?;
    if !rest.is_empty() {
        content.write(at, rest)?;
    }
    Ok(())
}
