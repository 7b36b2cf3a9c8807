//! From one worker to the next while guests run.
//!
//! # Words
//! - **Giver**: the worker that serves and is to be replaced ([`mod@give`]).
//! - **Taker**: the one that a keeper has started beside it ([`mod@take`]).
//! - **Way**: the link between the two.
//!
//! # Model
//! ```text
//!   caller     giver                      keeper               taker
//!     |-upgrade->|-- Succeed, way ----------->|-- start, holdings ->|
//!     |          |                            |                     | reactors, ring
//!     |          |<-- Hello: formats ---------------------------------|
//!     |          | front-ends end their messages                    |
//!     |          | drain, sessions stand still                      |
//!     |          |-- disks, networks, NICs, descriptors -------------->| map, check
//!     |          |<-- Ready ------------------------------------------|
//!     |          |-- Yield ------------------>|                     |
//!     |          |-- Go ----------------------------------------------->| lock, serve
//!     |<-answer--| ends, touching nothing     |<-- Ready -----------|
//! ```
//! Everything that takes time is done before the giver stands still. Sockets, memory, kicks, calls,
//! in-flight regions, images and queues of TAP devices travel as descriptors; locks belong to the open files and so are
//! never free on the way. Listening sockets and the memory of memory disks are with the keeper.
//!
//! # Invariants
//! - Go is the one word that makes the taker serve, and the giver never serves after it. A taker
//!   that reads the end of the way instead ends without having touched anything.
//! - Until Go the giver can go on as if nothing had happened, whatever became of the taker: not to
//!   be started, dead, silent, unable to read the state, or of another mind.
//! - A frame that a guest has got rid of is with its receiver before NICs are handed over, and nobody
//!   sends before all receive again (`crate::nic_registry`): none is lost, and none is flooded.
//! - While an upgrade is under way no verb changes a disk, so that what the keeper has given to the
//!   taker stays true.
//!
//! # Versions
//! The taker says which formats it reads, of a session and of the records of disks and NICs, and the giver writes
//! the newest that both know: an upgrade to an older program works as long as they share one. A
//! record says its own format too, but for the first; one that a taker does not know it refuses with
//! the reason. A format never changes;
//! `crates/vhost-user/tests/fixtures` and `crates/iod/tests/fixtures` have each as it was written.

mod destination;
mod protocol;
mod source;

use std::time::Duration;

use crate::nic_registry::NIC_FORMAT;
pub(crate) use destination::{HandoverState, ReceivedDisk, await_end, take};
use protocol::FormatRange;
pub(crate) use source::upgrade;

/// How long a new worker may take to begin, and then to confirm that it has everything. During the
/// second, guests wait.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(5);
/// Formats of a disk's record that are read and written, beside those of its session.
const DISK_FORMATS: FormatRange = FormatRange { oldest: 1, newest: 2 };
/// Formats of the records of NICs and networks that are read and written.
const NIC_FORMATS: FormatRange = FormatRange { oldest: 1, newest: NIC_FORMAT };
/// How long storage may take to end what is in flight. Guests wait.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);
