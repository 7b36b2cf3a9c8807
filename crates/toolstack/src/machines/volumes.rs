//! New volumes.

use model::id::{SrId, VdiId};
use model::image::ImageFormat;
use model::sr::SrFeature;

use super::{Machines, StepError};
use crate::sr::Volume;

impl Machines {
    /// Creates a volume of zeroes with this size in bytes, whose image has this format. New layers over
    /// a VHD are VHDs.
    ///
    /// # Errors
    /// The SR stores no such images, or fails. The volume does not exist then.
    pub async fn create_volume(
        &self,
        (sr, kind): (SrId, &str),
        vdi: VdiId,
        bytes: u64,
        format: ImageFormat,
    ) -> Result<Volume, StepError> {
        let place = self.place((sr, kind), SrFeature::VdiCreate).await?;
        if format == ImageFormat::Raw {
            return Ok(place.driver.create_volume(sr, vdi, bytes).await?);
        }
        let create = place.driver.prepare_image(sr, vdi, bytes, format).await?;
        let created = match place.datapath.create_image(&create).await {
            Ok(()) => place.driver.settle_image(sr, vdi).await.map_err(StepError::from),
            Err(error) => Err(error.into()),
        };
        if created.is_err() {
            // The next attach of the SR removes what is left.
            let _left = place.driver.destroy_volume(sr, vdi).await;
        }
        created
    }
}
