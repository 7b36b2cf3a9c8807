//! `ringway image import`: makes an image of one in a format that Ringway does not serve.
//!
//! `qemu-img` reads it, in a process without privileges that may open no file but the two that it gets
//! as standard input and output. It writes the bytes of the disk to a file without a name, so an error or
//! Ctrl-C leaves nothing.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use model::image::{DEFAULT_IMAGE_DEADLINE_S, ImageConvert, ImageFormat, ImageInfo, ImageQuery};
use model::spec::{Backend, MAX_DISK_BYTES};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Instant, timeout_at};
use toolstack::binaries;
use toolstack::process_group::ChildGroup;
use toolstack::ringway_io::RpcConnection;

use super::{absolute, deadline, notes, print, text};

/// Program that reads the image.
const QEMU_IMG: &str = "qemu-img";
/// Unit of the sizes of disks, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Longest message of the program that an error shows, in bytes.
const MESSAGE_BYTES: usize = 2000;

/// Format that `qemu-img` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ForeignFormat {
    Vmdk,
    Vdi,
    Vhdx,
    Qcow,
}

impl ForeignFormat {
    /// Returns the name of QEMU's driver.
    fn driver(self) -> &'static str {
        match self {
            Self::Vmdk => "vmdk",
            Self::Vdi => "vdi",
            Self::Vhdx => "vhdx",
            Self::Qcow => "qcow",
        }
    }
}

/// Options of `ringway image import`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway image import disk.vmdk /img/a.raw --format vmdk --to raw
  ringway image import disk.vdi /img/b.qcow2 --format vdi --to qcow2

qemu-img reads the image, without privileges: it can open no other file, so images in several
files and images over others are refused. The new image appears when it is complete: an error or
Ctrl-C leaves nothing. It needs room for the bytes of the disk, and with --to qcow2 or vhd for the
new image besides.")]
pub(super) struct Import {
    /// Image to read
    path: PathBuf,
    /// New image file
    new: PathBuf,
    /// Format of the image to read; it is never guessed
    #[arg(long, value_enum)]
    format: ForeignFormat,
    /// Format of the new image
    #[arg(long, value_name = "qcow2|vhd|raw")]
    to: ImageFormat,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Longest time, for example 90s or 1h
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = deadline)]
    timeout: u32,
}

/// Image that `qemu-img` reads.
struct Reader {
    program: PathBuf,
    image: File,
    format: ForeignFormat,
    until: Instant,
}

impl Import {
    pub(super) async fn run(self, connection: &mut RpcConnection) -> anyhow::Result<ExitCode> {
        let Self { path, new, format, to, json, timeout } = self;
        let new = absolute(&new)?;
        ensure!(!new.try_exists()?, "{} exists: name a new file", new.display());
        let until = Instant::now() + Duration::from_secs(timeout.into());
        let reader = Reader::open(&path, format, until)?;
        let why = || format!("cannot import {}", path.display());
        let bytes = reader.size().await.with_context(why)?;
        let folder = new.parent().unwrap_or(Path::new("/"));
        let disk = reader.copy(folder, bytes).await.with_context(why)?;
        let info = finish(connection, disk, &new, to, until).await?;
        print(json.then(|| json!(info)), || text::info(&info))?;
        notes(&info)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Reader {
    fn open(path: &Path, format: ForeignFormat, until: Instant) -> anyhow::Result<Self> {
        let program = binaries::in_path(QEMU_IMG).with_context(|| {
            format!("{QEMU_IMG} is not in PATH: install it (package qemu-utils)")
        })?;
        // A FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty());
        let image = File::from(opened.with_context(|| format!("cannot open {}", path.display()))?);
        ensure!(image.metadata()?.is_file(), "{} is not a file", path.display());
        Ok(Self { program, image, format, until })
    }

    /// Returns the size of the disk, in bytes.
    async fn size(&self) -> anyhow::Result<u64> {
        let output = self.qemu_img(&["info", "--output=json"], &[], Stdio::piped()).await?;
        let info: Value = serde_json::from_slice(&output.stdout).context("its size is unknown")?;
        if let Some(backing) = info.get("backing-filename") {
            bail!("it lies over {backing}: make one image of both (qemu-img convert)");
        }
        let bytes = info.get("virtual-size").and_then(Value::as_u64).unwrap_or_default();
        let is_possible =
            (1..=MAX_DISK_BYTES).contains(&bytes) && bytes.is_multiple_of(SECTOR_BYTES);
        ensure!(is_possible, "its disk has {bytes} bytes, which no disk can have");
        Ok(bytes)
    }

    /// Copies the disk to a new file without a name in this folder.
    async fn copy(&self, folder: &Path, bytes: u64) -> anyhow::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR);
        let file = file.with_context(|| {
            format!(
                "cannot make a file without a name in {}: take a local folder",
                folder.display()
            )
        })?;
        let file = File::from(file);
        file.set_len(bytes)?;
        let target = "driver=raw,file.driver=file,file.filename=/dev/fd/1";
        let copy = ["convert", "-n", "--target-is-zero", "--target-image-opts"];
        self.qemu_img(&copy, &[target], file.try_clone()?.into()).await?;
        file.sync_all()?;
        ensure!(file.metadata()?.len() == bytes, "{QEMU_IMG} changed the size of the disk");
        Ok(file)
    }

    /// Runs `qemu-img` with the image.
    async fn qemu_img(
        &self,
        first: &[&str],
        last: &[&str],
        stdout: Stdio,
    ) -> anyhow::Result<Output> {
        let format = self.format.driver();
        let source = format!("driver={format},file.driver=file,file.filename=/dev/fd/0");
        let ourselves = std::env::current_exe().context("cannot find our own program file")?;
        let mut command = Command::new(ourselves);
        command
            .args(["confined", &std::process::id().to_string()])
            .arg(&self.program)
            .args(first)
            .args(["--image-opts", &source])
            .args(last)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(self.image.try_clone()?))
            .stdout(stdout)
            .stderr(Stdio::piped());
        let group =
            ChildGroup::spawn(&mut command).with_context(|| format!("cannot start {QEMU_IMG}"))?;
        let output = timeout_at(self.until, group.output()).await;
        let output =
            output.map_err(|_| anyhow::anyhow!("it was not complete in time (--timeout)"))??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: String = said.trim().chars().take(MESSAGE_BYTES).collect();
            bail!(
                "{QEMU_IMG} ({}) says: {said}. An image in several files has to become one first",
                output.status
            );
        }
        Ok(output)
    }
}

/// Gives the disk its name, or makes an image of the stated format of it.
async fn finish(
    connection: &mut RpcConnection,
    disk: File,
    new: &Path,
    to: ImageFormat,
    until: Instant,
) -> anyhow::Result<ImageInfo> {
    let number = disk.as_raw_fd();
    if to == ImageFormat::Raw {
        let own = format!("/proc/self/fd/{number}");
        linkat(CWD, own, CWD, new, AtFlags::SYMLINK_FOLLOW)
            .with_context(|| format!("cannot name the new image {}", new.display()))?;
        File::open(new.parent().unwrap_or(Path::new("/")))?.sync_all()?;
        let deadline_s = DEFAULT_IMAGE_DEADLINE_S;
        let query = ImageQuery { path: new.into(), format: to, deadline_s };
        return Ok(connection.image_info(&query).await?);
    }
    let source = PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()));
    let left = u32::try_from((until - Instant::now()).as_secs()).unwrap_or(u32::MAX).max(1);
    let whole = ImageConvert::whole(Backend::File(source.into()), new.into(), to);
    Ok(connection.image_convert(&ImageConvert { deadline_s: left, ..whole }).await?)
}
