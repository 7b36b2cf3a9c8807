//! States in which nothing is served, or not everything.

use super::units::duration;
use super::{Cause, DiskFacts, DiskVerdict};
use crate::report::{BrokenRing, DiskState, Stage};

/// Remedy for a broken ring.
pub(super) const RESET: &str = "reset the device: load the guest's driver again, or reboot the \
                                guest; if that repeats itself, update the driver";

/// Returns a verdict if the disk waits for the I/O of a dead process.
pub(super) fn fenced(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let fence = facts.disk.fence.as_ref()?;
    let sentence = format!(
        "{} waits behind its fence for {}: the kernel still works on requests of a process that \
         has died, and ours must come after them.",
        facts.disk.id,
        duration(fence.since_seconds)
    );
    let verdict = DiskVerdict::new(Cause::Fence, sentence).at(Stage::Device);
    Some(verdict.since(fence.since_seconds).next(storage_remedy(facts)))
}

/// Returns a verdict if a stop of the disk has passed its deadline.
pub(super) fn stuck(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    if disk.state != DiskState::Stuck {
        return None;
    }
    let (verb, seconds, requests) = match &disk.stuck {
        Some(stuck) => (stuck.verb.as_str(), stuck.since_seconds, stuck.requests),
        None => ("stop", 0.0, disk.in_flight),
    };
    let sentence = format!(
        "{} is stuck: its storage hangs, the {verb} gave up waiting {} ago, and {requests} requests \
         are still with the kernel.",
        disk.id,
        duration(seconds),
    );
    let verdict = DiskVerdict::new(Cause::Stuck, sentence).at(Stage::Device).since(seconds);
    Some(verdict.next(storage_remedy(facts)))
}

/// Returns a verdict if a new worker refused to take the disk over.
pub(super) fn refused(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, id) = (facts.disk, &facts.disk.id);
    if disk.state != DiskState::Refused {
        return None;
    }
    let why = disk.refused.as_deref().unwrap_or("its image does not match its last state");
    let sentence = format!("{id} was not taken over after a restart: {why}.");
    let step = if disk.unknown_format {
        // Activating the disk does not help: this version cannot read its state.
        format!(
            "use the version that wrote it: ringway io upgrade binary=PATH; or give the disk up: \
             ringway io disk.detach id={id}"
        )
    } else {
        format!("fix that, then: ringway io disk.activate id={id}")
    };
    Some(DiskVerdict::new(Cause::Refused, sentence).next(step))
}

/// Returns a verdict if requests wait for full storage.
pub(super) fn full(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, id) = (facts.disk, &facts.disk.id);
    if disk.state != DiskState::Waiting && disk.waiting == 0 {
        return None;
    }
    let alert = disk.alert.as_deref().unwrap_or("requests wait for full storage");
    let sentence = match disk.state {
        // No guest is served then, but the client of a writable export is.
        DiskState::Attached => format!(
            "{id} is not active, and a client of its export waits for room on its storage: {alert}."
        ),
        _ => format!("{id} waits for room on its storage: {alert}."),
    };
    Some(DiskVerdict::new(Cause::Full, sentence).at(Stage::Device))
}

/// Returns a verdict if a caller has paused the disk.
pub(super) fn paused(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let id = &facts.disk.id;
    (facts.disk.state == DiskState::Paused).then(|| {
        let sentence = format!("{id} is paused, so its guest waits.");
        let step = format!("when the pause may end: ringway io disk.resume id={id}");
        DiskVerdict::new(Cause::Paused, sentence).next(step)
    })
}

/// Returns a verdict if the disk is not activated.
pub(super) fn inactive(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let id = &facts.disk.id;
    (facts.disk.state == DiskState::Attached).then(|| {
        if facts.disk.socket.is_none() {
            let sentence = format!("{id} has no socket, so no guest uses it.");
            let step = format!(
                "for a guest, detach it (ringway io disk.detach id={id}), and attach it with a socket"
            );
            return DiskVerdict::new(Cause::NoFrontEnd, sentence).next(step);
        }
        let sentence = format!("{id} is attached and not active, so its guest waits.");
        let step = format!("activate it: ringway io disk.activate id={id}");
        DiskVerdict::new(Cause::Inactive, sentence).next(step)
    })
}

/// Returns a verdict if the driver has broken a ring.
pub(super) fn broken_ring(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (sentence, seconds) = broken_ring_sentence(&facts.disk.id, &facts.disk.broken_rings)?;
    let verdict = DiskVerdict::new(Cause::BrokenRing, sentence).at(Stage::Queue);
    Some(verdict.since(seconds).next(RESET))
}

/// Returns a sentence on the ring of device `id` that broke first, and the seconds since then.
pub(super) fn broken_ring_sentence(id: &str, all: &[BrokenRing]) -> Option<(String, f64)> {
    let first = all.iter().max_by(|a, b| a.since_seconds.total_cmp(&b.since_seconds))?;
    let others = match all.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let sentence = format!(
        "{id} has a broken ring: {first}{others} broke {} ago and waits for a reset of the device \
         ({}).",
        duration(first.since_seconds),
        first.cause,
    );
    Some((sentence, first.since_seconds))
}

/// Returns a verdict if no front-end is connected.
pub(super) fn no_front_end(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    let socket = disk.socket.as_deref().filter(|_| !disk.connected);
    socket.map(|socket| {
        let sentence =
            format!("{} has no front-end: no machine is connected to its socket.", disk.id);
        let step = format!("start the machine with the socket {socket}");
        DiskVerdict::new(Cause::NoFrontEnd, sentence).next(step)
    })
}

/// Returns a verdict if the driver has started no queue.
pub(super) fn no_driver(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    (disk.queues_started == 0).then(|| {
        let sentence = format!(
            "{} has a front-end, and its guest's driver has started no queue yet.",
            disk.id
        );
        let step = "look at the guest's console: it boots, or has no driver for the disk";
        DiskVerdict::new(Cause::NoDriver, sentence).next(step)
    })
}

/// Returns the remedy for storage that hangs.
pub(super) fn storage_remedy(facts: &DiskFacts<'_>) -> String {
    let place = facts.disk.backend.place();
    format!("look at the storage under {place}: kernel log, mount, network, device")
}
