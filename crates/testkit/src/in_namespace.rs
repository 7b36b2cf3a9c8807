//! Tests in namespaces of their own, in which nothing of this host is changed: the test's program is
//! started again there, with that test alone. Needs root.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::process::find_tool;

/// A directory of the test's own, told to its program when that is started again.
const INSIDE: &str = "RINGWAY_TEST_INSIDE";
/// What libtest says of a run of one test that was carried out.
const PASSED: &str = "1 passed";
/// Mounts a small file system of the size `$1` at `$2`, then becomes the rest.
const ROOM: &str = r#"mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@""#;
/// Shows the network devices that are there, then becomes the rest.
const NETWORK: &str = r#"mount -t sysfs none /sys && exec "$@""#;

/// Runs the inside of the test of this name with the directory of a file system of so many MiB, which
/// is soon full. Returns what the program in there has said.
///
/// # Errors
/// [`Error::Missing`] for a tool; [`Error::Io`] with what was said if the inside has failed, or if
/// there is no test of this name.
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

/// Runs the inside of the test of this name on a network without any device but the one that speaks
/// to itself, which is down. Returns what the program in there has said.
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

/// A command that runs `script` in namespaces of these kinds.
fn unshare(kinds: &[&str], script: &str) -> Result<Command> {
    let mut command = Command::new(find_tool("unshare", "util-linux")?);
    command.args(kinds).args(["sh", "-c", script, "sh"]);
    Ok(command)
}

/// Runs a test again at the end of this command.
fn again(mut command: Command, test: &str, dir: &Path) -> Result<String> {
    let program = std::env::current_exe().map_err(|e| Error::io("cannot find this program", e))?;
    command.arg(program).args(["--exact", test, "--nocapture"]).env(INSIDE, dir);
    let output = command.output().map_err(|error| Error::io("cannot run unshare", error))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() && said.contains(PASSED) {
        return Ok(said);
    }
    let what = format!("{test} in namespaces of its own, for which root is needed");
    Err(Error::io(what, std::io::Error::other(said)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("inside::tests::{test}")
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
            // The kernel makes some of tunnels for every network.
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
