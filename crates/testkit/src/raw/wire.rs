//! Numbers and layout of vhost-user messages, as in QEMU's `vhost-user.rst`.
//!
//! All fields are in the machine's byte order, as the protocol says. A [`Message`] may be wrong in
//! any way: its size field, flags, payload and descriptors are independent.

use std::os::fd::BorrowedFd;

/// A request number; any value may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request(pub u32);

macro_rules! requests {
    ($($name:ident = $number:literal),+ $(,)?) => {
        impl Request {
            $(#[doc = concat!("Request ", stringify!($number), " of the protocol.")]
            pub const $name: Self = Self($number);)+

            /// Returns the name in the specification, or `request N`.
            #[must_use]
            pub fn name(self) -> String {
                match self.0 {
                    $($number => stringify!($name).to_owned(),)+
                    other => format!("request {other}"),
                }
            }
        }
    };
}

requests! {
    GET_FEATURES = 1, SET_FEATURES = 2, SET_OWNER = 3, RESET_OWNER = 4, SET_MEM_TABLE = 5,
    SET_LOG_BASE = 6, SET_LOG_FD = 7, SET_VRING_NUM = 8, SET_VRING_ADDR = 9, SET_VRING_BASE = 10,
    GET_VRING_BASE = 11, SET_VRING_KICK = 12, SET_VRING_CALL = 13, SET_VRING_ERR = 14,
    GET_PROTOCOL_FEATURES = 15, SET_PROTOCOL_FEATURES = 16, GET_QUEUE_NUM = 17,
    SET_VRING_ENABLE = 18, SEND_RARP = 19, NET_SET_MTU = 20, SET_BACKEND_REQ_FD = 21,
    IOTLB_MSG = 22, SET_VRING_ENDIAN = 23, GET_CONFIG = 24, SET_CONFIG = 25,
    POSTCOPY_ADVISE = 28, POSTCOPY_LISTEN = 29, POSTCOPY_END = 30, GET_INFLIGHT_FD = 31,
    SET_INFLIGHT_FD = 32, GPU_SET_SOCKET = 33, RESET_DEVICE = 34, VRING_KICK = 35,
    GET_MAX_MEM_SLOTS = 36, ADD_MEM_REG = 37, REM_MEM_REG = 38, SET_STATUS = 39, GET_STATUS = 40,
}

/// Messages that the backend sends on the channel of `SET_BACKEND_REQ_FD`.
pub mod backend_request {
    /// The configuration space changed.
    pub const CONFIG_CHANGE: u32 = 2;
}

/// Bits of the flags field of a header.
pub mod flags {
    /// Version 1, the only one.
    pub const VERSION: u32 = 0x1;
    /// Mask of the version bits.
    pub const VERSION_MASK: u32 = 0x3;
    /// The message is a reply.
    pub const REPLY: u32 = 0x4;
    /// The sender requests an acknowledgement (REPLY_ACK negotiated).
    pub const NEED_REPLY: u32 = 0x8;
}

/// Virtio feature bits, as masks.
pub mod feature {
    /// Segment count limit is in the configuration.
    pub const BLK_SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const BLK_RO: u64 = 1 << 5;
    /// Block size is in the configuration.
    pub const BLK_BLK_SIZE: u64 = 1 << 6;
    /// The device supports FLUSH.
    pub const BLK_FLUSH: u64 = 1 << 9;
    /// Topology is in the configuration.
    pub const BLK_TOPOLOGY: u64 = 1 << 10;
    /// Several queues.
    pub const BLK_MQ: u64 = 1 << 12;
    /// The device supports DISCARD.
    pub const BLK_DISCARD: u64 = 1 << 13;
    /// The device supports WRITE_ZEROES.
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
    /// Dirty logging (live migration).
    pub const LOG_ALL: u64 = 1 << 26;
    /// Indirect descriptor tables.
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    /// `used_event` and `avail_event` replace the flags.
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    /// Vhost-user protocol features can be negotiated.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Modern virtio.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;
}

/// Protocol feature bits, as masks.
pub mod protocol {
    /// Several queues, GET_QUEUE_NUM.
    pub const MQ: u64 = 1 << 0;
    /// Dirty log by shared memory.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Acknowledgements on request.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// Backend channel.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// GET_CONFIG and SET_CONFIG.
    pub const CONFIG: u64 = 1 << 9;
    /// In-flight region.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// RESET_DEVICE.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// ADD_MEM_REG and REM_MEM_REG.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// All bits that this front-end can use.
    pub const ALL_KNOWN: u64 =
        MQ | REPLY_ACK | BACKEND_REQ | CONFIG | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

/// The "no descriptor" bit in the payload of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR.
pub const VRING_NO_FD: u64 = 1 << 8;

/// Bytes in a message header.
pub const HEADER_BYTES: usize = 12;

/// A message to send. It borrows its descriptors, which go with the first byte.
#[derive(Debug, Clone)]
pub struct Message<'fd> {
    /// Request number.
    pub request: Request,
    /// Flags field; version 1 by default.
    pub flags: u32,
    /// Size field, if it is to differ from the payload's length.
    pub claimed_size: Option<u32>,
    /// Payload.
    pub payload: Vec<u8>,
    /// Descriptors.
    pub fds: Vec<BorrowedFd<'fd>>,
}

impl<'fd> Message<'fd> {
    /// Creates an empty message of version 1.
    #[must_use]
    pub fn new(request: Request) -> Self {
        let (payload, fds) = (Vec::new(), Vec::new());
        Self { request, flags: flags::VERSION, claimed_size: None, payload, fds }
    }

    /// Appends 64 bits.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends 32 bits.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends bytes unchanged.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.payload.extend_from_slice(bytes);
        self
    }

    /// Adds a descriptor.
    #[must_use]
    pub fn fd(mut self, fd: BorrowedFd<'fd>) -> Self {
        self.fds.push(fd);
        self
    }

    /// Requests an acknowledgement.
    #[must_use]
    pub fn need_reply(mut self) -> Self {
        self.flags |= flags::NEED_REPLY;
        self
    }

    /// Replaces the flags field.
    #[must_use]
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// Sets a size field that differs from the payload's length.
    #[must_use]
    pub fn claim_size(mut self, bytes: u32) -> Self {
        self.claimed_size = Some(bytes);
        self
    }

    /// Returns the bytes of header and payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let honest = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let size = self.claimed_size.unwrap_or(honest);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.payload.len());
        for word in [self.request.0, self.flags, size] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_header_then_payload() {
        let message = Message::new(Request::SET_VRING_NUM).u32(2).u32(128).need_reply();
        let words: Vec<u32> =
            message.encode().chunks(4).map(|c| u32::from_ne_bytes(c.try_into().unwrap())).collect();
        assert_eq!(words, [8, 0x9, 8, 2, 128]);
        assert_eq!(Request::SET_VRING_NUM.name(), "SET_VRING_NUM");
        assert_eq!(Request(999).name(), "request 999");
    }

    #[test]
    fn the_size_field_may_lie() {
        let bytes = Message::new(Request(1)).u64(0).claim_size(77).encode();
        assert_eq!(bytes[8..12], 77u32.to_ne_bytes());
        assert_eq!(bytes.len(), HEADER_BYTES + 8);
    }
}
