//! What the upper images of a tree change.

use image::qcow2::Mapping;
use image::{ImageError, run_now};
use model::spec::{Backend, FileRef};

use super::{Node, Source};
use crate::image_calls::ImageCallError;

/// Returns the topmost image that two trees share. What lies below it is shared, too, because nothing
/// writes an image that two disks have.
pub(in crate::image_calls) fn common_image(one: &Backend, other: &Backend) -> Option<String> {
    let names = |tree: &Backend| -> Vec<String> {
        let paths = tree.files().filter_map(FileRef::path);
        paths.map(|path| path.display().to_string()).collect()
    };
    let others = names(other);
    names(one).into_iter().find(|name| others.contains(name))
}

impl Source {
    /// Returns the first byte from `at` on that an image above `common` has, also if it is zero, at
    /// most `end`. `common` is the path of an image of the tree.
    ///
    /// # Errors
    /// A file fails or is damaged.
    pub(in crate::image_calls) fn next_change(
        &mut self,
        at: u64,
        end: u64,
        common: &str,
    ) -> Result<u64, ImageCallError> {
        // Behind its end, a layer has nothing.
        let inside = end.min(self.size);
        if at >= inside || self.path == common {
            return Ok(end);
        }
        let mut found = at;
        while found < inside {
            let (bytes, is_here, below) = self.run(found)?;
            let next = inside.min(found.saturating_add(bytes));
            found = match (is_here, below) {
                (true, _) => break,
                (false, Some(below)) => below.next_change(found, next, common)?,
                (false, None) => next,
            };
            if found < next {
                break;
            }
        }
        Ok(if found < inside { found } else { end })
    }

    /// Returns the length of the run from `at` on, whether this image has it, and the tree below.
    fn run(&mut self, at: u64) -> Result<(u64, bool, Option<&mut Self>), ImageCallError> {
        let path = &self.path;
        let failed = |source: ImageError| ImageCallError::Image { path: path.clone(), source };
        Ok(match &mut self.node {
            Node::Raw(_) | Node::Golden { .. } | Node::Window { .. } => {
                (self.size.saturating_sub(at), true, None)
            }
            Node::Vhd { image, below } => {
                let run = run_now(image.lookup(at)).map_err(failed)?;
                (run.bytes, run.host_offset.is_some(), below.as_deref_mut())
            }
            Node::Qcow2 { image, below, .. } => {
                let run = run_now(image.lookup(at)).map_err(failed)?;
                (run.bytes, run.mapping != Mapping::Unallocated, below.as_deref_mut())
            }
        })
    }
}
