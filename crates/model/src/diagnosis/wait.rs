//! A request that waits now.

use super::units::{bytes, duration};
use super::{Cause, DiskFacts, DiskVerdict, flow, share, state};
use crate::report::{OldestRequest, Stage};

/// A request in flight for this many seconds hangs, unless that is usual for its disk.
const HANGS_SECONDS: f64 = 0.5;
/// Multiple of the median from which a duration is unusual.
const UNUSUAL_MEDIANS: f64 = 10.0;
/// Share of the time without a CPU above which a reactor may not have seen that a request ended.
const BLIND_SHARE: f64 = 0.9;

/// Returns a verdict if a request has been in flight for too long.
pub(super) fn hangs(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    let oldest = disk.oldest.as_ref()?;
    if oldest.age_seconds < HANGS_SECONDS.max(facts.usual(Stage::Total) * UNUSUAL_MEDIANS) {
        return None;
    }
    if oldest.stage != Stage::Cap && facts.cpu_wait_share() >= BLIND_SHARE {
        return None;
    }
    let verdict = match oldest.stage {
        Stage::Cap => flow::capped(facts, Some(oldest.age_seconds)),
        Stage::Queue => reactor_stuck(facts, oldest)?,
        // It may be one of those that wait. No wait ends while the storage hangs.
        Stage::Device if share::waits_end(facts) => return None,
        _ => storage_hangs(facts, oldest),
    };
    Some(verdict.since(oldest.in_stage_seconds))
}

/// Describes a request in a sentence.
pub(super) fn named(request: &OldestRequest) -> String {
    let kind = request.kind.map_or("request", |kind| kind.name());
    match request.bytes {
        0 => kind.into(),
        count => format!("{kind} of {} at byte {}", bytes(count), request.offset),
    }
}

fn storage_hangs(facts: &DiskFacts<'_>, oldest: &OldestRequest) -> DiskVerdict {
    let disk = facts.disk;
    let others = match disk.in_flight.saturating_sub(1) {
        0 => String::new(),
        count => format!(", and {count} more with it"),
    };
    let usual = match facts.usual(Stage::Device) {
        0.0 => String::new(),
        usual => format!("; the median is {}", duration(usual)),
    };
    let limbo = match disk.layers.map_or(0, |layers| layers.held_bytes) {
        0 => String::new(),
        held => format!("; {} of freed space wait for its end", bytes(held)),
    };
    let sentence = format!(
        "{} waits for its storage: a {} has been with it for {}{others}{usual}{limbo}.",
        disk.id,
        named(oldest),
        duration(oldest.in_stage_seconds),
    );
    DiskVerdict::new(Cause::StorageHangs, sentence)
        .at(Stage::Device)
        .next(state::storage_remedy(facts))
}

/// Returns a verdict if the request is in the ring and the reactor is stuck with another disk.
fn reactor_stuck(facts: &DiskFacts<'_>, oldest: &OldestRequest) -> Option<DiskVerdict> {
    let id = &facts.disk.id;
    let other = facts.stuck_with().filter(|other| other != id)?;
    let sentence = format!(
        "{id} waits in its ring for {}: its reactor is stuck with disk {other}.",
        duration(oldest.age_seconds)
    );
    let mut verdict = DiskVerdict::new(Cause::Neighbour, sentence).at(Stage::Queue);
    verdict.neighbour = Some(other.into());
    Some(verdict.next(format!("see what {other} does: ringway why {other}")))
}
