//! Requests: parses the bytes of a message once into a checked value.
//!
//! Layouts follow QEMU's `docs/interop/vhost-user.rst`: native byte order, a header of 12 bytes
//! (request, flags, size), then the payload.

mod body;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;

use memory::RegionSpec;

use self::body::{
    Body, get_config, mem_table, one, set_config, single_region, vring_addr, vring_base,
    vring_enable, vring_fd,
};
use crate::error::Refusal;

/// Bytes of a message header.
pub(crate) const HEADER_BYTES: usize = 12;
/// Bytes of offset, size and flags at the start of a configuration message.
const CONFIG_HEAD_BYTES: usize = 12;
/// Most bytes of configuration space in one message: a page, far more than any device has.
pub(crate) const MAX_CONFIG_BYTES: usize = 4096;
/// Longest payload that is read: the longest configuration message. A table of
/// [`MAX_TABLE_REGIONS`] regions is shorter.
pub(crate) const MAX_PAYLOAD_BYTES: usize = CONFIG_HEAD_BYTES + MAX_CONFIG_BYTES;
/// Most regions in one `SET_MEM_TABLE`, and so most descriptors of one message. The tables of the
/// specification have 8. `ADD_MEM_REG` adds more regions one by one.
pub(crate) const MAX_TABLE_REGIONS: usize = 32;

/// Version 1 in the two low bits of the flags.
pub(crate) const VERSION: u32 = 1;
/// Mask of the version.
const VERSION_MASK: u32 = 3;
/// Flag: the message is a reply.
pub(crate) const REPLY: u32 = 1 << 2;
/// Flag: the sender requests a reply.
const NEED_REPLY: u32 = 1 << 3;
/// Bit in the payload of a vring descriptor message: no descriptor is attached.
const NO_DESCRIPTOR: u64 = 1 << 8;
/// Bits in the payload of a vring descriptor message: queue index.
const VRING_INDEX_MASK: u64 = 0xff;
/// Sizes of the description of an in-flight region in bytes: plain, and with the padding of QEMU's
/// compiler. QEMU accepts a reply only in the size of its own request.
const INFLIGHT_BYTES: [usize; 2] = [20, 24];
/// Flag of `SET_VRING_ADDR`: log writes to the used ring.
const VRING_LOG: u32 = 1;

/// Codes of the requests that are served.
pub(crate) mod code {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// The three fields before every payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Request code.
    pub(crate) code: u32,
    /// Flags as received.
    pub(crate) flags: u32,
    /// Bytes of payload that follow.
    pub(crate) size: u32,
}

impl Header {
    pub(crate) fn parse(bytes: [u8; HEADER_BYTES]) -> Self {
        let [c0, c1, c2, c3, f0, f1, f2, f3, s0, s1, s2, s3] = bytes;
        Self {
            code: u32::from_ne_bytes([c0, c1, c2, c3]),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
            size: u32::from_ne_bytes([s0, s1, s2, s3]),
        }
    }

    /// Returns whether this is version 1 and a request rather than a reply.
    pub(crate) fn is_request(self) -> bool {
        self.flags & VERSION_MASK == VERSION && self.flags & REPLY == 0
    }

    pub(crate) fn needs_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

/// Addresses of the parts of a ring, in the front-end's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingAddr {
    pub(crate) desc: u64,
    pub(crate) used: u64,
    pub(crate) avail: u64,
}

/// Dimensions of an in-flight region, and its location in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InflightDesc {
    pub(crate) mmap_size: u64,
    pub(crate) mmap_offset: u64,
    pub(crate) queues: u16,
    pub(crate) size: u16,
}

impl InflightDesc {
    /// Returns the payload of the reply to a request whose payload has `request` bytes.
    pub(crate) fn reply(self, request: usize) -> Vec<u8> {
        let mut bytes = [self.mmap_size, self.mmap_offset].map(u64::to_ne_bytes).concat();
        bytes.extend([self.queues, self.size].map(u16::to_ne_bytes).concat());
        let [bare, padded] = INFLIGHT_BYTES;
        bytes.resize(if request == bare { bare } else { padded }, 0);
        bytes
    }
}

/// A checked request. The receiver must still compare indices with the device's queue count.
#[derive(Debug)]
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<(RegionSpec, OwnedFd)>),
    SetVringNum {
        index: u32,
        num: u32,
    },
    SetVringAddr {
        index: u32,
        addr: RingAddr,
    },
    SetVringBase {
        index: u32,
        base: u16,
    },
    GetVringBase {
        index: u32,
    },
    SetVringKick {
        index: u32,
        fd: Option<OwnedFd>,
    },
    SetVringCall {
        index: u32,
        fd: Option<OwnedFd>,
    },
    SetVringErr {
        index: u32,
        fd: Option<OwnedFd>,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable {
        index: u32,
        enable: bool,
    },
    SetBackendReqFd(OwnedFd),
    GetConfig {
        offset: u32,
        flags: u32,
        len: usize,
    },
    SetConfig {
        offset: u32,
        bytes: Vec<u8>,
    },
    /// `payload` is the size of the payload, which the reply repeats.
    GetInflightFd {
        queues: u16,
        size: u16,
        payload: usize,
    },
    SetInflightFd(InflightDesc, OwnedFd),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(RegionSpec, OwnedFd),
    RemMemReg(RegionSpec),
}

impl Request {
    /// Parses a message. Closes descriptors that the request does not carry.
    pub(crate) fn parse(code: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let mut body = Body { bytes: payload };
        Ok(match code {
            code::GET_FEATURES => Self::GetFeatures,
            code::SET_FEATURES => Self::SetFeatures(body.only_u64()?),
            code::SET_OWNER => Self::SetOwner,
            code::RESET_OWNER => Self::ResetOwner,
            code::SET_MEM_TABLE => Self::SetMemTable(mem_table(body, fds)?),
            code::SET_VRING_NUM => {
                let (index, num) = body.vring_state()?;
                Self::SetVringNum { index, num }
            }
            code::SET_VRING_ADDR => vring_addr(body)?,
            code::SET_VRING_BASE => vring_base(body)?,
            code::GET_VRING_BASE => Self::GetVringBase { index: body.vring_state()?.0 },
            code::SET_VRING_KICK => {
                let (index, fd) = vring_fd(body, fds)?;
                Self::SetVringKick { index, fd }
            }
            code::SET_VRING_CALL => {
                let (index, fd) = vring_fd(body, fds)?;
                Self::SetVringCall { index, fd }
            }
            code::SET_VRING_ERR => {
                let (index, fd) = vring_fd(body, fds)?;
                Self::SetVringErr { index, fd }
            }
            code::GET_PROTOCOL_FEATURES => Self::GetProtocolFeatures,
            code::SET_PROTOCOL_FEATURES => Self::SetProtocolFeatures(body.only_u64()?),
            code::GET_QUEUE_NUM => Self::GetQueueNum,
            code::SET_VRING_ENABLE => vring_enable(body)?,
            code::SET_BACKEND_REQ_FD => Self::SetBackendReqFd(one(fds)?),
            code::GET_CONFIG => get_config(body)?,
            code::SET_CONFIG => set_config(body)?,
            code::GET_INFLIGHT_FD => {
                let InflightDesc { queues, size, .. } = body.inflight()?;
                Self::GetInflightFd { queues, size, payload: payload.len() }
            }
            code::SET_INFLIGHT_FD => Self::SetInflightFd(body.inflight()?, one(fds)?),
            code::RESET_DEVICE => Self::ResetDevice,
            code::GET_MAX_MEM_SLOTS => Self::GetMaxMemSlots,
            code::ADD_MEM_REG => {
                let region = single_region(body)?;
                Self::AddMemReg(region, one(fds)?)
            }
            code::REM_MEM_REG => Self::RemMemReg(single_region(body)?),
            code => return Err(Refusal::Unknown { code }),
        })
    }

    /// Returns whether front-ends send this request only at the beginning of a session.
    pub(crate) fn begins_session(&self) -> bool {
        matches!(
            self,
            Self::GetFeatures
                | Self::SetOwner
                | Self::GetProtocolFeatures
                | Self::SetProtocolFeatures(_)
        )
    }

    /// Returns whether the front-end waits for more than an acknowledgement after this request.
    pub(crate) fn has_own_reply(code: u32) -> bool {
        matches!(
            code,
            code::GET_FEATURES
                | code::GET_VRING_BASE
                | code::GET_PROTOCOL_FEATURES
                | code::GET_QUEUE_NUM
                | code::GET_CONFIG
                | code::GET_INFLIGHT_FD
                | code::GET_MAX_MEM_SLOTS
        )
    }
}

/// Returns the payload of the reply to `GET_CONFIG`.
pub(crate) fn config_reply(offset: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
    // `config_len` has limited the length, so it fits.
    let size = bytes.len() as u32;
    let head = [offset, size, flags].map(u32::to_ne_bytes).concat();
    [&head, bytes].concat()
}

/// Returns the payload of a reply that is a vring state.
pub(crate) fn vring_state_reply(index: u32, num: u32) -> Vec<u8> {
    [index, num].map(u32::to_ne_bytes).concat()
}
