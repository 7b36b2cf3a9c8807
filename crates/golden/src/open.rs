//! Opening of images: all disks of the process on one image share it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use model::spec::{DIGEST_PREFIX, GoldenImage, MAX_GOLDEN_BYTES};
use serde::{Deserialize, Serialize};

use crate::cache_file::{CacheFile, blocks_of, known_size};
use crate::checksum::hash;
use crate::image::{CachedImage, Counters};
use crate::source::connect;
use crate::stalled::Stalled;
use crate::state::State;
use crate::{BLOCK_BYTES, GoldenDisk, GoldenError, digest, files, loader, registry};

/// Memory of an image by default, at most, and its share of the host's.
const RAM_MAX: u64 = 1 << 30;
const RAM_SHARE: u64 = 16;
/// Longest note in bytes.
const NOTE_MAX: u64 = 64 << 10;

/// Note in the cache directory about the image that a source had last.
#[derive(Debug, Serialize, Deserialize)]
struct SourceNote {
    source: String,
    identity: String,
    size: u64,
}

/// Opens a disk on an image, whose sectors have `block_size` bytes. May wait for the source.
///
/// # Errors
/// The source cannot be used and the cache does not know the image; the source has another image than
/// the spec wants and the cache has nothing of it; the size cannot be served; the cache directory cannot
/// be made; or the kernel refuses a thread.
pub fn open(spec: &GoldenImage, block_size: u32) -> Result<GoldenDisk, GoldenError> {
    let make = files::create_directory(&spec.cache);
    let path = spec.cache.clone();
    make.map_err(|source| GoldenError::Directory { path, source })?;
    let (identity, size) = find(spec)?;
    let refuse =
        |problem: String| Err(GoldenError::Size { origin: spec.source.to_string(), size, problem });
    if size == 0 || size > MAX_GOLDEN_BYTES {
        return refuse(format!(", which is not in 1 to {MAX_GOLDEN_BYTES}"));
    }
    if size % u64::from(block_size) != 0 {
        return refuse(format!(", which is not a multiple of the block size {block_size}"));
    }
    if let Some(wanted) = spec.size.filter(|wanted| *wanted != size) {
        return refuse(format!(", and {wanted} are wanted; give the size that it has"));
    }
    let key = (spec.cache.clone(), spec.source.to_string(), identity.clone());
    let entry = registry::entry(key);
    let mut known = entry.lock().unwrap_or_else(PoisonError::into_inner);
    let image = known.upgrade().unwrap_or_else(|| Arc::new(cached(spec, identity, size)));
    *known = Arc::downgrade(&image);
    let disk = GoldenDisk::new(Arc::clone(&image), block_size);
    drop(known);
    let origin = || spec.source.to_string();
    loader::start(&image).map_err(|source| GoldenError::Thread { origin: origin(), source })?;
    loader::start_background(&image);
    Ok(disk)
}

fn cached(spec: &GoldenImage, identity: String, size: u64) -> CachedImage {
    let path = cache_path(&spec.cache, &identity);
    let limit = spec.cache_size.map_or(u64::MAX, |bytes| bytes / BLOCK_BYTES);
    let file = CacheFile::open(&path, &identity, size, limit);
    let (file, file_problem) = match file {
        Ok(file) => (Some(file), None),
        Err(error) => {
            let shown = path.display();
            tracing::warn!(
                "the cache file {shown} is not used: {error}; blocks stay in memory only"
            );
            (None, Some(error.to_string()))
        }
    };
    let ram = spec.ram.unwrap_or_else(default_ram);
    let ram_blocks = usize::try_from(ram / BLOCK_BYTES).unwrap_or(usize::MAX);
    let mut state = State::new(ram_blocks.min(blocks_of(size) as usize));
    state.file_problem = file_problem;
    state.found_digest = digest::read(&path, &identity);
    CachedImage {
        source: spec.source.clone(),
        identity,
        size,
        rate: spec.rate,
        boot_path: path.with_extension("boot"),
        file_path: path,
        file,
        counters: Counters::default(),
        connections: AtomicUsize::new(0),
        state: Mutex::new(state),
        bell: Condvar::new(),
    }
}

fn default_ram() -> u64 {
    let info = rustix::system::sysinfo();
    let all = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    (all / RAM_SHARE).clamp(model::spec::MIN_GOLDEN_RAM_BYTES, RAM_MAX)
}

/// Returns the path of the cache file of an image.
pub(crate) fn cache_path(folder: &Path, identity: &str) -> PathBuf {
    folder.join(format!("{:016x}.golden", hash(4, identity.as_bytes())))
}

/// Returns identity and size of the image.
fn find(spec: &GoldenImage) -> Result<(String, u64), GoldenError> {
    let origin = spec.source.to_string();
    let note_path = spec.cache.join(format!("{:016x}.source", hash(5, origin.as_bytes())));
    let known = |identity: &str| known_size(&cache_path(&spec.cache, identity), identity);
    if let Some((identity, size)) = spec.identity.as_ref().and_then(|id| Some((id, known(id)?))) {
        return Ok((identity.clone(), size));
    }
    let asked = Instant::now();
    if Stalled::of_process().has(&origin, asked)
        && let Some(found) = from_note(spec, &note_path, &origin)
    {
        return Ok(found);
    }
    let version = match connect(&spec.source) {
        Ok(connection) => connection.version().clone(),
        Err(problem) => {
            Stalled::of_process().note_failure(&origin, asked, Instant::now());
            return from_note(spec, &note_path, &origin)
                .ok_or_else(|| GoldenError::Source { origin, problem: problem.bounded() });
        }
    };
    let found = match spec.identity.as_ref().filter(|it| it.starts_with(DIGEST_PREFIX)) {
        // The source cannot tell its digest: the spec vouches for it.
        Some(digest) => digest.clone(),
        None => version.identity(&spec.source),
    };
    if let Some(wanted) = spec.identity.as_ref().filter(|wanted| **wanted != found) {
        return Err(GoldenError::OtherImage { origin, found, wanted: wanted.clone() });
    }
    let note = SourceNote { source: origin, identity: found.clone(), size: version.size };
    let written = serde_json::to_vec(&note).map_err(std::io::Error::other);
    if let Err(error) = written.and_then(|text| files::replace(&note_path, &text)) {
        tracing::warn!("no note about a golden image: {error}; it needs its source at each start");
    }
    Ok((found, version.size))
}

/// Returns the image that an unreachable source had last.
fn from_note(spec: &GoldenImage, path: &Path, origin: &str) -> Option<(String, u64)> {
    let note: SourceNote = serde_json::from_slice(&files::read(path, NOTE_MAX).ok()?).ok()?;
    let is_it =
        note.source == origin && spec.identity.as_ref().is_none_or(|it| *it == note.identity);
    let size = known_size(&cache_path(&spec.cache, &note.identity), &note.identity)?;
    is_it.then_some((note.identity, size))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::spec::GoldenSource;

    use super::*;

    /// Returns the spec of an image in a file of ones.
    fn spec(folder: &Path, name: &str) -> GoldenImage {
        let file = folder.join(name);
        std::fs::write(&file, vec![1; 1 << 20]).unwrap();
        let (source, cache) = (GoldenSource::File(file), folder.join("cache"));
        let (identity, ram, cache_size, size, rate) = Default::default();
        GoldenImage { source, cache, identity, ram, cache_size, size, rate }
    }

    #[test]
    fn a_source_that_stalls_is_not_asked_for_what_the_cache_knows() {
        let folder = tempfile::tempdir().unwrap();
        let image = spec(folder.path(), "one");
        let identity = open(&image, 512).unwrap().identity().to_owned();
        let (asked, origin) = (Instant::now(), image.source.to_string());
        // Longer than any test.
        let failed = asked + Duration::from_secs(3600);
        Stalled::of_process().note_failure(&origin, asked, failed);
        // If it were asked, it would tell that it has another image.
        let file = folder.path().join("one");
        std::fs::write(&file, vec![2; 2 << 20]).unwrap();
        assert_eq!(open(&image, 512).unwrap().identity(), identity);
        // Without a cache, it is asked.
        let other = GoldenImage { cache: folder.path().join("other"), ..image };
        assert_ne!(open(&other, 512).unwrap().identity(), identity);
    }

    #[test]
    fn an_image_whose_cache_directory_hangs_holds_up_no_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let [hanging, other] = ["hanging", "other"].map(|name| spec(folder.path(), name));
        let identity = open(&hanging, 512).unwrap().identity().to_owned();
        // As an open that waits for its storage.
        let key = (hanging.cache.clone(), hanging.source.to_string(), identity);
        let entry = registry::entry(key);
        let waits = entry.lock().unwrap();
        let disk = open(&other, 512).unwrap();
        registry::warm(disk.identity(), None).unwrap();
        drop(waits);
        open(&hanging, 512).unwrap();
    }
}
