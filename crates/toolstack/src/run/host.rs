//! What a run finds on its host.

use std::ffi::OsString;
use std::path::PathBuf;

use super::workspace;
use crate::accel::ProbeCache;
use crate::binaries::{self, NotFound};

/// The programs and places that a run uses.
#[derive(Debug)]
pub struct Host {
    /// The datapath program.
    pub ringway_io: PathBuf,
    /// The emulator.
    pub qemu: PathBuf,
    /// Words before QEMU's command (see [`crate::qemu::Machine::detached_process`]).
    pub launcher: Vec<OsString>,
    /// Device file of KVM.
    pub kvm: PathBuf,
    /// Where the answers of trial boots are kept.
    pub probe_cache: ProbeCache,
    /// Directory under which the sockets' directory is made.
    pub scratch: PathBuf,
    /// The logs of both programs go to our standard error.
    pub echo: bool,
    /// The datapath is asked for its counts now and then, for `RunReport::activity`.
    pub sample: bool,
}

impl Host {
    /// This host as it is: programs beside the running one and in PATH, sockets under the
    /// user's runtime directory.
    ///
    /// # Errors
    /// When a program is missing.
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
