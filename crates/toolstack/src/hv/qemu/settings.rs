//! Settings of the QEMU driver.

use std::path::PathBuf;

use model::machine::AccelChoice;

use crate::accel::ProbeCache;
use crate::cgroup::SliceTree;
use crate::detached_process;
use crate::helper_command::HelperCommand;

/// Settings for running guests on this host.
#[derive(Debug)]
pub struct Settings {
    /// Path of QEMU.
    pub qemu: PathBuf,
    /// Command that becomes QEMU: the daemon's program in the mode [`detached_process::MODE`].
    pub helper: HelperCommand,
    /// Run directory, private to the daemon. Its path must be short, because it contains sockets.
    pub run: PathBuf,
    /// Directories that may contain kernels and ramdisks.
    pub boot_directories: Vec<PathBuf>,
    /// Accelerator.
    pub accel: AccelChoice,
    /// Kernel for the trial boot of KVM when a machine has none. If it does not exist, the first
    /// machine with a kernel tries KVM.
    pub trial_kernel: PathBuf,
    /// Device file of KVM.
    pub kvm: PathBuf,
    /// Store of the trial boot's result.
    pub probe_cache: ProbeCache,
    /// Control groups, if the host has them. Each guest gets one.
    pub tree: Option<SliceTree>,
}

impl Settings {
    /// Returns the defaults: kernels in `/boot`, and no control groups.
    pub fn usual(qemu: PathBuf, run: PathBuf) -> Self {
        Self {
            qemu,
            helper: HelperCommand::ourselves(detached_process::MODE),
            run,
            boot_directories: vec!["/boot".into()],
            accel: AccelChoice::Auto,
            trial_kernel: "/boot/vmlinuz".into(),
            kvm: "/dev/kvm".into(),
            probe_cache: ProbeCache::of_user(),
            tree: None,
        }
    }
}
