//! A tree as a chain of images: the part below some of them, and the tree after a merge of some.

use std::path::Path;

use super::{Backend, FileRef};
use crate::image::ImageFormat;

impl Backend {
    /// Returns what lies below the first `layers` images. `None` if nothing does.
    pub fn below(&self, layers: u32) -> Option<&Self> {
        let mut node = self;
        let mut layers = layers;
        while layers > 0 {
            node = match node {
                // A window is a part of its image.
                Self::Raw { child, .. } => child,
                Self::Qcow2 { backing, .. } | Self::Vhd { backing, .. } => {
                    layers -= 1;
                    backing.as_deref()?
                }
                Self::Overlay { base, .. } => {
                    layers -= 1;
                    base
                }
                Self::File(_)
                | Self::Null(_)
                | Self::Memory(_)
                | Self::Model(_)
                | Self::Golden(_) => return None,
            };
        }
        Some(node)
    }

    /// Returns the tree with one image in the place of these images, which lie over each other, top
    /// first. `None` if they do not, or a raw image would lie over another one.
    #[must_use]
    pub fn merged(&self, images: &[&Path], into: (&Path, ImageFormat)) -> Option<Self> {
        if let Self::Overlay { base, ram, overflow, overflow_size } = self {
            let (ram, overflow, overflow_size) = (*ram, overflow.clone(), *overflow_size);
            let base = Box::new(base.merged(images, into)?);
            return Some(Self::Overlay { base, ram, overflow, overflow_size });
        }
        let (file, format) = self.image()?;
        if file.path() == images.first().copied() {
            let count = u32::try_from(images.len()).ok()?;
            let same = self.files().zip(images).filter(|(file, image)| file.path() == Some(image));
            if same.count() != images.len() {
                return None;
            }
            let below = self.below(count).cloned();
            return Self::image_over(into.1, into.0.to_path_buf().into(), below);
        }
        let below = self.below(1)?.merged(images, into)?;
        Self::image_over(format, file.clone(), Some(below))
    }

    /// Returns whether a file of the tree has this path.
    pub fn has_file(&self, path: &Path) -> bool {
        self.files().filter_map(FileRef::path).any(|file| file == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(names: &[&str]) -> Backend {
        let mut tree = None;
        for name in names.iter().rev() {
            let format: ImageFormat = name.split_once('.').unwrap().1.parse().unwrap();
            tree = Backend::image_over(format, (*name).into(), tree);
        }
        tree.unwrap()
    }

    #[test]
    fn a_part_of_a_chain_becomes_one_image() {
        let tree = chain(&["a.qcow2", "b.qcow2", "c.qcow2", "d.raw"]);
        let merged = |images: &[&str], into: &str, format| {
            let images: Vec<_> = images.iter().map(Path::new).collect();
            tree.merged(&images, (Path::new(into), format))
        };
        let qcow2 = ImageFormat::Qcow2;
        let expected = chain(&["a.qcow2", "m.qcow2", "d.raw"]);
        assert_eq!(merged(&["b.qcow2", "c.qcow2"], "m.qcow2", qcow2), Some(expected));
        let expected = chain(&["m.qcow2", "c.qcow2", "d.raw"]);
        assert_eq!(merged(&["a.qcow2", "b.qcow2"], "m.qcow2", qcow2), Some(expected));
        let expected = chain(&["a.qcow2", "b.qcow2", "m.raw"]);
        assert_eq!(merged(&["c.qcow2", "d.raw"], "m.raw", ImageFormat::Raw), Some(expected));
        // Not over each other, not there, or raw over another image.
        assert_eq!(merged(&["a.qcow2", "c.qcow2"], "m.qcow2", qcow2), None);
        assert_eq!(merged(&["b.qcow2", "x.qcow2"], "m.qcow2", qcow2), None);
        assert_eq!(merged(&["d.raw", "e.raw"], "m.raw", ImageFormat::Raw), None);
        assert_eq!(merged(&["x.qcow2"], "m.qcow2", qcow2), None);
        assert_eq!(merged(&["a.qcow2", "b.qcow2"], "m.raw", ImageFormat::Raw), None);
        let over = |base: Backend| {
            let overflow = Some("o".into());
            Backend::Overlay { base: Box::new(base), ram: 0, overflow, overflow_size: None }
        };
        let images = ["b.qcow2", "c.qcow2"].map(Path::new);
        let below_overlay = over(tree.clone()).merged(&images, (Path::new("m.qcow2"), qcow2));
        assert_eq!(below_overlay, Some(over(chain(&["a.qcow2", "m.qcow2", "d.raw"]))));
        assert!(tree.has_file(Path::new("c.qcow2")) && !tree.has_file(Path::new("x.qcow2")));
    }

    #[test]
    fn a_window_is_a_part_of_its_image() {
        let window = Backend::Raw { child: Box::new(chain(&["a.raw"])), offset: 0, size: 512 };
        let tree = Backend::image_over(ImageFormat::Qcow2, "t".into(), Some(window.clone()));
        let tree = tree.unwrap();
        assert_eq!(tree.below(0), Some(&tree));
        assert_eq!(tree.below(1), Some(&window));
        assert_eq!(tree.below(2), None);
    }
}
