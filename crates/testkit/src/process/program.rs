//! Programs that a test writes to disk.
//!
//! Another process writes them. The test process forks in other tests meanwhile, and the kernel
//! executes no file that a forked process still has open for writing.

use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};

/// Writes a shell script as a program at `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write_script(path: &Path, text: &str) -> Result<()> {
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$2" && chmod 755 "$2""#;
    run(Command::new("sh").args(["-c", write, "sh", text]).arg(path))
}

/// Copies a program.
///
/// # Errors
/// The file cannot be copied.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg(from).arg(to))
}

fn run(command: &mut Command) -> Result<()> {
    let what = format!("cannot run {command:?}");
    let output = command.output().map_err(|error| Error::io(what.clone(), error))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::io(what, std::io::Error::other(stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_runs_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("p"), dir.path().join("q"));
        write_script(&path, "printf '%s 100%%' \"$1\"; exit 3").unwrap();
        copy_program(&path, &copy).unwrap();
        for program in [path, copy] {
            let output = Command::new(program).arg("it's").output().unwrap();
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"it's 100%"[..]));
        }
        assert!(write_script(&dir.path().join("none/p"), "").is_err());
    }
}
