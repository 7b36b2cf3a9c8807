//! qcow2 under the simulation. QEMU's tools make the images, and check them now and then.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::format::{SimFormat, SimImage};
use super::storage::{Bytes, SimFile, number};
use crate::format::Format;
use crate::qcow2::{Access, Image, Mapping, Qcow2Format};
use crate::{ImageError, run_now};

const SECTOR: usize = 512;
/// One of so many checks is followed by `qemu-img check`.
const CHECK_EVERY: u64 = 50;
static CHECKS: AtomicU64 = AtomicU64::new(0);

/// Kind of a qcow2 image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Qcow2Options {
    /// Options and size of `qemu-img create`.
    pub(super) create: (&'static str, u64),
    /// Commands of `qemu-io`. "snapshot" makes an internal snapshot, "shrink" cuts a disk of whole
    /// 64 KiB to its size.
    pub(super) commands: &'static [&'static str],
    pub(super) first: usize,
    pub(super) granules: usize,
    pub(super) cells: usize,
    pub(super) has_below: bool,
    /// Clusters by which the file may grow.
    pub(super) room: usize,
}

type Opened = Qcow2Format<SimFile>;

impl SimFormat for Opened {
    type Options = Qcow2Options;

    fn create(options: Qcow2Options) -> SimImage {
        let content = content(options);
        let measure = SimFile::new(SECTOR, &content, 0).direct();
        let layout = run_now(<Self as SimFormat>::open(measure, options)).unwrap().layout();
        let room = options.room << layout.granule_bits;
        let file = SimFile::new(SECTOR, &content, room / SECTOR);
        let Qcow2Options { first, granules, cells, has_below, .. } = options;
        let (initial, fixed) = Default::default();
        let mut image =
            SimImage { file, layout, first, granules, cells, has_below, initial, fixed };
        let mut disk = run_now(Image::open(image.file.direct(), Access::Read)).unwrap();
        image.initial = values(&image, &mut disk).unwrap();
        for snapshot in run_now(disk.snapshots(2)).unwrap() {
            disk.show(&snapshot);
            image.fixed.extend(sectors(&image.file, &mut disk));
        }
        image
    }

    async fn open(file: SimFile, options: Qcow2Options) -> Result<Self, ImageError> {
        let mut format = Self::open(file, options.has_below).await?;
        format.set_growth(4 << format.layout().granule_bits);
        Ok(format)
    }

    fn check(image: &SimImage, _: Qcow2Options, cut: u64) -> Result<Vec<u64>, String> {
        let disk = run_now(Image::open(image.file.direct(), Access::Write));
        let mut disk = disk.map_err(|error| error.to_string())?;
        let mut report = run_now(disk.check()).map_err(|error| error.to_string())?;
        if CHECKS.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECK_EVERY) {
            check_with_qemu(&image.file)?;
        }
        if report.errors == 0 && report.leaks > 0 && cut.is_multiple_of(2) {
            run_now(disk.repair_leaks()).map_err(|error| error.to_string())?;
            report = run_now(disk.check()).map_err(|error| error.to_string())?;
            if report.leaks > 0 {
                return Err(format!("leaks are left: {:?}", report.faults));
            }
        }
        if report.errors > 0 {
            return Err(format!("{:?}", report.faults));
        }
        image.check_fixed()?;
        values(image, &mut disk).map_err(|error| error.to_string())
    }
}

/// Returns what all cells read as.
fn values(image: &SimImage, disk: &mut Image<SimFile>) -> Result<Vec<u64>, ImageError> {
    let value = |at| {
        let (granule, cell) = (at / image.cells, at % image.cells);
        let start = (image.first + granule) << image.layout.granule_bits;
        let within = image.cell_offset(cell);
        Ok(match run_now(disk.lookup((start + within) as u64))?.mapping {
            Mapping::Unallocated => image.below(granule, cell),
            Mapping::Zero => 0,
            Mapping::Data { host_offset, .. } => image.file.value(host_offset as usize / SECTOR),
            Mapping::Compressed(compressed) => {
                let mut out = vec![0; 1 << image.layout.granule_bits];
                run_now(disk.read_compressed(compressed, &mut out))?;
                number(&out[within..])
            }
        })
    };
    (0..image.granules * image.cells).map(value).collect()
}

/// Returns all sectors with data of the disk.
fn sectors(file: &SimFile, disk: &mut Image<SimFile>) -> Vec<(usize, Bytes)> {
    let (mut at, mut found) = (0, Vec::new());
    while at < disk.header().size {
        let run = run_now(disk.lookup(at)).unwrap();
        let (offset, bytes) = match run.mapping {
            Mapping::Data { host_offset, .. } => (host_offset, run.bytes),
            Mapping::Compressed(compressed) => (compressed.offset, compressed.bytes),
            _ => (0, 0),
        };
        let range = offset as usize / SECTOR..(offset + bytes) as usize / SECTOR;
        found.extend(range.map(|sector| (sector, file.sector(sector))));
        at += run.bytes;
    }
    found
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} (package qemu-utils): {error}"));
    // 3: leaks only.
    if matches!(output.status.code(), Some(0 | 3)) {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&text)))
}

fn check_with_qemu(file: &SimFile) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.qcow2");
    std::fs::write(&path, file.dump()).unwrap();
    run("qemu-img", &["check", "-q", "-f", "qcow2", path.to_str().unwrap()])
}

/// Returns the bytes of a new image. Each kind is made once.
fn content(options: Qcow2Options) -> Vec<u8> {
    static MADE: LazyLock<Mutex<HashMap<String, Vec<u8>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let kind = format!("{options:?}");
    made.entry(kind).or_insert_with(|| make(options)).clone()
}

fn make(options: Qcow2Options) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.qcow2");
    let made = make_at(&path, options);
    made.unwrap_or_else(|problem| panic!("{problem}"));
    std::fs::read(path).unwrap()
}

fn make_at(path: &Path, options: Qcow2Options) -> Result<(), String> {
    let path = path.to_str().unwrap();
    let (create, size) = options.create;
    let is_shrunk = options.commands.contains(&"shrink");
    let first_size = if is_shrunk { size.next_multiple_of(65536) } else { size };
    let first_size = first_size.to_string();
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", create, path, &first_size])?;
    for command in options.commands {
        match *command {
            "snapshot" => run("qemu-img", &["snapshot", "-c", "first", path])?,
            "shrink" => {
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &size.to_be_bytes(), 24).unwrap();
            }
            command => run("qemu-io", &["-f", "qcow2", "-c", command, path])?,
        }
    }
    Ok(())
}
