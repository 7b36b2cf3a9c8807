//! Files of disks on the host's own storage, with a profile of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::process::find_binary;

use crate::blk::image;
use crate::experiment::Options;

/// Bytes of a file. Direct I/O reads it from the device again and again.
pub(super) const FILE_BYTES: u64 = 32 << 20;
/// Profile of a storage, in the folder of its files.
const PROFILE: &str = ".ringway-profile";

/// Folder of files for disks, made on the first use: plans alone need none.
pub(super) struct Files {
    scratch: PathBuf,
    size: u64,
    dir: Option<TempDir>,
}

impl Files {
    pub(super) fn new(options: &Options, size: u64) -> Self {
        let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
        Self { scratch, size, dir: None }
    }

    /// Returns the paths of `count` files. They are in a folder with a profile, or in one without.
    ///
    /// # Errors
    /// The file system is full, or the storage cannot be measured.
    pub(super) fn paths(&mut self, count: usize, profile: bool) -> Result<Vec<PathBuf>> {
        let (size, dir) = (self.size, self.dir()?);
        let [with, without] = ["shared", "plain"].map(|name| dir.join(name));
        let path = |folder: &Path, number| folder.join(format!("{number}.img"));
        for number in 0..count {
            let file = path(&with, number);
            if !file.exists() {
                image::create(&file, size)?;
                // One file under two names, so that both are at one place of the device.
                std::fs::hard_link(&file, path(&without, number))?;
            }
        }
        let folder = if profile { &with } else { &without };
        Ok((0..count).map(|number| path(folder, number)).collect())
    }

    /// Returns the folder, with its profile.
    fn dir(&mut self) -> Result<PathBuf> {
        if let Some(dir) = &self.dir {
            return Ok(dir.path().to_owned());
        }
        let dir = image::dir_in(&self.scratch)?;
        let [with, without] = ["shared", "plain"].map(|name| dir.path().join(name));
        std::fs::create_dir(&without)?;
        std::fs::create_dir(&with)?;
        calibrate(&with)?;
        Ok(self.dir.insert(dir).path().to_owned())
    }
}

/// Measures a storage and stores the profile in the folder.
fn calibrate(folder: &Path) -> Result<()> {
    let mut command = Command::new(find_binary("ringway")?);
    command.arg("calibrate").arg(folder).args(["--short", "--store"]);
    let output = command.output().context("cannot start ringway")?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ringway calibrate` failed: {problem}");
    ensure!(folder.join(PROFILE).exists(), "`ringway calibrate` stored no profile: {problem}");
    Ok(())
}
