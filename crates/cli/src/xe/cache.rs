//! Short-lived cache of completion candidates: users press the key more often than objects change.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use crate::connect;

/// Maximum age of a cache entry.
const FRESH: Duration = Duration::from_secs(10);
/// Largest file, in bytes: 15,000 UUIDs fit.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Cached words of one kind from one server.
#[derive(Debug)]
pub(crate) struct Cache {
    file: Option<PathBuf>,
}

impl Cache {
    /// Returns the cache of a kind of words from a server.
    pub(crate) fn of(server: &str, what: &str) -> Self {
        let plain =
            |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
        let name: String = format!("{server}-{what}").chars().map(plain).collect();
        Self { file: folder().map(|folder| folder.join(name)) }
    }

    #[cfg(test)]
    fn in_file(file: PathBuf) -> Self {
        Self { file: Some(file) }
    }

    /// Returns the cached words unless they are too old; the file has one word a line.
    pub(crate) fn words(&self) -> Option<Vec<String>> {
        let file = self.file.as_ref()?;
        let about = fs::metadata(file).ok()?;
        let age = about.modified().ok()?.elapsed().ok()?;
        if age > FRESH || about.len() > FILE_BYTES_MAX {
            return None;
        }
        Some(fs::read_to_string(file).ok()?.lines().map(str::to_owned).collect())
    }

    /// Stores words. A failure only makes the next completion slower.
    pub(crate) fn keep(&self, words: &[String]) {
        let Some(file) = &self.file else { return };
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return };
        let _there = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        // Write and rename, so that a concurrent reader sees either the old or the new words.
        let new = folder.join(format!("{}.{}", name.to_string_lossy(), std::process::id()));
        let mut options = fs::OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        let written = opened.and_then(|mut opened| opened.write_all(words.join("\n").as_bytes()));
        if written.and_then(|()| fs::rename(&new, file)).is_err() {
            let _gone = fs::remove_file(&new);
        }
    }
}

fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty());
    let folder = named.map(PathBuf::from).or_else(|| Some(connect::home()?.join(".cache")));
    Some(folder?.join("xe"))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn words_are_true_for_a_moment() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b");
        let cache = Cache::in_file(file.clone());
        assert_eq!(cache.words(), None);
        let words = ["one".to_owned(), "two words".to_owned()];
        cache.keep(&words);
        assert_eq!(cache.words().unwrap(), words);
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 1);
        let old = SystemTime::now() - 2 * FRESH;
        fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        assert_eq!(cache.words(), None);
        cache.keep(&words);
        assert_eq!(cache.words().unwrap(), words);
    }
}
