//! The state of a session that is frozen between two messages, as a value.
//!
//! [`SessionState`] continues in this process. Or one process encodes it ([`SessionState::encode`])
//! and another one, perhaps of another version, decodes it ([`SessionState::decode`]). The encoded
//! form is plain data with a format version, and a list of descriptors. Each descriptor has exactly
//! one index in the data, and each index is used once. A reader refuses everything that it does not
//! know, because a session with half its state would lose requests.

mod error;
mod format_v1;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use memory::{RegionSpec, Table};
use serde_json::Value;
use virtq::InflightRegion;

use crate::backend::Backend;
use crate::channel::BackendChannel;
use crate::error::Refusal;
use crate::fds;
use crate::features::{OFFERED, PROTOCOL_FEATURES};
use crate::inflight::{InflightState, describe};
use crate::memory_table;
use crate::message::{InflightDesc, RingAddr};
use crate::ring::{Kick, Ring};
use crate::state::ring_size;

pub use error::StateError;
use format_v1::{
    Descriptors, SessionStateV1, WrittenAddr, WrittenKick, WrittenRecord, WrittenRegion,
};
use format_v1::{WrittenRing, index};

/// Oldest format that is read and written.
pub const OLDEST_FORMAT: u32 = 1;
/// Newest format that is read and written.
pub const NEWEST_FORMAT: u32 = 1;

/// State of a frozen session.
#[derive(Debug)]
pub struct SessionState {
    pub(crate) socket: Arc<UnixStream>,
    pub(crate) acked: Option<u64>,
    pub(crate) protocol: u64,
    pub(crate) table: Arc<Table>,
    pub(crate) record: InflightState,
    pub(crate) rings: Vec<FrozenRing>,
    pub(crate) channel: Option<BackendChannel>,
}

/// A ring of a frozen session.
#[derive(Debug)]
pub(crate) struct FrozenRing {
    pub(crate) ring: Ring,
    /// True if the ring ran. It starts again when the session continues.
    pub(crate) running: bool,
}

impl SessionState {
    /// Records that the device has stopped queue `index`, and the entry that it serves next. Call
    /// this for every queue that ran, before the session continues in any process.
    pub fn stopped_at(&mut self, index: u16, next_avail: u16) {
        if let Some(frozen) = self.rings.get_mut(usize::from(index)) {
            frozen.ring.next_avail = Some(next_avail);
        }
    }

    /// Records that the driver of queue `index` has broken its ring. The continued session starts
    /// the ring only after the front-end has sent its kick descriptor again, as after a stop.
    pub fn mark_broken(&mut self, index: u16) {
        if let Some(frozen) = self.rings.get_mut(usize::from(index)) {
            frozen.running = false;
            frozen.ring.kick = Kick::Unset;
        }
    }

    /// Records requests of a front-end without an in-flight region in this one, which continues with
    /// the session. Does nothing if the front-end has a region.
    pub fn record_in(&mut self, region: InflightRegion) {
        if let InflightState::Absent = self.record {
            self.record = InflightState::Kept(region);
        }
    }

    /// Checks that another process could map the memory of this session now, as this one did. The
    /// front-end may change it again at any time, so [`Self::decode`] checks it too.
    ///
    /// # Errors
    /// The front-end has truncated, sealed or overwritten memory
    /// ([`StateError::is_front_end_fault`]), or the process has no resources for the check.
    pub fn check_mappable(&self) -> Result<(), StateError> {
        for region in self.table.regions() {
            region.check_mappable().map_err(Refusal::from)?;
        }
        if let InflightState::Kept(region) = &self.record {
            region.check_adoptable().map_err(Refusal::from)?;
        }
        Ok(())
    }

    /// Returns the queues that ran.
    pub fn running(&self) -> impl Iterator<Item = u16> {
        let running = (0u16..).zip(&self.rings).filter(|(_, frozen)| frozen.running);
        running.map(|(index, _)| index)
    }

    /// Returns the state as data of format `version`, and the descriptors that the data names by
    /// their position.
    ///
    /// # Errors
    /// The format is not known, or some memory did not come as a file.
    pub fn encode(&self, version: u32) -> Result<(Value, Vec<BorrowedFd<'_>>), StateError> {
        check_version(version)?;
        let mut fds = vec![self.socket.as_fd()];
        let mut regions = Vec::new();
        for region in self.table.regions() {
            let RegionSpec { guest_addr, user_addr, len, file_offset } = region.spec();
            let fd = index(&mut fds, region.fd().ok_or(StateError::Unshared)?)?;
            regions.push(WrittenRegion { guest_addr, user_addr, len, file_offset, fd });
        }
        let record = match &self.record {
            InflightState::Absent => WrittenRecord::Absent,
            InflightState::Lost => WrittenRecord::Lost,
            InflightState::Kept(region) => {
                let InflightDesc { mmap_size, mmap_offset, queues, size } = describe(region);
                let fd = index(&mut fds, region.fd().ok_or(StateError::Unshared)?)?;
                WrittenRecord::Kept { mmap_size, mmap_offset, queues, size, fd }
            }
        };
        let mut rings = Vec::new();
        for frozen in &self.rings {
            rings.push(written_ring(frozen, &mut fds)?);
        }
        let channel = self.channel.as_ref().map(|way| index(&mut fds, way.as_fd())).transpose()?;
        let (features, protocol) = (self.acked, self.protocol);
        let session_state_v1 = SessionStateV1 {
            version,
            socket: 0,
            features,
            protocol,
            regions,
            record,
            rings,
            channel,
            hushed: false,
        };
        Ok((serde_json::to_value(session_state_v1)?, fds))
    }

    /// Returns the state that [`Self::encode`] encoded, perhaps in another process. Maps its
    /// memory.
    ///
    /// # Errors
    /// The format is not known, the descriptors are not those that the data names, or no session
    /// can reach such a state.
    pub fn decode(data: Value, fds: Vec<OwnedFd>) -> Result<Self, StateError> {
        let version = data.get("version").and_then(Value::as_u64).unwrap_or(0);
        check_version(u32::try_from(version).unwrap_or(u32::MAX))?;
        let session_state_v1: SessionStateV1 = serde_json::from_value(data)?;
        let mut fds = Descriptors::new(fds);
        let socket = fds.take(session_state_v1.socket)?;
        let mut parts = Vec::new();
        for region in session_state_v1.regions {
            let WrittenRegion { guest_addr, user_addr, len, file_offset, fd } = region;
            let spec = RegionSpec { guest_addr, user_addr, len, file_offset };
            parts.push((spec, fds.take(fd)?));
        }
        let record = match session_state_v1.record {
            WrittenRecord::Absent => InflightState::Absent,
            WrittenRecord::Lost => InflightState::Lost,
            WrittenRecord::Kept { mmap_size, mmap_offset, queues, size, fd } => {
                let desc = InflightDesc { mmap_size, mmap_offset, queues, size };
                InflightState::take(desc, &fds.take(fd)?, session_state_v1.rings.len())?
            }
        };
        let mut rings = Vec::new();
        for ring in session_state_v1.rings {
            rings.push(read_ring(ring, &mut fds)?);
        }
        let channel = session_state_v1.channel.map(|fd| fds.take(fd)).transpose()?;
        fds.end()?;
        rustix::io::ioctl_fionbio(&socket, false)
            .map_err(|source| Refusal::Os { action: "set up the connection", source })?;
        Ok(Self {
            socket: Arc::new(socket.into()),
            acked: session_state_v1.features,
            protocol: session_state_v1.protocol,
            table: Arc::new(memory_table::replaced(&parts, None)?),
            record,
            rings,
            channel: channel.map(BackendChannel::new).transpose()?,
        })
    }

    /// Checks that `backend` can continue this session.
    ///
    /// # Errors
    /// The device has another number of queues, offers less than the front-end has acknowledged, or
    /// cannot find a ring that ran.
    pub fn check_compatible(&self, backend: &dyn Backend) -> Result<(), StateError> {
        let (has, needs) = (usize::from(backend.queue_count()), self.rings.len());
        if has != needs {
            return Err(StateError::Queues { has, needs });
        }
        let extra = self.acked.unwrap_or(0) & !(backend.features() | PROTOCOL_FEATURES);
        // Another version may have offered what this device withholds.
        let extra = extra | (self.protocol & !OFFERED);
        if extra != 0 {
            return Err(Refusal::Features { extra }.into());
        }
        for (index, FrozenRing { ring, running }) in self.rings.iter().enumerate() {
            let enabled = self.acked.is_some_and(|acked| acked & PROTOCOL_FEATURES == 0);
            let known = self.acked.is_some() && ring.ready(enabled);
            let features = self.acked.unwrap_or(0);
            if *running && !(known && ring.resolve(index, &self.table, features)?.is_some()) {
                return Err(StateError::Incomplete { index });
            }
            if *running {
                // Below queue_count, which is a u16.
                self.record.queue(index as u16)?;
            }
        }
        Ok(())
    }
}

fn check_version(version: u32) -> Result<(), StateError> {
    let (oldest, newest) = (OLDEST_FORMAT, NEWEST_FORMAT);
    if (oldest..=newest).contains(&version) {
        return Ok(());
    }
    Err(StateError::Version { found: version, oldest, newest })
}

fn written_ring<'a>(
    frozen: &'a FrozenRing,
    fds: &mut Vec<BorrowedFd<'a>>,
) -> Result<WrittenRing, StateError> {
    let FrozenRing { ring, running } = frozen;
    let kick = match &ring.kick {
        Kick::Unset => WrittenKick::Unset,
        Kick::Polled => WrittenKick::Polled,
        Kick::Event(fd) => WrittenKick::Event(index(fds, fd.as_fd())?),
    };
    let mut place =
        |fd: &'a Option<Arc<OwnedFd>>| fd.as_ref().map(|fd| index(fds, fd.as_fd())).transpose();
    let (call, err) = (place(&ring.call)?, place(&ring.err)?);
    let addr = ring.addr.map(|RingAddr { desc, used, avail }| WrittenAddr { desc, used, avail });
    let (size, next_avail, enabled, running) = (ring.size, ring.next_avail, ring.enabled, *running);
    Ok(WrittenRing { size, addr, next_avail, kick, call, err, enabled, running })
}

fn read_ring(written: WrittenRing, fds: &mut Descriptors) -> Result<FrozenRing, StateError> {
    let WrittenRing { size, addr, next_avail, kick, call, err, enabled, running } = written;
    let kick = match kick {
        WrittenKick::Unset => Kick::Unset,
        WrittenKick::Polled => Kick::Polled,
        WrittenKick::Event(fd) => Kick::Event(fds::kick(fds.take(fd)?)?),
    };
    let mut signal = |role, place: Option<u16>| -> Result<_, StateError> {
        let Some(place) = place else { return Ok(None) };
        Ok(Some(fds::signal(role, fds.take(place)?)?))
    };
    let (call, err) = (signal("call", call)?, signal("error", err)?);
    let addr = addr.map(|WrittenAddr { desc, used, avail }| RingAddr { desc, used, avail });
    let size = size.map(|size| ring_size(size.into())).transpose()?;
    let ring = Ring { size, addr, next_avail, kick, call, err, enabled, running: None };
    Ok(FrozenRing { ring, running })
}
