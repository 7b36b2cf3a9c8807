//! QEMU of a machine: command line, control protocol and process.

pub mod command;
mod engine;
mod machine;
pub mod qmp;

pub use command::{QemuDisk, QemuSpec};
pub use engine::Engine;
pub use machine::{Machine, QemuExit};

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::Command;

use crate::format::format_duration;
use crate::json_lines::LineError;
use crate::stderr_tail::format_tail;

/// Error of QEMU.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// The program could not be started.
    #[error("cannot start {}; is Debian's package qemu-system-x86 installed?", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// QEMU exited, although neither the guest nor the host requested it.
    #[error("QEMU ended by itself ({status}){}", format_tail(tail))]
    Died {
        /// Exit status.
        status: ExitStatus,
        /// Last lines on standard error.
        tail: String,
    },
    /// No answer came in time.
    #[error("QEMU did not answer {what} within {}", format_duration(*deadline))]
    Late {
        /// Command, or other awaited event.
        what: String,
        /// Time waited.
        deadline: Duration,
    },
    /// The control connection is closed.
    #[error("QEMU's control connection is closed")]
    Closed,
    /// The control connection violated the protocol.
    #[error("QEMU's control connection cannot be understood")]
    Broken(#[from] LineError),
    /// The greeting is not QEMU's.
    #[error("the other side of the control connection is not QEMU: it sent {0}")]
    NotQemu(String),
    /// QEMU answered with an error.
    #[error("QEMU refused {what}: {reason}")]
    Refused {
        /// Refused command.
        what: String,
        /// Reason that QEMU gave.
        reason: String,
    },
    /// The program's output contains no version.
    #[error("{} does not print its version: {output:?}", program.display())]
    NoVersion {
        /// Path of the program.
        program: PathBuf,
        /// Its output.
        output: String,
    },
}

/// Longest wait for `--version` and similar queries.
const QUERY_DEADLINE: Duration = Duration::from_secs(10);

/// Version number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub micro: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

impl Version {
    /// Returns the first `A.B` or `A.B.C` in `text`.
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
            let mut numbers = word.split('.').map(str::parse);
            let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            let micro = numbers.next().and_then(Result::ok).unwrap_or(0);
            Some(Self { major, minor, micro })
        })
    }
}

/// Runs `program` for a query and returns its output on both streams.
///
/// # Errors
/// [`QemuError::Start`], [`QemuError::Late`].
pub async fn ask(program: &Path, arguments: &[&str]) -> Result<String, QemuError> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(QUERY_DEADLINE, output)
        .await
        .map_err(|_| QemuError::Late { what: arguments.join(" "), deadline: QUERY_DEADLINE })?
        .map_err(|source| QemuError::Start { program: program.into(), source })?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// Returns QEMU's version: the first line of its output, and the numbers.
///
/// # Errors
/// The errors of [`ask`], and [`QemuError::NoVersion`].
pub async fn version(program: &Path) -> Result<(String, Version), QemuError> {
    let output = ask(program, &["--version"]).await?;
    let line = output.lines().next().unwrap_or_default().trim().to_owned();
    match Version::find(&line) {
        Some(version) => Ok((line, version)),
        None => Err(QemuError::NoVersion { program: program.into(), output }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_and_compared() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)";
        let found = Version::find(debian).unwrap();
        assert_eq!(found, Version { major: 7, minor: 2, micro: 22 });
        assert!(found < Version::find("10.0").unwrap());
        assert_eq!(Version::find("no numbers here"), None);
    }
}
