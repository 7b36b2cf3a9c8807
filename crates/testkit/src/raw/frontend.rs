//! The protocol's messages as methods. Each sends what it is told, right or wrong.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::connection::{BackendReply, Connection};
use super::memory::{Region, SharedMemory};
use super::wire::{Message, Request, VRING_NO_FD, feature, protocol};
use crate::error::{Error, Result};

/// What was offered and what was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Virtio features of the backend.
    pub offered: u64,
    /// Virtio features in force.
    pub features: u64,
    /// Protocol features of the backend.
    pub protocol_offered: u64,
    /// Protocol features in force.
    pub protocol: u64,
}

/// The ring addresses of SET_VRING_ADDR, in user addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VringAddr {
    /// Queue.
    pub index: u32,
    /// 1 = log writes to the used ring.
    pub flags: u32,
    /// Descriptor table.
    pub desc: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub avail: u64,
    /// Guest address of the used ring for the log.
    pub log: u64,
}

/// An in-flight region, as messages describe it and its front-end keeps it.
#[derive(Debug)]
pub struct InflightArea {
    /// The file.
    pub fd: OwnedFd,
    /// Bytes of the region.
    pub mmap_size: u64,
    /// Its first byte in the file.
    pub mmap_offset: u64,
    /// Queues that it is for.
    pub queues: u16,
    /// Descriptors of each.
    pub queue_size: u16,
}

/// The payload of both in-flight messages, with the padding that QEMU's compiler adds.
fn inflight_payload(size: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut bytes = [size, offset].map(u64::to_ne_bytes).concat();
    bytes.extend([queues, queue_size, 0, 0].map(u16::to_ne_bytes).concat());
    bytes
}

/// The front-end end of a vhost-user socket.
#[derive(Debug)]
pub struct Frontend {
    /// The socket, for whatever has no method here.
    pub connection: Connection,
    /// True asks for an acknowledgement of every message that has no answer of its own, and checks
    /// it. [`Frontend::negotiate`] sets it when REPLY_ACK is in force.
    pub acks: bool,
}

impl Frontend {
    /// Connects; sends nothing yet.
    ///
    /// # Errors
    /// [`Error::Io`] if nobody listens.
    pub fn connect(path: &Path) -> Result<Self> {
        Ok(Self { connection: Connection::connect(path)?, acks: false })
    }

    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// As [`Connection::recv`], and [`Error::Reply`] if something else is answered.
    pub fn ask(&mut self, message: &Message<'_>) -> Result<BackendReply> {
        self.connection.send(message)?;
        let backend_reply = self.connection.recv(&message.request.name())?;
        if backend_reply.request == message.request && backend_reply.is_reply() {
            return Ok(backend_reply);
        }
        let what =
            format!("{} with flags {:#x}", backend_reply.request.name(), backend_reply.flags);
        Err(Error::Reply { request: message.request.name(), what })
    }

    /// Sends a message that has no answer; with [`Frontend::acks`] its acknowledgement is checked.
    ///
    /// # Errors
    /// [`Error::Refused`] if the backend acknowledges with another value than 0.
    pub fn tell(&mut self, message: Message<'_>) -> Result<()> {
        if !self.acks {
            return self.connection.send(&message);
        }
        match self.ask(&message.clone().need_reply())?.u64()? {
            0 => Ok(()),
            code => Err(Error::Refused { request: message.request.name(), code }),
        }
    }

    /// Sends a request without payload and reads 64 bits.
    ///
    /// # Errors
    /// As [`Frontend::ask`].
    pub fn get_u64(&mut self, request: Request) -> Result<u64> {
        self.ask(&Message::new(request))?.u64()
    }

    /// Sends 64 bits.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn set_u64(&mut self, request: Request, value: u64) -> Result<()> {
        self.tell(Message::new(request).u64(value))
    }

    /// GET_FEATURES as a barrier: every earlier message has been handled when it returns.
    ///
    /// # Errors
    /// As [`Frontend::ask`].
    pub fn barrier(&mut self) -> Result<()> {
        self.get_u64(Request::GET_FEATURES).map(drop)
    }

    /// Owner, features and protocol features, in QEMU's order; takes what is offered and wanted.
    ///
    /// # Errors
    /// As [`Frontend::ask`] and [`Frontend::tell`].
    pub fn negotiate(&mut self, features: u64, protocol_features: u64) -> Result<Negotiated> {
        let offered = self.get_u64(Request::GET_FEATURES)?;
        let mut taken = offered & features;
        let (mut protocol_offered, mut protocol) = (0, 0);
        if offered & feature::PROTOCOL_FEATURES != 0 {
            taken |= feature::PROTOCOL_FEATURES;
            protocol_offered = self.get_u64(Request::GET_PROTOCOL_FEATURES)?;
            protocol = protocol_offered & protocol_features;
            self.set_u64(Request::SET_PROTOCOL_FEATURES, protocol)?;
            self.acks = protocol & protocol::REPLY_ACK != 0;
        }
        self.tell(Message::new(Request::SET_OWNER))?;
        self.set_u64(Request::SET_FEATURES, taken)?;
        Ok(Negotiated { offered, features: taken, protocol_offered, protocol })
    }

    /// SET_MEM_TABLE with the memory's regions, one descriptor each.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn set_mem_table(&mut self, memory: &SharedMemory) -> Result<()> {
        let regions = memory.regions();
        let fds = vec![memory.as_fd(); regions.len()];
        let count = u32::try_from(regions.len()).unwrap_or(u32::MAX);
        let message = mem_table(count, regions);
        self.tell(Message { fds, ..message })
    }

    /// ADD_MEM_REG for each of the memory's regions.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn add_mem_regions(&mut self, memory: &SharedMemory) -> Result<()> {
        for region in memory.regions() {
            self.add_mem_region(region, memory.as_fd())?;
        }
        Ok(())
    }

    /// ADD_MEM_REG for one region.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn add_mem_region(&mut self, region: &Region, fd: BorrowedFd<'_>) -> Result<()> {
        let message = Message::new(Request::ADD_MEM_REG).u64(0).bytes(&region.encode());
        self.tell(message.fd(fd))
    }

    /// REM_MEM_REG for one region.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn rem_mem_region(&mut self, region: &Region) -> Result<()> {
        self.tell(Message::new(Request::REM_MEM_REG).u64(0).bytes(&region.encode()))
    }

    /// GET_INFLIGHT_FD: asks for a fresh region.
    ///
    /// # Errors
    /// [`Error::Reply`] if there is none, or it is not for these queues.
    pub fn get_inflight(&mut self, queues: u16, queue_size: u16) -> Result<InflightArea> {
        let request = Request::GET_INFLIGHT_FD;
        let payload = inflight_payload(0, 0, queues, queue_size);
        let mut backend_reply = self.ask(&Message::new(request).bytes(&payload))?;
        let word = |at: usize| {
            let bytes =
                backend_reply.payload.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        let (mmap_size, mmap_offset) = (word(0), word(8));
        let same = backend_reply.payload.get(16..20) == payload.get(16..20);
        match backend_reply.fds.pop().filter(|_| mmap_size > 0 && same) {
            Some(fd) => Ok(InflightArea { fd, mmap_size, mmap_offset, queues, queue_size }),
            None => {
                let what =
                    format!("no region for {queues} queues of {queue_size}: {backend_reply:?}");
                Err(Error::Reply { request: request.name(), what })
            }
        }
    }

    /// SET_INFLIGHT_FD.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn set_inflight(&mut self, area: &InflightArea) -> Result<()> {
        let InflightArea { fd, mmap_size, mmap_offset, queues, queue_size } = area;
        let payload = inflight_payload(*mmap_size, *mmap_offset, *queues, *queue_size);
        self.tell(Message::new(Request::SET_INFLIGHT_FD).bytes(&payload).fd(fd.as_fd()))
    }

    /// SET_VRING_NUM, SET_VRING_BASE or SET_VRING_ENABLE: an index and a number.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn set_vring(&mut self, request: Request, index: u32, num: u32) -> Result<()> {
        self.tell(Message::new(request).u32(index).u32(num))
    }

    /// SET_VRING_ADDR.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn set_vring_addr(&mut self, addr: &VringAddr) -> Result<()> {
        let message = Message::new(Request::SET_VRING_ADDR).u32(addr.index).u32(addr.flags);
        self.tell(message.u64(addr.desc).u64(addr.used).u64(addr.avail).u64(addr.log))
    }

    /// SET_VRING_KICK, SET_VRING_CALL or SET_VRING_ERR; without a descriptor the "none" bit is set.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn set_vring_fd(
        &mut self,
        request: Request,
        index: u64,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let none = if fd.is_none() { VRING_NO_FD } else { 0 };
        let mut message = Message::new(request).u64(index | none);
        message.fds.extend(fd);
        self.tell(message)
    }

    /// GET_VRING_BASE: stops the ring and tells its next available index.
    ///
    /// # Errors
    /// As [`Frontend::ask`].
    pub fn get_vring_base(&mut self, index: u32) -> Result<u32> {
        let backend_reply = self.ask(&Message::new(Request::GET_VRING_BASE).u32(index).u32(0))?;
        let both = backend_reply.u64()?.to_ne_bytes();
        Ok(u32::from_ne_bytes([both[4], both[5], both[6], both[7]]))
    }

    /// GET_CONFIG of `len` bytes from the start; an empty answer (the protocol's "no") is an error.
    ///
    /// # Errors
    /// [`Error::Reply`] if another size is answered.
    pub fn get_config(&mut self, len: u32) -> Result<Vec<u8>> {
        let message = Message::new(Request::GET_CONFIG).u32(0).u32(len).u32(0);
        let backend_reply = self.ask(&message.bytes(&vec![0; len as usize]))?;
        if backend_reply.payload.len() != 12 + len as usize {
            let what = format!("{} bytes for {len} bytes asked", backend_reply.payload.len());
            return Err(Error::Reply { request: Request::GET_CONFIG.name(), what });
        }
        Ok(backend_reply.payload[12..].to_vec())
    }

    /// SET_CONFIG at an offset.
    ///
    /// # Errors
    /// As [`Frontend::tell`].
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.tell(Message::new(Request::SET_CONFIG).u32(offset).u32(len).u32(0).bytes(bytes))
    }
}

/// A SET_MEM_TABLE message with any count and regions, without descriptors.
#[must_use]
pub fn mem_table(count: u32, regions: &[Region]) -> Message<'static> {
    let empty = Message::new(Request::SET_MEM_TABLE).u32(count).u32(0);
    regions.iter().fold(empty, |message, region| message.bytes(&region.encode()))
}
