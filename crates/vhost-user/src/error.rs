//! Errors of messages, sessions and sockets.

use std::path::PathBuf;

use rustix::io::Errno;

/// An error of the device behind a session, whatever its type.
pub type BackendError = Box<dyn std::error::Error + Send + Sync>;

/// A message that the session did not carry out. The session continues. The front-end receives
/// an error where the protocol has a reply for it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The session does not serve the request code, or did not offer the feature it belongs to.
    #[error("request {code} is not served")]
    Unknown {
        /// Request code.
        code: u32,
    },
    /// The payload has another size than this request's.
    #[error("payload has {got} bytes, this request has {need}")]
    PayloadSize {
        /// Bytes received.
        got: usize,
        /// Bytes that the specification requires (at least).
        need: usize,
    },
    /// A field of the payload is out of range.
    #[error("{field} is {value}, {accepted}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value received.
        value: u64,
        /// Accepted values.
        accepted: &'static str,
    },
    /// The process has no more room for memory of this front-end.
    #[error(transparent)]
    OverBudget(#[from] memory::OverBudget),
    /// The message came with another number of descriptors than the request carries.
    #[error("{got} descriptors came, this request carries {need}")]
    DescriptorCount {
        /// Descriptors received.
        got: usize,
        /// Descriptors that the request carries.
        need: usize,
    },
    /// The kernel could not deliver the descriptors of this message.
    #[error("descriptors of this message were lost; raise the limit of open files")]
    DescriptorsLost,
    /// A descriptor is of another kind than the request needs.
    #[error("{role} descriptor is {found}, {accepted}")]
    DescriptorKind {
        /// Role of the descriptor: kick, call, error or channel.
        role: &'static str,
        /// Kind of the descriptor received.
        found: String,
        /// Accepted kinds.
        accepted: &'static str,
    },
    /// The front-end acknowledged feature bits that were not offered.
    #[error("feature bits {extra:#x} were acknowledged but not offered")]
    Features {
        /// Bits that were not offered.
        extra: u64,
    },
    /// The device has fewer queues.
    #[error("queue {index} does not exist, the device has {count}")]
    NoSuchQueue {
        /// Index in the message.
        index: u32,
        /// Number of queues of the device.
        count: usize,
    },
    /// The setting cannot change while the ring runs.
    #[error("queue {index} is running; stop it before its {what} changes")]
    Running {
        /// Queue index.
        index: usize,
        /// Setting that the message changes.
        what: &'static str,
    },
    /// No memory region contains this part of the ring.
    #[error("{part} of queue {index} at {addr:#x} is outside the guest's memory")]
    RingOutside {
        /// Queue index.
        index: usize,
        /// Part of the ring: descriptor table, available ring or used ring.
        part: &'static str,
        /// Address in the front-end's address space.
        addr: u64,
    },
    /// Two regions overlap in the front-end's address space.
    #[error("memory regions at user addresses {first:#x} and {second:#x} overlap")]
    UserOverlap {
        /// User address of the lower region.
        first: u64,
        /// User address of the upper region.
        second: u64,
    },
    /// The table has no such region to remove.
    #[error("no memory region of {len:#x} bytes at guest address {guest_addr:#x}")]
    NoSuchRegion {
        /// Guest address in the message.
        guest_addr: u64,
        /// Length in the message.
        len: u64,
    },
    /// The device cannot serve this memory.
    #[error("memory is not usable")]
    Memory(#[from] memory::MemoryError),
    /// The in-flight region that the front-end sent or requested is not usable.
    #[error("in-flight region is not usable")]
    Inflight(#[from] virtq::InflightError),
    /// The session refused the front-end's in-flight region, so the queue does not start.
    #[error(
        "queue {index} is not started, since the record of its requests in flight was refused; \
         reset the machine, so that its device begins with a new record"
    )]
    RecordLost {
        /// Queue index.
        index: usize,
    },
    /// The front-end's in-flight region covers fewer queues.
    #[error(
        "queue {index} is not started, since the in-flight region is for {queues} queues only and \
         a crash would lose its requests; ask for a region for all queues that are started"
    )]
    Unrecorded {
        /// Queue index.
        index: u16,
        /// Number of queues in the region.
        queues: u16,
    },
    /// A system call on a descriptor failed.
    #[error("cannot {action}")]
    Os {
        /// Failed action.
        action: &'static str,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// The device refused the request.
    #[error("the device refused to {action}")]
    Device {
        /// Refused action.
        action: &'static str,
        /// The device's error.
        #[source]
        source: BackendError,
    },
}

/// A connection that cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The header's version or direction is wrong: the peer is no vhost-user front-end.
    #[error("header flags {flags:#x} are not those of a vhost-user request of version 1")]
    BadHeader {
        /// Flags field of the header.
        flags: u32,
    },
    /// The payload is longer than any request's payload.
    #[error("request {code} announces {size} bytes, at most {max} are accepted")]
    Oversized {
        /// Request code.
        code: u32,
        /// Announced size in bytes.
        size: u32,
        /// Limit in bytes.
        max: usize,
    },
    /// The connection ended within a message.
    #[error("connection ended after {got} of {need} bytes of a message")]
    Truncated {
        /// Bytes received.
        got: usize,
        /// Bytes announced.
        need: usize,
    },
    /// The front-end waits for a reply that cannot be given.
    #[error("request {code} cannot be answered")]
    Unanswerable {
        /// Request code.
        code: u32,
        /// Reason for the refusal.
        #[source]
        source: Refusal,
    },
    /// The socket failed.
    #[error("cannot {action} the front-end's socket")]
    Os {
        /// Failed action.
        action: &'static str,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
}

/// A socket that could not be created, listened on or connected.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error(
        "socket path {} has {len} bytes, a Unix socket allows {max}; use a shorter directory",
        path.display()
    )]
    PathTooLong {
        /// Path of the socket.
        path: PathBuf,
        /// Length of the path in bytes.
        len: usize,
        /// Limit in bytes.
        max: usize,
    },
    /// The folder of the path does not exist.
    #[error(
        "there is no folder {} for the socket; make it with `mkdir -p {}`, or use another path",
        path.display(), path.display()
    )]
    NoFolder {
        /// Path of the folder.
        path: PathBuf,
    },
    /// A running process serves this socket.
    #[error(
        "socket {} is served by a running process; stop it or use another path",
        path.display()
    )]
    Taken {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path leads to another kind of file, which is not removed.
    #[error("{} is not a socket; use another path, or remove it if it is unused", path.display())]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
    },
    /// The inherited descriptor is no socket that front-ends can connect to.
    #[error("the descriptor is not a Unix socket that listens at a path")]
    NotListening,
    /// The group of the socket does not exist.
    #[error("group {name:?} is not in /etc/group; create it or give its number")]
    NoSuchGroup {
        /// Name of the group.
        name: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Os {
        /// Failed action.
        action: &'static str,
        /// Path that the action was for.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
}
