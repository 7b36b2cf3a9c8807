//! Third phase: what nothing references any more.

use std::io;

use super::Qcow2Format;
use crate::planted::{Bug, is_planted};
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Drops a reference to a cluster. The last one frees it.
    pub(super) async fn release(&mut self, cluster: u64) -> Result<(), ImageError> {
        while let Some(late) = self.unpunched.pop() {
            self.punch(late).await?;
        }
        self.refuse_table(cluster)?;
        let count = self.image.refcount(cluster).await?;
        if count > 1 {
            return self.write_refcounts(&[(cluster, count - 1)].into()).await;
        }
        if count == 0 && !self.space.taken.contains(&cluster) {
            let (structure, offset) = ("refcount", self.offset(cluster));
            let problem = "it is 0, but the cluster was used".into();
            return Err(ImageError::Corrupt { structure, offset, problem });
        }
        if is_planted(Bug::LatePunch) {
            self.unpunched.push(cluster);
        } else {
            self.punch(cluster).await?;
        }
        if count == 1 {
            self.write_refcounts(&[(cluster, 0)].into()).await?;
        }
        self.space.free(cluster);
        Ok(())
    }

    /// Punches a cluster. Storage that cannot do it keeps the space.
    async fn punch(&self, cluster: u64) -> Result<(), ImageError> {
        let (offset, len) = (self.offset(cluster), self.image.header.cluster_bytes());
        match self.image.tables.file.punch(offset, len).await {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => {
                Err(ImageError::io("punch", offset)(error))
            }
            _ => Ok(()),
        }
    }
}
