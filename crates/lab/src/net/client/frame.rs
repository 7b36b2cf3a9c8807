//! Frames with a virtio-net header.

/// Size of the virtio-net header in bytes (virtio 1.2, 5.1.6).
pub(super) const HEADER_BYTES: usize = 12;
/// Offsets of the TCP header and of its data in a frame.
const TCP_AT: u16 = 34;
const DATA_AT: u16 = 54;
/// Data bytes of a segment with an MTU of 1500 and TCP timestamps.
const SEGMENT: u16 = 1448;
/// Largest frame: the longest IP packet with an Ethernet header.
pub(in crate::net) const LARGEST: usize = 14 + 65_535;
/// Largest frame of one segment.
pub(in crate::net) const FULL: usize = 1514;

fn mac(station: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, station]
}

/// Returns a frame that only announces the sender's address.
pub(super) fn announcement(station: u8) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    out.extend([0xff; 6]);
    out.extend(mac(station));
    // EtherType of a local experiment (IEEE 802, 9.2.3). The frame is padded to the minimum length.
    out.extend([0x88, 0xb5]);
    out.resize(HEADER_BYTES + 60, 0);
    out
}

/// Returns a frame of `bytes` bytes of a TCP flow between two stations, with source port `port`. A
/// frame longer than a segment requests segmentation, for receivers that cannot take it whole.
pub(in crate::net) fn tcp(from: u8, to: u8, port: u16, bytes: usize) -> Vec<u8> {
    let bytes = bytes.clamp(usize::from(DATA_AT), LARGEST);
    let mut out = header(bytes);
    out.extend(mac(to));
    out.extend(mac(from));
    out.extend([8, 0]);
    let ip_bytes = u16::try_from(bytes - 14).unwrap_or(u16::MAX);
    let mut ip = vec![0x45, 0];
    ip.extend(ip_bytes.to_be_bytes());
    ip.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 9, 1, from, 10, 9, 1, to]);
    let check = checksum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    out.extend(&ip);
    out.extend(port.to_be_bytes());
    out.extend(5201u16.to_be_bytes());
    // Sequence numbers, header length, ACK, window. The checksum is partial, which counts as valid,
    // because no receiver here checks the data.
    out.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    out.resize(HEADER_BYTES + bytes, 0x5a);
    out
}

/// Returns a virtio-net header. All zeroes request no offload.
fn header(bytes: usize) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    if bytes > FULL {
        // NEEDS_CSUM, GSO_TCPV4, then the length of the headers and of a segment's data.
        out[..2].copy_from_slice(&[1, 1]);
        out[2..4].copy_from_slice(&DATA_AT.to_le_bytes());
        out[4..6].copy_from_slice(&SEGMENT.to_le_bytes());
        out[6..8].copy_from_slice(&TCP_AT.to_le_bytes());
        out[8..10].copy_from_slice(&16u16.to_le_bytes());
    }
    out
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_long_as_asked_and_large_ones_are_to_be_cut() {
        for (bytes, cut) in [(64, 0), (FULL, 0), (FULL + 1, 1), (LARGEST, 1)] {
            let frame = tcp(1, 2, 40_000, bytes);
            assert_eq!((frame.len(), frame[1]), (HEADER_BYTES + bytes, cut));
            let ip = &frame[HEADER_BYTES + 14..HEADER_BYTES + 34];
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), bytes - 14);
            assert_eq!(checksum(ip), 0, "with its checksum a header sums to nothing");
        }
        assert_eq!(announcement(7).len(), HEADER_BYTES + 60);
    }
}
