//! QEMU's tools as the oracle.

use std::path::{Path, PathBuf};
use std::process::Command;

use image::qcow2::{Access, Image, Mapping};
use image::{CheckReport, Extent, ExtentKind};
use image::{PlainFile, run_now};
use serde_json::Value;

/// Directory of a test, removed at its end.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates an image with `qemu-img create`, of `size` as that reads it.
    pub(crate) fn image(&self, name: &str, options: &str, size: &str) -> PathBuf {
        let path = self.path(name);
        let mut args = vec!["create", "-q", "-f", "qcow2"];
        if !options.is_empty() {
            args.extend(["-o", options]);
        }
        args.extend([path.to_str().unwrap(), size]);
        qemu_img(&args);
        path
    }
}

fn run(program: &str, args: &[&str], accepted: &[i32]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} (package qemu-utils): {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = output.status.code().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(accepted.contains(&code), "{program} {args:?}: {code}: {text}{error}");
    text
}

pub(crate) fn qemu_img(args: &[&str]) -> String {
    run("qemu-img", args, &[0])
}

/// Runs commands of `qemu-io` on a qcow2 image.
pub(crate) fn qemu_io(path: &Path, commands: &[String]) {
    let mut args = vec!["-f", "qcow2"];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    args.push(path.to_str().unwrap());
    run("qemu-io", &args, &[0]);
}

/// Returns the bytes of the disk, with those of its backing, as QEMU reads them.
pub(crate) fn converted(scratch: &Scratch, path: &Path) -> Vec<u8> {
    let raw = scratch.path("converted.raw");
    let (from, to) = (path.to_str().unwrap(), raw.to_str().unwrap());
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw", from, to]);
    std::fs::read(raw).unwrap()
}

pub(crate) fn open(path: &Path) -> Image<PlainFile> {
    let file = std::fs::File::open(path).unwrap();
    run_now(Image::open(PlainFile::new(file.into()), Access::Read)).unwrap()
}

pub(crate) fn open_to_write(path: &Path) -> Image<PlainFile> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    run_now(Image::open(PlainFile::new(file.into()), Access::Write)).unwrap()
}

/// Reads the whole disk by lookups, over a backing with these bytes.
pub(crate) fn read_all(image: &mut Image<PlainFile>, backing: &[u8]) -> Vec<u8> {
    use image::ImageFile;
    let size = image.header().size;
    let cluster_bytes = image.header().cluster_bytes();
    let mut disk = backing.to_vec();
    disk.resize(size as usize, 0);
    let mut at = 0;
    while at < size {
        let run = run_now(image.lookup(at)).unwrap();
        assert!(run.bytes > 0);
        let out = &mut disk[at as usize..(at + run.bytes) as usize];
        match run.mapping {
            Mapping::Unallocated => {}
            Mapping::Zero => out.fill(0),
            Mapping::Data { host_offset, .. } => {
                let len = run_now(async { Ok(image.file().len().await.unwrap()) }).unwrap();
                let there = (len - host_offset).min(run.bytes) as usize;
                let read = async { Ok(image.file().read_at(host_offset, &mut out[..there]).await) };
                run_now(read).unwrap().unwrap();
                out[there..].fill(0);
            }
            Mapping::Compressed(compressed) => {
                let mut cluster = vec![0; cluster_bytes as usize];
                run_now(image.read_compressed(compressed, &mut cluster)).unwrap();
                let within = (at % cluster_bytes) as usize;
                out.copy_from_slice(&cluster[within..within + run.bytes as usize]);
            }
        }
        at += run.bytes;
    }
    disk
}

/// Returns corruptions and leaks that `qemu-img check` counts.
pub(crate) fn qemu_check(path: &Path) -> (u64, u64) {
    let args = ["check", "-f", "qcow2", "--output=json", path.to_str().unwrap()];
    let found: Value = serde_json::from_str(&run("qemu-img", &args, &[0, 2, 3])).unwrap();
    let count = |name: &str| found.get(name).and_then(Value::as_u64).unwrap_or(0);
    (count("corruptions") + count("check-errors"), count("leaks"))
}

pub(crate) fn check(path: &Path) -> CheckReport {
    run_now(open(path).check()).unwrap()
}

/// Range of a map in the terms that both sides have: start, length, kind.
pub(crate) type Range = (u64, u64, ExtentKind);

/// Returns the ranges of the top image that `qemu-img map` reports.
pub(crate) fn qemu_map(path: &Path) -> Vec<Range> {
    let args = ["map", "-f", "qcow2", "--output=json", path.to_str().unwrap()];
    let found: Vec<Value> = serde_json::from_str(&run("qemu-img", &args, &[0])).unwrap();
    let mut ranges: Vec<Range> = Vec::new();
    for entry in found {
        let number = |name: &str| entry[name].as_u64();
        let flag = |name: &str| entry[name].as_bool().unwrap();
        let (start, len) = (number("start").unwrap(), number("length").unwrap());
        let kind = match (number("depth"), flag("present"), flag("data"), number("offset")) {
            (Some(0), _, true, Some(host_offset)) => ExtentKind::Data { host_offset },
            (Some(0), _, true, None) => ExtentKind::Compressed,
            (Some(0), true, false, _) => ExtentKind::Zero,
            _ => ExtentKind::Unallocated,
        };
        join(&mut ranges, (start, len, kind));
    }
    ranges
}

/// Returns the ranges of our map, read in small steps.
pub(crate) fn map(image: &mut Image<PlainFile>) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let extents = run_now(image.map(at, 3)).unwrap();
        let Some(Extent { start, bytes, .. }) = extents.last() else { return ranges };
        at = start + bytes;
        extents
            .iter()
            .for_each(|extent| join(&mut ranges, (extent.start, extent.bytes, extent.kind)));
    }
}

fn join(ranges: &mut Vec<Range>, next: Range) {
    let follows = |(_, len, kind): &Range| match (kind, next.2) {
        (ExtentKind::Data { host_offset: first }, ExtentKind::Data { host_offset }) => {
            first + len == host_offset
        }
        (first, second) => *first == second,
    };
    match ranges.last_mut() {
        Some(last) if follows(last) => last.1 += next.1,
        _ => ranges.push(next),
    }
}

/// Replaces bytes of a file.
pub(crate) fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Returns the word of 8 bytes at an offset of a file.
pub(crate) fn word(path: &Path, offset: u64) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 8];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    u64::from_be_bytes(bytes)
}
