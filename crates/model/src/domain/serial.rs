//! Serial numbers of disks as guests see them.

use crate::id::VdiId;

/// Bytes of the VDI's UUID in a serial number: virtio-blk has 20 characters, and the position takes
/// seven of them.
const UUID_BYTES: usize = 6;

/// Returns `vbdNNN-` and 12 hexadecimal digits: the position, and the last bytes of the VDI's UUID.
///
/// A guest can find a disk by either half. A disk that moves to another position keeps its digits;
/// a disk that replaces another keeps the position.
pub fn serial(userdevice: u8, vdi: VdiId) -> String {
    let bytes = vdi.0.bytes();
    let (_, last) = bytes.split_at(bytes.len() - UUID_BYTES);
    let digits: String = last.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("vbd{userdevice:03}-{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::MAX_SERIAL_BYTES;

    #[test]
    fn shows_position_and_disk() {
        let vdi = VdiId("01234567-89ab-4def-8123-456789abcdef".parse().unwrap());
        assert_eq!(serial(17, vdi), "vbd017-456789abcdef");
        for userdevice in 0..=u8::MAX {
            assert!(serial(userdevice, vdi).len() <= MAX_SERIAL_BYTES);
        }
    }
}
