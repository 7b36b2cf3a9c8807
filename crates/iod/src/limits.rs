//! Open files: how many this process may have, and how many a disk takes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of one queue: kick, call and error, shared by the session and the reactor that serves
/// it.
const PER_QUEUE: u64 = 3;
/// Descriptors of one disk beside its queues: socket, lock file, connection, way back, stop
/// signals, image, the image's lock and its twins, the files of guest memory (rarely more than
/// eight) and of the in-flight region, and those of a message being received.
const PER_DISK: u64 = 60;
/// Descriptors of the process itself: standard streams, reactors, control connections.
const PER_PROCESS: u64 = 256;

/// Descriptors of one NIC beside its queues: as those of a disk, without an image.
const PER_NIC: u64 = 40;

/// Descriptors of one export beside its connections: socket, lock file, their twins, stop signal.
const PER_EXPORT: u64 = 8;

/// Too few open files are allowed for one more disk.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a disk of {queues} queues needs {need} open files, {left} of {limit} are left; \
     raise the hard limit (`ulimit -Hn`, LimitNOFILE=) or use fewer queues"
)]
pub struct TooFewFiles {
    /// Queues of the disk.
    pub queues: u16,
    /// What it needs.
    pub need: u64,
    /// What others leave.
    pub left: u64,
    /// The limit of the process.
    pub limit: u64,
}

/// Raises the limit of open files to what the hard limit allows; returns it.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    // No limit at all is written as none.
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Open files of an export with so many connections.
pub fn of_export(connections: u16) -> u64 {
    PER_EXPORT + u64::from(connections)
}

/// Open files of a NIC with so many pairs of queues.
pub fn of_nic(pairs: u16) -> u64 {
    PER_NIC + u64::from(pairs) * 2 * PER_QUEUE
}

/// Open files of an uplink with so many queues.
pub fn of_uplink(queues: usize) -> u64 {
    // Each is watched by a twin.
    queues as u64 * 2
}

/// Open files of the process, of disks of so many `queues`, and of their exports.
pub fn of_disks(queues: impl IntoIterator<Item = u16>, exported: u64) -> u64 {
    let disks = queues.into_iter().map(need).fold(PER_PROCESS, u64::saturating_add);
    disks.saturating_add(exported)
}

/// Too few open files are allowed for one more NIC.
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

/// Checks that a NIC fits beside others that take so many of the files.
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

/// Checks that a disk of `queues` queues fits beside disks of the `others`, whose exports take
/// `exported` files.
///
/// # Errors
/// [`TooFewFiles`].
pub fn check_open_files(
    limit: u64,
    others: impl IntoIterator<Item = u16>,
    exported: u64,
    queues: u16,
) -> Result<(), TooFewFiles> {
    let taken = of_disks(others, exported);
    let (need, left) = (need(queues), limit.saturating_sub(taken));
    if need <= left { Ok(()) } else { Err(TooFewFiles { queues, need, left, limit }) }
}

/// Too few open files are allowed for the connections of one more export.
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

/// Checks that an export fits beside disks of so many `queues`, whose exports take `exported`
/// files.
///
/// # Errors
/// [`TooFewForExport`].
pub fn check_connections(
    limit: u64,
    queues: impl IntoIterator<Item = u16>,
    exported: u64,
    connections: u16,
) -> Result<(), TooFewForExport> {
    let need = of_export(connections);
    let left = limit.saturating_sub(of_disks(queues, exported));
    if need <= left { Ok(()) } else { Err(TooFewForExport { connections, need, left, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_fit_until_they_do_not() {
        assert_eq!(check_open_files(1024, [], 0, 4), Ok(()));
        assert_eq!(check_open_files(1024, [4, 4, 4, 4, 4], 0, 4), Ok(()));
        let refused = check_open_files(1024, [4; 10], 0, 4).unwrap_err();
        let expected = TooFewFiles { queues: 4, need: 72, left: 48, limit: 1024 };
        assert_eq!(refused, expected);
        assert!(check_open_files(1024, [], 0, 256).is_err());
        assert!(check_open_files(0, [], 0, 1).is_err());
        assert_eq!(check_open_files(u64::MAX, [256; 1000], 0, 256), Ok(()));
        // Exports leave less for disks too.
        assert_eq!(check_open_files(1024, [4], of_export(500), 4), Ok(()));
        assert!(check_open_files(1024, [4], of_export(650), 4).is_err());
        assert!(check_open_files(1024, [], u64::MAX, 1).is_err());
        assert_eq!(check_connections(1024, [4, 4], 16, 256), Ok(()));
        assert!(check_connections(1024, [4; 11], 0, 16).is_err());
        assert!(check_connections(1024, [], u64::MAX, 1).is_err());
        // And so do NICs, which disks leave less for.
        assert_eq!(check_nic(1024, of_disks([4; 9], 0), 4), Ok(()));
        assert!(check_nic(1024, of_disks([4; 10], 0), 4).is_err());
        assert!(check_nic(1024, u64::MAX, 1).is_err());
        assert!(check_open_files(1024, [], of_nic(128), 4).is_err());
    }

    #[test]
    fn the_limit_is_raised_to_the_hard_one() {
        let limit = raise_open_files();
        assert_eq!(Some(limit), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }
}
