//! `ringway image`: shows, checks, maps, creates and converts image files, and shows those of a
//! storage repository.
//!
//! A `ringway-io` does the work, because it alone reads images: the one whose control socket the
//! user names, or one that the command starts for itself.

mod convert;
mod import;
mod text;
mod tree;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use model::image::{
    DEFAULT_IMAGE_DEADLINE_S, ImageBacking, ImageCheck, ImageCreate, ImageFormat, ImageInfo,
    ImageMap, ImageMapReply, ImageQuery, ImageResize, ImageSnapshotCall, MAX_IMAGE_DEADLINE_S,
    MAX_MAP_EXTENTS,
};
use model::image_arg::ImageArg;
use model::machine::parse_timeout;
use model::spec::{Backend, SpecError, parse_size};
use serde_json::{Value, json};
use toolstack::ringway_io::RpcConnection;

use super::private_io::with_ringway_io;

/// Exit codes of a check that found leaks alone, and of one that found errors.
const LEAKS: u8 = 3;
const ERRORS: u8 = 4;

/// Options of `ringway image`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway image create /img/a.qcow2 20G --format qcow2
  ringway image create /img/b.qcow2 20G --format qcow2 --backing /img/base.raw --backing-format raw
  ringway image info /img/a.qcow2 --format qcow2
  ringway image check /img/a.qcow2 --format qcow2 --timeout 10m
  ringway image map /img/a.qcow2 --format qcow2 --json
  ringway image convert /img/a.qcow2 /img/c.raw --format qcow2 --to raw
  ringway image convert /img/e.vhd /img/e.qcow2 --format vhd --to qcow2
  ringway image import /img/f.vmdk /img/f.qcow2 --format vmdk --to qcow2
  ringway image snapshot /img/a.qcow2 /img/d.qcow2 --format qcow2
  ringway image resize /img/a.qcow2 40G --format qcow2
  ringway image tree \"Local storage\"

The format is always stated and never guessed: a guest can write the header of another format into
a raw image. The work is done by a ringway-io that the command starts and ends, or by the one at
--control. Exit codes: 0 done, 1 failed (the cause is on standard error), 2 wrong usage; of check
also 3 leaks, 4 errors.")]
pub(crate) struct Image {
    /// Control socket of a running ringway-io that does the work [default: start one]
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL", global = true)]
    control: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show size, format features, backing or parent, snapshots and bitmaps
    Info(Info),
    /// Check all references and the space that they use
    Check(Check),
    /// Show where the bytes of the disk are in the file
    Map(Map),
    /// Create an empty image in a new file
    Create(Create),
    /// Copy a disk to a new image file
    Convert(convert::Convert),
    /// Make an image of one in a format that is not served: vmdk, vdi, vhdx or qcow
    Import(import::Import),
    /// Create an image over one that no VM uses
    Snapshot(Snapshot),
    /// Make the disk of an image larger that no VM uses
    Resize(Resize),
    /// Show the images of a storage repository, and the disks that have them
    Tree(tree::Tree),
}

/// Image, and how to print the result.
#[derive(Debug, Args)]
struct Target {
    /// Image file or block device
    path: PathBuf,
    /// Format of the image; it is never guessed
    #[arg(long, value_name = "qcow2|vhd|raw")]
    format: ImageFormat,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Images below another one.
#[derive(Debug, Args)]
struct Below {
    /// Image that has what the image does not have; repeated for the next image below
    #[arg(long, value_name = "PATH", requires = "backing_format")]
    backing: Vec<PathBuf>,
    /// Format of the backing
    #[arg(long, value_name = "qcow2|vhd|raw", requires = "backing")]
    backing_format: Vec<ImageFormat>,
}

impl Below {
    /// Returns the tree of an image over these.
    fn tree(self, top: &Target) -> anyhow::Result<Backend> {
        let Self { backing, backing_format } = self;
        let image = ImageArg {
            file: absolute(&top.path)?,
            format: Some(top.format),
            backing: backing.iter().map(|path| absolute(path)).collect::<Result<_, _>>()?,
            backing_format,
        };
        Ok(image.backend()?)
    }
}

/// Options of `ringway image info`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  ringway image info /img/a.qcow2 --format qcow2

The backing is the reference in the image. It is not opened. An image that is in use may be shown;
a note says so.")]
struct Info {
    #[command(flatten)]
    target: Target,
}

/// Options of `ringway image check`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway image check /img/a.qcow2 --format qcow2
  ringway image check /img/a.qcow2 --format qcow2 --repair-leaks

Exit codes: 0 clean, 3 leaks (space that nothing uses), 4 errors (data is or can be lost), 1 the
image could not be checked, for example because a VM uses it.")]
struct Check {
    #[command(flatten)]
    target: Target,
    /// Release leaked space first. Refused if the image has errors
    #[arg(long)]
    repair_leaks: bool,
    /// Longest time, for example 90s or 1h
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = deadline)]
    timeout: u32,
}

/// Options of `ringway image map`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  ringway image map /img/a.qcow2 --format qcow2

Kinds: data (at the offset in the file), compressed, zero, and unallocated (the backing has it; zero
without a backing).")]
struct Map {
    #[command(flatten)]
    target: Target,
}

/// Options of `ringway image create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway image create /img/a.qcow2 20G --format qcow2
  ringway image create /img/b.qcow2 20G --format qcow2 --backing base.raw --backing-format raw
  ringway image create /img/c.vhd 20G --format vhd

A qcow2 image has version 3, clusters of 64 KiB and extended L2 entries: QEMU reads it from version
5.2 on. A VHD is dynamic with blocks of 2 MiB, differencing if it has a backing (a VHD or raw), or
fixed. A backing path is stored as given; if it is relative, then to the image's directory.")]
struct Create {
    #[command(flatten)]
    target: Target,
    /// Size of the disk, for example 20G: at most 64T in qcow2, 2040G in vhd
    #[arg(value_parser = parse_size)]
    size: u64,
    /// Image that has what the new image does not have
    #[arg(long, value_name = "PATH", requires = "backing_format")]
    backing: Option<PathBuf>,
    /// Format of the backing
    #[arg(long, value_name = "qcow2|vhd|raw", requires = "backing")]
    backing_format: Option<ImageFormat>,
    /// Make a fixed VHD: the disk as it is, then a footer
    #[arg(long, conflicts_with = "backing")]
    fixed: bool,
}

/// Options of `ringway image snapshot`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  ringway image snapshot /img/a.qcow2 /img/b.qcow2 --format qcow2

The new image has what is written from now on, the base has the rest. Serve the new one with both:
a base that is written afterwards spoils all images over it. For a disk that a VM uses, call
disk.snapshot (ringway io).")]
struct Snapshot {
    #[command(flatten)]
    base: Target,
    /// New image
    new: PathBuf,
    /// Format of the new image. A VHD may lie over a VHD or a raw image
    #[arg(long, value_name = "qcow2|vhd", default_value = "qcow2", value_parser = str::parse::<ImageFormat>)]
    to: ImageFormat,
}

/// Options of `ringway image resize`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway image resize /img/a.qcow2 40G --format qcow2
  ringway image resize /img/b.qcow2 40G --format qcow2 \\
      --backing /img/base.raw --backing-format raw

The new part reads as zeroes, also where the image below is longer. A disk never becomes smaller.
For a disk that a VM uses, call disk.resize (ringway io).")]
struct Resize {
    #[command(flatten)]
    target: Target,
    /// New size of the disk, for example 40G
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    #[command(flatten)]
    below: Below,
}

/// Parses the deadline of a call in seconds.
fn deadline(text: &str) -> Result<u32, SpecError> {
    let seconds = parse_timeout(text)?.as_secs();
    let seconds = u32::try_from(seconds).ok().filter(|s| (1..=MAX_IMAGE_DEADLINE_S).contains(s));
    seconds.ok_or_else(|| SpecError {
        field: "timeout",
        problem: format!("{text:?} is not 1s to {}h", MAX_IMAGE_DEADLINE_S / 3600),
    })
}

impl Image {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let Self { control, action } = self;
        if let Action::Tree(tree) = action {
            // Names of files and records suffice.
            return tree.run().await;
        }
        let run = async |connection: &mut RpcConnection, control: &Path| {
            action.run(connection, control).await
        };
        with_ringway_io(control.as_deref(), run).await
    }
}

impl Action {
    async fn run(self, connection: &mut RpcConnection, control: &Path) -> anyhow::Result<ExitCode> {
        match self {
            Self::Info(Info { target }) => {
                let (path, json) = (absolute(&target.path)?, target.json);
                let deadline_s = DEFAULT_IMAGE_DEADLINE_S;
                let query = ImageQuery { path, format: target.format, deadline_s };
                let info = connection.image_info(&query).await?;
                print(json.then(|| json!(info)), || text::info(&info))?;
                notes(&info)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Check(check) => run_check(check, connection).await,
            Self::Map(Map { target }) => run_map(target, connection).await,
            Self::Create(create) => run_create(create, connection).await,
            Self::Convert(convert) => convert.run(connection, control).await,
            Self::Import(import) => import.run(connection).await,
            Self::Snapshot(snapshot) => run_snapshot(snapshot, connection).await,
            Self::Resize(resize) => run_resize(resize, connection).await,
            Self::Tree(tree) => tree.run().await,
        }
    }
}

async fn run_check(check: Check, connection: &mut RpcConnection) -> anyhow::Result<ExitCode> {
    let Check { target, repair_leaks, timeout: deadline_s } = check;
    let path = absolute(&target.path)?;
    let params = ImageCheck { path, format: target.format, repair_leaks, deadline_s };
    let report = connection.image_check(&params).await?;
    print(target.json.then(|| json!(report)), || text::check(&report, target.format))?;
    Ok(match (report.errors, report.leaks) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(LEAKS),
        _ => ExitCode::from(ERRORS),
    })
}

async fn run_map(target: Target, connection: &mut RpcConnection) -> anyhow::Result<ExitCode> {
    let deadline_s = DEFAULT_IMAGE_DEADLINE_S;
    let (path, format) = (absolute(&target.path)?, target.format);
    let limit = MAX_MAP_EXTENTS;
    let mut params = ImageMap { path, format, start: 0, limit, deadline_s };
    let mut whole = ImageMapReply { size_bytes: 0, extents: Vec::new(), next: None };
    loop {
        let page = connection.image_map(&params).await?;
        whole.size_bytes = page.size_bytes;
        whole.extents.extend(page.extents);
        match page.next {
            // A reply that does not go on would be asked for again for ever.
            Some(next) if next > params.start => params.start = next,
            _ => break,
        }
    }
    print(target.json.then(|| json!(whole)), || text::map(&whole))?;
    Ok(ExitCode::SUCCESS)
}

async fn run_create(create: Create, connection: &mut RpcConnection) -> anyhow::Result<ExitCode> {
    let Create { target, size, backing, backing_format, fixed } = create;
    let backing = backing.map(|file| ImageBacking {
        file,
        format: backing_format.map(|format| format.name().into()),
    });
    let path = absolute(&target.path)?;
    let params = ImageCreate { path, format: target.format, size, backing, fixed };
    let info = connection.image_create(&params).await?;
    print(target.json.then(|| json!(info)), || text::info(&info))?;
    Ok(ExitCode::SUCCESS)
}

async fn run_snapshot(
    snapshot: Snapshot,
    connection: &mut RpcConnection,
) -> anyhow::Result<ExitCode> {
    let Snapshot { base: Target { path, format, json }, new, to } = snapshot;
    let (base, path) = (absolute(&path)?, absolute(&new)?);
    let params = ImageSnapshotCall { base, base_format: format, path, format: to };
    let info = connection.image_snapshot(&params).await?;
    print(json.then(|| json!(info)), || text::info(&info))?;
    Ok(ExitCode::SUCCESS)
}

async fn run_resize(resize: Resize, connection: &mut RpcConnection) -> anyhow::Result<ExitCode> {
    let Resize { target, size, below } = resize;
    let (image, deadline_s) = (below.tree(&target)?, DEFAULT_IMAGE_DEADLINE_S);
    let info = connection.image_resize(&ImageResize { image, size, deadline_s }).await?;
    print(target.json.then(|| json!(info)), || text::info(&info))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path for a process with another working directory.
fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

/// Prints a result as JSON, if there is one, or as text.
fn print(json: Option<Value>, text: impl FnOnce() -> String) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    match json {
        Some(value) => {
            serde_json::to_writer_pretty(&mut output, &value)?;
            writeln!(output)
        }
        None => output.write_all(text().as_bytes()),
    }
}

fn notes(info: &ImageInfo) -> std::io::Result<()> {
    info.notes.iter().try_for_each(|note| writeln!(std::io::stderr(), "note: {note}"))
}
