//! Limits of open files: how many this process may have, and how many each device needs.

use model::spec::Backend;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of one queue: kick, call and error. The session and the reactor that serves the
/// queue share them.
const PER_QUEUE: u64 = 3;
/// Descriptors of one disk without its queues: socket, lock file, connection, back-end channel,
/// stop signals, image, the image's lock and duplicates. It includes guest memory files (rarely
/// more than eight), the in-flight region, and descriptors of a message being received.
const PER_DISK: u64 = 60;
/// Descriptors of guest memory that the numbers of a disk and of a NIC include.
pub const MEMORY_FILES: u64 = 8;
/// Descriptors of the process itself: standard streams, reactors, control connections.
const PER_PROCESS: u64 = 256;

/// Descriptors of one file of a tree beyond the first: the file, the descriptor that was handed in,
/// and its duplicate.
const PER_TREE_FILE: u64 = 3;

/// Descriptors of one NIC without its queues: like a disk, but without an image.
const PER_NIC: u64 = 40;

/// Descriptors of one export without its connections: socket, lock file, their duplicates, stop
/// signal.
const PER_EXPORT: u64 = 8;

/// Error: the limit of open files is too low for one more disk.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a disk of {queues} queues needs {need} open files, {left} of {limit} are left; \
     raise the hard limit (`ulimit -Hn`, LimitNOFILE=) or use fewer queues"
)]
pub struct TooFewFiles {
    /// Number of queues of the disk.
    pub queues: u16,
    /// Number of open files that the disk needs.
    pub need: u64,
    /// Number of open files that are still free.
    pub left: u64,
    /// Limit of the process.
    pub limit: u64,
}

/// Raises the soft limit of open files to the hard limit, and returns it.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    // The kernel reports `None` if there is no limit.
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of open files of an export with this many connections.
pub fn of_export(connections: u16) -> u64 {
    PER_EXPORT + u64::from(connections)
}

/// Returns the number of open files of a NIC with this many queue pairs.
pub fn of_nic(pairs: u16) -> u64 {
    PER_NIC + u64::from(pairs) * 2 * PER_QUEUE
}

/// Returns the number of open files that a tree needs beyond those of a disk with one file.
pub fn of_tree(backend: &Backend) -> u64 {
    (backend.files().count() as u64).saturating_sub(1) * PER_TREE_FILE
}

/// Returns the number of open files of an uplink with this many queues.
pub fn of_uplink(queues: usize) -> u64 {
    // Each queue has a duplicate that is polled.
    queues as u64 * 2
}

/// Returns the number of open files of the process and its disks. `queues` has the queue count of
/// each disk, and `others` the files of all else.
pub fn of_disks(queues: impl IntoIterator<Item = u16>, others: u64) -> u64 {
    let disks = queues.into_iter().map(need).fold(PER_PROCESS, u64::saturating_add);
    disks.saturating_add(others)
}

/// Error: the limit of open files is too low for one more NIC.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a NIC of {pairs} pairs of queues needs {need} open files, {left} of {limit} are left; raise \
     the hard limit (`ulimit -Hn`, LimitNOFILE=) or use fewer queues"
)]
pub struct TooFewForNic {
    pairs: u16,
    need: u64,
    left: u64,
    limit: u64,
}

/// Checks that `limit` allows one more NIC while other devices use `taken` files.
///
/// # Errors
/// [`TooFewForNic`].
pub fn check_nic(limit: u64, taken: u64, pairs: u16) -> Result<(), TooFewForNic> {
    let (need, left) = (of_nic(pairs), limit.saturating_sub(taken));
    if need <= left { Ok(()) } else { Err(TooFewForNic { pairs, need, left, limit }) }
}

fn need(queues: u16) -> u64 {
    PER_DISK + u64::from(queues) * PER_QUEUE
}

/// Checks that `limit` allows one more disk with `queues` queues while the process and its other
/// devices use `taken` files.
///
/// # Errors
/// [`TooFewFiles`].
pub fn check_open_files(limit: u64, taken: u64, queues: u16) -> Result<(), TooFewFiles> {
    let (need, left) = (need(queues), limit.saturating_sub(taken));
    if need <= left { Ok(()) } else { Err(TooFewFiles { queues, need, left, limit }) }
}

/// Error: the limit of open files is too low for the connections of one more export.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an export with {connections} connections needs {need} open files, {left} of {limit} are \
     left; raise the hard limit (`ulimit -Hn`, LimitNOFILE=) or give it fewer \"connections\""
)]
pub struct TooFewForExport {
    connections: u16,
    need: u64,
    left: u64,
    limit: u64,
}

/// Checks that `limit` allows one more export while the process and its devices use `taken` files.
///
/// # Errors
/// [`TooFewForExport`].
pub fn check_connections(limit: u64, taken: u64, connections: u16) -> Result<(), TooFewForExport> {
    let (need, left) = (of_export(connections), limit.saturating_sub(taken));
    if need <= left { Ok(()) } else { Err(TooFewForExport { connections, need, left, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_fit_until_they_do_not() {
        assert_eq!(check_open_files(1024, of_disks([], 0), 4), Ok(()));
        assert_eq!(check_open_files(1024, of_disks([4, 4, 4, 4, 4], 0), 4), Ok(()));
        let refused = check_open_files(1024, of_disks([4; 10], 0), 4).unwrap_err();
        let expected = TooFewFiles { queues: 4, need: 72, left: 48, limit: 1024 };
        assert_eq!(refused, expected);
        assert!(check_open_files(1024, of_disks([], 0), 256).is_err());
        assert!(check_open_files(0, of_disks([], 0), 1).is_err());
        assert_eq!(check_open_files(u64::MAX, of_disks([256; 1000], 0), 256), Ok(()));
        // Exports reduce the number of files that are free for disks.
        assert_eq!(check_open_files(1024, of_disks([4], of_export(500)), 4), Ok(()));
        assert!(check_open_files(1024, of_disks([4], of_export(650)), 4).is_err());
        assert!(check_open_files(1024, of_disks([], u64::MAX), 1).is_err());
        assert_eq!(check_connections(1024, of_disks([4, 4], 16), 256), Ok(()));
        assert!(check_connections(1024, of_disks([4; 11], 0), 16).is_err());
        assert!(check_connections(1024, of_disks([], u64::MAX), 1).is_err());
        // Disks reduce the number of files that are free for NICs.
        assert_eq!(check_nic(1024, of_disks([4; 9], 0), 4), Ok(()));
        assert!(check_nic(1024, of_disks([4; 10], 0), 4).is_err());
        assert!(check_nic(1024, u64::MAX, 1).is_err());
        assert!(check_open_files(1024, of_disks([], of_nic(128)), 4).is_err());
    }

    #[test]
    fn the_limit_is_raised_to_the_hard_one() {
        let limit = raise_open_files();
        assert_eq!(Some(limit), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }
}
