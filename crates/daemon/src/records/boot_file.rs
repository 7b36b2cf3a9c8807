//! Files that machines boot: out of named directories, and images of VDIs.
//!
//! QEMU reads a kernel into memory of its own, beside that of the machine, whoever has written it:
//! what is named is bounded.

use std::path::{Component, Path, PathBuf};

use model::domain::BootFile;
use model::id::Uuid;
use toolstack::sr::delay::SLOW_DIR;
use toolstack::sr::dir::LOCATION;
use xenapi::ApiError;
use xenapi::table::{pbd, sr, vdi};

use super::fields::{self, flag, int, pairs, reference, references};
use crate::db::View;

/// Types of storage that has a file for each disk.
const OF_FILES: [&str; 2] = ["dir", SLOW_DIR];
/// Largest disk that is a kernel, and that is a ramdisk, in bytes.
pub(super) const KERNEL_BYTES_MAX: u64 = 256 << 20;
pub(super) const RAMDISK_BYTES_MAX: u64 = 1 << 30;

/// Where files may be that machines boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootDirs {
    /// Kernels and ramdisks are taken from these directories only.
    pub directories: Vec<PathBuf>,
    /// Where an SR in a directory is that does not say where.
    pub usual_sr: PathBuf,
}

/// What a record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum File {
    Nothing,
    /// By its path, which has not been looked for.
    Path(PathBuf),
    /// The image of a VDI, or why there is none.
    Image(Result<Image, String>),
}

/// An image in connected storage of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    id: Uuid,
    /// Its directory; absent: the usual one.
    folder: Option<PathBuf>,
    bytes: u64,
}

impl File {
    /// A VDI is named by its UUID, all else is a path.
    pub(super) fn read(view: &View<'_>, named: &str) -> Self {
        match named.parse::<Uuid>() {
            _ if named.is_empty() => Self::Nothing,
            Ok(id) => Self::Image(image(view, id).map_err(|why| of_vdi(id, &why))),
            Err(_) => Self::Path(named.into()),
        }
    }

    /// The file, if it may be used; nothing if none is named. An image has `most` bytes at most.
    ///
    /// # Errors
    /// A sentence: why it cannot be used.
    pub(super) fn usable(&self, from: &BootDirs, most: u64) -> Result<Option<BootFile>, String> {
        match self {
            Self::Nothing => Ok(None),
            Self::Path(named) => allowed(named, &from.directories).map(BootFile::File).map(Some),
            Self::Image(image) => {
                let Image { id, folder, bytes } = image.as_ref().map_err(String::clone)?;
                if *bytes > most {
                    let (has, most) = (bytes.div_ceil(1 << 20), most >> 20);
                    let why = format!("it has {has} MiB, and may have {most}: use a smaller disk");
                    return Err(of_vdi(*id, &why));
                }
                let folder = folder.as_ref().unwrap_or(&from.usual_sr);
                Ok(Some(BootFile::Image(folder.join(format!("{id}.raw")))))
            }
        }
    }
}

/// The image of a VDI in connected storage of files. Storage may hang: nothing is looked at.
fn image(view: &View<'_>, id: Uuid) -> Result<Image, String> {
    let disk =
        view.by_uuid(&vdi::CLASS, &id.to_string()).map_err(|_| "there is none".to_owned())?.clone();
    if flag(view, &disk, vdi::Field::missing).map_err(text)? {
        return Err("its storage does not have it any more".into());
    }
    let place = reference(view, &disk, vdi::Field::SR).map_err(text)?;
    let kind = fields::text(view, &place, sr::Field::r#type).map_err(text)?;
    if !OF_FILES.contains(&kind) {
        return Err(format!("its storage is of type {kind}, and must be of one with files"));
    }
    let bytes = int(view, &disk, vdi::Field::virtual_size).map_err(text)?;
    let bytes = u64::try_from(bytes).map_err(|_| "its size is none".to_owned())?;
    for connection in references(view, &place, sr::Field::PBDs).map_err(text)? {
        if flag(view, &connection, pbd::Field::currently_attached).map_err(text)? {
            let config = pairs(view, &connection, pbd::Field::device_config).map_err(text)?;
            let folder = config.get(LOCATION).map(PathBuf::from);
            return Ok(Image { id, folder, bytes });
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
        let image = |folder: Option<&str>, bytes| {
            let image = Image { id, folder: folder.map(PathBuf::from), bytes };
            File::Image(Ok(image)).usable(&from, KERNEL_BYTES_MAX)
        };
        let at =
            |folder: &str| Ok(Some(BootFile::Image(Path::new(folder).join(format!("{id}.raw")))));
        assert_eq!(image(None, 1), at("/usual"));
        assert_eq!(image(Some("/sr"), KERNEL_BYTES_MAX), at("/sr"));
        let why = image(None, KERNEL_BYTES_MAX + 1).unwrap_err();
        assert!(why.contains(&id.to_string()) && why.contains("256"), "{why}");
    }
}
