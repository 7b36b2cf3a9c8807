//! In-flight region: the requests of each ring that are in progress, in memory that outlives the
//! process.
//!
//! The front-end preserves the region when the serving process dies, and gives it to the next
//! process. That process reads which requests its predecessor had popped and not completed. Each
//! request is executed at least once and completed exactly once.
//!
//! # Layout
//! The layout is Ringway's own, in the machine's byte order. A front-end only stores the bytes.
//! ```text
//! region: magic u64, version u32, queues u16, size u16, unshared u16, zero to 64
//!         queue 0, queue 1, ...                         each from a multiple of 64 on
//! queue:  used_idx u16, last_batch_head u16, zero to 64
//!         entry 0 .. entry size-1                       by head
//! entry:  counter u64, inflight u16 (0 or 1), next u16, trial u32
//! ```
//!
//! # Order of stores
//! Each store is a release: no reader, not even a successor, sees it before those ahead of it.
//!
//! 1. Pop, in the order of the available ring: store `counter`, then `inflight` = 1, then start the
//!    request. So the recorded requests are always the first ones of the available ring that are
//!    not completed, without a gap.
//! 2. Publish: store `next` of each head of the batch and `last_batch_head`; the ring's used
//!    entries; the ring's used index. That index is the one store that completes them. Then store
//!    `inflight` = 0 for each of them, and last the region's `used_idx`.
//!
//! # Recovery
//! If the two used indices differ, the predecessor died after it stored the ring's index. Exactly
//! as many heads as they differ by, starting at `last_batch_head`, are completed. Recovery clears
//! them. It submits the requests that are still recorded again, in the order of their counters.
//! Then it reads the available ring from `used index + number recorded` on, whatever base the
//! front-end set.
//!
//! Each point of death is safe:
//! - After `counter`: the entry is not recorded, so its counter means nothing. The request is still
//!   in the available ring.
//! - After `inflight` = 1: the request is recorded. Whether it was started does not matter.
//! - Among the links, or before the ring's used index: the indices agree, so recovery ignores the
//!   links. It submits the batch again and overwrites its used entries.
//! - After the ring's used index and before the region's: recovery clears the batch, again if
//!   necessary. No head of the batch was popped anew, since this thread pops only after it has
//!   published. If a driver has offered such a head again, it is popped from the available ring
//!   like any other.
//! - In recovery: the next recovery clears the same heads, since the list and the region's index
//!   are unchanged until the last store. Requests submitted again stay recorded.
//! - Between publishing and calling the guest: a started queue calls the guest first of all.
//!
//! An idle or drained queue leaves nothing recorded, so its region fits any ring. After a device
//! reset both indices are taken from the new ring.
//!
//! When a chain is submitted again, its descriptors are read and checked anew, like those of every
//! chain. The driver does not change them before completion.
//!
//! # Trials
//! A request may be what ends the process that executes it. When processes have died by their own
//! fault, a queue submits the requests that they left one at a time. It marks each one in its entry:
//! the lower 30 bits of `trial` are those of `counter`, the upper two are 1 while the request is
//! alone in flight, and 2 before the queue fails it ([`Suspect`]). The counter makes the mark void
//! as soon as the head is popped for another request. So versions that do not know these marks need
//! not clear them, and the layout keeps its version.
//!
//! # Handover
//! A process that hands a ring over leaves requests that wait for space on the storage in the
//! region. The next process submits them again. If the front-end has no region, the first process
//! makes one ([`InflightRegion::create_unshared`]), records the requests ([`crate::Queue::record_in`])
//! and gives the region to the next process, and not to the front-end. The mark `unshared` tells
//! them apart: in a crash nobody preserves such a region.
//!
//! # Hostile and stale regions
//! The region is read once, into private memory, when a ring starts. From then on it is only
//! written. Contents that no process of ours can have left are refused ([`InflightError`]), and the
//! region stays unchanged. The queue does not start: a guess at the requests in flight would lose
//! some or complete some twice.
//!
//! A device reset makes all records void ([`InflightRegion::forget`]). A front-end that resets the
//! device without a message must send a fresh region. If it does not, the region is refused as soon
//! as the ring contradicts the records.

mod error;
mod log;
mod region;
#[cfg(test)]
mod tests;
mod trial;

pub use error::InflightError;
pub(crate) use log::{InflightLog, RingState};
pub use region::{Inflight, InflightRegion, MAX_INFLIGHT_QUEUES};
pub use trial::Suspect;
