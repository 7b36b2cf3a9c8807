//! An image file on a command line: path, format and what lies below.

use std::path::PathBuf;

use crate::image::ImageFormat;
use crate::spec::{Backend, SpecError, refuse};

/// Image file with its stated format. Chains of more than two images are written as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageArg {
    /// Path of the image file or block device.
    pub file: PathBuf,
    /// Format; raw when absent.
    pub format: Option<ImageFormat>,
    /// Path of the image below.
    pub backing: Option<PathBuf>,
    /// Format of the image below.
    pub backing_format: Option<ImageFormat>,
}

impl ImageArg {
    /// Returns the backend of the image.
    ///
    /// # Errors
    /// Fields `format`, `backing` and `backing_format`: they contradict each other.
    pub fn backend(self) -> Result<Backend, SpecError> {
        let Self { file, format, backing, backing_format } = self;
        match (format.unwrap_or(ImageFormat::Raw), &backing) {
            (ImageFormat::Raw, None) if backing_format.is_none() => Ok(Backend::File(file.into())),
            (ImageFormat::Raw, _) => refuse("backing", "a raw image has none; state format qcow2"),
            (ImageFormat::Qcow2, _) => {
                let backing = match (backing, backing_format) {
                    (None, None) => None,
                    (Some(path), Some(format)) => {
                        let format = Some(format);
                        let below = Self { file: path, format, ..Self::default() };
                        Some(Box::new(below.backend()?))
                    }
                    (Some(_), None) => {
                        return refuse("backing_format", "is missing: raw or qcow2");
                    }
                    (None, Some(_)) => return refuse("backing", "is missing, and has a format"),
                };
                Ok(Backend::Qcow2 { file: file.into(), backing })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_backend_of_its_format() {
        use ImageFormat::{Qcow2, Raw};
        let arg = |format, backing: Option<&str>, backing_format| {
            let backing = backing.map(PathBuf::from);
            ImageArg { file: "/a".into(), format, backing, backing_format }.backend()
        };
        let raw = Backend::File("/a".into());
        assert_eq!(arg(None, None, None), Ok(raw.clone()));
        assert_eq!(arg(Some(Raw), None, None), Ok(raw));
        let over = |backing| Ok(Backend::Qcow2 { file: "/a".into(), backing });
        assert_eq!(arg(Some(Qcow2), None, None), over(None));
        let raw = Backend::File("/b".into());
        assert_eq!(arg(Some(Qcow2), Some("/b"), Some(Raw)), over(Some(raw.into())));
        let qcow2 = Backend::Qcow2 { file: "/b".into(), backing: None };
        assert_eq!(arg(Some(Qcow2), Some("/b"), Some(Qcow2)), over(Some(qcow2.into())));
        for (format, backing, backing_format, field) in [
            (None, Some("/b"), Some(Raw), "backing"),
            (None, None, Some(Raw), "backing"),
            (Some(Qcow2), Some("/b"), None, "backing_format"),
            (Some(Qcow2), None, Some(Raw), "backing"),
        ] {
            assert_eq!(arg(format, backing, backing_format).unwrap_err().field, field);
        }
    }
}
