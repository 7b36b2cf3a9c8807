//! Calls on image files.

use std::time::Duration;

use model::image::{
    DEFAULT_IMAGE_DEADLINE_S, ImageCheck, ImageCheckReport, ImageConvert, ImageCreate, ImageInfo,
    ImageMap, ImageMapReply, ImageProgressReply, ImageQuery, ImageResize, ImageSnapshotCall,
};
use model::image_stream::{ImageCopy, ImageImported};
use serde_json::json;

use super::rpc_connection::written;
use super::{DatapathError, RpcConnection};

/// Time between the deadline of a call and the latest arrival of its answer.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// Returns the longest wait for the answer to a call with this deadline.
fn wait(deadline_s: u32) -> Duration {
    Duration::from_secs(deadline_s.into()) + ANSWER_GRACE
}

impl RpcConnection {
    /// Calls `image.info`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_info(&mut self, query: &ImageQuery) -> Result<ImageInfo, DatapathError> {
        self.typed("image.info", written("image.info", query)?, wait(query.deadline_s)).await
    }

    /// Calls `image.check`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_check(
        &mut self,
        check: &ImageCheck,
    ) -> Result<ImageCheckReport, DatapathError> {
        self.typed("image.check", written("image.check", check)?, wait(check.deadline_s)).await
    }

    /// Calls `image.map`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_map(&mut self, map: &ImageMap) -> Result<ImageMapReply, DatapathError> {
        self.typed("image.map", written("image.map", map)?, wait(map.deadline_s)).await
    }

    /// Calls `image.create`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_create(&mut self, create: &ImageCreate) -> Result<ImageInfo, DatapathError> {
        self.typed("image.create", written("image.create", create)?, wait(DEFAULT_IMAGE_DEADLINE_S))
            .await
    }

    /// Calls `image.convert`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_convert(
        &mut self,
        convert: &ImageConvert,
    ) -> Result<ImageInfo, DatapathError> {
        self.typed("image.convert", written("image.convert", convert)?, wait(convert.deadline_s))
            .await
    }

    /// Calls `image.copy`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_copy(&mut self, copy: &ImageCopy) -> Result<ImageImported, DatapathError> {
        self.typed("image.copy", written("image.copy", copy)?, wait(copy.deadline_s)).await
    }

    /// Calls `image.snapshot`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_snapshot(
        &mut self,
        snapshot: &ImageSnapshotCall,
    ) -> Result<ImageInfo, DatapathError> {
        self.typed(
            "image.snapshot",
            written("image.snapshot", snapshot)?,
            wait(DEFAULT_IMAGE_DEADLINE_S),
        )
        .await
    }

    /// Calls `image.resize`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_resize(&mut self, resize: &ImageResize) -> Result<ImageInfo, DatapathError> {
        self.typed("image.resize", written("image.resize", resize)?, wait(resize.deadline_s)).await
    }

    /// Calls `image.progress`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn image_progress(&mut self) -> Result<ImageProgressReply, DatapathError> {
        self.typed("image.progress", json!({}), wait(DEFAULT_IMAGE_DEADLINE_S)).await
    }
}
