//! What can go wrong, sorted by who has to act.

use std::path::PathBuf;

use rustix::io::Errno;

/// An error of the device behind a session, whatever its type.
pub type BackendError = Box<dyn std::error::Error + Send + Sync>;

/// A message that is not carried out. The session goes on; the front-end hears of it where the
/// protocol has an answer for that.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A request code that is not served, or belongs to a feature that was not offered.
    #[error("request {code} is not served")]
    Unknown {
        /// The code.
        code: u32,
    },
    /// The payload does not have the size that this request has.
    #[error("payload has {got} bytes, this request has {need}")]
    PayloadSize {
        /// Bytes that came.
        got: usize,
        /// Bytes that the specification asks for (at least).
        need: usize,
    },
    /// A field of the payload is out of range.
    #[error("{field} is {value}, {accepted}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// What came.
        value: u64,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// Another number of descriptors came than the request carries.
    #[error("{got} descriptors came, this request carries {need}")]
    DescriptorCount {
        /// Descriptors that came.
        got: usize,
        /// Descriptors that belong to it.
        need: usize,
    },
    /// The kernel could not hand over the descriptors of this message.
    #[error("descriptors of this message were lost; raise the limit of open files")]
    DescriptorsLost,
    /// A descriptor is of another kind than the request needs.
    #[error("{role} descriptor is {found}, {accepted}")]
    DescriptorKind {
        /// Kick, call, error or channel.
        role: &'static str,
        /// What it is.
        found: String,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// Feature bits that were not offered.
    #[error("feature bits {extra:#x} were acknowledged but not offered")]
    Features {
        /// The bits.
        extra: u64,
    },
    /// The device has fewer queues.
    #[error("queue {index} does not exist, the device has {count}")]
    NoSuchQueue {
        /// Index in the message.
        index: u32,
        /// Queues of the device.
        count: usize,
    },
    /// The ring runs, and this cannot be changed while it does.
    #[error("queue {index} is running; stop it before its {what} changes")]
    Running {
        /// Queue index.
        index: usize,
        /// What was to change.
        what: &'static str,
    },
    /// A part of the ring is in no memory region.
    #[error("{part} of queue {index} at {addr:#x} is outside the guest's memory")]
    RingOutside {
        /// Queue index.
        index: usize,
        /// Descriptor table, available ring or used ring.
        part: &'static str,
        /// Address in the front-end's address space.
        addr: u64,
    },
    /// Two regions claim the same addresses of the front-end.
    #[error("memory regions at user addresses {first:#x} and {second:#x} overlap")]
    UserOverlap {
        /// The lower region.
        first: u64,
        /// The upper region.
        second: u64,
    },
    /// A region to be removed is not in the table.
    #[error("no memory region of {len:#x} bytes at guest address {guest_addr:#x}")]
    NoSuchRegion {
        /// Guest address in the message.
        guest_addr: u64,
        /// Length in the message.
        len: u64,
    },
    /// The memory cannot be served.
    #[error("memory is not usable")]
    Memory(#[from] memory::MemoryError),
    /// The in-flight region that the front-end brought, or asked for.
    #[error("in-flight region is not usable")]
    Inflight(#[from] virtq::InflightError),
    /// The front-end keeps a record of requests in flight that cannot be read.
    #[error(
        "queue {index} is not started, since the record of its requests in flight was refused; \
         reset the machine, so that its device begins with a new record"
    )]
    RecordLost {
        /// Queue index.
        index: usize,
    },
    /// The in-flight region of the front-end is for fewer queues.
    #[error(
        "queue {index} is not started, since the in-flight region is for {queues} queues only and \
         a crash would lose its requests; ask for a region for all queues that are started"
    )]
    Unrecorded {
        /// Queue index.
        index: u16,
        /// Queues of the region.
        queues: u16,
    },
    /// The kernel refused something about a descriptor.
    #[error("cannot {action}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// Its answer.
        #[source]
        source: Errno,
    },
    /// The device refused.
    #[error("the device refused to {action}")]
    Device {
        /// What it was asked for.
        action: &'static str,
        /// Its reason.
        #[source]
        source: BackendError,
    },
}

/// A connection that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The header's version or direction is wrong: this is not a vhost-user front-end.
    #[error("header flags {flags:#x} are not those of a vhost-user request of version 1")]
    BadHeader {
        /// Flags field of the header.
        flags: u32,
    },
    /// The payload is longer than any request's.
    #[error("request {code} announces {size} bytes, at most {max} are accepted")]
    Oversized {
        /// Request code.
        code: u32,
        /// Announced size in bytes.
        size: u32,
        /// The limit in bytes.
        max: usize,
    },
    /// The connection ended within a message.
    #[error("connection ended after {got} of {need} bytes of a message")]
    Truncated {
        /// Bytes that came.
        got: usize,
        /// Bytes that were announced.
        need: usize,
    },
    /// The front-end waits for an answer that cannot be given.
    #[error("request {code} cannot be answered")]
    Unanswerable {
        /// Request code.
        code: u32,
        /// Why.
        #[source]
        source: Refusal,
    },
    /// The socket failed.
    #[error("cannot {action} the front-end's socket")]
    Os {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// A socket that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error(
        "socket path {} has {len} bytes, a Unix socket allows {max}; use a shorter directory",
        path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The folder of the path is not there.
    #[error(
        "there is no folder {} for the socket; make it with `mkdir -p {}`, or use another path",
        path.display(), path.display()
    )]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A living process serves this socket.
    #[error(
        "socket {} is served by a running process; stop it or use another path",
        path.display()
    )]
    Taken {
        /// The path.
        path: PathBuf,
    },
    /// Something else lives at the path, and it is not ours to remove.
    #[error("{} is not a socket; use another path, or remove it if nobody needs it", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A descriptor that was given is no socket that front-ends can connect to.
    #[error("the descriptor is not a Unix socket that listens at a path")]
    NotListening,
    /// The group of the socket does not exist.
    #[error("group {name:?} is not in /etc/group; create it or give its number")]
    NoSuchGroup {
        /// The name.
        name: String,
    },
    /// The kernel refused.
    #[error("cannot {action} {}", path.display())]
    Os {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
}
