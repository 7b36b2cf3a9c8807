//! Disks of volumes as streams: export and import.

use std::path::PathBuf;

use model::id::{SrId, Uuid, VdiId};
use model::image::{ImageFormat, MAX_IMAGE_DEADLINE_S};
use model::image_stream::{ExportBase, ImageCopy, ImageExport, ImageImport, ImageImported};
use model::sr::SrFeature;

use super::snapshots::Place;
use super::{Machines, StepError};
use crate::exec::CancelToken;
use crate::ringway_io::{ExportStream, ImportStream};
use crate::sr::{Layer, Volume};

/// Result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Imported {
    /// The volume has the new content.
    Volume(Volume),
    /// The stream is not an image that the volume can take. The volume has its former content.
    Refused(String),
    /// The caller has cancelled it. The volume has its former content.
    Cancelled,
}

/// Import under way. End it with [`VolumeImport::settle`] or [`VolumeImport::abandon`]: what a dropped
/// one leaves is removed by the next import, or the next attach of the SR.
#[derive(Debug)]
pub struct VolumeImport<'a> {
    place: Place<'a>,
    vdi: VdiId,
    stream: ImportStream,
}

impl Machines {
    /// Begins to read a volume as an image of this format. With `base`, the image has what differs
    /// from that volume. The caller makes sure that no guest writes either meanwhile.
    ///
    /// # Errors
    /// A volume does not exist, or its SR fails.
    pub async fn export_volume(
        &self,
        (sr, kind): (SrId, &str),
        vdi: VdiId,
        base: Option<((SrId, &str), VdiId)>,
        format: ImageFormat,
    ) -> Result<ExportStream, StepError> {
        let place = self.place((sr, kind), SrFeature::VdiAttach).await?;
        let source = place.driver.images(sr, vdi).await?;
        let base = match base {
            None => None,
            Some(((sr, kind), base)) => {
                let source = self
                    .place((sr, kind), SrFeature::VdiAttach)
                    .await?
                    .driver
                    .images(sr, base)
                    .await?;
                Some(ExportBase { source, id: base.0.bytes(), name: format!("{base}.vhd") })
            }
        };
        let (id, deadline_s) = (vdi.0.bytes(), MAX_IMAGE_DEADLINE_S);
        let stream = PathBuf::new();
        let mut export = ImageExport { source, format, id, base, stream, deadline_s };
        loop {
            let exported = place.datapath.export(&export).await;
            match place.driver.images(sr, vdi).await {
                // A merge of images has removed some before they were opened.
                Ok(present) if exported.is_err() && present != export.source => {
                    export.source = present;
                }
                _ => return Ok(exported?),
            }
        }
    }

    /// Replaces the content of the volume `into` by that of another one. With `base`, only what differs
    /// from that volume is copied, and the rest stays. The caller has locked `into`
    /// ([`Machines::lock_volume`]), and makes sure that no guest writes the others meanwhile.
    ///
    /// `layer` is the name of a new image, if one is needed. `cancel` ends the copy until its image is
    /// complete.
    ///
    /// # Errors
    /// A volume does not exist, or an SR fails. `into` has its former content.
    pub async fn copy_into_volume(
        &self,
        ((sr, kind), vdi): ((SrId, &str), VdiId),
        base: Option<((SrId, &str), VdiId)>,
        ((to, to_kind), into): ((SrId, &str), VdiId),
        layer: Uuid,
        (cancel, progress): (&CancelToken, &(dyn Fn(f64) + Send + Sync)),
    ) -> Result<Imported, StepError> {
        let source =
            self.place((sr, kind), SrFeature::VdiAttach).await?.driver.images(sr, vdi).await?;
        let base = match base {
            None => None,
            Some(((sr, kind), base)) => Some(
                self.place((sr, kind), SrFeature::VdiAttach).await?.driver.images(sr, base).await?,
            ),
        };
        let place = self.place((to, to_kind), SrFeature::VdiCreate).await?;
        let Layer { file: path, base: present } = place.driver.prepare_import(to, into).await?;
        let copy = ImageCopy { source, base, present, path, deadline_s: MAX_IMAGE_DEADLINE_S };
        let made = tokio::select! {
            // Dropping the copy ends it.
            () = cancel.cancelled() => None,
            made = place.datapath.copy(&copy, progress) => Some(made),
        };
        let made = match made {
            Some(Ok(made)) => made,
            Some(Err(error)) => {
                remove(&place, into).await;
                return Err(error.into());
            }
            None => {
                remove(&place, into).await;
                return Ok(Imported::Cancelled);
            }
        };
        settle(&place, into, made, layer).await
    }

    /// Begins to give a volume new content from an image of this format. The caller has locked the
    /// volume ([`Machines::lock_volume`]), and keeps the lock until the import has ended. `open_end`
    /// says that bytes may follow the image, or its end may be missing. `length` is that of the image in
    /// bytes, if the sender knows it.
    ///
    /// # Errors
    /// The volume does not exist or is read-only, or its SR fails.
    pub async fn import_volume(
        &self,
        (sr, kind): (SrId, &str),
        vdi: VdiId,
        format: ImageFormat,
        (open_end, length): (bool, Option<u64>),
    ) -> Result<VolumeImport<'_>, StepError> {
        let place = self.place((sr, kind), SrFeature::VdiCreate).await?;
        let Layer { file: path, base: present } = place.driver.prepare_import(sr, vdi).await?;
        let (deadline_s, stream) = (MAX_IMAGE_DEADLINE_S, PathBuf::new());
        let import = ImageImport { present, path, format, open_end, length, stream, deadline_s };
        let stream = place.datapath.import(&import).await?;
        Ok(VolumeImport { place, vdi, stream })
    }
}

impl VolumeImport<'_> {
    /// Sends bytes of the image. Returns false if no more are needed: [`Self::finish`] has the
    /// result.
    pub async fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write(bytes).await
    }

    /// Waits until no more bytes are needed: the image is complete without an end, or refused. May be
    /// dropped.
    pub async fn ended(&mut self) {
        self.stream.ended().await;
    }

    /// Ends the image, and waits for the result. May be dropped; then [`Self::abandon`] ends the
    /// import.
    ///
    /// # Errors
    /// The SR failed. [`Self::abandon`] ends the import.
    pub async fn finish(&mut self) -> Result<ImageImported, StepError> {
        Ok(self.stream.finish().await?)
    }

    /// Gives the volume its content. `layer` is the name of a new image, if one is needed.
    ///
    /// # Errors
    /// The SR fails. The volume has its former content.
    pub async fn settle(self, made: ImageImported, layer: Uuid) -> Result<Imported, StepError> {
        let Self { place, vdi, .. } = self;
        settle(&place, vdi, made, layer).await
    }

    /// Ends the import without a result. The volume has its former content.
    pub async fn abandon(self) {
        let Self { place, vdi, stream } = self;
        stream.cut().await;
        remove(&place, vdi).await;
    }
}

/// Gives a volume the content of its new image.
async fn settle(
    place: &Place<'_>,
    vdi: VdiId,
    made: ImageImported,
    layer: Uuid,
) -> Result<Imported, StepError> {
    let layer = match made {
        ImageImported::Replacement => None,
        ImageImported::Layer => Some(layer),
        ImageImported::Refused(why) => return Ok(Imported::Refused(why)),
    };
    let settled = place.driver.settle_import(place.sr, vdi, layer).await;
    if settled.is_err() {
        remove(place, vdi).await;
    }
    Ok(Imported::Volume(settled?))
}

/// Removes the new image. The next import or attach removes one that is left.
async fn remove(place: &Place<'_>, vdi: VdiId) {
    let _left = place.driver.abandon_import(place.sr, vdi).await;
}
