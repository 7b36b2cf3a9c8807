//! The in-flight region of a session: who has it, and for how long.
//!
//! The front-end owns the region. It asks us to make one (`GET_INFLIGHT_FD`), which is all that
//! this request does, and brings it at each start of the device (`SET_INFLIGHT_FD`), also to a
//! successor of ours: only from then on rings are recorded in it.
//!
//! It stays when the device is reset (`RESET_DEVICE`), and records nothing then: what was in flight
//! is void, also what a process that died left there, or what waits for room on the storage. So it
//! fits whatever ring comes next. A front-end that gives the device to a new driver may bring a new
//! one, as QEMU does.
//!
//! A region that cannot be used leaves the session without one, and then no ring is started: the
//! front-end is about to continue with requests that only the record knows, and to begin anyhow
//! would lose some of them and carry out others twice. A region that can be used, or a reset of
//! the device, which voids these requests, ends that.
//!
//! A region may be for fewer queues than the device has, as long as no other is started: one that
//! was served beside it unrecorded would lose its requests in a crash, and nobody would know.

use std::os::fd::{AsFd, OwnedFd};

use virtq::{Inflight, InflightRegion};

use crate::error::Refusal;
use crate::message::InflightDesc;
use crate::state::MAX_RING_ENTRIES;

/// Where requests in flight are recorded.
#[derive(Debug, Default)]
pub(crate) enum InflightState {
    /// Nowhere: the front-end does not ask for it.
    #[default]
    Absent,
    /// In this region.
    Kept(InflightRegion),
    /// In a region that cannot be used.
    Lost,
}

impl InflightState {
    /// A fresh region, as the front-end is told of it.
    pub(crate) fn make(
        queues: u16,
        size: u16,
        count: usize,
    ) -> Result<(InflightDesc, InflightRegion), Refusal> {
        check(queues, size, count)?;
        let region = InflightRegion::create(queues, size)?;
        Ok((describe(&region), region))
    }

    /// The region that the front-end brings, for a device of `count` queues.
    pub(crate) fn take(desc: InflightDesc, fd: &OwnedFd, count: usize) -> Result<Self, Refusal> {
        let InflightDesc { mmap_size, mmap_offset, queues, size } = desc;
        check(queues, size, count)?;
        let region = InflightRegion::adopt(fd.as_fd(), mmap_size, mmap_offset, queues, size)?;
        Ok(Self::Kept(region))
    }

    /// The device was reset: what was in flight is void.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Kept(region) => region.forget(),
            Self::Lost => *self = Self::Absent,
            Self::Absent => {}
        }
    }

    /// The part of queue `index`, if there is a region.
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

/// The region as messages describe it.
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
        let accepted = "from one to as many as the device has are recorded";
        return refuse("number of queues of the in-flight region", queues, accepted);
    }
    if size == 0 || size > MAX_RING_ENTRIES {
        let accepted = "a ring has from 1 to 1024 entries";
        return refuse("queue size of the in-flight region", size, accepted);
    }
    Ok(())
}
