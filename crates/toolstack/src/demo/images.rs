//! The demo's files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Size of the two writable files in bytes; they are sparse.
const FILE_BYTES: u64 = 128 << 20;
/// Size of the memory disk in bytes.
pub(super) const MEMORY_BYTES: u64 = 64 << 20;
/// Size of the read-only file in bytes.
const GOLDEN_BYTES: usize = 16 << 20;
/// Size of the script's disk in bytes: the script and zeroes.
const SCRIPT_BYTES: usize = 16 << 10;
/// Where the guest writes to the multi-queue disk, in MiB: not at its start, so that an offset
/// that is lost on the way is seen.
pub(super) const MULTI_MIB: u64 = 16;
/// How much it writes there, in bytes.
pub(super) const RANDOM_BYTES: usize = 8 << 20;
/// The guest's part of the demo.
const SCRIPT: &str = include_str!("guest.sh");

/// The files of one demo.
#[derive(Debug)]
pub(super) struct Images {
    pub(super) data: PathBuf,
    pub(super) multi: PathBuf,
    pub(super) golden: PathBuf,
    pub(super) script: PathBuf,
}

impl Images {
    /// Makes the files in `dir`.
    pub(super) async fn make(dir: &Path) -> io::Result<Self> {
        let images = Self {
            data: dir.join("data.raw"),
            multi: dir.join("multi.raw"),
            golden: dir.join("golden.raw"),
            script: dir.join("script.raw"),
        };
        for file in [&images.data, &images.multi] {
            File::create_new(file)?.set_len(FILE_BYTES)?;
        }
        let golden = golden();
        File::create_new(&images.golden)?.write_all(&golden)?;
        let text = SCRIPT
            .replace("@MULTI_MIB@", &MULTI_MIB.to_string())
            .replace("@GOLDEN_SHA256@", &sha256(&golden).await?);
        let mut script = text.into_bytes();
        if script.len() > SCRIPT_BYTES {
            return Err(io::Error::other("the guest's script does not fit its disk"));
        }
        script.resize(SCRIPT_BYTES, 0);
        File::create_new(&images.script)?.write_all(&script)?;
        Ok(images)
    }
}

/// The content of the read-only file: the same in every demo, and different in every sector.
pub(super) fn golden() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(GOLDEN_BYTES);
    while bytes.len() < GOLDEN_BYTES {
        // Marsaglia's xorshift: any generator that does not repeat would do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Reads `length` bytes at `offset`.
pub(super) fn read_at(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// SHA-256 of `bytes` in hexadecimal, by coreutils: a second opinion that shares no code with us.
pub(super) async fn sha256(bytes: &[u8]) -> io::Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    stdin.write_all(bytes).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
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

    #[tokio::test]
    async fn sums_are_sha256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b"").await.unwrap(), empty);
    }

    #[test]
    fn no_two_sectors_of_the_golden_file_are_the_same() {
        let golden = golden();
        let sectors: HashSet<&[u8]> = golden.chunks(512).collect();
        assert_eq!((golden.len(), sectors.len()), (GOLDEN_BYTES, GOLDEN_BYTES / 512));
    }

    #[tokio::test]
    async fn the_script_has_no_place_left_open() {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::make(dir.path()).await.unwrap();
        let script = std::fs::read_to_string(&images.script).unwrap();
        assert_eq!(script.len() % 512, 0);
        let name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let open = script.split('@').find(|part| !part.is_empty() && part.chars().all(name));
        assert_eq!(open, None);
    }
}
