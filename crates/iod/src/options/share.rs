//! Options of storages that several processes share.

use std::path::{Path, PathBuf};

use clap::Args;

/// Folder of the state of storages, if it exists.
const FOLDER: &str = "/run/ringway";
/// Value of the option for no folder.
const NONE: &str = "none";

/// How the process shares storages with other processes.
#[derive(Clone, Debug, Default, Args)]
pub struct ShareOptions {
    /// Folder in memory (tmpfs) by which processes of this host share storages that were measured:
    /// those with the same folder give disks their weights together. none: share with no other
    /// process [default: /run/ringway, if it exists]
    #[arg(long, value_name = "FOLDER|none")]
    pub share_folder: Option<PathBuf>,
}

impl ShareOptions {
    /// Returns the folder. `None` if the process shares with no other.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        match &self.share_folder {
            Some(folder) => Some(folder.clone()).filter(|folder| folder != Path::new(NONE)),
            None => Some(PathBuf::from(FOLDER)).filter(|folder| folder.is_dir()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_no_folder() {
        let folder = |name: &str| ShareOptions { share_folder: Some(name.into()) }.folder();
        assert_eq!(folder("none"), None);
        assert_eq!(folder("/dev/shm/x"), Some("/dev/shm/x".into()));
    }
}
