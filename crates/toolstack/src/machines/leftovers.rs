//! What a daemon before this one has left attached.
//!
//! A volume is attached before anything serves it, and detached after nothing does. Of a daemon that
//! was killed in between, the datapath says nothing; only the SR knows.

use model::id::SrId;

use super::Machines;
use super::storage::gone_is_done;
use crate::sr::SrError;

/// See [`Machines::tidy`].
pub(super) async fn tidy(machines: &Machines, sr: SrId, kind: &str) -> Result<usize, SrError> {
    let Some(driver) = machines.drivers.sr(kind) else { return Ok(0) };
    let mut detached = 0;
    for vdi in driver.attached_volumes(sr).await? {
        // Whoever uses one has it rightly; whoever wants it waits until it is down.
        let Some(_taken) = machines.lock_volume(vdi) else { continue };
        gone_is_done(driver.deactivate_volume(sr, vdi).await)?;
        gone_is_done(driver.detach_volume(sr, vdi).await)?;
        tracing::info!(%sr, %vdi, "was attached for nobody, and is detached");
        detached += 1;
    }
    Ok(detached)
}
