//! Names that a machine's devices have on the host.

use std::path::{Path, PathBuf};

use model::id::{SrId, VbdId, VifId};

/// What the name of a TAP device of ours begins with.
pub const TAP_PREFIX: &str = "rwt";
/// Digits of an interface's UUID in the name of its TAP device: with the prefix the 15 bytes that
/// a network device's name may have.
const TAP_DIGITS: usize = 12;
/// Digits of an SR's UUID in the directory of its sockets: the path of a socket has 107 bytes.
const SR_DIGITS: usize = 8;

/// The name of the TAP device of an interface.
pub fn tap(vif: VifId) -> String {
    let digits = vif.to_string();
    let digits = digits.chars().filter(|one| *one != '-').take(TAP_DIGITS);
    TAP_PREFIX.chars().chain(digits).collect()
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
        assert_eq!(tap(VifId(uuid)), "rwt0123456789ab");
        assert_eq!(tap(VifId(uuid)).len(), 15);
        let socket = socket(Path::new("/run/ringway"), SrId(uuid), VbdId(uuid));
        let expected = "/run/ringway/io/01234567/01234567-89ab-4def-8123-456789abcdef.sock";
        assert_eq!(socket, Path::new(expected));
    }
}
