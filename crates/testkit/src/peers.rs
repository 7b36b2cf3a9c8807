//! Programs that Ringway is compared with, if they are not simply installed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// File that marks a complete directory.
const COMPLETE: &str = "complete";

/// Returns the directory below which Open vSwitch lies as in its packages: `RINGWAY_OVS_DIR`, else
/// `.cache/ovs` of this repository. If it does not exist, runs `scripts/ovs.sh`, which unpacks it.
/// The script takes a lock, so several tests may call this at once.
///
/// # Errors
/// [`Error::Process`] with the script's output if it fails, [`Error::Io`] if there is no script.
pub fn open_vswitch() -> Result<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = env::var_os("RINGWAY_OVS_DIR").filter(|dir| !dir.is_empty());
    let dir = dir.map_or_else(|| repository.join(".cache/ovs"), PathBuf::from);
    if !dir.join(COMPLETE).exists() {
        made(&repository.join("scripts/ovs.sh"), &dir)?;
    }
    Ok(dir)
}

/// Runs a script that fills a directory.
pub(crate) fn made(script: &Path, dir: &Path) -> Result<()> {
    let output = Command::new(script).arg(dir).output();
    let output = output.map_err(|e| Error::io(format!("cannot run {}", script.display()), e))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Process {
        program: script.display().to_string(),
        what: format!("ended with {}", output.status),
        stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_fails_is_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("make.sh");
        crate::process::write_script(&script, "echo guest: no cpio >&2; exit 1").unwrap();
        let error = made(&script, dir.path()).unwrap_err().to_string();
        assert!(error.contains("guest: no cpio"), "{error}");
    }
}
