//! Files of the layers that slots have over golden images. Every call may hang with the storage, so
//! only workers use this module.
//!
//! `SLOT.IDENTITY.qcow2` has the writes of a slot that stay, over the image of this identity.
//! `SLOT.overflow` has those writes that the memory of a slot had no room for.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use model::id::{Uuid, VbdId};

use crate::sr::file_system::{names, os, space};
use crate::sr::worker::MAX_VOLUMES;
use crate::sr::{Space, SrError};

/// Extension of a layer that outlives its machine.
const PERSISTENT: &str = "qcow2";
/// Extension of a layer that does not.
const VOLATILE: &str = "overflow";

/// End of the name of the cache file of an image, which the datapath makes.
const CACHE: &str = ".golden";
/// Unit in which the kernel tells the bytes that a file takes.
const SECTOR_BYTES: u64 = 512;

/// Name of the file of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayerName {
    pub(super) slot: VbdId,
    /// Identity of the image below, for a layer that outlives its machine.
    pub(super) identity: Option<String>,
}

impl LayerName {
    /// Parses a file name. `None` if it names no layer.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (slot, rest) = name.split_once('.')?;
        let slot = VbdId(slot.parse::<Uuid>().ok()?);
        let identity = match rest.rsplit_once('.') {
            None if rest == VOLATILE => None,
            Some((identity, PERSISTENT)) => Some(identity.to_owned()),
            _ => return None,
        };
        Some(Self { slot, identity })
    }

    /// Returns the file name.
    pub(super) fn file_name(&self) -> String {
        match &self.identity {
            Some(identity) => format!("{}.{identity}.{PERSISTENT}", self.slot),
            None => format!("{}.{VOLATILE}", self.slot),
        }
    }
}

/// Opens the directory of layers, which is created if need be for its owner only, and returns the
/// space of its file system, with that of the caches of images.
///
/// # Errors
/// It cannot be created or read.
pub(crate) fn open_layers(place: &Path) -> Result<Space, SrError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(place);
    made.map_err(|error| os("create", place, error))?;
    Ok(Space { caches: Some(caches(place)?), ..space(place)? })
}

/// Returns the bytes that the caches of all images in a directory take.
fn caches(place: &Path) -> Result<u64, SrError> {
    let mut bytes = 0_u64;
    for name in names(place)?.iter().filter(|name| name.ends_with(CACHE)) {
        let path = place.join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => {
                bytes = bytes.saturating_add(found.blocks().saturating_mul(SECTOR_BYTES));
            }
            Ok(_) => {}
            // A clean-up has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(os("measure", &path, error)),
        }
    }
    Ok(bytes)
}

/// Returns the file names of the layers.
///
/// # Errors
/// The directory cannot be read, or has more than [`MAX_VOLUMES`].
pub(crate) fn layers(place: &Path) -> Result<Vec<String>, SrError> {
    let mut found = names(place)?;
    found.retain(|name| LayerName::parse(name).is_some());
    if found.len() > MAX_VOLUMES {
        let why = format!("more than {MAX_VOLUMES} layers are in {}", place.display());
        return Err(crate::sr::places::location(why));
    }
    Ok(found)
}

/// Removes the layers of a slot.
///
/// # Errors
/// The directory cannot be read or changed.
pub(crate) fn remove_layers(place: &Path, slot: Uuid, volatile_only: bool) -> Result<(), SrError> {
    for name in layers(place)? {
        let is_removed = LayerName::parse(&name).is_some_and(|layer| {
            layer.slot == VbdId(slot) && (layer.identity.is_none() || !volatile_only)
        });
        if is_removed {
            let path = place.join(&name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(os("remove", &path, error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn layers_are_found_and_removed_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/golden");
        assert!(open_layers(&place).unwrap().total > 0);
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
        open_layers(&place).unwrap();
        let [one, other] = [1, 2].map(|byte| Uuid::from_random([byte; 16]));
        let persistent = LayerName { slot: VbdId(one), identity: Some("1.2a".into()) }.file_name();
        let volatile = LayerName { slot: VbdId(one), identity: None }.file_name();
        let others = LayerName { slot: VbdId(other), identity: None }.file_name();
        let foreign = ["0123456789abcdef.golden".into(), format!("{one}.raw"), "a.qcow2".into()];
        for name in [&persistent, &volatile, &others].into_iter().chain(&foreign) {
            fs::write(place.join(name), "").unwrap();
        }
        let found = || {
            let mut found = layers(&place).unwrap();
            found.sort();
            found
        };
        let mut all = vec![persistent.clone(), volatile, others.clone()];
        all.sort();
        assert_eq!(found(), all);
        remove_layers(&place, one, true).unwrap();
        let mut left = vec![persistent, others.clone()];
        left.sort();
        assert_eq!(found(), left);
        remove_layers(&place, one, false).unwrap();
        remove_layers(&place, one, false).unwrap();
        assert_eq!(found(), [others]);
        assert!(foreign.iter().all(|name| place.join(name).exists()));
        assert!(matches!(layers(&place.join("none")), Err(SrError::Vanished { .. })));
    }

    #[test]
    fn caches_of_all_images_are_measured_by_the_blocks_that_they_take() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path();
        assert_eq!(open_layers(place).unwrap().caches, Some(0));
        let write = |name: &str, bytes: usize| {
            let path = place.join(name);
            let mut file = fs::File::create(&path).unwrap();
            file.write_all(&vec![1; bytes]).unwrap();
            file.set_len(1 << 30).unwrap();
            file.sync_all().unwrap();
            fs::metadata(path).unwrap().blocks() * 512
        };
        let taken = write("0123456789abcdef.golden", 1 << 20) + write("1.golden", 1 << 16);
        for other in ["0123456789abcdef.boot", "a.overflow", "golden", "b.golden.tmp"] {
            write(other, 1 << 20);
        }
        symlink(place.join("golden"), place.join("link.golden")).unwrap();
        fs::create_dir(place.join("folder.golden")).unwrap();
        assert!(((1 << 20)..(1 << 30)).contains(&taken), "{taken}");
        assert_eq!(open_layers(place).unwrap().caches, Some(taken));
    }

    #[test]
    fn a_name_is_that_of_a_layer_or_not() {
        let slot = VbdId(Uuid::from_random([1; 16]));
        for identity in [None, Some("0a".to_owned()), Some("a.b".to_owned())] {
            let layer = LayerName { slot, identity };
            assert_eq!(LayerName::parse(&layer.file_name()), Some(layer));
        }
        for name in ["", "x.overflow", &format!("{slot}"), &format!("{slot}.qcow2.tmp")] {
            assert_eq!(LayerName::parse(name), None, "{name}");
        }
    }
}
