//! What can be wrong with control groups.

use std::io;
use std::path::PathBuf;

/// Why the control path is not kept apart from guests as it should be.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Nothing to make groups with.
    #[error(
        "no CPU controller of control groups is mounted: mount cgroup2 at /sys/fs/cgroup; until \
         then busy guests slow the control path"
    )]
    NoController,
    /// Groups are made through systemd, or not at all.
    #[error(
        "systemd manages the control groups of this host and has none for `{name}`: install the \
         units of packaging/systemd, run `systemctl start ringway-group@{{control,datapath,guests}}`, \
         then start again; only the daemon with the usual state directory has such units"
    )]
    Managed {
        /// Of which instance.
        name: String,
    },
    /// systemd does not change what is its own.
    #[error("systemd does not give {unit} another weight: {why}")]
    Systemd {
        /// The slice.
        unit: String,
        /// What it says.
        why: String,
    },
    /// A name that cannot be a part of a group's.
    #[error("`{name}` cannot name control groups: 1 to {most} lower-case letters and digits can")]
    Name {
        /// It, as far as it can be shown.
        name: String,
        /// How long it may be.
        most: usize,
    },
    /// A weight out of bounds.
    #[error("the {slice} slice cannot have weight {weight}: 1 to {most} are taken")]
    Weight {
        /// Whose.
        slice: &'static str,
        /// The weight.
        weight: u32,
        /// The highest.
        most: u32,
    },
    /// A group of version 2 that has processes cannot divide CPUs among groups in it.
    #[error(
        "the control group {} has processes of its own, so that none below it can have a weight: \
         move them into a group below it, then start again", group.display()
    )]
    Occupied {
        /// The group.
        group: PathBuf,
    },
    /// A group cannot go while somebody is in it.
    #[error("the control group {} is in use {}: end what runs there", group.display(), by(pids))]
    Busy {
        /// The group.
        group: PathBuf,
        /// Who is in it. None: groups are, or a process that is just ending.
        pids: Vec<u32>,
    },
    /// No such process.
    #[error("process {pid} ended before it joined its control group")]
    Gone {
        /// It.
        pid: u32,
    },
    /// The system refuses something.
    #[error(
        "cannot {doing} {}: see that control groups are writable, as they are to root outside of \
         containers", path.display()
    )]
    Os {
        /// What was tried.
        doing: &'static str,
        /// The group, or a file of it.
        path: PathBuf,
        /// What the system said.
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
