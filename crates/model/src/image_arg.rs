//! An image file on a command line: path, format and what lies below.

use std::path::{Path, PathBuf};

use crate::image::ImageFormat;
use crate::spec::{Backend, SpecError, refuse};

/// Image file and the images below it, each with its stated format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageArg {
    /// Path of the image file or block device.
    pub file: PathBuf,
    /// Format; raw when absent.
    pub format: Option<ImageFormat>,
    /// Paths of the images below, from the top down.
    pub backing: Vec<PathBuf>,
    /// Format of each of them.
    pub backing_format: Vec<ImageFormat>,
}

impl ImageArg {
    /// Returns `raw` if a raw image among them is stated to be raw.
    pub fn stated_raw(&self) -> Option<ImageFormat> {
        let formats = self.format.iter().chain(&self.backing_format);
        formats.copied().find(|format| *format == ImageFormat::Raw)
    }

    /// Returns the backend of the image.
    ///
    /// # Errors
    /// Fields `format`, `backing` and `backing_format`: they contradict each other.
    pub fn backend(self) -> Result<Backend, SpecError> {
        let Self { file, format, backing, backing_format } = self;
        let format = format.unwrap_or(ImageFormat::Raw);
        if format == ImageFormat::Raw && !backing.is_empty() {
            return refuse_below_raw(&file);
        }
        if backing.len() > backing_format.len() {
            return refuse("backing_format", "is missing: raw, qcow2 or vhd, for each backing");
        }
        if backing.len() < backing_format.len() {
            return refuse("backing", "is missing, and has a format");
        }
        let mut below = None;
        for (path, format) in backing.into_iter().zip(backing_format).rev() {
            below = Some(layer(path, format, below)?);
        }
        layer(file, format, below)
    }
}

/// Returns an image over what is below it.
fn layer(file: PathBuf, format: ImageFormat, below: Option<Backend>) -> Result<Backend, SpecError> {
    let image = Backend::image_over(format, file.clone().into(), below);
    image.map_or_else(|| refuse_below_raw(&file), Ok)
}

fn refuse_below_raw(file: &Path) -> Result<Backend, SpecError> {
    let file = file.display();
    refuse("backing", format!("{file} is raw, and a raw image has none; state its format"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_backend_of_its_format() {
        use ImageFormat::{Qcow2, Raw};
        let arg = |format, backing: &[&str], formats: &[ImageFormat]| {
            let backing = backing.iter().map(PathBuf::from).collect();
            let backing_format = formats.to_vec();
            ImageArg { file: "/a".into(), format, backing, backing_format }.backend()
        };
        let raw = Backend::File("/a".into());
        assert_eq!(arg(None, &[], &[]), Ok(raw.clone()));
        assert_eq!(arg(Some(Raw), &[], &[]), Ok(raw));
        let image = |file: &str, below: Option<Backend>| Backend::Qcow2 {
            file: PathBuf::from(file).into(),
            backing: below.map(Box::new),
        };
        let raw = |file: &str| Backend::File(PathBuf::from(file).into());
        assert_eq!(arg(Some(Qcow2), &[], &[]), Ok(image("/a", None)));
        assert_eq!(arg(Some(Qcow2), &["/b"], &[Raw]), Ok(image("/a", Some(raw("/b")))));
        let chain = arg(Some(Qcow2), &["/b", "/c"], &[Qcow2, Raw]);
        assert_eq!(chain, Ok(image("/a", Some(image("/b", Some(raw("/c")))))));
        let vhd = Backend::Vhd { file: "/a".into(), backing: Some(Box::new(raw("/b"))) };
        assert_eq!(arg(Some(ImageFormat::Vhd), &["/b"], &[Raw]), Ok(vhd));
        for (format, backing, formats, field) in [
            (None, &["/b"][..], &[Raw][..], "backing"),
            (None, &[], &[Raw], "backing"),
            (Some(Qcow2), &["/b"], &[], "backing_format"),
            (Some(Qcow2), &["/b", "/c"], &[Qcow2], "backing_format"),
            (Some(Qcow2), &[], &[Raw], "backing"),
            (Some(Qcow2), &["/b", "/c"], &[Raw, Raw], "backing"),
        ] {
            assert_eq!(arg(format, backing, formats).unwrap_err().field, field);
        }
    }
}
