//! Cleanup of volumes that an earlier daemon left attached.
//!
//! A volume is attached before a datapath serves it, and detached after that has ended. If a daemon
//! was killed in between, the datapath does not know the volume. Only the SR does.

use model::id::SrId;

use super::Machines;
use super::storage::gone_is_done;
use crate::sr::SrError;

/// Implements [`Machines::detach_leftovers`].
pub(super) async fn tidy(machines: &Machines, sr: SrId, kind: &str) -> Result<usize, SrError> {
    let Some(driver) = machines.drivers.sr(kind) else { return Ok(0) };
    let mut detached = 0;
    for vdi in driver.attached_volumes(sr).await? {
        // Skip volumes that a machine uses. The lock makes a machine that needs this one wait.
        let Some(_taken) = machines.lock_volume(vdi) else { continue };
        gone_is_done(driver.deactivate_volume(sr, vdi).await)?;
        gone_is_done(driver.detach_volume(sr, vdi).await)?;
        tracing::info!(%sr, %vdi, "detached a leftover volume");
        detached += 1;
    }
    Ok(detached)
}
