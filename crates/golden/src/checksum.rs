//! Checksum of a block: 64 bits over the image's identity, the block's number and its data.
//!
//! It finds damage, torn writes and blocks of other images. It is no defence against an attacker who
//! can write to the cache file.

/// Odd constants with about as many ones as zeroes.
const SECRET: [u64; 4] =
    [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3];

/// Mixes two numbers: both halves of their product.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Returns a hash of bytes. Each of the four lanes takes 16 bytes at a time, so that a CPU works on all
/// at once.
pub(crate) fn hash(seed: u64, data: &[u8]) -> u64 {
    let mut lanes = SECRET.map(|secret| secret ^ seed);
    let mut chunks = data.chunks_exact(64);
    for chunk in &mut chunks {
        for (at, lane) in lanes.iter_mut().enumerate() {
            let part = chunk.get(at * 16..at * 16 + 16).unwrap_or_default();
            let (low, high) = part.split_at(8);
            let low = low.try_into().map_or(0, u64::from_le_bytes);
            let high = high.try_into().map_or(0, u64::from_le_bytes);
            *lane = fold(low ^ *lane, high ^ SECRET[at & 3]);
        }
    }
    let mut last = seed ^ data.len() as u64;
    for part in chunks.remainder().chunks(8) {
        last = fold(last ^ number(part), SECRET[1]);
    }
    lanes.iter().fold(last, |sum, lane| fold(sum ^ lane, SECRET[2])) ^ data.len() as u64
}

/// Returns the checksum of a block, never 0: that is the entry of a block that is not stored.
pub(crate) fn of_block(identity: u64, block: u32, data: &[u8]) -> u64 {
    hash(fold(identity ^ SECRET[3], u64::from(block) ^ SECRET[0]), data).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_changes_the_checksum() {
        let data: Vec<u8> = (0..4099u32).map(|at| (at * 7) as u8).collect();
        let whole = of_block(1, 2, &data);
        assert_eq!(whole, of_block(1, 2, &data));
        assert_ne!(whole, of_block(2, 2, &data));
        assert_ne!(whole, of_block(1, 3, &data));
        assert_ne!(whole, of_block(1, 2, &data[..4098]));
        for at in 0..data.len() {
            for bit in [0, 7] {
                let mut other = data.clone();
                other[at] ^= 1 << bit;
                assert_ne!(whole, of_block(1, 2, &other), "byte {at}");
            }
        }
    }

    #[test]
    fn zeroes_of_different_blocks_differ() {
        let zeroes = [0; 65536];
        let all: std::collections::BTreeSet<u64> =
            (0..1000).map(|block| of_block(9, block, &zeroes)).collect();
        assert_eq!(all.len(), 1000);
        assert!(!all.contains(&0));
    }
}
