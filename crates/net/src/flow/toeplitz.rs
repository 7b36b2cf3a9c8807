//! Toeplitz hash of receive-side scaling (virtio 1.2, 5.1.6.4.3; Microsoft, "RSS Hashing Types").

use crate::frame::{Frame, Ip, NetworkLayer, TransportLayer};

/// Bytes of a key: the 36 bytes of two IPv6 addresses and ports, and the width of the hash.
pub const KEY_BYTES: usize = 40;
/// Most bytes that are hashed.
const INPUT_MAX: usize = 36;

/// Key of Microsoft's verification suite. It spreads flows evenly. To keep others from constructing
/// flows that collide, use a random key.
pub const MICROSOFT_KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Hash under one key, with a table of the contribution of each half byte at each position: 4.5
/// KiB, and two look-ups for a byte.
#[derive(Clone, Debug)]
pub struct Toeplitz(Box<[[[u32; 16]; 2]; INPUT_MAX]>);

impl Default for Toeplitz {
    fn default() -> Self {
        Self::new(&MICROSOFT_KEY)
    }
}

/// Returns the 32 bits of the key from bit `at` on.
fn window(key: &[u8; KEY_BYTES], at: usize) -> u32 {
    let first = (at / 8).min(KEY_BYTES - 5);
    let five = key.iter().skip(first).take(5).fold(0, |all, byte| all << 8 | u64::from(*byte));
    (five >> (8 - (at - first * 8))) as u32
}

impl Toeplitz {
    /// Creates the hash under `key`.
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let mut halves = Box::new([[[0; 16]; 2]; INPUT_MAX]);
        for (half, table) in halves.iter_mut().flatten().enumerate() {
            for (value, sum) in table.iter_mut().enumerate() {
                // The highest bit of the half is the first one.
                let set = (0..4).filter(|bit| value >> (3 - bit) & 1 != 0);
                *sum = set.fold(0, |sum, bit| sum ^ window(key, half * 4 + bit));
            }
        }
        Self(halves)
    }

    /// Returns the contribution of `bytes` from position `at` on; nothing past the last position.
    fn part(&self, at: usize, bytes: &[u8]) -> u32 {
        let places = self.0.get(at..).unwrap_or_default();
        places.iter().zip(bytes).fold(0, |sum, ([high, low], byte)| {
            // Four bits are below 16.
            let of = |half: &[u32; 16], bits: u8| half.get(usize::from(bits)).map_or(0, |sum| *sum);
            sum ^ of(high, byte >> 4) ^ of(low, byte & 0xf)
        })
    }

    /// Returns the hash of a frame's flow: addresses and ports of TCP and UDP. Fragments of these
    /// hash the addresses alone, since only the first fragment has ports. Returns `None` for all
    /// other frames, which go to queue 0.
    pub fn of(&self, frame: &Frame<'_>) -> Option<u32> {
        match frame.net() {
            NetworkLayer::V4(ip) => self.packet(ip.src.octets(), ip.dst.octets(), &ip),
            NetworkLayer::V6(ip) => self.packet(ip.src.octets(), ip.dst.octets(), &ip),
            NetworkLayer::Opaque | NetworkLayer::Broken | NetworkLayer::Arp(_) => None,
        }
    }

    fn packet<A, const N: usize>(&self, src: [u8; N], dst: [u8; N], ip: &Ip<A>) -> Option<u32> {
        let ports = match ip.transport_layer {
            _ if ip.fragment && ip.has_ports() => 0,
            _ if ip.fragment => return None,
            TransportLayer::Tcp(tcp) => self.ports(2 * N, tcp.src, tcp.dst),
            TransportLayer::Udp(udp) => self.ports(2 * N, udp.src, udp.dst),
            _ => return None,
        };
        Some(self.part(0, &src) ^ self.part(N, &dst) ^ ports)
    }

    fn ports(&self, at: usize, src: u16, dst: u16) -> u32 {
        let ([a, b], [c, d]) = (src.to_be_bytes(), dst.to_be_bytes());
        self.part(at, &[a, b, c, d])
    }
}

#[cfg(test)]
mod tests;
