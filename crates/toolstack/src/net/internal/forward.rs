//! IPv4 forwarding of the host, and its routes.

use std::net::Ipv4Addr;
use std::path::Path;

use super::InternalError;
use super::subnet::Ipv4Prefix;

/// The kernel's switch for IPv4 forwarding.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// Main routing table.
const ROUTES: &str = "/proc/net/route";

/// Returns whether the host forwards.
pub(super) fn is_on() -> bool {
    std::fs::read_to_string(FORWARD).is_ok_and(|text| text.trim() != "0")
}

/// Turns forwarding on. Returns whether it was off.
pub(super) fn turn_on() -> Result<bool, InternalError> {
    if is_on() {
        return Ok(false);
    }
    let path = Path::new(FORWARD);
    std::fs::write(path, "1").map(|()| true).map_err(|source| InternalError::State {
        doing: "turn on IPv4 forwarding by",
        path: path.to_owned(),
        source,
    })
}

/// Returns the prefixes to which the host has routes, without the default route and those through
/// this device.
pub(super) fn routes(but: &str) -> Vec<Ipv4Prefix> {
    std::fs::read_to_string(ROUTES).map(|text| parse(&text, but)).unwrap_or_default()
}

fn parse(text: &str, but: &str) -> Vec<Ipv4Prefix> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [device, first, _gateway, _flags, _references, _use, _metric, mask, ..] = words[..]
        else {
            return None;
        };
        // The kernel prints the bytes in memory as a number in the host's byte order.
        let address = |word| u32::from_str_radix(word, 16).ok().map(|raw: u32| raw.to_ne_bytes());
        let first = Ipv4Addr::from(address(first)?).to_bits();
        let mask = Ipv4Addr::from(address(mask)?).to_bits();
        let bits = mask.leading_ones() as u8;
        (device != but && bits > 0).then_some(Ipv4Prefix { first, bits })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn routes_are_read_as_the_kernel_writes_them() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
                    eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                    eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                    rw-lan\t0000D50A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                    nonsense\n";
        let shown = |but| parse(text, but).iter().map(Ipv4Prefix::to_string).collect::<Vec<_>>();
        assert_eq!(shown("rw-lan"), ["192.168.2.0/24"]);
        assert_eq!(shown("rw-a"), ["192.168.2.0/24", "10.213.0.0/24"]);
    }
}
