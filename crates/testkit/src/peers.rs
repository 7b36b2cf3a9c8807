//! Programs that ours are measured against, where they are not simply installed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// What is there when all is.
const COMPLETE: &str = "complete";

/// The directory below which Open vSwitch lies as its packages have it: `RINGWAY_OVS_DIR`, else
/// `.cache/ovs` of this repository. If it is not there, `scripts/ovs.sh` unpacks it, which takes a
/// lock: several may ask at once.
///
/// # Errors
/// [`Error::Process`] with what the script said if it fails, [`Error::Io`] if there is none.
pub fn open_vswitch() -> Result<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = env::var_os("RINGWAY_OVS_DIR").filter(|dir| !dir.is_empty());
    let dir = dir.map_or_else(|| repository.join(".cache/ovs"), PathBuf::from);
    if !dir.join(COMPLETE).exists() {
        made(&repository.join("scripts/ovs.sh"), &dir)?;
    }
    Ok(dir)
}

/// Runs a script that makes what is to be in a directory.
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
