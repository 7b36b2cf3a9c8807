//! What the driver must know of its host.

use std::path::PathBuf;

use model::machine::AccelChoice;

use crate::accel::ProbeCache;
use crate::cgroup::SliceTree;
use crate::detached_process;
use crate::helper_command::HelperCommand;

/// How guests are run on this host.
#[derive(Debug)]
pub struct Settings {
    /// QEMU.
    pub qemu: PathBuf,
    /// What becomes it: the mode [`detached_process::MODE`] of the daemon's program.
    pub helper: HelperCommand,
    /// Directory of what runs, for us alone. Its path must be short: sockets lie below it.
    pub run: PathBuf,
    /// Where kernels and ramdisks may lie.
    pub boot_directories: Vec<PathBuf>,
    /// Accelerator.
    pub accel: AccelChoice,
    /// A kernel for the trial of KVM when a machine brings none. Without it, KVM is tried by the
    /// first machine that does.
    pub trial_kernel: PathBuf,
    /// KVM's device.
    pub kvm: PathBuf,
    /// Where the answer of the trial is kept.
    pub probe_cache: ProbeCache,
    /// Control groups, if there are any: each guest has one.
    pub tree: Option<SliceTree>,
}

impl Settings {
    /// What is usual: kernels lie in `/boot`, and there are no control groups.
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
