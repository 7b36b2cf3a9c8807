//! Independent clients of the API: Python packages in an environment of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use crate::error::{Error, Result};
use crate::process::find_tool;

/// Python bindings that XenServer's own scripts and Ansible's modules use.
pub const XENAPI: &str = "XenAPI==26.21.1";

/// Returns an interpreter with this package, `name==version`. Creates it on first use and stores it
/// in `.cache` of this repository. Several tests may call this at once.
///
/// # Errors
/// [`Error::Missing`] without Python, [`Error::Process`] with the output of `pip`.
pub fn with(package: &str) -> Result<PathBuf> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache");
    let dir = cache.join(format!("venv-{}", package.replace("==", "-")));
    let python = dir.join("bin/python");
    fs::create_dir_all(&cache).map_err(|e| Error::io("cannot create .cache", e))?;
    let lock = fs::File::create(dir.with_extension("lock"));
    let lock = lock.map_err(|e| Error::io("cannot create a lock in .cache", e))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| Error::io("cannot lock .cache", e))?;
    // The marker is created last, so an interrupted installation is repeated.
    let whole = dir.join("whole");
    if !whole.exists() {
        let _ = fs::remove_dir_all(&dir);
        run(Command::new(find_tool("python3", "python3-venv")?).args(["-m", "venv"]).arg(&dir))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", package]))?;
        fs::write(&whole, package).map_err(|e| Error::io("cannot write to .cache", e))?;
    }
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let what = format!("{command:?}");
    let output = command.output().map_err(|e| Error::io(format!("cannot run {what}"), e))?;
    if output.status.success() {
        return Ok(());
    }
    let bytes = [output.stdout, output.stderr].concat();
    let stderr = String::from_utf8_lossy(&bytes).trim_end().to_owned();
    Err(Error::Process { program: what, what: format!("ended with {}", output.status), stderr })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bindings_can_be_imported() {
        let python = with(XENAPI).unwrap();
        let output = Command::new(python).args(["-c", "import XenAPI; XenAPI.Session"]).output();
        assert!(output.unwrap().status.success());
    }

    #[test]
    fn what_cannot_be_installed_is_told() {
        let error = run(Command::new("sh").args(["-c", "echo no such package; exit 1"]));
        assert!(error.unwrap_err().to_string().contains("no such package"));
    }
}
