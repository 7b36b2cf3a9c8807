//! A restart of the serving process.

use super::units::duration;
use super::{Cause, DiskFacts, DiskVerdict};
use crate::report::{StartReason, WorkerStart};

/// Seconds after a restart during which the restart explains a pause.
const RESTARTED_SECONDS: f64 = 30.0;
/// Seconds after the start of the process within which it takes over its disks. A disk that counts
/// from a later time was attached afterwards.
const TAKEN_OVER_SECONDS: f64 = 2.0;

/// Returns a verdict if the serving process has recently replaced a dead one. An upgrade pauses for
/// milliseconds and explains nothing.
pub(super) fn restarted(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, process) = (facts.disk, facts.process);
    let uptime = process.uptime_seconds;
    let after = match &process.start {
        Some(WorkerStart { reason: StartReason::Restart, previous_exit: after, .. }) => {
            after.as_deref()
        }
        // A former version reports no start reason. Resubmitted requests imply a dead process.
        None if disk.resubmitted > 0 => {
            process.keeper.as_ref().and_then(|k| k.last_exit.as_deref())
        }
        _ => return None,
    };
    // A disk attached since the restart has no former process.
    let attached_since = disk.counting_since_unix_seconds.zip(process.start.as_ref()).is_some_and(
        |(counting, worker_start)| counting - worker_start.unix_seconds > TAKEN_OVER_SECONDS,
    );
    if uptime > RESTARTED_SECONDS || (attached_since && disk.resubmitted == 0) {
        return None;
    }
    let again = match disk.resubmitted {
        0 => String::new(),
        count => format!(", which submitted {count} requests of the former one again"),
    };
    let sentence = format!(
        "{} was taken over {} ago by a new process{again}; its guest saw a pause.",
        disk.id,
        duration(uptime),
    );
    let step = match after {
        Some(end) => format!("see in the log why the former process ended: it {end}"),
        None => "see in the log why the former process ended".into(),
    };
    Some(DiskVerdict::new(Cause::Restarted, sentence).since(uptime).next(step))
}
