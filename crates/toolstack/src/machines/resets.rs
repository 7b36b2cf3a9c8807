//! Volumes that are reset when their machine boots.
//!
//! The content to which a volume goes back is its reset point. A reset puts a new image over the
//! images of this point, in place of the images that the machine wrote.

use std::sync::Arc;

use model::id::{SrId, Uuid, VbdId};
use model::sr::SrFeature;

use super::snapshots::create_layer;
use super::step_runner::{MachineStepRunner, missing};
use super::{Machines, StepError, VolumeLock, VolumeRef};

impl Machines {
    /// Makes the present content of a locked volume that no machine has the one to which it goes back
    /// at each boot. `point` is the name of this content, and `layer` that of the image over it.
    ///
    /// # Errors
    /// The volume goes back to what it did before.
    pub async fn set_reset_point(
        &self,
        (sr, kind): (SrId, &str),
        lock: &VolumeLock<'_>,
        (point, layer): (Uuid, Uuid),
    ) -> Result<(), StepError> {
        let place = self.place((sr, kind), SrFeature::VdiResetOnBoot).await?;
        let vdi = lock.vdi;
        if !place.driver.can_share(sr, vdi).await? {
            self.push_layers(&place, &[(vdi, layer)]).await?;
        }
        Ok(place.driver.set_reset_point(sr, vdi, Some(point)).await?)
    }

    /// Makes a locked volume keep its content at each boot.
    ///
    /// # Errors
    /// The error of the SR.
    pub async fn clear_reset_point(
        &self,
        (sr, kind): (SrId, &str),
        lock: &VolumeLock<'_>,
    ) -> Result<(), StepError> {
        let place = self.place((sr, kind), SrFeature::VdiResetOnBoot).await?;
        Ok(place.driver.set_reset_point(sr, lock.vdi, None).await?)
    }

    /// Resets a volume, unless a machine uses it.
    async fn reset_volume(&self, source: VolumeRef) -> Result<(), StepError> {
        let VolumeRef { vdi, sr, sr_kind } = source;
        let lock = self.wait_for_volume(vdi).await;
        if self.volumes.is_used(vdi) {
            return Ok(());
        }
        let place = self.place((sr, &sr_kind), SrFeature::VdiResetOnBoot).await?;
        if let Some(layer) = place.driver.prepare_reset(sr, vdi).await? {
            let created = create_layer(&*place.datapath, &layer).await;
            let settled = place.driver.settle_layer(sr, vdi, None).await;
            // Without its image a layer cannot be settled, so the cause goes first.
            created?;
            settled?;
        }
        drop(lock);
        Ok(())
    }
}

impl MachineStepRunner {
    /// Resets the volume of a slot. Abandoned, it continues in the background, and keeps the volume
    /// locked meanwhile.
    pub(super) async fn reset(&self, vbd: VbdId) -> Result<(), StepError> {
        let source = self.record(vbd)?.source.clone();
        let source = source.ok_or_else(|| missing("there is no volume in slot", vbd))?;
        let machines = Arc::clone(&self.machines);
        let reset = tokio::spawn(async move { machines.reset_volume(source).await });
        reset.await.unwrap_or_else(|error| Err(missing("the reset ended early:", error)))
    }
}
