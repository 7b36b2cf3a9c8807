//! Reports of broken rings.

use blk::BlkDevice;
use model::report::{BrokenRing, RingKind};

use super::unix_seconds;

/// Returns the broken rings of a disk.
pub(super) fn of(device: &BlkDevice) -> Vec<BrokenRing> {
    let all = device.broken_rings().into_iter();
    all.map(|(queue, broken)| broken_ring(queue, RingKind::Request, broken)).collect()
}

/// Converts the state of a broken ring to its report type.
pub(crate) fn broken_ring(queue: u16, kind: RingKind, broken: virtq::BrokenRing) -> BrokenRing {
    let virtq::BrokenRing { cause, since } = broken;
    BrokenRing {
        queue,
        kind,
        cause,
        unix_seconds: unix_seconds(since),
        // A clock that was set back counts as no time.
        since_seconds: since.elapsed().unwrap_or_default().as_secs_f64(),
    }
}
