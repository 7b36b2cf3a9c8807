//! Names of a machine's devices on the host.

use std::path::{Path, PathBuf};

use model::id::{SrId, VbdId, VifId};

/// Prefix of the names of uplinks, the TAP devices between a network and its bridge.
pub const UPLINK_PREFIX: &str = "rwu";
/// Digits after the prefix. Together they use the 15 bytes that the kernel permits for a device
/// name.
const UPLINK_DIGITS: usize = 12;
/// Directory of the interfaces' sockets, beside those of SRs. No SR directory has this name.
const PORTS: &str = "networks";
/// Offset basis of the 64-bit FNV hash (Fowler, Noll and Vo).
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
/// Digits of an SR's UUID in the name of its socket directory. A socket path is limited to 107
/// bytes.
const SR_DIGITS: usize = 8;

/// Returns the name of the uplink of a bridge's network. The run directory is part of the hash,
/// because two daemons may have networks on one bridge.
pub fn uplink(run: &Path, bridge: &str) -> String {
    let bytes = run.as_os_str().as_encoded_bytes().iter().chain(&[0]).chain(bridge.as_bytes());
    let hash =
        bytes.fold(FNV_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    let digits = format!("{hash:016x}");
    UPLINK_PREFIX.chars().chain(digits.chars().take(UPLINK_DIGITS)).collect()
}

/// Returns the directory of all interfaces' sockets.
pub fn ports(run: &Path) -> PathBuf {
    run.join("io").join(PORTS)
}

/// Returns the socket of an interface. The switch uses its UUID as the id.
pub fn port(run: &Path, vif: VifId) -> PathBuf {
    ports(run).join(format!("{vif}.sock"))
}

/// Returns the directory of an SR's sockets.
pub fn sockets(run: &Path, sr: SrId) -> PathBuf {
    let digits: String = sr.to_string().chars().take(SR_DIGITS).collect();
    run.join("io").join(digits)
}

/// Returns the socket of a disk. The datapath uses the slot's UUID as the disk's id.
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
