//! MAC addresses of VIFs.

use std::fmt::Write as _;

/// Length of an address, in bytes.
const BYTES: usize = 6;
/// Bits of the first byte: multicast, and locally administered.
const GROUP: u8 = 0b01;
const LOCAL: u8 = 0b10;
/// Constants of the 64-bit FNV-1a hash.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// Parses a unicast address and returns it in lower case. `None` if the text is not valid.
pub(super) fn parse(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    let byte = |part: &&str| {
        let digits = part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit());
        if digits { u8::from_str_radix(part, 16).ok() } else { None }
    };
    let bytes: Vec<u8> = parts.iter().map(byte).collect::<Option<_>>()?;
    let first = *bytes.first()?;
    let fits = bytes.len() == BYTES && first & GROUP == 0 && bytes.iter().any(|byte| *byte != 0);
    fits.then(|| shown(&bytes))
}

/// Derives a VIF's address from the VM's seed and the device number. The result is always the same,
/// so that a VIF that is created again keeps its address.
pub(super) fn of_seed(seed: &str, device: u8) -> String {
    let text = seed.bytes().chain([0, device]);
    let hash = text.fold(FNV_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    // The low bits of this hash hardly depend on the first input bytes.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(FNV_PRIME);
    let [_, first, rest @ ..] = (mixed ^ (mixed >> 29)).to_be_bytes();
    let [b, c, d, e, f, _] = rest;
    shown(&[(first & !GROUP) | LOCAL, b, c, d, e, f])
}

fn shown(bytes: &[u8]) -> String {
    bytes.iter().enumerate().fold(String::new(), |mut text, (at, byte)| {
        let colon = if at == 0 { "" } else { ":" };
        // Writing to a string does not fail.
        let _ = write!(text, "{colon}{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_of_one_device_each() {
        assert_eq!(parse("00:16:3E:aa:bb:0c").as_deref(), Some("00:16:3e:aa:bb:0c"));
        assert_eq!(parse("00-16-3e-aa-bb-0c").as_deref(), Some("00:16:3e:aa:bb:0c"));
        for none in [
            "",
            "00:16:3e:aa:bb",
            "00:16:3e:aa:bb:cc:dd",
            "01:16:3e:aa:bb:cc",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "0:16:3e:aa:bb:cc",
            "+1:16:3e:aa:bb:cc",
            "00163eaabbcc",
        ] {
            assert_eq!(parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_seed_gives_each_device_an_address_of_its_own() {
        let seeds = ["", "a", "b", "2d5f8a54-7a10-4b3d-9d64-7a8f35a1f0a1"];
        let all: Vec<String> =
            seeds.iter().flat_map(|seed| (0..7).map(|device| of_seed(seed, device))).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for address in &all {
            assert_eq!(parse(address).as_ref(), Some(address));
            let first = u8::from_str_radix(address.get(..2).unwrap(), 16).unwrap();
            assert_eq!(first & LOCAL, LOCAL, "{address}");
        }
        assert_eq!(of_seed("a", 3), of_seed("a", 3));
    }
}
