//! What is done to the hierarchy, one thing at a time.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;

use super::{CgroupError, PROCESSES, v2};

/// The group of who was in one that is to hand its controller down.
const BELOW: &str = "holder";

/// One thing to do to the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CgroupOp {
    /// Make a group.
    Make(PathBuf),
    /// Move whoever is in this group into one below it.
    MoveDown(PathBuf),
    /// Hand the CPU controller down to the groups in this one.
    HandDown(PathBuf),
    /// Write a file of a group.
    Write(PathBuf, String),
    /// Have systemd give a slice of its own another weight, unless its file says that it has it.
    Property {
        /// Who asks systemd.
        systemctl: PathBuf,
        /// The slice.
        unit: String,
        /// The weight, as systemd counts it.
        weight: u32,
        /// The file that the kernel makes of it.
        file: PathBuf,
        /// What that says then.
        text: String,
    },
}

impl CgroupOp {
    pub(super) fn carry_out(&self) -> Result<(), CgroupError> {
        match self {
            Self::Make(folder) => match std::fs::create_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    Err(os("make", folder, error))
                }
                _ => Ok(()),
            },
            Self::MoveDown(folder) => move_down(folder),
            Self::HandDown(folder) => v2::hand_down(folder),
            Self::Write(file, text) => write(file, text),
            Self::Property { systemctl, unit, weight, file, text } => {
                let is = std::fs::read_to_string(file).unwrap_or_default();
                if is.trim() == text { Ok(()) } else { property(systemctl, unit, *weight) }
            }
        }
    }
}

fn move_down(folder: &Path) -> Result<(), CgroupError> {
    let below = folder.join(BELOW);
    for pid in members(folder) {
        CgroupOp::Make(below.clone()).carry_out()?;
        match write(&below.join(PROCESSES), &pid.to_string()) {
            Err(CgroupError::Os { source, .. }) if is(&source, Errno::SRCH) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Writes a file that is there: the kernel makes it with its group.
pub(super) fn write(file: &Path, text: &str) -> Result<(), CgroupError> {
    let opened = OpenOptions::new().write(true).truncate(true).open(file);
    let written = opened.and_then(|mut open| open.write_all(text.as_bytes()));
    written.map_err(|source| os("write", file, source))
}

/// systemctl itself waits 25 s at most for an answer of systemd's.
fn property(systemctl: &Path, unit: &str, weight: u32) -> Result<(), CgroupError> {
    let mut command = Command::new(systemctl);
    command.args(["set-property", "--runtime", "--no-ask-password", unit]);
    command.arg(format!("CPUWeight={weight}")).stdin(Stdio::null());
    let failed = |why: String| CgroupError::Systemd { unit: unit.to_owned(), why };
    let output = command.output().map_err(|error| {
        let program = systemctl.display();
        failed(format!("{program} cannot be run: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Removes a group. Nothing happens if it is not there.
pub(super) fn remove(folder: &Path) -> Result<(), CgroupError> {
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if is(&error, Errno::BUSY) || is(&error, Errno::NOTEMPTY) => {
            Err(CgroupError::Busy { group: folder.to_owned(), pids: members(folder) })
        }
        outcome => outcome.map_err(|source| os("remove", folder, source)),
    }
}

/// Processes in a group; none if it is not there.
pub(super) fn members(folder: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

pub(super) fn is(error: &io::Error, code: Errno) -> bool {
    error.raw_os_error() == Some(code.raw_os_error())
}

pub(super) fn os(doing: &'static str, path: &Path, source: io::Error) -> CgroupError {
    CgroupError::Os { doing, path: path.to_owned(), source }
}
