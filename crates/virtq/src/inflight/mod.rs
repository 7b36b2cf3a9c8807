//! The in-flight region: what of each ring is being worked on, in memory that outlives us.
//!
//! The front-end keeps the region while the process that serves is gone and hands it to the next
//! one, which so learns what its predecessor had popped and not completed. Execution is at least
//! once, completion exactly once.
//!
//! # Layout
//! Ours, in the machine's byte order; a front-end only keeps the bytes.
//! ```text
//! region: magic u64, version u32, queues u16, size u16, zero to 64
//!         queue 0, queue 1, ...                         each from a multiple of 64 on
//! queue:  used_idx u16, last_batch_head u16, zero to 64
//!         entry 0 .. entry size-1                       by head
//! entry:  counter u64, inflight u16 (0 or 1), next u16, zero to 16
//! ```
//!
//! # Order of stores
//! Each is a release: none can be seen, by a successor either, before those ahead of it.
//!
//! 1. Pop, in the order of the available ring: `counter`, then `inflight` = 1; then the request is
//!    started. So those recorded are always the first ones of the available ring that have not
//!    been completed, without a gap.
//! 2. Publish: `next` of each head of the batch and `last_batch_head`; the ring's used entries;
//!    the ring's used index. This is the one store that completes them. Then `inflight` = 0 for
//!    each of them, and last the region's `used_idx`.
//!
//! # Recovery
//! If the two used indices differ, the predecessor died behind the store of the ring's: exactly as
//! many heads as they differ by, from `last_batch_head` on, are completed, and are cleared. What
//! is still recorded is submitted again, in the order of its counters, and the available ring is
//! read from `used index + number recorded` on, whatever base the front-end set.
//!
//! Why each point of death is safe:
//! - behind `counter`: the entry is not recorded, so its counter means nothing, and the request
//!   is still in the available ring.
//! - behind `inflight` = 1: recorded. Whether it was started does not matter.
//! - among the links, or before the ring's used index: the indices agree, so the links are not
//!   looked at; the batch is submitted again and its used entries are written over.
//! - behind the ring's used index, until the region's: the batch is cleared, again if need be. No
//!   head of it was popped anew, since this thread pops only when it has published. A driver that
//!   has offered one again finds it popped from the available ring, as any other.
//! - in recovery: it clears the same heads as before, since the list and the region's index are as
//!   they were until its last store. Requests submitted again keep their record untouched.
//! - between publishing and calling the guest: a started queue calls first of all.
//!
//! The ring of an idle or drained queue leaves nothing recorded, and then its region fits any
//! ring: after a device reset both indices are taken from the new ring.
//!
//! A chain is read anew when it is submitted again: the driver leaves it alone until it is
//! completed. Its checks are those of every other chain.
//!
//! # Hostile and stale regions
//! The region is read once, into private memory, when a ring starts; from then on it is only
//! written. What no life of ours can have left is refused ([`InflightError`]) with nothing changed
//! in it. The queue does not start then: to guess which requests are in flight would lose some or
//! complete some twice. A reset of the device makes what is recorded void ([`InflightRegion::forget`]);
//! a front-end that resets the device without telling us must bring a fresh region, and one that
//! does not is refused as soon as the ring contradicts the records.

mod error;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod lives;
mod log;
mod region;
#[cfg(test)]
mod tests;

pub use error::InflightError;
pub(crate) use log::{InflightLog, RingState};
pub use region::{Inflight, InflightRegion, MAX_INFLIGHT_QUEUES};
