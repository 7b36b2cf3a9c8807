//! Boot files: files in allowed directories, and images of VDIs.
//!
//! QEMU reads a kernel into its own memory, in addition to the VM's memory. Any user may have
//! written the file, so its size is limited.

use std::path::{Component, Path, PathBuf};

use model::domain::{BootFile, BootImage};
use model::id::{SrId, Uuid, VdiId};
use toolstack::sr::delay::SLOW_DIR;
use toolstack::sr::dir::{DIR_TYPES, LOCATION};
use xenapi::ApiError;
use xenapi::table::{pbd, sr, vdi};

use super::fields::{self, flag, int, pairs, reference, references};
use crate::db::View;
use crate::facts::FORMAT;

/// Largest kernel image in bytes. The next constant is the limit of a ramdisk.
pub(super) const KERNEL_BYTES_MAX: u64 = 256 << 20;
pub(super) const RAMDISK_BYTES_MAX: u64 = 1 << 30;

/// Directories of boot files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootDirs {
    /// Directories from which kernels and ramdisks may be loaded.
    pub directories: Vec<PathBuf>,
    /// Default directory of an SR.
    pub usual_sr: PathBuf,
}

/// Boot file named in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum File {
    Nothing,
    /// Path, not checked yet.
    Path(PathBuf),
    /// Image of a VDI, or the reason why it cannot be used.
    Image(Result<Image, String>),
}

/// Image in an attached SR with files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    id: Uuid,
    /// SR, and its type.
    sr: (SrId, String),
    /// Directory of the SR. `None` is the default directory.
    folder: Option<PathBuf>,
    bytes: u64,
}

impl File {
    /// Parses a file name. A UUID names a VDI, anything else is a path.
    pub(super) fn read(view: &View<'_>, named: &str) -> Self {
        match named.parse::<Uuid>() {
            _ if named.is_empty() => Self::Nothing,
            Ok(id) => Self::Image(image(view, id).map_err(|why| of_vdi(id, &why))),
            Err(_) => Self::Path(named.into()),
        }
    }

    /// Returns the file if it may be used. `None` if the record names none. An image has at most
    /// `most` bytes.
    ///
    /// # Errors
    /// A sentence that says why it cannot be used.
    pub(super) fn usable(&self, from: &BootDirs, most: u64) -> Result<Option<BootFile>, String> {
        match self {
            Self::Nothing => Ok(None),
            Self::Path(named) => allowed(named, &from.directories).map(BootFile::File).map(Some),
            Self::Image(image) => {
                let Image { id, sr, folder, bytes } = image.as_ref().map_err(String::clone)?;
                if *bytes > most {
                    let (has, most) = (bytes.div_ceil(1 << 20), most >> 20);
                    let why = format!("it has {has} MiB, and may have {most}: use a smaller disk");
                    return Err(of_vdi(*id, &why));
                }
                let folder = folder.as_ref().unwrap_or(&from.usual_sr);
                let path = folder.join(format!("{id}.raw"));
                let (sr, vdi) = (sr.clone(), VdiId(*id));
                Ok(Some(BootFile::Image(BootImage { path, sr, vdi })))
            }
        }
    }
}

/// Finds the image of a VDI in an attached SR with files. Storage may hang, so this reads only
/// records.
fn image(view: &View<'_>, id: Uuid) -> Result<Image, String> {
    let disk =
        view.by_uuid(&vdi::CLASS, &id.to_string()).map_err(|_| "no such disk".to_owned())?.clone();
    if flag(view, &disk, vdi::Field::missing).map_err(text)? {
        return Err("it is missing from its storage repository".into());
    }
    let place = reference(view, &disk, vdi::Field::SR).map_err(text)?;
    let kind = fields::text(view, &place, sr::Field::r#type).map_err(text)?;
    if kind != SLOW_DIR && !DIR_TYPES.contains(&kind) {
        return Err(format!("its storage has type {kind}, and must have a type with files"));
    }
    let sr = SrId(fields::uuid(view, &place, sr::Field::uuid).map_err(text)?);
    let config = pairs(view, &disk, vdi::Field::sm_config).map_err(text)?;
    if let Some(format) = config.get(FORMAT).filter(|format| *format != "raw") {
        return Err(format!("its image is {format}, and must be raw: use a copy (vdi-copy)"));
    }
    let bytes = int(view, &disk, vdi::Field::virtual_size).map_err(text)?;
    let bytes = u64::try_from(bytes).map_err(|_| "its size is invalid".to_owned())?;
    for connection in references(view, &place, sr::Field::PBDs).map_err(text)? {
        if flag(view, &connection, pbd::Field::currently_attached).map_err(text)? {
            let config = pairs(view, &connection, pbd::Field::device_config).map_err(text)?;
            let folder = config.get(LOCATION).map(PathBuf::from);
            return Ok(Image { id, sr: (sr, kind.to_owned()), folder, bytes });
        }
    }
    Err("its storage is not plugged".into())
}

fn of_vdi(id: Uuid, why: &str) -> String {
    format!("VDI {id}: {why}")
}

fn text(error: ApiError) -> String {
    error.to_string()
}

/// Returns the canonical path of a regular file in one of these directories. Files outside of them
/// are not accessed.
fn allowed(named: &Path, directories: &[PathBuf]) -> Result<PathBuf, String> {
    let shown = named.display();
    let plain = named.components().all(|part| !matches!(part, Component::ParentDir));
    if !plain || !directories.iter().any(|directory| named.starts_with(directory)) {
        return Err(format!("`{shown}` is not in {}", listed(directories)));
    }
    let file =
        named.canonicalize().map_err(|error| format!("`{shown}` cannot be used: {error}"))?;
    // A symbolic link may lead to another allowed directory, but not outside.
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
        let from = BootDirs { directories: vec![inside.clone()], ..BootDirs::default() };
        let usable = |file: File, from: &BootDirs| file.usable(from, KERNEL_BYTES_MAX);
        let path = |name: &str| usable(File::Path(inside.join(name)), &from);
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
            let why = usable(File::Path(named.into()), &from).unwrap_err();
            assert!(why.contains("is not in"), "{named}: {why}");
        }
        let why = usable(File::Path("/boot/k".into()), &BootDirs::default()).unwrap_err();
        assert!(why.contains("none is set"), "{why}");
        assert_eq!(usable(File::Nothing, &from), Ok(None));
    }

    #[test]
    fn images_are_bounded_and_may_be_where_storage_usually_is() {
        let from = BootDirs { directories: Vec::new(), usual_sr: "/usual".into() };
        let id = Uuid::from_random([7; 16]);
        let sr = (SrId(Uuid::default()), "dir".to_owned());
        let image = |folder: Option<&str>, bytes| {
            let image = Image { id, sr: sr.clone(), folder: folder.map(PathBuf::from), bytes };
            File::Image(Ok(image)).usable(&from, KERNEL_BYTES_MAX)
        };
        let at = |folder: &str| {
            let path = Path::new(folder).join(format!("{id}.raw"));
            Ok(Some(BootFile::Image(BootImage { path, sr: sr.clone(), vdi: VdiId(id) })))
        };
        assert_eq!(image(None, 1), at("/usual"));
        assert_eq!(image(Some("/sr"), KERNEL_BYTES_MAX), at("/sr"));
        let why = image(None, KERNEL_BYTES_MAX + 1).unwrap_err();
        assert!(why.contains(&id.to_string()) && why.contains("256"), "{why}");
    }
}
