//! Files that machines boot: out of named directories, and images of VDIs.

use std::path::{Component, Path, PathBuf};

use model::domain::BootFile;
use model::id::Uuid;
use xenapi::ApiError;
use xenapi::table::{pbd, sr, vdi};

use super::fields::{flag, pairs, reference, references};
use crate::db::{Ref, View};

/// Where a connection to storage of files says that they are.
const LOCATION: &str = "location";

/// What a record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum File {
    Nothing,
    /// By its path, which has not been looked for.
    Path(PathBuf),
    /// The image of a VDI, or why there is none.
    Image(Result<PathBuf, String>),
}

impl File {
    /// A VDI is named by its UUID, all else is a path.
    pub(super) fn read(view: &View<'_>, named: &str) -> Self {
        match named.parse::<Uuid>() {
            _ if named.is_empty() => Self::Nothing,
            Ok(id) => Self::Image(image(view, id).map_err(|why| format!("VDI {id}: {why}"))),
            Err(_) => Self::Path(named.into()),
        }
    }

    /// The file, if it may be used; nothing if none is named.
    ///
    /// # Errors
    /// A sentence: why it cannot be used.
    pub(super) fn usable(&self, directories: &[PathBuf]) -> Result<Option<BootFile>, String> {
        match self {
            Self::Nothing => Ok(None),
            Self::Path(named) => allowed(named, directories).map(BootFile::File).map(Some),
            Self::Image(image) => image.clone().map(BootFile::Image).map(Some),
        }
    }
}

/// The image of a VDI in connected storage of files. Storage may hang: nothing is looked at.
fn image(view: &View<'_>, id: Uuid) -> Result<PathBuf, String> {
    let disk =
        view.by_uuid(&vdi::CLASS, &id.to_string()).map_err(|_| "there is none".to_owned())?.clone();
    if flag(view, &disk, vdi::Field::missing).map_err(text)? {
        return Err("its storage does not have it any more".into());
    }
    let place = reference(view, &disk, vdi::Field::SR).map_err(text)?;
    for connection in references(view, &place, sr::Field::PBDs).map_err(text)? {
        if let Some(folder) = folder(view, &connection).map_err(text)? {
            return Ok(folder.join(format!("{id}.raw")));
        }
    }
    Err("its storage is not plugged, or is none of files in a directory".into())
}

fn folder(view: &View<'_>, connection: &Ref) -> Result<Option<PathBuf>, ApiError> {
    if !flag(view, connection, pbd::Field::currently_attached)? {
        return Ok(None);
    }
    Ok(pairs(view, connection, pbd::Field::device_config)?.remove(LOCATION).map(PathBuf::from))
}

fn text(error: ApiError) -> String {
    error.to_string()
}

/// The file itself, if it is a regular one in one of these directories. Nothing outside of them is
/// looked at.
fn allowed(named: &Path, directories: &[PathBuf]) -> Result<PathBuf, String> {
    let shown = named.display();
    let plain = named.components().all(|part| !matches!(part, Component::ParentDir));
    if !plain || !directories.iter().any(|directory| named.starts_with(directory)) {
        return Err(format!("`{shown}` is not in {}", listed(directories)));
    }
    let file =
        named.canonicalize().map_err(|error| format!("`{shown}` cannot be used: {error}"))?;
    // A link may lead from one named directory to another, and no further.
    let inside = directories.iter().filter_map(|directory| directory.canonicalize().ok());
    if !inside.into_iter().any(|directory| file.starts_with(directory)) {
        return Err(format!("`{shown}` leads out of {}", listed(directories)));
    }
    let about = file.metadata().map_err(|error| format!("`{shown}` cannot be used: {error}"))?;
    if about.is_file() { Ok(file) } else { Err(format!("`{shown}` is no regular file")) }
}

fn listed(directories: &[PathBuf]) -> String {
    let names: Vec<_> = directories.iter().map(|one| one.display().to_string()).collect();
    match names.as_slice() {
        [] => "any directory: none is set for kernels".to_owned(),
        names => names.join(" or "),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_come_from_named_directories_only() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("boot"), root.path().join("secret"));
        for directory in [&inside, &outside] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("vmlinuz"), "kernel").unwrap();
        }
        symlink("vmlinuz", inside.join("near")).unwrap();
        symlink(outside.join("vmlinuz"), inside.join("far")).unwrap();
        std::fs::create_dir(inside.join("sub")).unwrap();
        let directories = [inside.clone()];
        let path = |name: &str| File::Path(inside.join(name)).usable(&directories);
        let kernel = Some(BootFile::File(inside.canonicalize().unwrap().join("vmlinuz")));
        assert_eq!(path("vmlinuz"), Ok(kernel.clone()));
        assert_eq!(path("near"), Ok(kernel), "a link inside is its file");
        for (name, says) in [
            ("far", "leads out"),
            ("../secret/vmlinuz", "is not in"),
            ("none", "cannot be used"),
            ("sub", "no regular file"),
        ] {
            let why = path(name).unwrap_err();
            assert!(why.contains(says), "{name}: {why}");
        }
        for named in ["vmlinuz", "/etc/passwd", outside.join("vmlinuz").to_str().unwrap()] {
            let why = File::Path(named.into()).usable(&directories).unwrap_err();
            assert!(why.contains("is not in"), "{named}: {why}");
        }
        let why = File::Path("/boot/k".into()).usable(&[]).unwrap_err();
        assert!(why.contains("none is set"), "{why}");
        assert_eq!(File::Nothing.usable(&directories), Ok(None));
    }
}
