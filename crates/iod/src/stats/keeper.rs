//! Statistics of the keeper, and of preserved disks that are not open.

use std::time::Duration;

use model::report::{DiskState, DiskStats, Geometry, KeeperStats};

use crate::disk_registry::RefusedDisk;
use crate::keeper_link::KeeperInfo;

/// Returns the statistics of a refused disk, with the reason.
pub(crate) fn refused(
    RefusedDisk { preserved_disk: held, reason, novel }: &RefusedDisk,
) -> DiskStats {
    let spec = &held.spec;
    let size_bytes = held.size.unwrap_or(0);
    DiskStats {
        state: DiskState::Refused,
        socket: spec.socket.as_ref().map(|socket| socket.display().to_string()),
        geometry: Geometry {
            size_bytes,
            block_size: held.block_size.or(spec.block_bytes()).unwrap_or(0),
            read_only: spec.read_only,
        },
        cache: spec.cache,
        poll: spec.polling().resolve().mode,
        queues: spec.queues,
        serial: spec.serial.clone(),
        recorded: spec.record,
        refused: Some(reason.clone()),
        unknown_format: *novel,
        ..DiskStats::new(&spec.id, spec.backend.clone(), size_bytes)
    }
}

/// Returns the statistics of the keeper.
pub(crate) fn keeper(keeper_info: KeeperInfo, adopted: Option<Duration>) -> KeeperStats {
    let KeeperInfo { pid, restarts, last_exit, .. } = keeper_info;
    let adopted_seconds_ago = adopted.map(|ago| ago.as_secs_f64());
    KeeperStats { pid, restarts, last_exit, adopted_seconds_ago }
}
