//! Errors of control groups.

use std::io;
use std::path::PathBuf;

/// Reason why the control path has no CPU share apart from guests.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No CPU controller is available.
    #[error(
        "no CPU controller of control groups is mounted: mount cgroup2 at /sys/fs/cgroup; until \
         then busy guests slow the control path"
    )]
    NoController,
    /// On a host with systemd, groups are created through systemd only.
    #[error(
        "systemd manages the control groups of this host and has none for `{name}`: install the \
         units of packaging/systemd, run `systemctl start ringway-group@{{control,datapath,guests}}`, \
         then start again; only the daemon with the usual state directory has such units"
    )]
    Managed {
        /// Name of the instance.
        name: String,
    },
    /// systemd refused to change its slice.
    #[error("systemd does not give {unit} another weight: {why}")]
    Systemd {
        /// Name of the slice.
        unit: String,
        /// Reason that systemd gave.
        why: String,
    },
    /// The name cannot be part of a group's name.
    #[error("`{name}` cannot name control groups: 1 to {most} lower-case letters and digits can")]
    Name {
        /// The name, as far as it is printable.
        name: String,
        /// Longest permitted name.
        most: usize,
    },
    /// The weight is out of range.
    #[error("the {slice} slice cannot have weight {weight}: 1 to {most} are taken")]
    Weight {
        /// Slice of the weight.
        slice: &'static str,
        /// The weight.
        weight: u32,
        /// Highest permitted weight.
        most: u32,
    },
    /// A version 2 group that contains processes cannot divide CPU time among child groups.
    #[error(
        "the control group {} has processes of its own, so no group below it can have a weight: \
         move them into a group below it, then start again", group.display()
    )]
    Occupied {
        /// Path of the group.
        group: PathBuf,
    },
    /// A group that is in use cannot be removed.
    #[error("the control group {} is in use {}: end its processes", group.display(), by(pids))]
    Busy {
        /// Path of the group.
        group: PathBuf,
        /// Processes in the group. If empty, the group has child groups or a process that is just
        /// exiting.
        pids: Vec<u32>,
    },
    /// The process does not exist.
    #[error("process {pid} ended before it joined its control group")]
    Gone {
        /// Process id.
        pid: u32,
    },
    /// A system call failed.
    #[error(
        "cannot {doing} {}: make control groups writable, as they are for root outside of \
         containers", path.display()
    )]
    Os {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the group, or of a file in it.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

fn by(pids: &[u32]) -> String {
    match pids {
        [] => "by groups below it, or by a process that is just ending".to_owned(),
        [one] => format!("by process {one}"),
        many => {
            let many: Vec<_> = many.iter().map(u32::to_string).collect();
            format!("by processes {}", many.join(", "))
        }
    }
}
