//! The slices where systemd manages the groups (`packaging/systemd`).
//!
//! ```text
//! ringwaycontrol.slice    ringwayd.service, and whatever else is put there
//!     ringway-group@control.service/daemon, /clients
//! ringwaydatapath.slice
//!     ringway-group@datapath.service/SR
//! ringwayguests.slice
//!     ringway-group@guests.service/VM
//! ```
//! A slice itself is systemd's to write: it is asked for other weights. Groups may be made in what a
//! unit has delegated, so each slice has a unit for that, with a process that keeps it. The slices' names have no
//! hyphen: to systemd that would say that one lies in another.

use std::path::{Path, PathBuf};

use super::INSTANCE;
use super::leaf::Slice;
use super::op::CgroupOp;

/// Where a running systemd shows itself (`sd_booted(3)`).
pub(super) const BOOTED: &str = "run/systemd/system";
/// What asks it for something.
const SYSTEMCTL: &str = "usr/bin/systemctl";

/// systemd manages the groups of this host.
pub(super) fn manages(root: &Path) -> bool {
    root.join(BOOTED).is_dir()
}

/// Who asks systemd, if it has the units of this instance, and they are started.
pub(super) fn found(root: &Path, base: &Path, name: &str) -> Option<PathBuf> {
    let there = |slice: Slice| folder(base, slice).is_dir();
    (name == INSTANCE && Slice::ALL.into_iter().all(there)).then(|| root.join(SYSTEMCTL))
}

/// systemd's name of a slice.
pub(super) fn unit(slice: Slice) -> String {
    format!("{INSTANCE}{}.slice", slice.name())
}

/// Where the leaves of a slice lie.
pub(super) fn folder(base: &Path, slice: Slice) -> PathBuf {
    base.join(unit(slice)).join(format!("{INSTANCE}-group@{}.service", slice.name()))
}

/// Has systemd do what this step would write to a file of the slice.
pub(super) fn ask(systemctl: &Path, slice: Slice, weight: u32, plain: CgroupOp) -> CgroupOp {
    match plain {
        CgroupOp::Write(file, text) => {
            let systemctl = systemctl.to_owned();
            CgroupOp::Property { systemctl, unit: unit(slice), weight, file, text }
        }
        other => other,
    }
}
