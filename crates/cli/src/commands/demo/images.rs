//! Initial content of the demo's disks.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::disks::Disk;

/// Offset in MiB of the guest's data on the multi-queue disk. It is not 0, so that the check
/// notices a lost offset.
pub(super) const MULTI_MIB: u64 = 16;
/// Number of bytes that the guest writes there.
pub(super) const RANDOM_BYTES: usize = 8 << 20;
/// Script of the guest.
const SCRIPT: &str = include_str!("guest.sh");

/// Returns the content of the read-only disk: equal in every demo, different in every sector.
pub(super) fn golden() -> Vec<u8> {
    let bytes_wanted = usize::try_from(Disk::Golden.bytes()).unwrap_or_default();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(bytes_wanted);
    while bytes.len() < bytes_wanted {
        // Marsaglia's xorshift; any generator that does not repeat would do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Returns the guest's script. `serial` returns the serial number by which the guest finds a disk.
///
/// # Errors
/// The checksum of the read-only disk cannot be computed.
pub(super) fn script(serial: impl Fn(Disk) -> String) -> io::Result<String> {
    let mut text = SCRIPT
        .replace("@MULTI_MIB@", &MULTI_MIB.to_string())
        .replace("@GOLDEN_SHA256@", &sha256(&golden())?);
    for disk in Disk::ALL {
        text = text.replace(&format!("@{}@", disk.name().to_uppercase()), &serial(disk));
    }
    Ok(text)
}

/// Writes `bytes` to the start of the existing image of a disk.
///
/// # Errors
/// They do not fit, or the system refuses.
pub(super) fn write(image: &Path, disk: Disk, bytes: &[u8]) -> io::Result<()> {
    if u64::try_from(bytes.len()).is_ok_and(|length| length > disk.bytes()) {
        return Err(io::Error::other(format!("{} bytes do not fit {}", bytes.len(), disk.name())));
    }
    let mut file = std::fs::File::options().write(true).open(image)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the SHA-256 of `bytes` in hexadecimal. Runs coreutils, which shares no code with
/// Ringway.
///
/// # Errors
/// `sha256sum` does not exist, or fails.
pub(super) fn sha256(bytes: &[u8]) -> io::Result<String> {
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(bytes));
    let output = child.wait_with_output()?;
    written?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.split_whitespace().next() {
        Some(sum) if output.status.success() => Ok(sum.to_owned()),
        _ => Err(io::Error::other(format!("sha256sum failed ({})", output.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sums_are_sha256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b"").unwrap(), empty);
    }

    #[test]
    fn no_two_sectors_of_the_golden_disk_are_the_same() {
        let golden = golden();
        let sectors: HashSet<&[u8]> = golden.chunks(512).collect();
        assert_eq!(golden.len() as u64, Disk::Golden.bytes());
        assert_eq!(sectors.len(), golden.len() / 512);
    }

    #[test]
    fn the_script_fits_and_has_no_place_left_open() {
        let script = script(|disk| disk.name().to_owned()).unwrap();
        assert!(script.len() as u64 <= Disk::Script.bytes());
        let name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let open = script.split('@').find(|part| !part.is_empty() && part.chars().all(name));
        assert_eq!(open, None);
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(write(file.path(), Disk::Script, &[0; 17 << 10]).is_err());
        assert_eq!(file.path().metadata().unwrap().len(), 0);
    }
}
