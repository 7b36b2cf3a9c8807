//! VHDs in the layout of XenServer, byte by byte: 2 MiB blocks whose data lies at multiples of
//! 4 KiB, a batmap behind the table, three parent locators, the footer at the end.

pub(crate) const SECTOR: usize = 512;
pub(crate) const BLOCK: usize = 2 << 20;
pub(crate) const ID: [u8; 16] = [0x11; 16];
pub(crate) const PARENT_ID: [u8; 16] = [0x22; 16];
/// Place of the dynamic header and of the table.
pub(crate) const HEADER: usize = 512;
pub(crate) const TABLE: usize = 1536;
pub(crate) const BATMAP: usize = 2048;

/// Block: its stored sectors as ranges, and the byte that its data consists of.
pub(crate) type Block<'a> = Option<(&'a [(usize, usize)], u8)>;

pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Stores the checksum of a structure in its field at `at`.
pub(crate) fn seal(bytes: &mut [u8], at: usize) {
    bytes[at..at + 4].fill(0);
    let sum = bytes.iter().fold(0_u32, |sum, byte| sum.wrapping_add((*byte).into()));
    put(bytes, at, &(!sum).to_be_bytes());
}

pub(crate) fn footer(size: u64, disk_type: u32) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    put(&mut bytes, 0, b"conectix");
    put(&mut bytes, 8, &2_u32.to_be_bytes());
    put(&mut bytes, 12, &0x0001_0000_u32.to_be_bytes());
    put(&mut bytes, 16, &(HEADER as u64).to_be_bytes());
    put(&mut bytes, 24, &7_u32.to_be_bytes());
    put(&mut bytes, 28, b"tap\0");
    put(&mut bytes, 32, &0x0001_0003_u32.to_be_bytes());
    put(&mut bytes, 40, &size.to_be_bytes());
    put(&mut bytes, 48, &size.to_be_bytes());
    // 2 cylinders, 4 heads, 17 sectors: less than the disk has.
    put(&mut bytes, 56, &[0, 2, 4, 17]);
    put(&mut bytes, 60, &disk_type.to_be_bytes());
    put(&mut bytes, 68, &ID);
    seal(&mut bytes, 64);
    bytes
}

fn utf16(text: &str, unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(unit).collect()
}

/// Returns an image with these blocks. With `has_parent` it is a differencing one.
pub(crate) fn image(size: u64, has_parent: bool, blocks: &[Block<'_>]) -> Vec<u8> {
    let footer = footer(size, if has_parent { 4 } else { 3 });
    let mut bytes = vec![0; 16 << 10];
    put(&mut bytes, 0, &footer);
    let mut header = vec![0; 1024];
    put(&mut header, 0, b"cxsparse");
    put(&mut header, 8, &u64::MAX.to_be_bytes());
    put(&mut header, 16, &(TABLE as u64).to_be_bytes());
    put(&mut header, 24, &0x0001_0000_u32.to_be_bytes());
    put(&mut header, 28, &(blocks.len() as u32).to_be_bytes());
    put(&mut header, 32, &(BLOCK as u32).to_be_bytes());
    if has_parent {
        put(&mut header, 40, &PARENT_ID);
        put(&mut header, 64, &utf16("parent.vhd", u16::to_be_bytes));
        let texts = [
            (b"MacX", b"file://./parent.vhd".to_vec()),
            (b"W2ku", utf16("C:\\images\\parent.vhd", u16::to_le_bytes)),
            (b"W2ru", utf16(".\\parent.vhd", u16::to_le_bytes)),
        ];
        for (index, (code, text)) in texts.into_iter().enumerate() {
            let (entry, place) = (576 + index * 24, 4096 + index * SECTOR);
            put(&mut header, entry, code);
            put(&mut header, entry + 4, &(SECTOR as u32).to_be_bytes());
            put(&mut header, entry + 8, &(text.len() as u32).to_be_bytes());
            put(&mut header, entry + 16, &(place as u64).to_be_bytes());
            put(&mut bytes, place, &text);
        }
    }
    seal(&mut header, 36);
    put(&mut bytes, HEADER, &header);
    bytes[TABLE..TABLE + SECTOR].fill(0xff);
    let mut full = vec![0; SECTOR];
    for (index, block) in blocks.iter().enumerate() {
        let Some((ranges, fill)) = block else { continue };
        let start = (bytes.len() + SECTOR).next_multiple_of(4096) - SECTOR;
        put(&mut bytes, TABLE + index * 4, &((start / SECTOR) as u32).to_be_bytes());
        bytes.resize(start + SECTOR + BLOCK, 0);
        for sector in ranges.iter().flat_map(|(first, end)| *first..*end) {
            bytes[start + sector / 8] |= 0x80 >> (sector % 8);
        }
        bytes[start + SECTOR..].fill(*fill);
        if ranges.iter().map(|(first, end)| end - first).sum::<usize>() == BLOCK / SECTOR {
            full[index / 8] |= 0x80 >> (index % 8);
        }
    }
    put(&mut bytes, BATMAP, b"tdbatmap");
    put(&mut bytes, BATMAP + 8, &(BATMAP as u64 + SECTOR as u64).to_be_bytes());
    put(&mut bytes, BATMAP + 16, &1_u32.to_be_bytes());
    put(&mut bytes, BATMAP + 20, &0x0001_0002_u32.to_be_bytes());
    let sum = full.iter().fold(0_u32, |sum, byte| sum.wrapping_add((*byte).into()));
    put(&mut bytes, BATMAP + 24, &(!sum).to_be_bytes());
    put(&mut bytes, BATMAP + SECTOR, &full);
    bytes.extend(footer);
    bytes
}
