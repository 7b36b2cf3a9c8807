//! From what somebody typed to the disks of a recipe: where each one's socket is, how many queues
//! it has, and whether a machine could connect.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use model::recipe::{DiskSelector, RecipeDiskArg, RecipeDiskRequest, RecipeDisks};
use model::report::{DiskStats, Stats};
use model::spec::SpecError;

use crate::ringway_io::{DatapathError, RpcConnection};

/// Why a disk cannot be put into a machine.
#[derive(Debug, thiserror::Error)]
pub enum RecipeDiskError {
    /// Nothing is at the path.
    #[error(
        "cannot find the socket {}: start its backend first (`ringway-blk --socket-path {} --blk-file \
         IMAGE`), or skip this look with --no-check",
        path.display(), path.display()
    )]
    Missing {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else is there.
    #[error("{} is no socket; give the --socket-path of a ringway-blk, or a disk's id", path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// A disk of that name is not attached.
    #[error("ringway-io serves no disk {id:?}; it has {known}")]
    Unknown {
        /// The id.
        id: String,
        /// Those that it has.
        known: String,
    },
    /// The disk has fewer queues.
    #[error("disk {id:?} offers {offered} queues, {asked} were asked for; QEMU would not start")]
    Queues {
        /// The id.
        id: String,
        /// What it offers.
        offered: u16,
        /// What was asked.
        asked: u16,
    },
    /// The process that serves it cannot be asked.
    #[error(transparent)]
    Io(#[from] DatapathError),
    /// No machine could have these disks.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Finds the disks. The `ringway-io` at `control` is asked only if one is named by its id; with
/// `check` every socket is looked at.
///
/// # Errors
/// The first disk that cannot be had.
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
            .try_for_each(|recipe_disk| look(Path::new(&recipe_disk.socket)))?;
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
            (disk.socket.clone().into(), queues(arg, disk)?)
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

fn look(path: &Path) -> Result<(), RecipeDiskError> {
    let found = path.metadata();
    let found = found.map_err(|source| RecipeDiskError::Missing { path: path.into(), source })?;
    match found.file_type().is_socket() {
        true => Ok(()),
        false => Err(RecipeDiskError::NoSocket { path: path.into() }),
    }
}

/// What to know before a QEMU that runs as a user of its own is started, as libvirt's does: the
/// sockets that nobody but root may connect to.
pub fn only_for_root(recipe_disks: &RecipeDisks) -> Vec<String> {
    let closed = |path: &&str| {
        // One that cannot be looked at is somebody else's report.
        Path::new(path).metadata().is_ok_and(|socket| {
            let group = socket.mode() & 0o020 != 0 && socket.gid() != 0;
            let all = socket.mode() & 0o002 != 0;
            socket.uid() == 0 && !group && !all
        })
    };
    let sockets = recipe_disks.all().iter().map(|recipe_disk| recipe_disk.socket.as_str());
    sockets.filter(closed).map(str::to_owned).collect()
}
