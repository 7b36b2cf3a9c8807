//! Checks of the images by the host, after the datapath has ended.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use model::report::Stats;

use super::disks::Disk;
use super::images::{MULTI_MIB, RANDOM_BYTES, golden, sha256};
use super::transcript::GuestTranscript;

/// A check by the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// Checked object, and the program that checks it.
    pub(super) what: String,
    /// The difference from what the guest left; `None` if there is none.
    pub(super) problem: Option<String>,
}

impl Check {
    fn new(what: &str, problem: Option<String>) -> Self {
        Self { what: what.into(), problem }
    }

    /// Passes if `found` is `expected`.
    fn same(what: &str, found: &str, expected: &str) -> Self {
        let problem = format!("found {found:?}, expected {expected:?}");
        Self::new(what, (found != expected || expected.is_empty()).then_some(problem))
    }
}

/// Checks that the worker was killed and replaced, and that the guest only saw a pause.
pub(super) fn restart(stats: Option<&Stats>, guest_transcript: &GuestTranscript) -> Check {
    let restarts =
        stats.and_then(|stats| stats.keeper.as_ref()).map_or(0, |keeper| keeper.restarts);
    let longest = guest_transcript.longest.unwrap_or_default().as_secs_f64();
    let what = format!(
        "kill -9 in the middle of writes: no error in the guest, longest request {longest:.1} s"
    );
    let problem = (restarts != 1).then(|| format!("the worker was replaced {restarts} times"));
    Check { what, problem }
}

/// Checks every disk; `image` returns its path.
///
/// # Errors
/// A disk cannot be read, or a checking program does not exist.
pub(super) fn verify(
    image: impl Fn(Disk) -> PathBuf,
    guest_transcript: &GuestTranscript,
) -> io::Result<Vec<Check>> {
    let random = guest_transcript.sums.get("random").cloned().unwrap_or_default();
    let [data, multi] = [Disk::Data, Disk::Multi].map(&image);
    let region = read_at(&multi, MULTI_MIB << 20, RANDOM_BYTES)?;
    let late = read_at(&image(Disk::Late), 0, RANDOM_BYTES)?;
    let golden = golden();
    let unchanged = std::fs::read(image(Disk::Golden))? == golden;
    Ok(vec![
        fsck(&data)?,
        Check::same(
            "data: random file, read by debugfs: SHA-256 as in the guest",
            &sha256(&file_in(&data, "random")?)?,
            &random,
        ),
        Check::new(
            "data: copy of golden, read by debugfs: every byte",
            (file_in(&data, "golden")? != golden).then(|| "bytes differ".into()),
        ),
        Check::same(
            "multi: the region that the guest wrote: SHA-256 as in the guest",
            &sha256(&region)?,
            &random,
        ),
        Check::same(
            "late: what the guest wrote to it: SHA-256 as in the guest",
            &sha256(&late)?,
            &random,
        ),
        Check::new(
            "golden: every byte as before",
            (!unchanged).then(|| "the read-only disk was changed".into()),
        ),
    ])
}

fn read_at(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open(path)?.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Checks the file system with e2fsck without changing it.
fn fsck(image: &Path) -> io::Result<Check> {
    let output = tool("e2fsck").arg("-fn").arg(image).output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; ");
    let problem = (!output.status.success()).then_some(text);
    Ok(Check::new("data: the file system, by e2fsck", problem))
}

/// Returns the content of a file in the guest's file system.
fn file_in(image: &Path, name: &str) -> io::Result<Vec<u8>> {
    let request = format!("cat /{name}");
    Ok(tool("debugfs").args(["-R", &request]).arg(image).output()?.stdout)
}

/// Returns a command of e2fsprogs, which is not in an ordinary user's PATH.
fn tool(name: &str) -> Command {
    let program = toolstack::binaries::in_path(name);
    let mut command = Command::new(program.unwrap_or_else(|| Path::new("/usr/sbin").join(name)));
    command.stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates images as the guest leaves them, with tools of the host.
    fn world(dir: &Path) -> GuestTranscript {
        for disk in Disk::ALL {
            let file = File::create_new(dir.join(disk.name())).unwrap();
            file.set_len(disk.bytes()).unwrap();
        }
        let random = vec![0x5a; RANDOM_BYTES];
        std::fs::write(dir.join("random"), &random).unwrap();
        std::fs::write(dir.join("golden"), golden()).unwrap();
        let data = dir.join("data");
        assert!(tool("mkfs.ext4").args(["-q", "-F"]).arg(&data).status().unwrap().success());
        for name in ["random", "golden"] {
            let request = format!("write {} {name}", dir.join(name).display());
            let made = tool("debugfs").args(["-w", "-R", &request]).arg(&data).output();
            assert!(made.unwrap().status.success());
        }
        write_at(dir, Disk::Multi, MULTI_MIB << 20, &random);
        write_at(dir, Disk::Late, 0, &random);
        let mut guest_transcript = GuestTranscript::default();
        guest_transcript.sums.insert("random".into(), sha256(&random).unwrap());
        guest_transcript
    }

    fn write_at(dir: &Path, disk: Disk, offset: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(dir.join(disk.name())).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn failing(dir: &Path, guest_transcript: &GuestTranscript) -> Vec<usize> {
        let checks = verify(|disk| dir.join(disk.name()), guest_transcript).unwrap();
        (0..checks.len()).filter(|i| checks[*i].problem.is_some()).collect()
    }

    #[test]
    fn each_check_fails_for_its_own_damage() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut guest_transcript = world(dir);
        assert_eq!(failing(dir, &guest_transcript), [] as [usize; 0]);
        write_at(dir, Disk::Multi, (MULTI_MIB << 20) + 4096, b"x");
        assert_eq!(failing(dir, &guest_transcript), [3]);
        write_at(dir, Disk::Late, 4096, b"x");
        assert_eq!(failing(dir, &guest_transcript), [3, 4]);
        write_at(dir, Disk::Golden, 8 << 20, b"x");
        assert_eq!(failing(dir, &guest_transcript), [3, 4, 5]);
        // Clear the free block count in the superblock.
        write_at(dir, Disk::Data, 1024 + 12, &[0; 4]);
        assert!(failing(dir, &guest_transcript).contains(&0));
        // Without checksums from the guest, the check fails.
        guest_transcript.sums.clear();
        assert!(failing(dir, &guest_transcript).contains(&1));
    }
}
