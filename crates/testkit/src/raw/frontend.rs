//! Messages of the protocol as methods. Each method sends its arguments unchecked, right or wrong.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::connection::{BackendReply, Connection};
use super::memory::{Region, SharedMemory};
use super::wire::{Message, Request, VRING_NO_FD, feature, protocol};
use crate::error::{Error, Result};

/// Offered and acknowledged features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Virtio features that the backend offers.
    pub offered: u64,
    /// Acknowledged virtio features.
    pub features: u64,
    /// Protocol features that the backend offers.
    pub protocol_offered: u64,
    /// Acknowledged protocol features.
    pub protocol: u64,
}

/// Ring addresses of SET_VRING_ADDR, in user addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VringAddr {
    /// Queue index.
    pub index: u32,
    /// Flags; 1 = log writes to the used ring.
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

/// An in-flight region, as messages describe it and the front-end stores it.
#[derive(Debug)]
pub struct InflightArea {
    /// File of the region.
    pub fd: OwnedFd,
    /// Bytes of the region.
    pub mmap_size: u64,
    /// Offset of the region in the file, in bytes.
    pub mmap_offset: u64,
    /// Number of queues in the region.
    pub queues: u16,
    /// Descriptors of each queue.
    pub queue_size: u16,
}

/// Returns the payload of both in-flight messages, with the padding that QEMU's compiler adds.
fn inflight_payload(size: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut bytes = [size, offset].map(u64::to_ne_bytes).concat();
    bytes.extend([queues, queue_size, 0, 0].map(u16::to_ne_bytes).concat());
    bytes
}

/// Front-end side of a vhost-user socket.
#[derive(Debug)]
pub struct Frontend {
    /// Connection, for messages without a method here.
    pub connection: Connection,
    /// True to request and check an acknowledgement of every message without a reply of its own.
    /// [`Frontend::negotiate`] sets it if REPLY_ACK was acknowledged.
    pub acks: bool,
}

impl Frontend {
    /// Connects. Sends nothing yet.
    ///
    /// # Errors
    /// [`Error::Io`] if no process listens.
    pub fn connect(path: &Path) -> Result<Self> {
        Ok(Self { connection: Connection::connect(path)?, acks: false })
    }

    /// Sends a message and waits for its reply.
    ///
    /// # Errors
    /// As [`Connection::recv`], and [`Error::Reply`] if another request is replied to.
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

    /// Sends a message that has no reply. With [`Frontend::acks`] checks its acknowledgement.
    ///
    /// # Errors
    /// [`Error::Refused`] if the backend acknowledges with another value than 0.
    pub fn send(&mut self, message: Message<'_>) -> Result<()> {
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
    /// As [`Frontend::send`].
    pub fn set_u64(&mut self, request: Request, value: u64) -> Result<()> {
        self.send(Message::new(request).u64(value))
    }

    /// Sends GET_FEATURES as a barrier: when this returns, all earlier messages are handled.
    ///
    /// # Errors
    /// As [`Frontend::ask`].
    pub fn barrier(&mut self) -> Result<()> {
        self.get_u64(Request::GET_FEATURES).map(drop)
    }

    /// Sends owner, features and protocol features, in QEMU's order. Acknowledges the requested
    /// features that are offered.
    ///
    /// # Errors
    /// As [`Frontend::ask`] and [`Frontend::send`].
    pub fn negotiate(&mut self, features: u64, protocol_features: u64) -> Result<Negotiated> {
        self.send(Message::new(Request::SET_OWNER))?;
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
        self.set_u64(Request::SET_FEATURES, taken)?;
        Ok(Negotiated { offered, features: taken, protocol_offered, protocol })
    }

    /// Sends SET_MEM_TABLE with the memory's regions, one descriptor each.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn set_mem_table(&mut self, memory: &SharedMemory) -> Result<()> {
        let regions = memory.regions();
        let fds = vec![memory.as_fd(); regions.len()];
        let count = u32::try_from(regions.len()).unwrap_or(u32::MAX);
        let message = mem_table(count, regions);
        self.send(Message { fds, ..message })
    }

    /// Sends ADD_MEM_REG for each of the memory's regions.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn add_mem_regions(&mut self, memory: &SharedMemory) -> Result<()> {
        for region in memory.regions() {
            self.add_mem_region(region, memory.as_fd())?;
        }
        Ok(())
    }

    /// Sends ADD_MEM_REG for one region.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn add_mem_region(&mut self, region: &Region, fd: BorrowedFd<'_>) -> Result<()> {
        let message = Message::new(Request::ADD_MEM_REG).u64(0).bytes(&region.encode());
        self.send(message.fd(fd))
    }

    /// Sends REM_MEM_REG for one region.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn rem_mem_region(&mut self, region: &Region) -> Result<()> {
        self.send(Message::new(Request::REM_MEM_REG).u64(0).bytes(&region.encode()))
    }

    /// Sends GET_INFLIGHT_FD, which requests a fresh region.
    ///
    /// # Errors
    /// [`Error::Reply`] if there is none, or it is for other queues.
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

    /// Sends SET_INFLIGHT_FD.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn set_inflight(&mut self, area: &InflightArea) -> Result<()> {
        let InflightArea { fd, mmap_size, mmap_offset, queues, queue_size } = area;
        let payload = inflight_payload(*mmap_size, *mmap_offset, *queues, *queue_size);
        self.send(Message::new(Request::SET_INFLIGHT_FD).bytes(&payload).fd(fd.as_fd()))
    }

    /// Sends SET_VRING_NUM, SET_VRING_BASE or SET_VRING_ENABLE: an index and a number.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn set_vring(&mut self, request: Request, index: u32, num: u32) -> Result<()> {
        self.send(Message::new(request).u32(index).u32(num))
    }

    /// Sends SET_VRING_ADDR.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn set_vring_addr(&mut self, addr: &VringAddr) -> Result<()> {
        let message = Message::new(Request::SET_VRING_ADDR).u32(addr.index).u32(addr.flags);
        self.send(message.u64(addr.desc).u64(addr.used).u64(addr.avail).u64(addr.log))
    }

    /// Sends SET_VRING_KICK, SET_VRING_CALL or SET_VRING_ERR. Without a descriptor sets the "none"
    /// bit.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn set_vring_fd(
        &mut self,
        request: Request,
        index: u64,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let none = if fd.is_none() { VRING_NO_FD } else { 0 };
        let mut message = Message::new(request).u64(index | none);
        message.fds.extend(fd);
        self.send(message)
    }

    /// Sends GET_VRING_BASE, which stops the ring. Returns its next available index.
    ///
    /// # Errors
    /// As [`Frontend::ask`].
    pub fn get_vring_base(&mut self, index: u32) -> Result<u32> {
        let backend_reply = self.ask(&Message::new(Request::GET_VRING_BASE).u32(index).u32(0))?;
        let both = backend_reply.u64()?.to_ne_bytes();
        Ok(u32::from_ne_bytes([both[4], both[5], both[6], both[7]]))
    }

    /// Sends GET_CONFIG of `len` bytes from the start. An empty reply (the protocol's "no") is an
    /// error.
    ///
    /// # Errors
    /// [`Error::Reply`] if the reply has another size.
    pub fn get_config(&mut self, len: u32) -> Result<Vec<u8>> {
        let message = Message::new(Request::GET_CONFIG).u32(0).u32(len).u32(0);
        let backend_reply = self.ask(&message.bytes(&vec![0; len as usize]))?;
        if backend_reply.payload.len() != 12 + len as usize {
            let what = format!("{} bytes instead of {len} bytes", backend_reply.payload.len());
            return Err(Error::Reply { request: Request::GET_CONFIG.name(), what });
        }
        Ok(backend_reply.payload[12..].to_vec())
    }

    /// Sends SET_CONFIG at an offset.
    ///
    /// # Errors
    /// As [`Frontend::send`].
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.send(Message::new(Request::SET_CONFIG).u32(offset).u32(len).u32(0).bytes(bytes))
    }
}

/// Returns a SET_MEM_TABLE message with any count and regions, without descriptors.
#[must_use]
pub fn mem_table(count: u32, regions: &[Region]) -> Message<'static> {
    let empty = Message::new(Request::SET_MEM_TABLE).u32(count).u32(0);
    regions.iter().fold(empty, |message, region| message.bytes(&region.encode()))
}
