//! Images of volumes from which machines boot.

use model::domain::{Boot, BootFile, BootImage, DomainSpec};
use model::spec::{Backend, FileRef};

use super::{Machines, StepError};
use crate::hv::HvError;

impl Machines {
    /// Returns the specification with the present image of each volume that has a kernel or a ramdisk.
    ///
    /// # Errors
    /// [`HvError::Boot`] if the content of such a volume lies in several images: QEMU would read the
    /// lowest one alone. The errors of the SR.
    pub(super) async fn with_boot_images(
        &self,
        spec: &DomainSpec,
    ) -> Result<DomainSpec, StepError> {
        let mut spec = spec.clone();
        let Boot::Kernel { kernel, ramdisk, .. } = &mut spec.boot else { return Ok(spec) };
        for file in [Some(kernel), ramdisk.as_mut()].into_iter().flatten() {
            let BootFile::Image(image) = file else { continue };
            image.path = self.boot_image(image).await?;
        }
        Ok(spec)
    }

    async fn boot_image(&self, image: &BootImage) -> Result<std::path::PathBuf, StepError> {
        let BootImage { path, sr: (sr, kind), vdi } = image;
        let Some(driver) = self.drivers.sr(kind) else { return Ok(path.clone()) };
        match driver.images(*sr, *vdi).await? {
            Backend::File(FileRef::Path(path)) => Ok(path),
            _ => {
                let why = format!(
                    "VDI {vdi}: its content lies in several images, because it has or had snapshots \
                     or clones: use a copy (vdi-copy)"
                );
                Err(HvError::Boot { why }.into())
            }
        }
    }
}
