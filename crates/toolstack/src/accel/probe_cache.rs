//! Stored result of a trial boot, valid until the host reboots.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// File with the kernel's random id of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// File name of the cache.
const FILE: &str = "accel.json";

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    boot_id: String,
    qemu: String,
    kvm_works: bool,
}

/// Cache of one result, in a file. Losing it costs one more trial boot, so no failure here is an
/// error.
#[derive(Debug)]
pub struct ProbeCache {
    path: PathBuf,
    boot_id: String,
}

impl ProbeCache {
    /// Uses the user's cache directory: `$XDG_CACHE_HOME/ringway`, else `/var/cache/ringway` for
    /// root and `~/.cache/ringway` for others.
    pub fn of_user() -> Self {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let dir = match (set("XDG_CACHE_HOME"), set("HOME")) {
            (Some(cache), _) => cache.join("ringway"),
            (None, Some(home)) if !rustix::process::geteuid().is_root() => {
                home.join(".cache/ringway")
            }
            _ => "/var/cache/ringway".into(),
        };
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        Self::at(&dir, boot_id.trim())
    }

    /// Uses the directory `dir` and the boot id `boot_id`. An empty boot id matches no stored
    /// result.
    pub fn at(dir: &Path, boot_id: &str) -> Self {
        Self { path: dir.join(FILE), boot_id: boot_id.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether KVM worked with this QEMU since the host booted; `None` if no result is
    /// stored.
    pub fn recall(&self, qemu: &str) -> Option<bool> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let entry: Entry = serde_json::from_str(&text).ok()?;
        let same = entry.boot_id == self.boot_id && entry.qemu == qemu && !self.boot_id.is_empty();
        same.then_some(entry.kvm_works)
    }

    /// Stores a result.
    pub fn keep(&self, qemu: &str, kvm_works: bool) {
        let entry = Entry { boot_id: self.boot_id.clone(), qemu: qemu.into(), kvm_works };
        if let Err(error) = self.write(&entry) {
            tracing::debug!(%error, path = %self.path.display(), "the result is not stored");
        }
    }

    fn write(&self, entry: &Entry) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        // Replace the file atomically: another process may read it at the same time.
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&temporary, serde_json::to_vec(entry)?)?;
        std::fs::rename(&temporary, &self.path).inspect_err(|_| {
            // Report the failure of the rename, not of this removal.
            let _left = std::fs::remove_file(&temporary);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_one_boot_and_one_qemu() {
        let dir = tempfile::tempdir().unwrap();
        let probe_cache = ProbeCache::at(&dir.path().join("new"), "boot-1");
        assert_eq!(probe_cache.recall("qemu 7.2"), None);
        probe_cache.keep("qemu 7.2", true);
        assert_eq!(probe_cache.recall("qemu 7.2"), Some(true));
        probe_cache.keep("qemu 7.2", false);
        assert_eq!(probe_cache.recall("qemu 7.2"), Some(false));
        assert_eq!(probe_cache.recall("qemu 8.0"), None);
        let after_reboot = ProbeCache::at(&dir.path().join("new"), "boot-2");
        assert_eq!(after_reboot.recall("qemu 7.2"), None);
    }

    #[test]
    fn a_damaged_file_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let probe_cache = ProbeCache::at(dir.path(), "boot-1");
        std::fs::write(probe_cache.path(), "{").unwrap();
        assert_eq!(probe_cache.recall("q"), None);
        probe_cache.keep("q", true);
        assert_eq!(probe_cache.recall("q"), Some(true));
    }

    #[test]
    fn without_a_boot_id_nothing_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let probe_cache = ProbeCache::at(dir.path(), "");
        probe_cache.keep("q", true);
        assert_eq!(probe_cache.recall("q"), None);
    }
}
