//! Single changes of the control group hierarchy.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;

use super::{CgroupError, PROCESSES, v2};

/// Name of the child group for processes of a group that delegates its controller.
const BELOW: &str = "holder";

/// One change of the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CgroupOp {
    /// Create a group.
    Make(PathBuf),
    /// Move the processes of this group into a child group.
    MoveDown(PathBuf),
    /// Delegate the CPU controller to the child groups of this group.
    HandDown(PathBuf),
    /// Write a file of a group.
    Write(PathBuf, String),
    /// Let systemd change the weight of its slice, unless the slice's file already has this weight.
    Property {
        /// Path of `systemctl`.
        systemctl: PathBuf,
        /// Name of the slice.
        unit: String,
        /// Weight in systemd's unit.
        weight: u32,
        /// Weight file of the slice in the hierarchy.
        file: PathBuf,
        /// Content of that file with this weight.
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

/// Writes an existing file. The kernel creates the files of a group with it.
pub(super) fn write(file: &Path, text: &str) -> Result<(), CgroupError> {
    let opened = OpenOptions::new().write(true).truncate(true).open(file);
    let written = opened.and_then(|mut open| open.write_all(text.as_bytes()));
    written.map_err(|source| os("write", file, source))
}

/// Runs `systemctl set-property`. `systemctl` waits at most 25 s for systemd.
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

/// Removes a group. Does nothing if it does not exist.
pub(super) fn remove(folder: &Path) -> Result<(), CgroupError> {
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if is(&error, Errno::BUSY) || is(&error, Errno::NOTEMPTY) => {
            Err(CgroupError::Busy { group: folder.to_owned(), pids: members(folder) })
        }
        outcome => outcome.map_err(|source| os("remove", folder, source)),
    }
}

/// Returns the processes of a group; empty if it does not exist.
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
