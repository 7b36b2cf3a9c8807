//! Tests in namespaces of their own, which do not change this host. The test's program is started
//! again there, with that test alone. Needs root.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::process::find_tool;

/// Environment variable with the test's own directory, set for the program that is started again.
const INSIDE: &str = "RINGWAY_TEST_INSIDE";
/// Output of libtest after one test that ran and passed.
const PASSED: &str = "1 passed";
/// Script that mounts a small file system of size `$1` at `$2`, then executes the remaining words.
const ROOM: &str = r#"mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@""#;
/// Script that mounts a new file system with reflinks from the file `$1` at `$2`, then executes the
/// remaining words.
const REFLINKS: &str =
    r#"mkfs.xfs -q -m reflink=1 "$1" && mount -o loop "$1" "$2" && shift 2 && exec "$@""#;
/// Size of that file in bytes: the least that mkfs.xfs takes, and some more.
const REFLINKS_BYTES: u64 = 400 << 20;
/// Script that mounts sysfs for the namespace's devices, then executes the remaining words.
const NETWORK: &str = r#"mount -t sysfs none /sys && exec "$@""#;

/// Runs `inside` of the test `test` (its path with the crate, by `module_path!`) with the directory
/// of a file system of `mib` MiB, which is full soon. Returns the output of the program in the
/// namespace.
///
/// # Errors
/// [`Error::Missing`] for a tool; [`Error::Io`] with the output if `inside` has failed, or if there
/// is no test of this name.
pub fn in_little_room(test: &str, mib: u32, inside: impl FnOnce(&Path)) -> Result<String> {
    if let Some(dir) = std::env::var_os(INSIDE) {
        inside(Path::new(&dir));
        return Ok(String::new());
    }
    let dir = directory()?;
    let mut command = unshare(&["--mount"], ROOM)?;
    command.arg(format!("{mib}m")).arg(dir.path());
    again(command, test, dir.path())
}

/// Runs `inside` of the test `test` with the directory of a file system whose files can share blocks.
/// Returns the output of the program in the namespace.
///
/// # Errors
/// As [`in_little_room`].
pub fn on_reflinks(test: &str, inside: impl FnOnce(&Path)) -> Result<String> {
    if let Some(dir) = std::env::var_os(INSIDE) {
        inside(Path::new(&dir));
        return Ok(String::new());
    }
    find_tool("mkfs.xfs", "xfsprogs")?;
    let (dir, image) = (directory()?, directory()?);
    let file = image.path().join("xfs");
    let made = std::fs::File::create(&file).and_then(|made| made.set_len(REFLINKS_BYTES));
    made.map_err(|error| Error::io(format!("cannot make {}", file.display()), error))?;
    let mut command = unshare(&["--mount"], REFLINKS)?;
    command.arg(&file).arg(dir.path());
    again(command, test, dir.path())
}

/// Runs `inside` of the test `test` in a network namespace whose only device is the loopback
/// device, which is down. Returns the output of the program in the namespace.
///
/// # Errors
/// As [`in_little_room`].
pub fn in_own_network(test: &str, inside: impl FnOnce()) -> Result<String> {
    if std::env::var_os(INSIDE).is_some() {
        inside();
        return Ok(String::new());
    }
    let dir = directory()?;
    again(unshare(&["--mount", "--net"], NETWORK)?, test, dir.path())
}

fn directory() -> Result<TempDir> {
    tempfile::tempdir().map_err(|error| Error::io("cannot make a directory", error))
}

/// Returns a command that runs `script` in namespaces of these kinds.
fn unshare(kinds: &[&str], script: &str) -> Result<Command> {
    let mut command = Command::new(find_tool("unshare", "util-linux")?);
    command.args(kinds).args(["sh", "-c", script, "sh"]);
    Ok(command)
}

/// Runs a test again, as the last words of this command.
fn again(mut command: Command, test: &str, dir: &Path) -> Result<String> {
    // Test programs know their tests without the name of the crate, which `module_path!` begins
    // with.
    let test = test.split_once("::").map_or(test, |(_, path)| path);
    let program = std::env::current_exe().map_err(|e| Error::io("cannot find this program", e))?;
    command.arg(program).args(["--exact", test, "--nocapture"]).env(INSIDE, dir);
    let output = command.output().map_err(|error| Error::io("cannot run unshare", error))?;
    let bytes = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() && text.contains(PASSED) {
        return Ok(text);
    }
    let what = format!("{test} in its own namespaces, which needs root");
    Err(Error::io(what, std::io::Error::other(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("{}::{test}", module_path!())
    }

    #[test]
    fn a_small_file_system_is_full_soon() {
        in_little_room(&name("a_small_file_system_is_full_soon"), 1, |dir| {
            let file = dir.join("filler");
            std::fs::write(&file, vec![1; 512 << 10]).unwrap();
            let more = std::fs::write(&file, vec![1; 2 << 20]).unwrap_err();
            assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);
        })
        .unwrap();
    }

    #[test]
    fn a_network_of_its_own_has_no_devices_of_this_host() {
        in_own_network(&name("a_network_of_its_own_has_no_devices_of_this_host"), || {
            let devices = std::fs::read_dir("/sys/class/net").unwrap();
            let devices = devices.map(|device| device.unwrap().file_name());
            // The kernel creates some tunnel devices in every network namespace.
            let real = |name: &std::ffi::OsStr| name == "eth0" || name == "lo";
            let devices: Vec<_> = devices.filter(|name| real(name)).collect();
            assert_eq!(devices, ["lo"]);
        })
        .unwrap();
    }

    #[test]
    fn an_inside_that_fails_or_is_not_there_fails_outside() {
        let test = name("an_inside_that_fails_or_is_not_there_fails_outside");
        if std::env::var_os(INSIDE).is_some() {
            panic!("on purpose");
        }
        let failed = in_little_room(&test, 1, |_| {}).unwrap_err();
        let why = std::error::Error::source(&failed).unwrap().to_string();
        assert!(why.contains("on purpose"), "{why}");
        in_little_room(&name("no_such_test"), 1, |_| {}).unwrap_err();
    }
}
