//! Diagnosis of waits for a share of the storage.

use super::flow::{SHARE_NAMED, WAIT_MIN_SECONDS, rate};
use super::units::{bytes, duration};
use super::{Cause, DiskFacts, DiskVerdict};
use crate::report::{DiskStats, ShareReport, Stage};
use crate::share::{DiskShare, WEIGHTS};

/// Returns a verdict if requests spend their time waiting for the disk's share of the storage.
pub(super) fn waits(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    let report = disk.share.as_ref()?;
    let (requests, total) = facts.spent(Stage::Total);
    let waited = facts.grown(|disk| disk.share.as_ref().map_or(0.0, |one| one.waited_seconds));
    let waited = waited.min(total);
    let mean = if requests > 0.0 { waited / requests } else { 0.0 };
    if total <= 0.0 || waited / total < SHARE_NAMED || mean < WAIT_MIN_SECONDS {
        return None;
    }
    let percent = waited / total * 100.0;
    if let Some(depth) = depth(report).filter(|_| other(facts).is_none()) {
        let sentence = format!(
            "{} keeps more requests than the storage serves at a time: {percent:.0}% of their time is \
             a wait of {} each; {depth}.",
            disk.id,
            duration(mean),
        );
        let next = "nothing is lost: they would wait in the storage; a faster storage helps, or fewer \
                    requests at a time";
        return Some(DiskVerdict::new(Cause::Share, sentence).at(Stage::Device).next(next));
    }
    let sentence = format!(
        "{} waits for its share of the storage: {percent:.0}% of the time of its requests, {} each; {} \
         requests wait now, with {}{}.",
        disk.id,
        duration(mean),
        report.waiting,
        report.share,
        other(facts).unwrap_or_default(),
    );
    Some(DiskVerdict::new(Cause::Share, sentence).at(Stage::Device).next(remedy(disk, report)))
}

/// Adds what the scheduler of the storage does with the disk's requests.
pub(super) fn annotate(facts: &DiskFacts<'_>, verdict: DiskVerdict) -> DiskVerdict {
    let Some(report) = &facts.disk.share else { return verdict };
    let grown = |count: fn(&ShareReport) -> u64| {
        facts.grown(|disk| disk.share.as_ref().map_or(0.0, |report| count(report) as f64))
    };
    let mut notes: Vec<String> = depth(report).into_iter().collect();
    if grown(|report| report.tightened) > 0.0 {
        notes.push(format!(
            "the storage is slower than its profile says, so its depth is {} of device time",
            duration(report.depth_seconds)
        ));
    }
    let splits = grown(|report| report.splits);
    if let Some(piece) = report.piece_bytes.filter(|_| splits > 0.0) {
        notes.push(format!(
            "{splits:.0} large requests were split into {} pieces, which the storage serves faster",
            bytes(piece)
        ));
    }
    let text = (!notes.is_empty()).then(|| format!("Its storage: {}.", notes.join("; ")));
    DiskVerdict { share: text, ..verdict }
}

/// Returns the depth in force, if only that makes requests wait.
fn depth(report: &ShareReport) -> Option<String> {
    let ShareReport { waiting, behind, in_flight, .. } = report;
    (*waiting > 0 && behind.is_none() && *in_flight > 0)
        .then(|| format!("depth held at {in_flight} because more only adds latency"))
}

/// Returns whether requests wait for their share, and such waits end.
pub(super) fn waits_end(facts: &DiskFacts<'_>) -> bool {
    let waited = facts.grown(|disk| disk.share.as_ref().map_or(0.0, |one| one.waited_seconds));
    facts.disk.share.as_ref().is_some_and(|share| share.waiting > 0) && waited > 0.0
}

/// Describes the disk that moves the most beside this one.
fn other(facts: &DiskFacts<'_>) -> Option<String> {
    let moved = |disk: &DiskStats| (disk.bytes.read + disk.bytes.write) as f64;
    let others = facts.process.disks.iter().filter(|other| other.id != facts.disk.id);
    let others = others.filter_map(|other| {
        Some((other, facts.grown_of(other, moved), other.share.as_ref()?.share.weight))
    });
    let (busiest, moved, weight) = others.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let speed = bytes(rate(facts, moved) as u64);
    (moved > 0.0)
        .then(|| format!(", while {} with weight {weight} moves {speed} a second", busiest.id))
}

/// Returns the command that raises the weight. It lists the floors, because `disk.weight` removes
/// absent ones.
fn remedy(disk: &DiskStats, report: &ShareReport) -> String {
    let DiskShare { weight, floor_iops, floor_bytes } = report.share;
    if weight == *WEIGHTS.end() {
        return "its weight is the largest: give the other disks a smaller one, or this one a floor"
            .into();
    }
    let weight = weight.saturating_mul(2).min(*WEIGHTS.end());
    let floors = [("floor_iops", floor_iops), ("floor_bytes", floor_bytes)];
    let floors = floors.into_iter().filter_map(|(name, value)| Some(format!(" {name}={}", value?)));
    format!(
        "if that is not meant, give it a larger weight or a floor, for example: ringway io \
         disk.weight id={} weight={weight}{}; for a disk of a VM: xe vbd-param-set uuid=UUID \
         qos_algorithm_params:weight={weight}",
        disk.id,
        floors.collect::<String>(),
    )
}
