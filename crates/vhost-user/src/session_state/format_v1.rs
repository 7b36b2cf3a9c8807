//! Format 1 of a session's state, and the list of descriptors beside it.

use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::StateError;

/// A session as data. Descriptors are positions in a list.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionStateV1 {
    pub(super) version: u32,
    pub(super) socket: u16,
    pub(super) features: Option<u64>,
    pub(super) protocol: u64,
    pub(super) regions: Vec<WrittenRegion>,
    pub(super) record: WrittenRecord,
    pub(super) rings: Vec<WrittenRing>,
    pub(super) channel: Option<u16>,
    /// Written as false, and not used: older versions require it.
    pub(super) hushed: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenRegion {
    pub(super) guest_addr: u64,
    pub(super) user_addr: u64,
    pub(super) len: u64,
    pub(super) file_offset: u64,
    pub(super) fd: u16,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum WrittenRecord {
    Absent,
    Lost,
    Kept { mmap_size: u64, mmap_offset: u64, queues: u16, size: u16, fd: u16 },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenRing {
    pub(super) size: Option<u16>,
    pub(super) addr: Option<WrittenAddr>,
    pub(super) next_avail: Option<u16>,
    pub(super) kick: WrittenKick,
    pub(super) call: Option<u16>,
    pub(super) err: Option<u16>,
    pub(super) enabled: Option<bool>,
    pub(super) running: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenAddr {
    pub(super) desc: u64,
    pub(super) used: u64,
    pub(super) avail: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum WrittenKick {
    Unset,
    Polled,
    Event(u16),
}

/// Appends a descriptor to the list and returns its position.
pub(super) fn index<'a>(
    fds: &mut Vec<BorrowedFd<'a>>,
    fd: BorrowedFd<'a>,
) -> Result<u16, StateError> {
    let place = u16::try_from(fds.len()).map_err(|_| StateError::TooMany)?;
    fds.push(fd);
    Ok(place)
}

/// Descriptors received with a state and not used yet.
pub(super) struct Descriptors {
    fds: Vec<Option<OwnedFd>>,
}

impl Descriptors {
    pub(super) fn new(fds: Vec<OwnedFd>) -> Self {
        Self { fds: fds.into_iter().map(Some).collect() }
    }

    /// Takes the descriptor at this position, which works once.
    pub(super) fn take(&mut self, index: u16) -> Result<OwnedFd, StateError> {
        let place = self.fds.get_mut(usize::from(index));
        place.and_then(Option::take).ok_or(StateError::Descriptor { index })
    }

    /// Checks that all descriptors were used.
    pub(super) fn end(self) -> Result<(), StateError> {
        match self.fds.iter().flatten().count() {
            0 => Ok(()),
            count => Err(StateError::Unnamed { count }),
        }
    }
}
