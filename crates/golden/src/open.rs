//! Opening of images: all disks of the process on one image share it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use model::spec::{GoldenImage, MAX_GOLDEN_BYTES};
use serde::{Deserialize, Serialize};

use crate::boot_set;
use crate::cache_file::{CacheFile, blocks_of, known_size};
use crate::checksum::hash;
use crate::image::{CachedImage, Counters, State};
use crate::loader;
use crate::source::connect;
use crate::{BLOCK_BYTES, GoldenDisk, GoldenError};

/// Images of this process, by cache directory, source and identity.
static IMAGES: Mutex<BTreeMap<Key, Weak<CachedImage>>> = Mutex::new(BTreeMap::new());
/// Memory of an image by default, at most, and its share of the host's.
const RAM_MAX: u64 = 1 << 30;
const RAM_SHARE: u64 = 16;

type Key = (PathBuf, String, String);

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
/// the spec wants and the cache has nothing of it; the size cannot be served; or there is no memory.
pub fn open(spec: &GoldenImage, block_size: u32) -> Result<GoldenDisk, GoldenError> {
    let make = std::fs::create_dir_all(&spec.cache);
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
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    images.retain(|_, image| image.strong_count() > 0);
    if let Some(image) = images.get(&key).and_then(Weak::upgrade) {
        return Ok(GoldenDisk { image, block_size });
    }
    let image = Arc::new(cached(spec, identity, size));
    match boot_set::read(&image.boot_path, &image.identity, blocks_of(size)) {
        Some(blocks) => image.state().ahead.extend(blocks),
        None => image.state().recorder = Some(boot_set::Recorder::default()),
    }
    loader::start_ahead(&image);
    images.insert(key, Arc::downgrade(&image));
    Ok(GoldenDisk { image, block_size })
}

fn cached(spec: &GoldenImage, identity: String, size: u64) -> CachedImage {
    let path = cache_path(&spec.cache, &identity);
    let file = CacheFile::open(&path, &identity, hash(3, identity.as_bytes()), size);
    let file = file.map_err(|error| {
        let path = path.display();
        tracing::warn!("the cache file {path} is not used: {error}; blocks stay in memory only");
    });
    let file = file.ok();
    let stored = file.as_ref().map_or(0, CacheFile::stored);
    let ram = spec.ram.unwrap_or_else(default_ram);
    let ram_blocks = usize::try_from(ram / BLOCK_BYTES).unwrap_or(usize::MAX);
    CachedImage {
        source: spec.source.clone(),
        identity,
        size,
        rate: spec.rate,
        boot_path: path.with_extension("boot"),
        file_blocks: spec.cache_size.map_or(u64::MAX, |bytes| bytes / BLOCK_BYTES),
        file,
        counters: Counters::default(),
        state: Mutex::new(State::new(ram_blocks.min(blocks_of(size) as usize), stored)),
        bell: Condvar::new(),
    }
}

fn default_ram() -> u64 {
    let info = rustix::system::sysinfo();
    let all = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    (all / RAM_SHARE).clamp(model::spec::MIN_GOLDEN_RAM_BYTES, RAM_MAX)
}

fn cache_path(folder: &Path, identity: &str) -> PathBuf {
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
    let version = match connect(&spec.source) {
        Ok(connection) => connection.version().clone(),
        Err(problem) => {
            return from_note(spec, &note_path, &origin)
                .ok_or(GoldenError::Source { origin, problem });
        }
    };
    let found = version.identity(&spec.source);
    if let Some(wanted) = spec.identity.as_ref().filter(|wanted| **wanted != found) {
        return Err(GoldenError::OtherImage { origin, found, wanted: wanted.clone() });
    }
    let note = SourceNote { source: origin, identity: found.clone(), size: version.size };
    let written = serde_json::to_vec(&note).map_err(std::io::Error::other);
    let new = note_path.with_extension(format!("source.{}", std::process::id()));
    let written = written.and_then(|text| std::fs::write(&new, text));
    if let Err(error) = written.and_then(|()| std::fs::rename(&new, &note_path)) {
        tracing::warn!("no note about a golden image: {error}; it needs its source at each start");
    }
    Ok((found, version.size))
}

/// Returns the image that an unreachable source had last.
fn from_note(spec: &GoldenImage, path: &Path, origin: &str) -> Option<(String, u64)> {
    let note: SourceNote = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let is_it =
        note.source == origin && spec.identity.as_ref().is_none_or(|it| *it == note.identity);
    let size = known_size(&cache_path(&spec.cache, &note.identity), &note.identity)?;
    is_it.then_some((note.identity, size))
}
