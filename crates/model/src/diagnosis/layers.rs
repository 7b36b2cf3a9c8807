//! Diagnosis of layers with a map: waits for metadata, and for space in limbo.

use super::flow::{SHARE_NAMED, WAIT_MIN_SECONDS, rate};
use super::units::{bytes, duration};
use super::{Cause, DiskFacts, DiskVerdict, state, wait};
use crate::report::{DiskState, DiskStats, LayerStats, Stage};

/// Returns a verdict if requests wait for space that the guest has freed, and that a request in
/// flight keeps.
pub(super) fn limbo(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    let waits = disk.state == DiskState::Waiting || disk.waiting > 0;
    let layers = disk.layers.as_ref().filter(|layers| waits && layers.held_bytes > 0)?;
    // What was in limbo at the owner's last turn may be free by now.
    let oldest = disk.oldest.as_ref().filter(|one| one.stage == Stage::Device)?;
    let sentence = format!(
        "{} waits for space that it has freed itself: {} have been in limbo for {}, because a {} has \
         been with the storage for {}.",
        disk.id,
        bytes(layers.held_bytes),
        duration(layers.held_seconds),
        wait::named(oldest),
        duration(oldest.in_stage_seconds),
    );
    let verdict = DiskVerdict::new(Cause::Limbo, sentence).at(Stage::Device);
    let step = format!("{}; or make room there", state::storage_remedy(facts));
    Some(verdict.since(layers.held_seconds).next(step))
}

/// Returns a verdict if requests spend their time waiting for the owner of an image.
pub(super) fn metadata(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    disk.layers.as_ref()?;
    let grown = |count: fn(&LayerStats) -> f64| {
        facts.grown(|disk: &DiskStats| disk.layers.as_ref().map_or(0.0, count))
    };
    let (requests, total) = facts.spent(Stage::Total);
    let waited = grown(|layers| layers.wait_seconds).min(total);
    let mean = if requests > 0.0 { waited / requests } else { 0.0 };
    if total <= 0.0 || waited / total < SHARE_NAMED || mean < WAIT_MIN_SECONDS {
        return None;
    }
    let allocations = grown(|layers| layers.allocations as f64);
    let copies = grown(|layers| layers.read_modify_writes as f64);
    let questions = grown(|layers| layers.questions as f64);
    let sentence = format!(
        "{} waits for the metadata of its image: {:.0}% of the time of its requests, {} each ({:.0} \
         questions and {:.0} new clusters a second).",
        disk.id,
        waited / total * 100.0,
        duration(mean),
        rate(facts, questions),
        rate(facts, allocations),
    );
    let step = if copies * 2.0 >= allocations && copies > 0.0 {
        "first writes copy the rest of their cluster; an image with extended L2 entries need not: \
         ringway image convert"
    } else if allocations * 4.0 >= questions {
        "first writes to an image allocate space, later ones do not; see what the storage of the \
         image says about writes and syncs"
    } else {
        "the guest reads and writes all over a large image, whose map must be loaded; see what the \
         storage of the image says about small reads"
    };
    Some(DiskVerdict::new(Cause::Metadata, sentence).at(Stage::Device).next(step))
}
