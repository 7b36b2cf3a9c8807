//! Removal of cache files that no machine uses any more.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use model::report::GoldenFile;

use crate::cache_file::inspect;
use crate::{GoldenError, files};

/// Removes cache files that no process uses, with their boot sets and digests: those whose last use is
/// longest ago first, until all of them together take at most `keep` bytes. A file that was used within
/// `unused` stays. The last use is the last open or store of a block. Returns all files that were there.
///
/// # Errors
/// The directory cannot be read. A file that cannot be removed stays and is reported so.
pub fn clean_up(cache: &Path, keep: u64, unused: Duration) -> Result<Vec<GoldenFile>, GoldenError> {
    let failed = |source| GoldenError::Directory { path: cache.into(), source };
    let mut found: Vec<(SystemTime, PathBuf, GoldenFile)> = Vec::new();
    for entry in std::fs::read_dir(cache).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "golden") {
            continue;
        }
        let Some((identity, bytes, used)) = inspect(&path) else { continue };
        let seconds = SystemTime::now().duration_since(used).unwrap_or_default().as_secs();
        let file = path.clone();
        let (is_removed, problem) = (false, None);
        let one =
            GoldenFile { identity, file, bytes, unused_seconds: seconds, is_removed, problem };
        found.push((used, path, one));
    }
    found.sort_by_key(|(used, ..)| *used);
    let mut total: u64 = found.iter().map(|(.., file)| file.bytes).sum();
    for (_, path, file) in &mut found {
        if total <= keep || file.unused_seconds < unused.as_secs() {
            continue;
        }
        match files::remove_unused(path) {
            Ok(true) => {
                // Without their cache file they mean nothing.
                for extension in ["boot", "digest"] {
                    let _may_be_absent = std::fs::remove_file(path.with_extension(extension));
                }
                file.is_removed = true;
                total -= file.bytes;
            }
            Ok(false) => file.problem = Some("a process uses it".into()),
            Err(error) => file.problem = Some(error.to_string()),
        }
    }
    Ok(found.into_iter().map(|(.., file)| file).collect())
}
