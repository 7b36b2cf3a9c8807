//! Turns on a device that seeks.
//!
//! One disk has its turn until its bytes or twice their time are used. When its last request
//! completes, the device stays idle for its next one for a moment: a sequential stream that waits
//! for each request keeps the head where it is. A disk whose next request did not come in that
//! moment is not waited for again, until one comes that soon.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::charge;
use crate::profile::{Op, OpKind, Profile, Turn};
use crate::share::DiskId;
use crate::state::{DiskCell, Header, State, Tokens};

const DISK_BITS: u32 = 16;

fn disk_of(word: u64) -> Option<usize> {
    ((word & ((1 << DISK_BITS) - 1)) as usize).checked_sub(1)
}

/// Returns whether it is the disk's turn.
pub(crate) fn is_turn(state: State<'_>, disk: DiskId, now: u64) -> bool {
    let word = state.header(Header::Turn).load(Acquire);
    disk_of(word) == Some(disk.slot()) && !is_over(state, word, now)
}

/// Returns whether another disk's turn may begin.
pub(crate) fn has_ended(state: State<'_>, now: u64) -> bool {
    is_over(state, state.header(Header::Turn).load(Acquire), now)
}

fn is_over(state: State<'_>, word: u64, now: u64) -> bool {
    let load = |cell| state.header(cell).load(Relaxed);
    let Some(disk) = disk_of(word) else { return true };
    if load(Header::TurnLeft) as i64 <= 0 || now >= load(Header::TurnEnd) {
        return true;
    }
    let slot = state.disk(disk);
    slot.disk(DiskCell::Held).load(Acquire) == 0
        && Tokens::from_bits(slot.disk(DiskCell::InFlight).load(Acquire)).count == 0
        && now >= load(Header::TurnIdleUntil)
}

/// Begins the disk's turn, unless another disk's turn goes on. Returns whether it is its turn.
pub(crate) fn begin(
    state: State<'_>,
    profile: &Profile,
    turn: Turn,
    disk: DiskId,
    now: u64,
) -> bool {
    let word = state.header(Header::Turn).load(Acquire);
    if !is_over(state, word, now) {
        return disk_of(word) == Some(disk.slot());
    }
    let next = (word >> DISK_BITS).wrapping_add(1) << DISK_BITS | (u64::from(disk.0) + 1);
    if state.header(Header::Turn).compare_exchange(word, next, AcqRel, Relaxed).is_err() {
        return false;
    }
    charge_rest(state, word, now);
    let time = longest(profile, turn);
    for (cell, value) in [
        (Header::TurnLeft, turn.bytes),
        (Header::TurnStart, now),
        (Header::TurnEnd, now + time),
        (Header::TurnIdleUntil, now),
        (Header::TurnCharged, 0),
    ] {
        state.header(cell).store(value, Relaxed);
    }
    true
}

/// Returns the longest time of a turn: twice that of its bytes.
pub(crate) fn longest(profile: &Profile, turn: Turn) -> u64 {
    profile.cost(Op::new(OpKind::Read, turn.bytes)) * 2
}

/// Charges the time of a turn that its requests did not pay: that of their seeks.
fn charge_rest(state: State<'_>, word: u64, now: u64) {
    let load = |cell| state.header(cell).load(Relaxed);
    let Some(disk) = disk_of(word) else { return };
    let slot = state.disk(disk);
    let end = match load(Header::TurnIdleUntil) {
        idle if idle <= now && load(Header::TurnLeft) as i64 > 0 => {
            slot.disk(DiskCell::NoIdle).store(1, Relaxed);
            slot.disk(DiskCell::Completed).load(Relaxed).max(idle)
        }
        _ => now,
    };
    let end = end.min(load(Header::TurnEnd));
    let used = end.saturating_sub(load(Header::TurnStart));
    charge::add_debt(slot, used.saturating_sub(load(Header::TurnCharged)));
}

/// Counts a dispatch of the disk whose turn it is.
pub(crate) fn count(state: State<'_>, bytes: u64, cost: u64) {
    // Two reactors of the disk may lose a step here: the turn is a little longer then.
    let left = state.header(Header::TurnLeft);
    left.store(left.load(Relaxed).wrapping_sub(bytes), Relaxed);
    let charged = state.header(Header::TurnCharged);
    charged.store(charged.load(Relaxed).saturating_add(cost), Relaxed);
}

/// Notes a request of a disk. One that comes soon after a completion is worth waiting for.
pub(crate) fn arrive(state: State<'_>, turn: Turn, disk: DiskId, now: u64) {
    let slot = state.disk(disk.slot());
    let completed = slot.disk(DiskCell::Completed).load(Relaxed);
    if now.saturating_sub(completed) < turn.idle_ns {
        slot.disk(DiskCell::NoIdle).store(0, Relaxed);
    }
}

/// Notes a completion of a disk: the anticipation begins.
pub(crate) fn complete(state: State<'_>, turn: Turn, disk: DiskId, now: u64) {
    let slot = state.disk(disk.slot());
    slot.disk(DiskCell::Completed).store(now, Relaxed);
    if disk_of(state.header(Header::Turn).load(Acquire)) == Some(disk.slot()) {
        let idle = slot.disk(DiskCell::NoIdle).load(Relaxed) == 0;
        let until = if idle { now + turn.idle_ns } else { now };
        state.header(Header::TurnIdleUntil).store(until, Relaxed);
    }
}
