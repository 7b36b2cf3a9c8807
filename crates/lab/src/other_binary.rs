//! Another build of `ringway-blk`, which the user names, as one more system of a run.

use std::path::Path;

use anyhow::{Result, ensure};
use rustix::fs::{Access, access};

use crate::host::version_of;

/// Name of the system. The versions of a run have its path under the same name.
pub const NAME: &str = "other binary";

/// Returns the version and the path of the binary, for the report.
///
/// # Errors
/// The path is no program, or the program is no `ringway-blk`.
pub fn version(path: &Path) -> Result<String> {
    let shown = path.display();
    let is_program = path.is_file() && access(path, Access::EXEC_OK).is_ok();
    ensure!(is_program, "--other-binary {shown}: there is no program that can be executed");
    let version = version_of(path);
    let is_ours = version.starts_with("ringway-blk ");
    ensure!(is_ours, "--other-binary {shown}: is no ringway-blk, its --version says '{version}'");
    Ok(format!("{version} of {shown}"))
}

#[cfg(test)]
mod tests {
    use testkit::process::write_script;

    use super::*;

    #[test]
    fn only_a_program_that_calls_itself_ringway_blk_takes_part() {
        let dir = tempfile::tempdir().unwrap();
        let [old, other, text] = ["old", "other", "text"].map(|name| dir.path().join(name));
        write_script(&old, "echo ringway-blk 0.0.9").unwrap();
        write_script(&other, "echo something").unwrap();
        std::fs::write(&text, "echo ringway-blk 0.0.9").unwrap();
        assert_eq!(version(&old).unwrap(), format!("ringway-blk 0.0.9 of {}", old.display()));
        let reason = |path: &Path| version(path).unwrap_err().to_string();
        assert!(reason(&other).contains("is no ringway-blk") && reason(&other).contains("'some"));
        for path in [&text, dir.path(), &dir.path().join("none")] {
            assert!(reason(path).contains("no program that can be executed"), "{path:?}");
        }
    }
}
