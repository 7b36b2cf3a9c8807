//! Handover from one worker to the next while guests run.
//!
//! # Words
//! - **Source**: the worker that serves and is to be replaced ([`mod@source`]).
//! - **Destination**: the new worker that the keeper has started beside it ([`mod@destination`]).
//! - **Way**: the link between the two.
//!
//! # Model
//! ```text
//!  caller     source                     keeper               destination
//!    |-upgrade->|-- Succeed, way ----------->|-- start, entries -->|
//!    |          |                            |                     | reactors, ring
//!    |          |<-- Hello: formats ---------------------------------|
//!    |          | front-ends end their messages                    |
//!    |          | drain, quiesce sessions                          |
//!    |          |-- disks, networks, NICs, descriptors -------------->| map, check
//!    |          |<-- Ready ------------------------------------------|
//!    |          |-- Yield ------------------>|                     |
//!    |          |-- Go ----------------------------------------------->| lock, serve
//!    |<-answer--| ends, touching nothing     |<-- Ready -----------|
//! ```
//! Everything that takes time happens before the source quiesces. Sockets, memory, kicks, calls,
//! in-flight regions, files of disks and TAP queues travel as descriptors. Locks belong to open
//! files, so they are never free during the handover. The keeper has the listening sockets, the
//! memory of memory disks and the files that were handed in.
//!
//! # Invariants
//! - Only `Go` makes the destination serve, and the source never serves after it. A destination
//!   that reads the end of the link instead ends without having touched anything.
//! - Before `Go`, the source can continue as if nothing had happened. It does so if the destination
//!   cannot start, dies, stays silent, cannot read the state, or refuses it.
//! - Before NICs are handed over, each frame that a guest has sent is with its receiver. No NIC
//!   sends before all of them receive again (`crate::nic_registry`). So no frame is lost or
//!   flooded.
//! - A front-end that makes its own session impossible to continue is disconnected, by the source or
//!   by the destination. All others are handed over.
//! - Requests that wait for space on the storage are handed over in an in-flight region.
//! - During an upgrade no verb changes a disk, so the keeper's records for the destination stay
//!   valid.
//!
//! # Versions
//! The destination reports which formats of sessions and of disk and NIC records it reads. The
//! source writes the newest format that both know. So an upgrade to an older program works if they
//! share one. Each record except the first format also contains its format, and a destination
//! refuses an unknown one with the reason. A format never changes:
//! `crates/vhost-user/tests/fixtures` and `crates/iod/tests/fixtures` have one sample of each.

mod broken_ring_state;
mod destination;
mod protocol;
mod source;

use std::time::Duration;

use crate::nic_registry::NIC_FORMAT;
pub(crate) use broken_ring_state::BrokenRingState;
pub(crate) use destination::{HandoverState, ReceivedDisk, await_end, take};
use protocol::FormatRange;
pub(crate) use source::upgrade;

/// Longest time for a new worker to start, and then to confirm that it has everything. Guests wait
/// during the second part.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(5);
/// Formats of disk records that are read and written, without those of sessions.
const DISK_FORMATS: FormatRange = FormatRange { oldest: 1, newest: 4 };
/// Formats of NIC and network records that are read and written.
const NIC_FORMATS: FormatRange = FormatRange { oldest: 1, newest: NIC_FORMAT };
/// Longest time for storage to complete I/O in flight. Guests wait.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);
