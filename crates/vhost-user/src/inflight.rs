//! The in-flight region of a session: its owner and its lifetime.
//!
//! The front-end owns the region. `GET_INFLIGHT_FD` asks the backend to create one and has no other
//! effect. The front-end sends the region with `SET_INFLIGHT_FD` at each start of the device, also
//! to the successor of a backend that died. Rings are recorded only from then on.
//!
//! A device reset (`RESET_DEVICE`) keeps the region but clears its records, because all requests in
//! flight become void. These include the requests of a process that died and requests that wait for
//! space on the storage. So the region fits any ring that follows. A front-end that gives the
//! device to a new driver may send a new region, as QEMU does.
//!
//! If the region cannot be used, the session has none, and no ring starts. The front-end would
//! continue with requests that only the region records. Serving without it would lose some of them
//! and run others twice. A usable region ends this state. So does a device reset, which makes these
//! requests void.
//!
//! A region may cover fewer queues than the device has, if no other queue starts. A queue that runs
//! without records would lose its requests in a crash, and the front-end would not notice.

use std::os::fd::{AsFd, OwnedFd};

use virtq::{Inflight, InflightRegion};

use crate::error::Refusal;
use crate::message::InflightDesc;
use crate::state::MAX_RING_ENTRIES;

/// The in-flight region of a session, if there is one.
#[derive(Debug, Default)]
pub(crate) enum InflightState {
    /// No region: the front-end did not send one.
    #[default]
    Absent,
    /// A usable region, which records requests.
    Kept(InflightRegion),
    /// A region that cannot be used.
    Lost,
}

impl InflightState {
    /// Creates an empty region, and its description for the front-end.
    pub(crate) fn make(
        queues: u16,
        size: u16,
        count: usize,
    ) -> Result<(InflightDesc, InflightRegion), Refusal> {
        check(queues, size, count)?;
        let region = InflightRegion::create(queues, size)?;
        Ok((describe(&region), region))
    }

    /// Maps the region that the front-end sent, for a device of `count` queues.
    pub(crate) fn take(desc: InflightDesc, fd: &OwnedFd, count: usize) -> Result<Self, Refusal> {
        let InflightDesc { mmap_size, mmap_offset, queues, size } = desc;
        check(queues, size, count)?;
        let region = InflightRegion::adopt(fd.as_fd(), mmap_size, mmap_offset, queues, size)?;
        Ok(Self::Kept(region))
    }

    /// Clears the region after a device reset: all requests in flight are void.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Kept(region) => region.forget(),
            Self::Lost => *self = Self::Absent,
            Self::Absent => {}
        }
    }

    /// Returns the part of queue `index`, or `None` without a region.
    pub(crate) fn queue(&self, index: u16) -> Result<Option<Inflight>, Refusal> {
        match self {
            Self::Absent => Ok(None),
            Self::Kept(region) => {
                let part = region.queue(index);
                let queues = region.queues();
                part.map(Some).ok_or(Refusal::Unrecorded { index, queues })
            }
            Self::Lost => Err(Refusal::RecordLost { index: index.into() }),
        }
    }
}

/// Returns the description of the region for messages.
pub(crate) fn describe(region: &InflightRegion) -> InflightDesc {
    InflightDesc {
        mmap_size: region.mmap_size(),
        mmap_offset: region.mmap_offset(),
        queues: region.queues(),
        size: region.size(),
    }
}

fn check(queues: u16, size: u16, count: usize) -> Result<(), Refusal> {
    let refuse =
        |field, value: u16, accepted| Err(Refusal::Field { field, value: value.into(), accepted });
    if queues == 0 || usize::from(queues) > count {
        let accepted = "1 to the device's number of queues are supported";
        return refuse("number of queues of the in-flight region", queues, accepted);
    }
    if size == 0 || size > MAX_RING_ENTRIES {
        let accepted = "a ring has from 1 to 1024 entries";
        return refuse("queue size of the in-flight region", size, accepted);
    }
    Ok(())
}
