//! The reference in an image to the image below, against the tree that serves it. The tree holds;
//! the reference is compared and never followed.

use std::path::{Component, Path, PathBuf};

use image::format::Backing;
use model::image::ImageFormat;
use model::spec::{Backend, FileRef};
use serde_json::json;

use super::{OpenError, label};

/// Outcome of a comparison.
#[derive(Debug)]
pub(super) enum Comparison {
    Same,
    /// The caller gets this note.
    Differs(String),
    /// The image refers to another one, and the tree has none. Its content would be wrong.
    NoBacking(OpenError),
}

/// Compares the reference in the image `name`, the file of `node`, with the tree below it.
pub(super) fn compare(
    node: &Backend,
    name: &FileRef,
    reference: Option<&Backing>,
    backing: Option<&Backend>,
) -> Comparison {
    match (reference, backing) {
        (None, None) => Comparison::Same,
        (Some(reference), None) => Comparison::NoBacking(no_backing(node, name, reference)),
        (None, Some(backing)) => Comparison::Differs(unreferenced(name, backing)),
        // A VHD names its parent by its identity, which holds wherever the file is.
        (Some(_), Some(Backend::Vhd { .. })) if matches!(node, Backend::Vhd { .. }) => {
            Comparison::Same
        }
        (Some(reference), Some(backing)) => differs(name, reference, backing),
    }
}

/// Returns the path of the image below, if the reference is one.
fn path_of(name: &FileRef, reference: &Backing) -> Option<PathBuf> {
    let text = reference.file.to_str().unwrap_or_default();
    // Addresses of other protocols, as QEMU knows them.
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    if scheme.is_some_and(|scheme| !scheme.contains('/')) {
        return None;
    }
    let image = std::path::absolute(name.path()?).ok()?;
    Some(image.parent()?.join(&reference.file))
}

/// Returns a path without `.` and doubled slashes.
fn plain(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    absolute.components().filter(|part| *part != Component::CurDir).collect()
}

fn no_backing(node: &Backend, name: &FileRef, reference: &Backing) -> OpenError {
    let below = path_of(name, reference).unwrap_or_else(|| reference.file.clone());
    let below = match reference.format.as_deref() {
        Some("qcow2") => json!({"qcow2": {"file": below.to_string_lossy()}}),
        Some("vhd" | "vpc") => json!({"vhd": {"file": below.to_string_lossy()}}),
        _ => json!({"file": below.to_string_lossy()}),
    };
    let format = node.image().map_or("qcow2", |(_, format)| format.name());
    let tree = json!({format: {"file": name, "backing": below}});
    let file = reference.file.display().to_string().escape_debug().to_string();
    OpenError::NoBacking { name: name.clone(), reference: file, tree: tree.to_string() }
}

fn unreferenced(name: &FileRef, backing: &Backend) -> String {
    format!(
        "the image {name} has no reference to a backing image, and is served over {backing}; other \
         programs read zeroes where the image has nothing"
    )
}

fn differs(name: &FileRef, reference: &Backing, backing: &Backend) -> Comparison {
    let (file, format) = backing.image().unzip();
    // Without a path, there is nothing to compare.
    let by_descriptor = name.path().is_none() || file.is_some_and(|file| file.path().is_none());
    let referred = path_of(name, reference).map(|path| plain(&path));
    let is_same_path = file.is_some_and(|file| Some(plain(&label(file))) == referred);
    let stated = reference.format.as_deref();
    let is_same_format =
        |stated: &str| format.is_some_and(|format: ImageFormat| format.qemu_name() == stated);
    if by_descriptor || (is_same_path && stated.is_none_or(is_same_format)) {
        return Comparison::Same;
    }
    let escaped = |text: &str| text.escape_debug().to_string();
    Comparison::Differs(format!(
        "the image {name} refers to {} ({}), and is served over {backing}; check that this is the \
         right one",
        escaped(&reference.file.display().to_string()),
        escaped(stated.unwrap_or("format not stated")),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(reference: Option<(&str, Option<&str>)>, backing: Option<Backend>) -> Comparison {
        let reference = reference
            .map(|(file, format)| Backing { file: file.into(), format: format.map(Into::into) });
        let name = FileRef::from("/img/a.qcow2");
        let node = Backend::Qcow2 { file: name.clone(), backing: None };
        compare(&node, &name, reference.as_ref(), backing.as_ref())
    }

    fn raw(path: &str) -> Option<Backend> {
        Some(Backend::File(path.into()))
    }

    #[test]
    fn the_same_image_gives_no_note() {
        let qcow2 = |path: &str| Some(Backend::Qcow2 { file: path.into(), backing: None });
        for (reference, backing) in [
            (None, None),
            (Some(("b.raw", Some("raw"))), raw("/img/b.raw")),
            (Some(("./b.raw", None)), raw("/img//b.raw")),
            (Some(("/other/b", Some("qcow2"))), qcow2("/other/./b")),
            (Some(("b", Some("raw"))), Some(Backend::File(FileRef::Fd { fd: 3 }))),
        ] {
            let compared = compared(reference, backing);
            assert!(matches!(compared, Comparison::Same), "{reference:?}: {compared:?}");
        }
    }

    #[test]
    fn another_image_gives_a_note() {
        for (reference, backing, text) in [
            (None, raw("/b"), "has no reference"),
            (
                Some(("b", Some("raw"))),
                raw("/img/c"),
                "refers to b (raw), and is served over /img/c",
            ),
            (Some(("b", Some("qcow2"))), raw("/img/b"), "refers to b (qcow2)"),
            (Some(("b\n", None)), raw("/img/c"), r"refers to b\n (format not stated)"),
            (Some(("nbd://h/b", None)), raw("/img/b"), "refers to nbd://h/b"),
            (Some(("b", None)), Some(Backend::Null(512)), "served over null"),
        ] {
            match compared(reference, backing) {
                Comparison::Differs(note) => assert!(note.contains(text), "{note}"),
                other => panic!("{reference:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn an_image_without_the_one_below_is_refused_with_the_tree_to_give() {
        for (reference, tree) in [
            (
                ("b.raw", Some("raw")),
                r#"{"qcow2":{"backing":{"file":"/img/b.raw"},"file":"/img/a.qcow2"}}"#,
            ),
            (
                ("/c", Some("qcow2")),
                r#"{"qcow2":{"backing":{"qcow2":{"file":"/c"}},"file":"/img/a.qcow2"}}"#,
            ),
        ] {
            match compared(Some(reference), None) {
                Comparison::NoBacking(error) => {
                    assert!(error.to_string().contains(tree), "{error}")
                }
                other => panic!("{reference:?}: {other:?}"),
            }
        }
    }
}
