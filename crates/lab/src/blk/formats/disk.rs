//! Disks of the experiment: formats, layers, files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ::image::qcow2::{Backing, CreateOptions, create_file};
use ::image::vhd;
use anyhow::{Context, Result, ensure};
use rustix::fs::statvfs;
use serde_json::{Value, json};
use testkit::process::{Backend, StorageDaemon, Target, find_binary, find_tool};

use crate::blk::cell::CellSpec;
use crate::blk::client::{Load, Pattern, Window, fill_every};
use crate::blk::fleet::BackendKind;
use crate::blk::image::{self, DISK_BYTES};
use crate::blk::systems::System;
use crate::host::QEMU_IMG;

/// Most first writes a second for which an image has room.
const FIRST_WRITES_A_SECOND: f64 = 80_000.0;
/// Most first writes a second to blocks of a VHD for which an image has room.
const FIRST_VHD_WRITES_A_SECOND: f64 = 55_000.0;
/// Size of a VHD's block in bytes, in images of both makers.
pub(super) const VHD_BLOCK: u64 = 2 << 20;
/// Raw image below the disks of first writes.
const DATA: &str = "data.raw";

/// Format of a disk's images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Raw.
    Raw,
    /// qcow2. `ringway-blk` gets an image of its own kind if L2 entries are extended. All other
    /// images come from `qemu-img`.
    Qcow2 {
        /// Size of a cluster in KiB.
        cluster_kib: u64,
        /// True for extended L2 entries.
        extended: bool,
    },
    /// Dynamic VHD. Each server gets an image of its own maker.
    Vhd,
}

/// Content of a disk at the start of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing, in a new image without a backing image.
    Blank,
    /// Nothing, in a new image over a raw image full of data.
    OverData,
    /// Every block, in the top one of this many images.
    Top(u64),
    /// Every block, spread over this many images.
    Spread(u64),
}

/// Disk of a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Format of all its images, except a raw backing image.
    pub format: Format,
    /// Content at the start of a sample.
    pub content: Content,
}

impl Disk {
    /// Returns the name for tables, for example `qcow2 64k extended, 10 layers`.
    #[must_use]
    pub fn name(self) -> String {
        let format = match self.format {
            Format::Raw => "raw".to_owned(),
            Format::Vhd => "vhd".to_owned(),
            Format::Qcow2 { cluster_kib, extended } => {
                format!("qcow2 {cluster_kib}k{}", if extended { " extended" } else { "" })
            }
        };
        match self.layers() {
            1 => format,
            layers => format!("{format}, {layers} layers"),
        }
    }

    /// Returns the number of images besides a raw backing image.
    fn layers(self) -> u64 {
        match self.content {
            Content::Blank | Content::OverData => 1,
            Content::Top(layers) | Content::Spread(layers) => layers,
        }
    }

    /// Returns whether each sample gets a new image.
    fn is_new(self) -> bool {
        matches!(self.content, Content::Blank | Content::OverData)
    }

    /// Returns the paths of the images, the lowest first.
    fn paths(self, server: BackendKind, folder: &Path) -> Vec<PathBuf> {
        let kind = format!("{server:?}-{:?}-{:?}", self.format, self.content);
        let kind: String = kind.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect();
        (1..=self.layers()).map(|layer| folder.join(format!("{kind}-{layer}"))).collect()
    }

    /// Returns the tree of the images, as `disk.attach` has it.
    fn tree(self, paths: &[PathBuf], folder: &Path) -> Value {
        let data = (self.content == Content::OverData).then(|| json!({"file": folder.join(DATA)}));
        let over = |backing: Option<Value>, path: &PathBuf| {
            Some(match (self.format, backing) {
                (Format::Raw, _) => json!({"file": path}),
                (Format::Vhd, _) => json!({"vhd": {"file": path}}),
                (_, None) => json!({"qcow2": {"file": path}}),
                (_, Some(backing)) => json!({"qcow2": {"file": path, "backing": backing}}),
            })
        };
        paths.iter().fold(data, over).unwrap_or_default()
    }

    /// Starts a server of the disk, whose images exist. Both servers use direct I/O and poll as
    /// they do by default.
    ///
    /// # Errors
    /// The process does not start.
    pub fn start(self, server: BackendKind, folder: &Path) -> Result<Backend> {
        start(server, self.tree(&self.paths(server, folder), folder))
    }

    /// Makes the images, unless they are there and no sample needs new ones.
    ///
    /// # Errors
    /// The file system is full, a program is missing, or a server fails.
    pub fn make(self, server: BackendKind, folder: &Path, bytes: u64) -> Result<()> {
        let paths = self.paths(server, folder);
        let is_there = paths.iter().all(|path| path.exists());
        if is_there && !self.is_new() {
            return Ok(());
        }
        self.remove(server, folder)?;
        let data = folder.join(DATA);
        if self.content == Content::OverData && !data.exists() {
            image::create(&data, bytes)?;
        }
        if self.format == Format::Raw {
            return paths.iter().try_for_each(|path| image::create(path, bytes));
        }
        let mut below = (self.content == Content::OverData).then_some((data, "raw"));
        for (number, path) in paths.iter().enumerate() {
            self.create(server, path, bytes, below.take())?;
            below = Some((path.clone(), "qcow2"));
            let share = match self.content {
                Content::Blank | Content::OverData => continue,
                Content::Top(layers) if number as u64 + 1 < layers => continue,
                Content::Top(_) => (1, 0),
                Content::Spread(layers) => (usize::try_from(layers)?, number as u64),
            };
            let tree = self.tree(paths.get(..=number).unwrap_or_default(), folder);
            let backend = start(server, tree)?;
            fill_every(backend.socket(), share.0, share.1)?;
            end(server, backend)?;
        }
        Ok(())
    }

    /// Creates one image with a format.
    fn create(
        self,
        server: BackendKind,
        path: &Path,
        bytes: u64,
        below: Option<(PathBuf, &str)>,
    ) -> Result<()> {
        let (format, options) = match (self.format, server) {
            (Format::Raw, _) => return Ok(()),
            (Format::Vhd, BackendKind::Ringway) => {
                return vhd::create_file(path, &vhd::CreateOptions::dynamic(bytes))
                    .with_context(|| path.display().to_string());
            }
            (Format::Vhd, BackendKind::Daemon) => {
                ("vpc", "subformat=dynamic,force_size=on".to_owned())
            }
            (Format::Qcow2 { extended: true, .. }, BackendKind::Ringway) => {
                let backing =
                    below.map(|(file, format)| Backing { file, format: Some(format.to_owned()) });
                let options = CreateOptions { backing, ..CreateOptions::new(bytes) };
                return create_file(path, &options).with_context(|| path.display().to_string());
            }
            (Format::Qcow2 { cluster_kib, extended }, _) => {
                let extended = if extended { "on" } else { "off" };
                ("qcow2", format!("cluster_size={cluster_kib}k,extended_l2={extended}"))
            }
        };
        let (_, program, package) = QEMU_IMG;
        let mut command = Command::new(find_tool(program, package)?);
        command.args(["create", "-q", "-f", format, "-o", &options]);
        if let Some((file, format)) = below {
            command.arg("-b").arg(file).args(["-F", format]);
        }
        let output = command.arg(path).arg(bytes.to_string()).stdin(Stdio::null()).output();
        let output = output.context("cannot run qemu-img")?;
        let reason = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "qemu-img cannot create an image: {}", reason.trim());
        Ok(())
    }

    /// Returns the space in MiB that the top image takes, and removes the images unless later
    /// samples use them.
    ///
    /// # Errors
    /// The image cannot be found or removed.
    pub fn finish(self, server: BackendKind, folder: &Path) -> Result<f64> {
        let mib = self.top_mib(server, folder)?;
        if self.is_new() {
            self.remove(server, folder)?;
        }
        Ok(mib)
    }

    fn top_mib(self, server: BackendKind, folder: &Path) -> Result<f64> {
        let paths = self.paths(server, folder);
        let top = paths.last().context("a disk has an image")?;
        let blocks = fs::metadata(top).with_context(|| top.display().to_string())?.blocks();
        Ok(blocks as f64 * 512.0 / f64::from(1 << 20))
    }

    fn remove(self, server: BackendKind, folder: &Path) -> Result<()> {
        for path in self.paths(server, folder).iter().filter(|path| path.exists()) {
            fs::remove_file(path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

fn start(server: BackendKind, tree: Value) -> Result<Backend> {
    match server {
        BackendKind::Ringway => {
            let tree = tree.to_string();
            let options = ["--backend", &tree, "--poll", "auto", "--cache", "none"];
            Ok(Backend::ringway_blk_at(&find_binary("ringway-blk")?, &options)?)
        }
        BackendKind::Daemon => {
            Ok(Backend::storage_daemon(&StorageDaemon::new(Target::Tree(tree)))?)
        }
    }
}

/// Ends a server. `ringway-blk` ends in order and so removes its journal. `qemu-storage-daemon` is
/// killed, because 7.2 may hang for minutes at SIGTERM after first writes to extended L2 entries.
///
/// # Errors
/// The process does not end.
pub fn end(server: BackendKind, mut backend: Backend) -> Result<()> {
    match server {
        BackendKind::Ringway => backend.process.terminate()?,
        BackendKind::Daemon => backend.process.kill()?,
    };
    Ok(())
}

/// Returns the size in bytes of a disk for a load and a window: room for all first writes.
#[must_use]
pub fn disk_bytes(load: Load, window: Window) -> u64 {
    let Pattern::EachOnce(stretch) = load.pattern else { return DISK_BYTES };
    let rate = if stretch < VHD_BLOCK { FIRST_WRITES_A_SECOND } else { FIRST_VHD_WRITES_A_SECOND };
    let writes = (window.warm + window.measure).as_secs_f64() * rate;
    (writes.ceil() as u64).saturating_mul(stretch).max(DISK_BYTES)
}

/// Checks that a folder's file system has room for this many bytes of first writes and for the
/// known disks.
///
/// # Errors
/// It has not, or cannot be measured.
pub(super) fn check_room(folder: &Path, bytes: u64) -> Result<()> {
    let system = statvfs(folder).with_context(|| format!("cannot measure {}", folder.display()))?;
    let (free, needed) =
        (system.f_bavail.saturating_mul(system.f_frsize), bytes.saturating_add(16 * DISK_BYTES));
    let [free_mib, needed_mib] = [free, needed].map(|bytes| bytes >> 20);
    ensure!(
        free >= needed,
        "formats needs {needed_mib} MiB in {}, which has {free_mib} MiB: give --scratch or a shorter \
         --window-ms",
        folder.display()
    );
    Ok(())
}

/// Returns the bytes of an image of which every cluster was written, and of its backing image.
#[must_use]
pub(super) fn room_bytes(cell: &CellSpec, window: Window) -> u64 {
    let over_data = cell.systems.iter().any(|(_, system)| {
        matches!(system, System::Formatted(_, Disk { content: Content::OverData, .. }))
    });
    disk_bytes(cell.load, window).saturating_mul(1 + u64::from(over_data))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEAF: Format = Format::Qcow2 { cluster_kib: 64, extended: true };

    #[test]
    fn names_tell_format_and_layers() {
        let name = |format, content| Disk { format, content }.name();
        assert_eq!(name(LEAF, Content::Blank), "qcow2 64k extended");
        assert_eq!(name(LEAF, Content::Top(10)), "qcow2 64k extended, 10 layers");
        let plain = Format::Qcow2 { cluster_kib: 128, extended: false };
        assert_eq!(name(plain, Content::OverData), "qcow2 128k");
        assert_eq!(name(Format::Raw, Content::Top(1)), "raw");
    }

    #[test]
    fn trees_have_every_layer_over_the_data() {
        let folder = Path::new("/f");
        let tree = |content| {
            let disk = Disk { format: LEAF, content };
            let paths = disk.paths(BackendKind::Ringway, folder);
            (disk.tree(&paths, folder), paths)
        };
        let (over, paths) = tree(Content::OverData);
        let data = json!({"file": "/f/data.raw"});
        assert_eq!(over, json!({"qcow2": {"file": paths[0], "backing": data}}));
        let (two, paths) = tree(Content::Spread(2));
        let below = json!({"qcow2": {"file": paths[0]}});
        assert_eq!(two, json!({"qcow2": {"file": paths[1], "backing": below}}));
    }

    #[test]
    fn a_window_has_room_for_its_first_writes_and_a_disk_without_room_is_refused() {
        let window = Window::of(Duration::from_millis(400));
        let load = Load { pattern: Pattern::EachOnce(128 << 10), ..Load::default() };
        assert_eq!(disk_bytes(load, window), 40_000 * (128 << 10));
        let vhd = Load { pattern: Pattern::EachOnce(VHD_BLOCK), ..Load::default() };
        assert_eq!(disk_bytes(vhd, window), 27_500 * VHD_BLOCK);
        assert_eq!(disk_bytes(Load::default(), window), DISK_BYTES);
        let folder = std::env::temp_dir();
        check_room(&folder, 0).unwrap();
        let error = check_room(&folder, u64::MAX).unwrap_err().to_string();
        assert!(error.contains("--scratch") && error.contains("MiB"), "{error}");
    }

    #[test]
    fn both_servers_make_full_disks_of_layers() {
        let dir = tempfile::tempdir().unwrap();
        let plain = Format::Qcow2 { cluster_kib: 64, extended: false };
        let all = DISK_BYTES / (64 << 10);
        for (server, format) in [(BackendKind::Ringway, LEAF), (BackendKind::Daemon, plain)] {
            // Ringway prepares more clusters than it was asked for.
            let shares = [(Content::Spread(4), all / 4..=all / 2), (Content::Top(2), all..=all)];
            for (content, share) in shares {
                let disk = Disk { format, content };
                disk.make(server, dir.path(), DISK_BYTES).unwrap();
                let top = disk.paths(server, dir.path()).pop().unwrap();
                let mut check = Command::new("qemu-img");
                check.args(["check", "--output=json"]).arg(top);
                let report: Value =
                    serde_json::from_slice(&check.output().unwrap().stdout).unwrap();
                let clusters = report["allocated-clusters"].as_u64().unwrap();
                assert!(share.contains(&clusters), "{server:?} {content:?}: {clusters}");
                assert_eq!(report["check-errors"], 0, "{report}");
            }
        }
    }
}
