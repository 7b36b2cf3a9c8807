//! Resolution of a recipe's disk arguments: socket, number of queues, and whether a machine can
//! connect.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use model::recipe::{DiskSelector, RecipeDiskArg, RecipeDiskRequest, RecipeDisks};
use model::report::{DiskStats, Stats};
use model::spec::SpecError;

use crate::ringway_io::{DatapathError, RpcConnection};

/// Disk that a recipe cannot use.
#[derive(Debug, thiserror::Error)]
pub enum RecipeDiskError {
    /// The path does not exist.
    #[error(
        "cannot find the socket {}: start its backend first (`ringway-blk --socket-path {} --blk-file \
         IMAGE`), or skip this check with --no-check",
        path.display(), path.display()
    )]
    Missing {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The path is not a socket.
    #[error("{} is no socket; give the --socket-path of a ringway-blk, or a disk's id", path.display())]
    NoSocket {
        /// Path that is not a socket.
        path: PathBuf,
    },
    /// No disk with this id is attached.
    #[error("ringway-io serves no disk {id:?}; it has {known}")]
    Unknown {
        /// Requested id.
        id: String,
        /// Ids of the attached disks.
        known: String,
    },
    /// The disk serves no guest.
    #[error(
        "disk {id:?} has no socket, so no machine can use it; detach it, and attach it with a socket"
    )]
    WithoutSocket {
        /// Id of the disk.
        id: String,
    },
    /// The disk has fewer queues than requested.
    #[error("disk {id:?} offers {offered} queues, {asked} were asked for; QEMU would not start")]
    Queues {
        /// Id of the disk.
        id: String,
        /// Number of queues that the disk offers.
        offered: u16,
        /// Number of queues requested.
        asked: u16,
    },
    /// The call to the `ringway-io` that serves the disk failed.
    #[error(transparent)]
    Io(#[from] DatapathError),
    /// The disks do not fit into one machine.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Resolves the disks of a recipe.
///
/// Calls the `ringway-io` at `control` only if an argument names a disk by its id. With `check`,
/// verifies that every socket exists.
///
/// # Errors
/// Describes the first disk that cannot be used.
pub async fn resolve(
    args: &[RecipeDiskArg],
    control: &Path,
    check: bool,
) -> Result<RecipeDisks, RecipeDiskError> {
    let by_id = args.iter().any(|arg| matches!(arg.disk_selector, DiskSelector::Id(_)));
    let stats = match by_id {
        true => Some(RpcConnection::connect(control).await?.stats().await?),
        false => None,
    };
    let recipe_disk_request: Result<Vec<_>, _> =
        args.iter().map(|arg| wanted(arg, stats.as_ref())).collect();
    let recipe_disks = RecipeDisks::new(&recipe_disk_request?)?;
    if check {
        recipe_disks
            .all()
            .iter()
            .try_for_each(|recipe_disk| check_socket(Path::new(&recipe_disk.socket)))?;
    }
    Ok(recipe_disks)
}

fn wanted(
    arg: &RecipeDiskArg,
    stats: Option<&Stats>,
) -> Result<RecipeDiskRequest, RecipeDiskError> {
    let (socket, queues) = match &arg.disk_selector {
        DiskSelector::Socket(path) => {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            (absolute, arg.queues.unwrap_or(1))
        }
        DiskSelector::Id(id) => {
            let disks = stats.map(|stats| stats.disks.as_slice()).unwrap_or_default();
            let disk =
                disks.iter().find(|disk| disk.id == *id).ok_or_else(|| unknown(id, disks))?;
            let without = || RecipeDiskError::WithoutSocket { id: id.clone() };
            (disk.socket.clone().ok_or_else(without)?.into(), queues(arg, disk)?)
        }
    };
    Ok(RecipeDiskRequest { socket, queues, target: arg.target.clone(), boot: arg.boot })
}

fn queues(arg: &RecipeDiskArg, disk: &DiskStats) -> Result<u16, RecipeDiskError> {
    let (offered, asked) = (disk.queues, arg.queues.unwrap_or(disk.queues));
    if asked > offered {
        return Err(RecipeDiskError::Queues { id: disk.id.clone(), offered, asked });
    }
    Ok(asked)
}

fn unknown(id: &str, disks: &[DiskStats]) -> RecipeDiskError {
    let ids: Vec<_> = disks.iter().map(|disk| disk.id.as_str()).collect();
    let known = if ids.is_empty() { "none".into() } else { ids.join(", ") };
    RecipeDiskError::Unknown { id: id.into(), known }
}

fn check_socket(path: &Path) -> Result<(), RecipeDiskError> {
    let found = path.metadata();
    let found = found.map_err(|source| RecipeDiskError::Missing { path: path.into(), source })?;
    match found.file_type().is_socket() {
        true => Ok(()),
        false => Err(RecipeDiskError::NoSocket { path: path.into() }),
    }
}

/// Returns the sockets that only root can connect to.
///
/// A QEMU that runs as its own user, as under libvirt, cannot use these.
pub fn only_for_root(recipe_disks: &RecipeDisks) -> Vec<String> {
    let closed = |path: &&str| {
        // An inaccessible socket is reported elsewhere.
        Path::new(path).metadata().is_ok_and(|socket| {
            let group = socket.mode() & 0o020 != 0 && socket.gid() != 0;
            let all = socket.mode() & 0o002 != 0;
            socket.uid() == 0 && !group && !all
        })
    };
    let sockets = recipe_disks.all().iter().map(|recipe_disk| recipe_disk.socket.as_str());
    sockets.filter(closed).map(str::to_owned).collect()
}
