//! Directory of ISO files. Every call may hang with the storage, so only workers use this module.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use model::id::{SrId, Uuid, VdiId};
use model::image::ImageFormat;

use crate::sr::file_system::{names, os, other_image, space};
use crate::sr::worker::MAX_VOLUMES;
use crate::sr::{Space, SrError, Volume};

/// Extension of the files that are volumes, in any case.
const EXTENSION: &str = "iso";

/// Returns the space of the file system, and the volumes.
///
/// # Errors
/// The directory cannot be read, or has more than [`MAX_VOLUMES`].
pub(crate) fn scan(place: &Path, sr: SrId) -> Result<(Space, Vec<Volume>), SrError> {
    let mut volumes = Vec::new();
    for name in iso_names(place)? {
        // A file that was removed after its name was read is skipped.
        volumes.extend(volume(place, sr, name)?);
    }
    if volumes.len() > MAX_VOLUMES {
        let why = format!("more than {MAX_VOLUMES} ISO files are in {}", place.display());
        return Err(crate::sr::places::location(why));
    }
    volumes.sort_by(|one, other| one.file_name.cmp(&other.file_name));
    Ok((space(place)?, volumes))
}

/// Returns one volume.
///
/// # Errors
/// It does not exist, or the directory cannot be read.
pub(crate) fn find(place: &Path, sr: SrId, vdi: VdiId) -> Result<Volume, SrError> {
    let name = iso_names(place)?.into_iter().find(|name| id(sr, name) == vdi);
    if let Some(name) = &name {
        check_content(&place.join(name))?;
    }
    let found = name.map(|name| volume(place, sr, name)).transpose()?.flatten();
    found.ok_or(SrError::NoVolume(vdi))
}

/// Refuses a file that begins like the image of a disk: no guest writes to a CD, so it is one.
fn check_content(path: &Path) -> Result<(), SrError> {
    let opened = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened,
    };
    let found = opened.and_then(|file| other_image(&file));
    let Some(signature) = found.map_err(|error| os("read", path, error))? else { return Ok(()) };
    let (path, to_raw) = (path.display(), signature.to_raw(&path.display()).unwrap_or_default());
    let title = signature.title();
    let why = format!("{path} is no CD, it begins like {title}: convert it (`{to_raw}`)");
    Err(crate::sr::places::location(why))
}

/// Returns the id of a file in an SR.
fn id(sr: SrId, name: &str) -> VdiId {
    VdiId(Uuid::from_name(&sr.0, name))
}

/// Returns the names of the ISO files.
fn iso_names(place: &Path) -> Result<Vec<String>, SrError> {
    let mut found = names(place)?;
    found.retain(|name| {
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|found| found.eq_ignore_ascii_case(EXTENSION))
            && !name.chars().any(char::is_control)
    });
    Ok(found)
}

/// Returns the volume of a file. `None` if it is no regular file, or a link to none.
fn volume(place: &Path, sr: SrId, name: String) -> Result<Option<Volume>, SrError> {
    let path = place.join(&name);
    let about = match fs::metadata(&path) {
        Ok(about) if about.is_file() => about,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(os("look at", &path, error)),
    };
    Ok(Some(Volume {
        vdi: id(sr, &name),
        virtual_bytes: about.len(),
        physical_bytes: about.blocks().saturating_mul(512),
        read_only: true,
        snapshot_of: None,
        resets: false,
        names: None,
        file_name: Some(name),
        format: ImageFormat::Raw,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn iso_files_are_volumes_that_keep_their_ids() {
        let dir = tempfile::tempdir().unwrap();
        let sr = SrId(Uuid::from_random([1; 16]));
        let place = dir.path();
        fs::write(place.join("debian 12.ISO"), vec![0; 5000]).unwrap();
        fs::write(place.join("notes.txt"), "").unwrap();
        fs::write(place.join("line\nbreak.iso"), "").unwrap();
        fs::create_dir(place.join("folder.iso")).unwrap();
        symlink("debian 12.ISO", place.join("latest.iso")).unwrap();
        symlink("nowhere", place.join("broken.iso")).unwrap();
        let (space, volumes) = scan(place, sr).unwrap();
        let names: Vec<_> = volumes.iter().filter_map(|one| one.file_name.as_deref()).collect();
        assert_eq!(names, ["debian 12.ISO", "latest.iso"]);
        assert!(space.total > 0 && volumes.iter().all(|one| one.read_only));
        assert_eq!(volumes[0].virtual_bytes, 5000);
        assert_eq!(scan(place, sr).unwrap().1, volumes);
        assert_eq!(find(place, sr, volumes[1].vdi).unwrap(), volumes[1]);
        let other = SrId(Uuid::from_random([2; 16]));
        assert!(matches!(find(place, other, volumes[1].vdi), Err(SrError::NoVolume(_))));
        fs::write(place.join("latest.iso"), b"QFI\xfb").unwrap();
        let refused = find(place, sr, volumes[1].vdi).unwrap_err().to_string();
        assert!(refused.contains("begins like a qcow2 image: convert it (`qemu-img"), "{refused}");
        fs::remove_file(place.join("latest.iso")).unwrap();
        assert!(matches!(find(place, sr, volumes[1].vdi), Err(SrError::NoVolume(_))));
        let missing = place.join("none");
        assert!(matches!(scan(&missing, sr), Err(SrError::Vanished { .. })));
    }
}
