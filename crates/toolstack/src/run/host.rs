//! Programs and directories of the host for a run.

use std::ffi::OsString;
use std::path::PathBuf;

use super::workspace;
use crate::accel::ProbeCache;
use crate::binaries::{self, NotFound};

/// Programs and directories that a run uses.
#[derive(Debug)]
pub struct Host {
    /// Path of `ringway-io`.
    pub ringway_io: PathBuf,
    /// Path of QEMU.
    pub qemu: PathBuf,
    /// Arguments before QEMU's command (see [`crate::qemu::Machine::spawn`]).
    pub launcher: Vec<OsString>,
    /// Device file of KVM.
    pub kvm: PathBuf,
    /// Store of trial boot results.
    pub probe_cache: ProbeCache,
    /// Parent of the sockets' directory.
    pub scratch: PathBuf,
    /// True if the logs of both programs are copied to standard error.
    pub echo: bool,
    /// True if the datapath's counters are sampled for
    /// [`RunReport::busy_tracker`](super::RunReport::busy_tracker).
    pub sample: bool,
}

impl Host {
    /// Finds the programs beside the running one and in `PATH`. Sockets go under the user's runtime
    /// directory.
    ///
    /// # Errors
    /// A program is missing.
    pub fn find(launcher: Vec<OsString>, echo: bool) -> Result<Self, NotFound> {
        let qemu = binaries::in_path(binaries::QEMU).ok_or_else(|| NotFound {
            name: binaries::QEMU.into(),
            beside: PathBuf::from("/usr/bin"),
            advice: "install it: apt-get install qemu-system-x86",
        })?;
        Ok(Self {
            ringway_io: binaries::ours(binaries::RINGWAY_IO)?,
            qemu,
            launcher,
            kvm: "/dev/kvm".into(),
            probe_cache: ProbeCache::of_user(),
            scratch: workspace::scratch_of_user(),
            echo,
            sample: false,
        })
    }
}
