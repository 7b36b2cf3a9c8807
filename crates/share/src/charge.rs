//! Tags, debt and floors of a disk.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::profile::SECOND;
use crate::share::DEFAULT_WEIGHT;
use crate::state::{DiskCell, NO_KEY, Slot};

/// Bit of the keys of disks whose floor is not due: all others go first.
const NOT_DUE: u64 = 1 << 63;
/// Key of the disk whose turn it is.
pub(crate) const TURN_KEY: u64 = 0;
/// Time by which a floor may lag, in nanoseconds. A disk that was idle gets no more ahead of others.
const FLOOR_LAG_NS: u64 = 20_000_000;

/// Returns the virtual time that device time takes at a weight.
#[inline]
fn at_weight(ns: u64, weight: u64) -> u64 {
    ns.saturating_mul(DEFAULT_WEIGHT) / weight.max(1)
}

fn weight(slot: Slot<'_>) -> u64 {
    slot.disk(DiskCell::Weight).load(Relaxed)
}

/// Returns the key of a disk: its tag with all debt, below [`NOT_DUE`] if its floor is due.
#[inline]
pub(crate) fn key(slot: Slot<'_>, floors: bool, now: u64) -> u64 {
    let debt = slot.disk(DiskCell::Debt).load(Relaxed);
    let tag = slot.disk(DiskCell::Tag).load(Acquire).saturating_add(at_weight(debt, weight(slot)));
    let due = floors && is_due(slot, now);
    tag.min(NOT_DUE - 2) | if due { 0 } else { NOT_DUE }
}

/// Returns whether a key is that of a disk whose floor is due.
pub(crate) fn is_due_key(key: u64) -> bool {
    key < NOT_DUE
}

/// Returns the tag in a key, or `u64::MAX` for a key without one.
pub(crate) fn tag_of(key: u64) -> u64 {
    if key == NO_KEY || key == TURN_KEY { u64::MAX } else { key & !NOT_DUE }
}

/// Gives a disk that returns its credit: it starts at most that much behind virtual time.
#[inline]
pub(crate) fn lift(slot: Slot<'_>, virtual_time: u64, credit: u64) {
    let least = virtual_time.saturating_sub(credit);
    if slot.disk(DiskCell::Tag).load(Relaxed) < least {
        slot.disk(DiskCell::Tag).fetch_max(least, AcqRel);
    }
}

/// Charges device time and all debt at the present weight. Returns the start tag, or `None` if a
/// floor pays: the tag then stays within one knee of virtual time, and virtual time does not
/// follow.
pub(crate) fn charge(
    slot: Slot<'_>,
    cost: u64,
    by_floor: bool,
    virtual_time: u64,
    knee: u64,
) -> Option<u64> {
    let weight = weight(slot);
    let debt = slot.disk(DiskCell::Debt);
    let debt = if debt.load(Relaxed) > 0 { debt.swap(0, AcqRel) } else { 0 };
    let cost = cost.saturating_add(debt);
    slot.disk(DiskCell::Served).fetch_add(cost, Relaxed);
    let step = at_weight(cost, weight);
    let tag = slot.disk(DiskCell::Tag);
    if !by_floor {
        return Some(tag.fetch_add(step, AcqRel));
    }
    let most = virtual_time.saturating_add(at_weight(knee, weight));
    let _ =
        tag.fetch_update(AcqRel, Relaxed, |tag| Some(tag.saturating_add(step).min(most.max(tag))));
    None
}

/// Takes back device time that an operation did not use. Its disk has been charged for more.
pub(crate) fn refund(slot: Slot<'_>, ns: u64) {
    let lower = |cell, by: u64| {
        let lower = |value: u64| Some(value.saturating_sub(by));
        let _ = slot.disk(cell).fetch_update(AcqRel, Relaxed, lower);
    };
    lower(DiskCell::Served, ns);
    lower(DiskCell::Tag, at_weight(ns, weight(slot)));
}

/// Adds device time of an operation that did not wait. At most a second is owed.
pub(crate) fn add_debt(slot: Slot<'_>, cost: u64) {
    let debt = slot.disk(DiskCell::Debt);
    let _ = debt.fetch_update(AcqRel, Relaxed, |debt| Some(debt.saturating_add(cost).min(SECOND)));
}

/// Returns whether the disk has a floor.
pub(crate) fn has_floor(slot: Slot<'_>) -> bool {
    [DiskCell::FloorRequests, DiskCell::FloorBytes]
        .into_iter()
        .any(|floor| slot.disk(floor).load(Relaxed) > 0)
}

/// Returns whether a floor of the disk is due.
#[inline]
pub(crate) fn is_due(slot: Slot<'_>, now: u64) -> bool {
    let due = |floor, at| slot.disk(floor).load(Relaxed) > 0 && slot.disk(at).load(Relaxed) <= now;
    due(DiskCell::FloorRequests, DiskCell::RequestsDue)
        || due(DiskCell::FloorBytes, DiskCell::BytesDue)
}

/// Counts a dispatch towards the floors. `last` is false for all pieces of a request but the last.
pub(crate) fn count_floors(slot: Slot<'_>, bytes: u64, last: bool, now: u64) {
    let count = |floor, at, units: u64| {
        let rate = slot.disk(floor).load(Relaxed);
        if let Some(step) = units.saturating_mul(SECOND).checked_div(rate) {
            let at = slot.disk(at);
            let from = at.load(Relaxed).max(now.saturating_sub(FLOOR_LAG_NS));
            at.store(from.saturating_add(step), Relaxed);
        }
    };
    count(DiskCell::FloorRequests, DiskCell::RequestsDue, last.into());
    count(DiskCell::FloorBytes, DiskCell::BytesDue, bytes);
}
