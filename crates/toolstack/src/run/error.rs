//! Errors of a run.

use std::io;
use std::path::PathBuf;

use model::spec::SpecError;

use crate::qemu::QemuError;
use crate::ringway_io::DatapathError;

/// Error of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine or a disk is not possible as specified.
    #[error("the machine cannot be started as asked")]
    Spec(#[from] SpecError),
    /// A file of the machine cannot be read.
    #[error("the {what} {} cannot be read", path.display())]
    Unreadable {
        /// Purpose of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The directory for the sockets cannot be created.
    #[error("cannot make a directory for the sockets under {}", path.display())]
    Scratch {
        /// Path of the parent directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The datapath failed.
    #[error("the disks cannot be served")]
    Io(#[from] DatapathError),
    /// The datapath refused a disk.
    #[error("disk {position} ({what}) cannot be served")]
    Disk {
        /// Position of the disk on the command line, counted from 1.
        position: usize,
        /// Backend of the disk.
        what: String,
        /// Error of the datapath.
        source: DatapathError,
    },
    /// QEMU failed.
    #[error("the machine failed")]
    Qemu(#[from] QemuError),
    /// The guest ended, but not by a power-off.
    #[error(
        "the guest {} instead of powering off; its console says why",
        if *panicked { "panicked" } else { "reset (it rebooted, or its kernel panicked)" }
    )]
    Guest {
        /// True if the guest reported a panic to QEMU.
        panicked: bool,
    },
    /// A signal or another program ended QEMU.
    #[error("QEMU was ended from outside; the guest did not power off")]
    EndedOutside,
}
