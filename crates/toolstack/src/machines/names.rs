//! Names that a machine's devices have on the host.

use std::path::{Path, PathBuf};

use model::id::{SrId, VbdId, VifId};

/// What the name of a TAP device begins with by which a network reaches its bridge.
pub const UPLINK_PREFIX: &str = "rwu";
/// Digits after it: with the prefix the 15 bytes that a network device's name may have.
const UPLINK_DIGITS: usize = 12;
/// The directory of the sockets of interfaces, beside those of SRs. None of these is named so.
const PORTS: &str = "networks";
/// Of the hash by Fowler, Noll and Vo, of 64 bits.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
/// Digits of an SR's UUID in the directory of its sockets: the path of a socket has 107 bytes.
const SR_DIGITS: usize = 8;

/// The TAP device by which the network of a bridge reaches it. Two daemons may have networks on one
/// bridge: their run directories tell them apart.
pub fn uplink(run: &Path, bridge: &str) -> String {
    let bytes = run.as_os_str().as_encoded_bytes().iter().chain(&[0]).chain(bridge.as_bytes());
    let hash =
        bytes.fold(FNV_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    let digits = format!("{hash:016x}");
    UPLINK_PREFIX.chars().chain(digits.chars().take(UPLINK_DIGITS)).collect()
}

/// The directory of the sockets of all interfaces.
pub fn ports(run: &Path) -> PathBuf {
    run.join("io").join(PORTS)
}

/// The socket of an interface. The switch knows it by its UUID.
pub fn port(run: &Path, vif: VifId) -> PathBuf {
    ports(run).join(format!("{vif}.sock"))
}

/// The directory of an SR's sockets.
pub fn sockets(run: &Path, sr: SrId) -> PathBuf {
    let digits: String = sr.to_string().chars().take(SR_DIGITS).collect();
    run.join("io").join(digits)
}

/// The socket of a disk. The datapath knows the disk by the slot's UUID.
pub fn socket(run: &Path, sr: SrId, vbd: VbdId) -> PathBuf {
    sockets(run, sr).join(format!("{vbd}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_where_they_are_used() {
        let uuid = "01234567-89ab-4def-8123-456789abcdef".parse().unwrap();
        let run = Path::new("/run/ringway");
        let one = uplink(run, "xapi0");
        assert_eq!(one.len(), 15, "{one}");
        assert_eq!(one, uplink(run, "xapi0"));
        assert!(one != uplink(run, "xapi1") && one != uplink(Path::new("/run/other"), "xapi0"));
        let expected = "/run/ringway/io/networks/01234567-89ab-4def-8123-456789abcdef.sock";
        assert_eq!(port(run, VifId(uuid)), Path::new(expected));
        let socket = socket(run, SrId(uuid), VbdId(uuid));
        let expected = "/run/ringway/io/01234567/01234567-89ab-4def-8123-456789abcdef.sock";
        assert_eq!(socket, Path::new(expected));
    }
}
