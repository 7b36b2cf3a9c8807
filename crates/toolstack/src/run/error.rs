//! Why a run failed.

use std::io;
use std::path::PathBuf;

use model::spec::SpecError;

use crate::qemu::QemuError;
use crate::ringway_io::DatapathError;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine or a disk cannot be had as asked.
    #[error("the machine cannot be started as asked")]
    Spec(#[from] SpecError),
    /// A file that the machine needs cannot be read.
    #[error("the {what} {} cannot be read", path.display())]
    Unreadable {
        /// What it is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No directory for the sockets.
    #[error("cannot make a directory for the sockets under {}", path.display())]
    Scratch {
        /// Where it was tried.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The datapath failed.
    #[error("the disks cannot be served")]
    Io(#[from] DatapathError),
    /// A disk was refused.
    #[error("disk {position} ({what}) cannot be served")]
    Disk {
        /// Its position, counted from 1 as the user gave them.
        position: usize,
        /// Where its bytes are.
        what: String,
        /// Why.
        source: DatapathError,
    },
    /// QEMU failed.
    #[error("the machine failed")]
    Qemu(#[from] QemuError),
    /// The guest ended in another way than by powering off.
    #[error(
        "the guest {} instead of powering off; its console says why",
        if *panicked { "panicked" } else { "reset (it rebooted, or its kernel panicked)" }
    )]
    Guest {
        /// It told QEMU of a panic.
        panicked: bool,
    },
    /// Somebody ended QEMU from outside.
    #[error("QEMU was ended from outside; the guest did not power off")]
    EndedOutside,
}
