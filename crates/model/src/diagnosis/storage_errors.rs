//! Requests that the storage failed.

use super::state::storage_remedy;
use super::units::duration;
use super::{Cause, DiskFacts, DiskVerdict};
use crate::report::Stage;

/// Age below which an error is the cause although nothing fails any more, in seconds. Many guests
/// stop writing at the first error.
const RECENT_SECONDS: f64 = 30.0;

/// Returns a verdict if the storage failed a request between the samples.
pub(super) fn fails(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    within(facts, facts.seconds)
}

/// Returns a verdict if the storage failed a request lately.
pub(super) fn has_failed(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    within(facts, RECENT_SECONDS)
}

fn within(facts: &DiskFacts<'_>, seconds: f64) -> Option<DiskVerdict> {
    let errors = facts.disk.storage_errors.as_ref();
    errors.filter(|errors| errors.last_seconds_ago <= seconds)?;
    let verdict = DiskVerdict::new(Cause::StorageFails, sentence(facts)?);
    Some(verdict.at(Stage::Device).next(storage_remedy(facts)))
}

/// Returns a sentence on the errors, if there are any.
pub(super) fn sentence(facts: &DiskFacts<'_>) -> Option<String> {
    let errors = facts.disk.storage_errors.as_ref()?;
    Some(format!(
        "{} has storage that fails requests: {} so far, the last {} ago ({}). The guest gets I/O \
         errors.",
        facts.disk.id,
        errors.count,
        duration(errors.last_seconds_ago),
        errors.last,
    ))
}
