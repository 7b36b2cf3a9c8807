//! State of a session, and the effect of each request on it.

mod rings;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use memory::{MAX_REGIONS, MemoryShare, Table};
use virtq::InflightRegion;

use crate::backend::{Backend, StopCause};
use crate::channel::BackendChannel;
use crate::error::{BackendError, Refusal};
use crate::fds;
use crate::features::{self, PROTOCOL_FEATURES};
use crate::inflight::InflightState;
use crate::log::RefusalLog;
use crate::memory_table;
use crate::message::{InflightDesc, Request, config_reply};
use crate::ring::{Kick, Ring};
use crate::session_state::{FrozenRing, SessionState};

/// Most entries of a ring. QEMU gives no virtqueue more (`VIRTQUEUE_MAX_SIZE`). The limit also
/// bounds the memory for the requests of one ring.
pub const MAX_RING_ENTRIES: u16 = 1024;

/// Reply to a request that was carried out.
#[derive(Debug)]
pub(crate) enum Answer {
    /// An acknowledgement, if the front-end requested one.
    Done,
    /// This payload.
    Payload(Vec<u8>),
    /// This payload, and the descriptor of this region.
    Region(Vec<u8>, InflightRegion),
}

pub(crate) struct State<'a> {
    backend: &'a mut dyn Backend,
    rings: Vec<Ring>,
    table: Arc<Table>,
    /// Acknowledged virtio features. No ring starts before they are known.
    acked: Option<u64>,
    /// Acknowledged protocol features.
    protocol: u64,
    record: InflightState,
    channel: Option<BackendChannel>,
    /// Whether the front-end has sent a request with which a session begins.
    has_begun: bool,
    /// Whether the front-end has set itself as the owner.
    has_owner: bool,
    pub(crate) log: RefusalLog,
}

fn number(value: u64) -> Answer {
    Answer::Payload(value.to_ne_bytes().to_vec())
}

fn device(action: &'static str) -> impl FnOnce(BackendError) -> Refusal {
    move |source| Refusal::Device { action, source }
}

impl<'a> State<'a> {
    pub(crate) fn new(backend: &'a mut dyn Backend) -> Self {
        let rings = (0..backend.queue_count()).map(|_| Ring::default()).collect();
        let (table, record, log) =
            (Arc::default(), InflightState::default(), RefusalLog::default());
        Self {
            backend,
            rings,
            table,
            acked: None,
            protocol: 0,
            record,
            channel: None,
            has_begun: false,
            has_owner: false,
            log,
        }
    }

    /// Returns the whole state as a value. Does not call the device.
    pub(crate) fn freeze(self, socket: Arc<UnixStream>) -> SessionState {
        let freeze = |mut ring: Ring| {
            let running = ring.running.take().is_some();
            FrozenRing { ring, running }
        };
        let rings = self.rings.into_iter().map(freeze).collect();
        let Self { table, acked, protocol, record, channel, .. } = self;
        SessionState { socket, acked, protocol, table, record, rings, channel }
    }

    /// Continues from a saved state, on a device that is compatible with it.
    pub(crate) fn resume(&mut self, saved: SessionState) {
        let SessionState { socket: _, acked, protocol, table, record, rings, channel } = saved;
        (self.protocol, self.table, self.record) = (protocol, table, record);
        (self.has_begun, self.has_owner) = (true, true);
        if let Some(share) = self.backend.memory_share()
            && let Ok(table) = memory_table::charged(&self.table, share)
        {
            self.table = Arc::new(table);
        }
        let (rings, ran): (Vec<_>, Vec<_>) =
            rings.into_iter().map(|FrozenRing { ring, running }| (ring, running)).unzip();
        self.rings = rings;
        if let Some(channel) = channel {
            self.take_channel(channel);
        }
        let Some(bits) = acked else { return };
        if let Err(error) = self.backend.ack_features(bits & !PROTOCOL_FEATURES) {
            let refusal = device("accept these features")(error);
            return self.log.report(&refusal, format_args!("features acknowledged before"));
        }
        self.acked = Some(bits);
        for index in (0..ran.len()).filter(|index| ran.get(*index) == Some(&true)) {
            self.start_or_report(index);
        }
    }

    /// Returns the protocol features that the session offers to this front-end.
    ///
    /// With memory slots, QEMU sends only changes of its memory. If it has lost the connection while
    /// no driver ran, it sends nothing to the next one, and the device is lost until the machine is
    /// switched off. Without them it sends all memory with each start of a driver. So they are for
    /// front-ends that set the owner first, as the specification has it and QEMU does not; libblkio
    /// needs them.
    fn protocol_offer(&self) -> u64 {
        let slots = if self.has_owner { 0 } else { features::CONFIGURE_MEM_SLOTS };
        features::OFFERED & !(self.backend.withheld_features() | slots)
    }

    /// Returns whether acknowledgements were negotiated.
    pub(crate) fn acknowledges(&self) -> bool {
        self.protocol & features::REPLY_ACK != 0
    }

    pub(crate) fn handle_request(&mut self, request: Request) -> Result<Answer, Refusal> {
        self.has_begun |= request.begins_session();
        match request {
            Request::GetFeatures => {
                return Ok(number(self.backend.features() | PROTOCOL_FEATURES));
            }
            Request::GetProtocolFeatures => return Ok(number(self.protocol_offer())),
            Request::GetQueueNum => return Ok(number(self.rings.len() as u64)),
            Request::GetMaxMemSlots => return Ok(number(MAX_REGIONS as u64)),
            Request::GetVringBase { index } => return self.get_base(index),
            Request::GetConfig { offset, flags, len } => {
                let mut bytes = vec![0; len];
                self.backend.read_config(offset, &mut bytes);
                return Ok(Answer::Payload(config_reply(offset, flags, &bytes)));
            }
            Request::GetInflightFd { queues, size, payload } => {
                let (desc, region) = InflightState::make(queues, size, self.rings.len())?;
                return Ok(Answer::Region(desc.reply(payload), region));
            }
            Request::SetInflightFd(desc, fd) => self.set_record(desc, &fd)?,
            Request::SetFeatures(bits) => self.set_features(bits)?,
            Request::SetProtocolFeatures(bits) => {
                self.protocol = subset(bits, self.protocol_offer())?;
            }
            Request::SetOwner => self.has_owner = true,
            Request::ResetOwner => self.stop_all(),
            Request::ResetDevice => self.reset(),
            Request::SetMemTable(parts) => {
                self.change_table(|_, share| memory_table::replaced(&parts, share))?;
            }
            Request::AddMemReg(spec, fd) => {
                self.change_table(|table, share| memory_table::with(table, spec, fd, share))?;
            }
            Request::RemMemReg(spec) => {
                self.change_table(|table, _| memory_table::without(table, spec))?;
            }
            Request::SetVringNum { index, num } => self.set_num(index, num)?,
            Request::SetVringAddr { index, addr } => self.set_addr(index, addr)?,
            Request::SetVringBase { index, base } => {
                let index = self.stopped(index, "base")?;
                self.ring(index)?.next_avail = Some(base);
                self.start_if_ready(index)?;
            }
            Request::SetVringKick { index, fd } => {
                let kick = match fd {
                    Some(fd) => Kick::Event(fds::kick(fd)?),
                    None => Kick::Polled,
                };
                self.change(index, |ring| ring.kick = kick)?;
            }
            Request::SetVringErr { index, fd } => {
                let fd = fd.map(|fd| fds::signal("error", fd)).transpose()?;
                // A running ring uses the new descriptor from its next start on. Nothing is lost by
                // that, while a stop would fail requests that wait for space.
                let index = self.checked(index)?;
                self.ring(index)?.err = fd;
            }
            Request::SetVringCall { index, fd } => {
                let fd = fd.map(|fd| fds::signal("call", fd)).transpose()?;
                self.set_call(index, fd)?;
            }
            Request::SetVringEnable { index, enable } => self.set_enable(index, enable)?,
            Request::SetBackendReqFd(fd) => {
                self.take_channel(BackendChannel::new(fd)?);
            }
            Request::SetConfig { offset, bytes } => {
                let written = self.backend.write_config(offset, &bytes);
                written.map_err(device("write its configuration"))?;
            }
        }
        Ok(Answer::Done)
    }

    /// Stops all queues and reports the disconnect to the device.
    pub(crate) fn end(&mut self) {
        self.stop_all();
        self.table = Arc::default();
        self.report_memory();
        self.backend.disconnected();
    }

    /// Returns whether any ring runs.
    fn runs(&self) -> bool {
        self.rings.iter().any(|ring| ring.running.is_some())
    }

    fn set_features(&mut self, bits: u64) -> Result<(), Refusal> {
        let bits = subset(bits, self.backend.features() | PROTOCOL_FEATURES)?;
        if !self.has_begun && bits & PROTOCOL_FEATURES != 0 {
            // If QEMU 7.2 loses the connection while no driver runs, it connects again and says
            // nothing. The next driver's start then continues the session that has ended.
            self.protocol = self.protocol_offer();
        }
        // QEMU repeats the features for each pair of a NIC's rings, while other rings may run. If
        // no ring runs, a driver starts anew: User-Mode Linux has no other way to reset a device.
        if self.acked == Some(bits) && self.runs() {
            return Ok(());
        }
        self.stop_all();
        // If the device refuses these features, it serves nothing until it accepts others.
        self.acked = None;
        let taken = self.backend.ack_features(bits & !PROTOCOL_FEATURES);
        taken.map_err(device("accept these features"))?;
        self.acked = Some(bits);
        self.start_all();
        Ok(())
    }

    /// Replaces the table by another one. The device's share then has what the table in use takes.
    fn change_table(
        &mut self,
        make: impl FnOnce(&Table, Option<&MemoryShare>) -> Result<Table, Refusal>,
    ) -> Result<(), Refusal> {
        let made = make(&self.table, self.backend.memory_share());
        let changed = made.and_then(|table| self.set_table(table));
        self.report_memory();
        changed
    }

    /// Reports to the device's share what the table takes.
    fn report_memory(&self) {
        if let Some(share) = self.backend.memory_share() {
            share.set_present(self.table.amount());
        }
    }

    fn set_table(&mut self, table: Table) -> Result<(), Refusal> {
        let table = Arc::new(table);
        let features = self.virtio_features();
        for index in 0..self.rings.len() {
            let ring = self.ring(index)?;
            let moved = ring.running.is_some_and(|running| {
                // Compare the addresses only: the ring's index has advanced.
                let same = |new: &virtq::QueueConfig| {
                    (new.desc, new.avail, new.used) == (running.desc, running.avail, running.used)
                };
                !ring
                    .resolve(index, &table, features)
                    .is_ok_and(|new| new.as_ref().is_some_and(same))
            });
            if moved {
                tracing::debug!(queue = index, "stopped: its ring has moved");
                self.stop(index, StopCause::Change);
            }
        }
        if self.runs()
            && let Err(source) = self.backend.set_memory(&table)
        {
            self.stop_all();
            return Err(Refusal::Device { action: "accept this memory", source });
        }
        self.table = table;
        self.start_all();
        Ok(())
    }

    fn reset(&mut self) {
        self.stop_all();
        self.rings.iter_mut().for_each(|ring| *ring = Ring::default());
        self.acked = None;
        self.record.reset();
        self.backend.reset();
    }

    fn set_record(&mut self, desc: InflightDesc, fd: &OwnedFd) -> Result<(), Refusal> {
        // The drain leaves the former region without records.
        self.stop_all();
        self.record = InflightState::take(desc, fd, self.rings.len())?;
        self.start_all();
        Ok(())
    }

    /// Stops all queues, because the front-end's in-flight region cannot be used.
    pub(crate) fn lose_record(&mut self) {
        self.stop_all();
        self.record = InflightState::Lost;
    }

    /// Returns the features that the device received.
    fn virtio_features(&self) -> u64 {
        self.acked.unwrap_or(0) & !PROTOCOL_FEATURES
    }

    fn take_channel(&mut self, channel: BackendChannel) {
        self.channel = Some(channel.clone());
        self.backend.set_channel(channel);
    }
}

/// Checks the size of a ring.
pub(crate) fn ring_size(num: u32) -> Result<u16, Refusal> {
    let size = u16::try_from(num).ok();
    let size = size.filter(|size| size.is_power_of_two() && *size <= MAX_RING_ENTRIES);
    let accepted = "a power of two up to 1024 is needed";
    size.ok_or(Refusal::Field { field: "vring size", value: num.into(), accepted })
}

/// Returns `bits` if all of them were offered.
fn subset(bits: u64, offered: u64) -> Result<u64, Refusal> {
    let extra = bits & !offered;
    if extra == 0 { Ok(bits) } else { Err(Refusal::Features { extra }) }
}
