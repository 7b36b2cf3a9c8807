//! Access of clients to the control slice, through a link beside the daemon's socket.
//!
//! A client knows only the daemon's socket. `SOCKET.control` is a symbolic link to the file through
//! which a process joins the control slice. Without a usable link the client joins nothing.
//!
//! In version 1 a joining process never waits. In version 2 it waits even on an idle host
//! ([`SliceTree::join_file`]). So a client joins there only while more threads are runnable than
//! the host has CPUs.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use super::op::os;
use super::{CgroupError, Leaf, PROCESSES, SliceTree};

/// Suffix that turns the socket's name into the link's name.
const SUFFIX: &str = ".control";
/// Directory that the link's target must be in. The user who chose the socket must not choose a
/// file that root writes to.
const HIERARCHY: &str = "/sys/fs/cgroup";
/// Text that a process writes to join a group itself.
const MYSELF: &[u8] = b"0";

/// Creates the link, so that clients of this socket can join.
///
/// # Errors
/// The link cannot be created.
pub fn publish_join_link(tree: &SliceTree, socket: &Path) -> Result<(), CgroupError> {
    let (link, entrance) = (link(socket), tree.join_file(Leaf::Clients));
    // Replace the link atomically: clients connect at any time.
    let mut new = link.clone().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    let made = absent(fs::remove_file(&new)).and_then(|()| symlink(entrance, &new));
    made.and_then(|()| fs::rename(&new, &link)).map_err(|source| os("make", &link, source))
}

/// Removes the link, so that no more clients can join.
///
/// # Errors
/// The link cannot be removed.
pub fn remove_join_link(socket: &Path) -> Result<(), CgroupError> {
    let link = link(socket);
    absent(fs::remove_file(&link)).map_err(|source| os("remove", &link, source))
}

/// Joins this single-threaded process to the control slice of the daemon at this socket.
///
/// Does nothing without a link, or without the permission.
pub fn join(socket: &Path) {
    let link = link(socket);
    let of_root = fs::symlink_metadata(&link).is_ok_and(|link| link.uid() == 0);
    let Some(entrance) = of_root.then(|| fs::read_link(link).ok()).flatten() else { return };
    let plain = !entrance.components().any(|part| part == std::path::Component::ParentDir);
    let costs = entrance.ends_with(PROCESSES);
    if plain && entrance.starts_with(HIERARCHY) && (!costs || crowded()) {
        // Only root may join, and the group may not exist any more.
        if enter(&entrance).is_ok() {
            let _usual = sched::set_slice(None, sched::MIN_SLICE);
        }
    }
}

/// Joins this single-threaded process to the group with this join file.
///
/// # Errors
/// The error of the system call.
pub fn enter(entrance: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(entrance)?.write_all(MYSELF)
}

/// Returns whether more threads are runnable than the host has CPUs.
fn crowded() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    running(&load).is_none_or(|running| running > cpus)
}

/// Parses the number of runnable threads (`proc_loadavg(5)`).
fn running(load: &str) -> Option<usize> {
    load.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

fn link(socket: &Path) -> PathBuf {
    let mut name = OsString::from(socket);
    name.push(SUFFIX);
    name.into()
}

fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_want_to_run_are_counted() {
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running(""), None);
    }

    #[test]
    fn nothing_but_a_group_is_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, victim) = (dir.path().join("s"), dir.path().join("victim"));
        fs::write(&victim, "whole").unwrap();
        join(&socket);
        let far = format!("{HIERARCHY}/../../../{}", victim.display());
        for target in [victim.clone(), far.into()] {
            symlink(&target, link(&socket)).unwrap();
            join(&socket);
            assert_eq!(fs::read_to_string(&victim).unwrap(), "whole", "{}", target.display());
            remove_join_link(&socket).unwrap();
        }
        remove_join_link(&socket).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
