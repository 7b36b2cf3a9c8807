//! Measurement of a storage: how its throughput depends on the size of requests and on their number
//! at a time.
//!
//! # Words
//! - **Scratch**: the file that is measured, or a block device ([`Scratch`]).
//! - **Cell**: `total` outstanding bytes as `depth` requests of `total / depth` bytes each.
//! - **Matrix**: the cells of all sizes ([`cells()`]), as in "When Virtualised Storage is Faster than
//!   Bare Metal" (XenServer, 2015): 105 for reads and 105 for writes.
//! - **Knee**: the smallest amount of requests that gives 95% of the best throughput.
//! - **Cost**: device time of a request when the device is at its limit.
//!
//! # Model
//! ```text
//! Scratch -> for each cell: Load (a poller that keeps `depth` requests in flight) -> CellReport
//!                           OtherUse (does somebody else use the device?)         -> shorter loads
//!         -> share::Profile::fit: cost of a request and of a byte, knee, piece     -> StorageProfile
//! ```
//! The load uses the disk and the reactor that serve VMs, so the measured limit is the limit that VMs
//! see. Requests go past the page cache, to random places.
//!
//! # Design
//! **A scratch file has no name and random content.** Nothing is left after a kill. Storage that
//! compresses or finds equal blocks cannot make it faster.
//!
//! **Others come first.** The kernel counts the requests of the whole device. If others had some
//! while nothing was measured, the next load takes a quarter of its time and pauses for the rest.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cells;
mod device;
mod error;
mod load;
mod other_use;
mod profile;
mod run;
mod scratch;
mod stored;

pub use cells::{Cell, cells};
pub use device::{identity, whole_device};
pub use error::CalibrateError;
pub use profile::{profile, scheduler_profile};
pub use run::{Progress, run};
pub use scratch::Scratch;
pub use stored::{StoredProfileError, read_profile, store_profile};
