//! Images of this process, and what an operator does with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ::disk::WarmPhase;
use model::spec::BootSet;

use crate::image::CachedImage;
use crate::open::cache_path;
use crate::{GoldenError, boot_set, files, loader};

/// Cache directory, source and identity.
type Key = (PathBuf, String, String);

/// Image of a key. Locked while it is opened, which waits for the cache directory.
pub(crate) type Entry = Arc<Mutex<Weak<CachedImage>>>;

static IMAGES: Mutex<BTreeMap<Key, Entry>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<Key, Entry>> {
    IMAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the entry of a key. Waits for no other image.
pub(crate) fn entry(key: Key) -> Entry {
    let mut images = lock();
    images.retain(|_, entry| {
        Arc::strong_count(entry) > 1 || entry.try_lock().is_ok_and(|image| image.strong_count() > 0)
    });
    Arc::clone(images.entry(key).or_default())
}

/// Returns the images of an identity that a disk uses: one for each cache directory and source.
fn find(identity: &str) -> Result<Vec<Arc<CachedImage>>, GoldenError> {
    let all = lock();
    // One that is being opened has no disk yet.
    let images = all.values().filter_map(|entry| entry.try_lock().ok()?.upgrade());
    let found: Vec<_> =
        images.filter(|image| image.identity == identity && image.state().users > 0).collect();
    match found.is_empty() {
        true => Err(GoldenError::Unknown { identity: identity.into() }),
        false => Ok(found),
    }
}

/// Begins to fetch the whole image into its cache file, at `rate` bytes a second; without a limit if
/// `None`. An image that is being fetched goes on at the new rate. Returns at once.
///
/// # Errors
/// No disk of the process uses the image, or its cache file cannot be used.
pub fn warm(identity: &str, rate: Option<u64>) -> Result<(), GoldenError> {
    for image in find(identity)? {
        let mut state = image.state();
        if image.file.is_none() {
            let problem = state.file_problem.clone().unwrap_or_default();
            return Err(GoldenError::CacheFile { path: image.file_path.clone(), problem });
        }
        state.background.warm(rate, image.digest().is_some());
        drop(state);
        loader::start_background(&image);
    }
    Ok(())
}

/// Ends the fetching of the whole image. Does nothing if it does not run.
///
/// # Errors
/// No disk of the process uses the image.
pub fn cancel_warm(identity: &str) -> Result<(), GoldenError> {
    for image in find(identity)? {
        image.state().background.end_warm(WarmPhase::Canceled, None);
    }
    Ok(())
}

/// Returns the boot set of an image: the one that is being recorded, or the one in the cache directory.
///
/// # Errors
/// No disk of the process uses the image, or it has no boot set yet.
pub fn export_boot_set(identity: &str) -> Result<BootSet, GoldenError> {
    for image in find(identity)? {
        let recorded = image.state().recorder.as_ref().map(|recorder| recorder.blocks().to_vec());
        let blocks =
            recorded.or_else(|| boot_set::read(&image.boot_path, identity, image.blocks()));
        if let Some(blocks) = blocks.filter(|blocks| !blocks.is_empty()) {
            return Ok(BootSet::new(identity, blocks));
        }
    }
    Err(GoldenError::NoBootSet { identity: identity.into() })
}

/// Stores a boot set in a cache directory. The next process that opens the image there fetches its
/// blocks ahead.
///
/// # Errors
/// The directory cannot be used.
pub fn import_boot_set(cache: &Path, set: &BootSet) -> Result<(), GoldenError> {
    let stored = files::create_directory(cache).and_then(|()| {
        boot_set::write(&cache_path(cache, &set.identity).with_extension("boot"), set)
    });
    stored.map_err(|source| GoldenError::Directory { path: cache.into(), source })
}
