//! The way of clients into the control slice: a link beside the socket at which they call.
//!
//! A client knows its daemon's socket and nothing else. `SOCKET.control` leads to the file of the
//! control slice by which a process joins; where there is no such link, or it may not be used,
//! there is nothing to join.
//!
//! In version 1 whoever joins waits for nobody. In version 2 it waits, also on an idle host
//! ([`SliceTree::join_file`]), so there it is done only while more threads want to run than there are
//! CPUs.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use super::op::os;
use super::{CgroupError, Leaf, PROCESSES, SliceTree};

/// What the link's name has more than the socket's.
const SUFFIX: &str = ".control";
/// Where such a link may lead. Whoever chose the socket did not choose what root writes to.
const HIERARCHY: &str = "/sys/fs/cgroup";
/// What a process that joins by itself writes.
const MYSELF: &[u8] = b"0";

/// Lets clients of this socket in.
///
/// # Errors
/// The link cannot be made.
pub fn publish_join_link(tree: &SliceTree, socket: &Path) -> Result<(), CgroupError> {
    let (link, entrance) = (link(socket), tree.join_file(Leaf::Clients));
    // Whole or not at all: clients come at any time.
    let mut new = link.clone().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    let made = absent(fs::remove_file(&new)).and_then(|()| symlink(entrance, &new));
    made.and_then(|()| fs::rename(&new, &link)).map_err(|source| os("make", &link, source))
}

/// Lets nobody in any more.
///
/// # Errors
/// The link cannot be removed.
pub fn remove_join_link(socket: &Path) -> Result<(), CgroupError> {
    let link = link(socket);
    absent(fs::remove_file(&link)).map_err(|source| os("remove", &link, source))
}

/// This process, which has one thread, joins the control slice of the daemon at this socket, if
/// there is one and we may. Otherwise nothing happens.
pub fn join(socket: &Path) {
    let link = link(socket);
    let of_root = fs::symlink_metadata(&link).is_ok_and(|link| link.uid() == 0);
    let Some(entrance) = of_root.then(|| fs::read_link(link).ok()).flatten() else { return };
    let plain = !entrance.components().any(|part| part == std::path::Component::ParentDir);
    let costs = entrance.ends_with(PROCESSES);
    if plain && entrance.starts_with(HIERARCHY) && (!costs || crowded()) {
        // Only root may, and the group may be gone.
        if enter(&entrance).is_ok() {
            let _usual = sched::set_turn(None, sched::SHORTEST);
        }
    }
}

/// This process, which has one thread, joins the group of this file.
///
/// # Errors
/// The system's.
pub fn enter(entrance: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(entrance)?.write_all(MYSELF)
}

/// More threads want to run than there are CPUs.
fn crowded() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    running(&load).is_none_or(|running| running > cpus)
}

/// How many threads run or want to (`proc_loadavg(5)`).
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
