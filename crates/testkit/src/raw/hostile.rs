//! Catalogue of bad messages and descriptors that a front-end can send.
//!
//! Each entry goes over a fresh connection. A backend may refuse it (by an acknowledgement if one
//! was requested) or close this connection. It must not die, and must serve the next front-end.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use super::frontend::{Frontend, VringAddr, mem_table};
use super::memory::{FILE_BASE, GUEST_BASE, Region, SharedMemory, USER_BASE};
use super::wire::{HEADER_BYTES, Message, Request, flags, protocol};
use crate::error::{Error, Result};

/// A hostile message, or sequence of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostile {
    /// No message: connect and disconnect.
    Nothing,
    /// Half a header, then a disconnect.
    HalfHeader,
    /// A header that claims 8 bytes, with 3 of them, then a disconnect.
    HalfPayload,
    /// A header that claims 4 GiB less one.
    HugeSize,
    /// Version 2.
    WrongVersion,
    /// A payload on a request that has none.
    UnexpectedPayload,
    /// A payload that is too short for its request.
    ShortPayload,
    /// A request number that is not defined, with an acknowledgement requested.
    UnknownRequest,
    /// Features that were not offered.
    UnofferedFeatures,
    /// Protocol features that were not offered.
    UnofferedProtocol,
    /// A memory table of two overlapping regions.
    OverlappingRegions,
    /// A memory table that claims more regions than it has.
    RegionCountLies,
    /// A memory table with fewer descriptors than regions.
    MissingRegionFd,
    /// A region that is larger than its file.
    RegionLargerThanFile,
    /// A region whose guest address wraps around.
    RegionWraps,
    /// A region of length zero.
    EmptyRegion,
    /// A region whose file offset is not a multiple of the page size.
    UnalignedOffset,
    /// A region backed by a pipe.
    PipeAsMemory,
    /// More regions than any backend accepts.
    TooManyRegions,
    /// A queue index past all queues.
    QueueOutOfRange,
    /// A ring of no descriptors.
    ZeroRing,
    /// A ring size that is no power of two.
    OddRing,
    /// A ring of 65536 descriptors.
    HugeRing,
    /// Ring addresses outside memory.
    RingOutside,
    /// Ring addresses that are not aligned.
    RingUnaligned,
    /// A kick descriptor that is a regular file.
    FileAsKick,
    /// A kick message without descriptor and without the "none" bit.
    KickWithoutFd,
    /// Four descriptors instead of one.
    TooManyFds,
    /// Descriptors on a message that carries none.
    StrayFds,
    /// ENABLE of a queue that was never set up.
    EnableUnset,
    /// GET_VRING_BASE of a queue that was never set up.
    BaseUnset,
    /// GET_CONFIG past the end of the configuration.
    ConfigPastEnd,
    /// GET_CONFIG of 4 GiB.
    ConfigHuge,
    /// SET_CONFIG of the read-only capacity.
    ConfigWrite,
    /// An acknowledgement that the backend did not request.
    StrayReply,
}

impl Hostile {
    /// All entries.
    pub const ALL: [Self; 35] = {
        use Hostile::*;
        [
            Nothing,
            HalfHeader,
            HalfPayload,
            HugeSize,
            WrongVersion,
            UnexpectedPayload,
            ShortPayload,
            UnknownRequest,
            UnofferedFeatures,
            UnofferedProtocol,
            OverlappingRegions,
            RegionCountLies,
            MissingRegionFd,
            RegionLargerThanFile,
            RegionWraps,
            EmptyRegion,
            UnalignedOffset,
            PipeAsMemory,
            TooManyRegions,
            QueueOutOfRange,
            ZeroRing,
            OddRing,
            HugeRing,
            RingOutside,
            RingUnaligned,
            FileAsKick,
            KickWithoutFd,
            TooManyFds,
            StrayFds,
            EnableUnset,
            BaseUnset,
            ConfigPastEnd,
            ConfigHuge,
            ConfigWrite,
            StrayReply,
        ]
    };

    /// Sends the entry, then requests the features, and returns the backend's reaction. Negotiates
    /// first if the entry needs a negotiated session.
    ///
    /// # Errors
    /// A failure on the test's side, or a backend that neither replies nor closes.
    pub fn send(self, frontend: &mut Frontend) -> Result<HostileOutcome> {
        if !self.breaks_framing() {
            frontend.negotiate(u64::MAX, protocol::ALL_KNOWN)?;
        }
        let sent = self.message(frontend);
        let ended = matches!(self, Self::Nothing | Self::HalfHeader | Self::HalfPayload);
        let sent = match sent {
            Ok(()) if ended => frontend.connection.finish_sending(),
            other => other,
        };
        let then = sent.and_then(|()| frontend.barrier());
        match then {
            Ok(()) => Ok(HostileOutcome::Swallowed),
            Err(Error::Refused { .. }) => {
                frontend.barrier()?;
                Ok(HostileOutcome::Refused)
            }
            Err(Error::Reply { .. }) => Ok(HostileOutcome::Refused),
            Err(error @ Error::Timeout { .. }) => Err(error),
            Err(_) => Ok(HostileOutcome::Closed),
        }
    }

    /// Returns whether the entry is no message, so that the backend cannot find the next message.
    /// These entries come before any negotiation.
    pub fn breaks_framing(self) -> bool {
        use Hostile::*;
        matches!(self, Nothing | HalfHeader | HalfPayload | HugeSize | WrongVersion | StrayReply)
    }

    fn message(self, frontend: &mut Frontend) -> Result<()> {
        use Hostile::*;
        match self {
            OverlappingRegions | RegionCountLies | MissingRegionFd | RegionLargerThanFile
            | RegionWraps | EmptyRegion | UnalignedOffset | PipeAsMemory | TooManyRegions => {
                self.memory_message(frontend)
            }
            QueueOutOfRange | ZeroRing | OddRing | HugeRing | RingOutside | RingUnaligned
            | FileAsKick | KickWithoutFd | TooManyFds | StrayFds | EnableUnset | BaseUnset => {
                self.vring_message(frontend)
            }
            _ => self.plain_message(frontend),
        }
    }

    fn plain_message(self, frontend: &mut Frontend) -> Result<()> {
        use Hostile::*;
        let whole = Message::new(Request::SET_FEATURES).u64(0).encode();
        let connection = &mut frontend.connection;
        match self {
            HalfHeader => connection.send_bytes(&whole[..HEADER_BYTES / 2], &[]),
            HalfPayload => connection.send_bytes(&whole[..HEADER_BYTES + 3], &[]),
            HugeSize => connection.send(&Message::new(Request(2)).u64(0).claim_size(u32::MAX)),
            WrongVersion => connection.send(&Message::new(Request(1)).flags(2)),
            StrayReply => {
                let reply = flags::VERSION | flags::REPLY;
                connection.send(&Message::new(Request::SET_FEATURES).u64(0).flags(reply))
            }
            UnexpectedPayload => frontend.send(Message::new(Request::SET_OWNER).bytes(&[1; 100])),
            ShortPayload => frontend.send(Message::new(Request::SET_VRING_ADDR).u32(0)),
            UnknownRequest => frontend.send(Message::new(Request(250)).u64(1)),
            UnofferedFeatures => frontend.set_u64(Request::SET_FEATURES, u64::MAX),
            UnofferedProtocol => frontend.set_u64(Request::SET_PROTOCOL_FEATURES, u64::MAX),
            ConfigPastEnd | ConfigHuge => self.config_message(frontend),
            ConfigWrite => frontend.set_config(0, &u64::MAX.to_le_bytes()),
            _ => Ok(()),
        }
    }

    fn config_message(self, frontend: &mut Frontend) -> Result<()> {
        let (offset, len) = if self == Self::ConfigHuge { (0, u32::MAX) } else { (250, 100) };
        let message = Message::new(Request::GET_CONFIG).u32(offset).u32(len).u32(0);
        let backend_reply = frontend.ask(&message.bytes(&[0; 100]))?;
        if backend_reply.payload.is_empty() {
            return Err(Error::Refused { request: Request::GET_CONFIG.name(), code: 0 });
        }
        Ok(())
    }

    fn memory_message(self, frontend: &mut Frontend) -> Result<()> {
        use Hostile::*;
        const SIZE: u64 = 1 << 20;
        let memory = SharedMemory::new(SIZE)?;
        let good = Region {
            guest_addr: GUEST_BASE,
            size: SIZE,
            user_addr: USER_BASE,
            mmap_offset: FILE_BASE,
        };
        let shifted = Region { guest_addr: GUEST_BASE + SIZE / 2, ..good };
        let (count, regions) = match self {
            OverlappingRegions => (2, vec![good, shifted]),
            RegionCountLies => (200, vec![good]),
            RegionLargerThanFile => (1, vec![Region { size: SIZE * 64, ..good }]),
            RegionWraps => (1, vec![Region { guest_addr: u64::MAX - 4095, ..good }]),
            EmptyRegion => (1, vec![Region { size: 0, ..good }]),
            UnalignedOffset => (1, vec![Region { mmap_offset: 7, size: SIZE / 2, ..good }]),
            TooManyRegions => {
                let at = |i: u64| Region { guest_addr: GUEST_BASE + i * SIZE, ..good };
                (31, (0..31).map(at).collect())
            }
            _ => (1, vec![good]),
        };
        let (_reader, writer) = pipe()?;
        let fd = if self == PipeAsMemory { writer.as_fd() } else { memory.as_fd() };
        let fds = if self == MissingRegionFd { Vec::new() } else { vec![fd; regions.len()] };
        frontend.send(Message { fds, ..mem_table(count, &regions) })
    }

    fn vring_message(self, frontend: &mut Frontend) -> Result<()> {
        use Hostile::*;
        let memory = SharedMemory::new(1 << 20)?;
        frontend.set_mem_table(&memory)?;
        let base = memory.user_addr(GUEST_BASE)?;
        let addr = VringAddr {
            index: 0,
            flags: 0,
            desc: base,
            avail: base + 0x1000,
            used: base + 0x2000,
            log: 0,
        };
        match self {
            QueueOutOfRange => frontend.set_vring(Request::SET_VRING_NUM, 5000, 128),
            ZeroRing => frontend.set_vring(Request::SET_VRING_NUM, 0, 0),
            OddRing => frontend.set_vring(Request::SET_VRING_NUM, 0, 100),
            HugeRing => frontend.set_vring(Request::SET_VRING_NUM, 0, 65536),
            RingOutside => {
                frontend.set_vring(Request::SET_VRING_NUM, 0, 128)?;
                frontend.set_vring_addr(&VringAddr { used: USER_BASE - 0x10_0000, ..addr })
            }
            RingUnaligned => {
                frontend.set_vring(Request::SET_VRING_NUM, 0, 128)?;
                frontend.set_vring_addr(&VringAddr { desc: base + 3, ..addr })
            }
            EnableUnset => frontend.set_vring(Request::SET_VRING_ENABLE, 0, 1),
            BaseUnset => frontend.get_vring_base(0).map(drop),
            _ => self.fd_message(frontend),
        }
    }

    fn fd_message(self, frontend: &mut Frontend) -> Result<()> {
        use Hostile::*;
        let file = File::open("/proc/self/exe").map_err(|e| Error::io("cannot open a file", e))?;
        let kick = Message::new(Request::SET_VRING_KICK).u64(0);
        match self {
            FileAsKick => frontend.send(kick.fd(file.as_fd())),
            TooManyFds => {
                let event = super::guest::event_fd()?;
                frontend.send(Message { fds: vec![event.as_fd(); 4], ..kick })
            }
            StrayFds => frontend.send(Message::new(Request::SET_OWNER).fd(file.as_fd())),
            _ => frontend.send(kick),
        }
    }
}

/// Reaction of a backend to a hostile message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostileOutcome {
    /// The backend ignored or accepted it; the session continues.
    Swallowed,
    /// The backend refused it; the session continues.
    Refused,
    /// The backend closed the connection.
    Closed,
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| Error::io("cannot create a pipe", e))
}
