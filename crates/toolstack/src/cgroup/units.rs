//! Slices of a host where systemd manages the groups (`packaging/systemd`).
//!
//! ```text
//! ringwaycontrol.slice    ringwayd.service, and whatever else is put there
//!     ringway-group@control.service/daemon, /clients
//! ringwaydatapath.slice
//!     ringway-group@datapath.service/SR
//! ringwayguests.slice
//!     ringway-group@guests.service/VM
//! ```
//! Only systemd may write a slice itself, so Ringway requests new weights from it. Groups may be
//! created inside a unit with delegation. So each slice has such a unit, with a process that keeps
//! it alive. Slice names have no hyphen, because for systemd a hyphen means nesting.

use std::path::{Path, PathBuf};

use super::INSTANCE;
use super::leaf::Slice;
use super::op::CgroupOp;

/// Directory that exists while systemd runs (`sd_booted(3)`).
pub(super) const BOOTED: &str = "run/systemd/system";
/// Path of `systemctl`.
const SYSTEMCTL: &str = "usr/bin/systemctl";

/// Returns whether systemd manages the groups of this host.
pub(super) fn manages(root: &Path) -> bool {
    root.join(BOOTED).is_dir()
}

/// Returns the path of `systemctl` if systemd has the units of this instance and they are started.
pub(super) fn found(root: &Path, base: &Path, name: &str) -> Option<PathBuf> {
    let there = |slice: Slice| folder(base, slice).is_dir();
    (name == INSTANCE && Slice::ALL.into_iter().all(there)).then(|| root.join(SYSTEMCTL))
}

/// Returns systemd's name of a slice.
pub(super) fn unit(slice: Slice) -> String {
    format!("{INSTANCE}{}.slice", slice.name())
}

/// Returns the directory that contains the leaves of a slice.
pub(super) fn folder(base: &Path, slice: Slice) -> PathBuf {
    base.join(unit(slice)).join(format!("{INSTANCE}-group@{}.service", slice.name()))
}

/// Converts a write to a file of the slice into a request to systemd.
pub(super) fn ask(systemctl: &Path, slice: Slice, weight: u32, plain: CgroupOp) -> CgroupOp {
    match plain {
        CgroupOp::Write(file, text) => {
            let systemctl = systemctl.to_owned();
            CgroupOp::Property { systemctl, unit: unit(slice), weight, file, text }
        }
        other => other,
    }
}
