//! Full overflow files that get room: a file system that grows, a higher limit of file sizes, and a
//! block device that grows.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

use crate::common::sectors::read;
use crate::common::*;
use model::report::{DiskState, DiskStats, OverlayStats};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use testkit::in_namespace::on_reflinks;
use testkit::process::eventually;
use testkit::raw::guest::Pending;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const MIB: u64 = 1 << 20;
/// Pieces of 1 MiB that the guest writes at once: more than memory and overflow file have at first.
const PIECES: u64 = 32;

/// `ringway-io` with a disk that writes to an overlay, and what its guest has submitted.
struct Writes {
    io: Io,
    guest: Guest,
    pending: Vec<Pending>,
    serving: u32,
}

impl Writes {
    /// Attaches a disk with this overflow file. The guest writes after `before`.
    fn start(overflow: &Path, before: impl FnOnce(&Io)) -> Self {
        let io = Io::start();
        let path = image(&io.folder, "base.raw", 2 * PIECES * MIB);
        let overlay = json!({"base": {"file": path}, "ram": 4 * MIB, "overflow": overflow});
        let mut spec = io.spec("d", json!({ "overlay": overlay }));
        spec["cache"] = json!("writeback");
        io.caller().disk("disk.attach", spec);
        before(&io);
        let setup = Setup { memory_bytes: (PIECES + 4) * MIB, ..Setup::default() };
        let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
        let piece = |at: u64| Request::write(at * 2048, &vec![at as u8 + 1; MIB as usize]);
        let pending = guest.submit_all(0, &(0..PIECES).map(piece).collect::<Vec<_>>()).unwrap();
        guest.kick(0).unwrap();
        let serving = io.caller().stats().pid;
        Self { io, guest, pending, serving }
    }

    fn disk(&self) -> DiskStats {
        self.io.caller().stats().disks.remove(0)
    }

    /// Waits until writes wait for room. Returns the overlay then, and how the alert says to get some.
    fn wait_full(&self) -> (OverlayStats, String) {
        eventually("writes wait for room", || {
            let disk = self.disk();
            disk.state == DiskState::Waiting && disk.overlay.unwrap().is_full
        });
        let disk = self.disk();
        (disk.overlay.unwrap(), disk.alert.unwrap())
    }

    /// Checks that all writes end well, in the process that began them.
    fn end(mut self) {
        for done in self.guest.finish_all(0, &self.pending).unwrap() {
            assert_eq!(done.status, status::OK);
        }
        eventually("nothing waits", || self.disk().state == DiskState::Active);
        for at in 0..PIECES {
            assert_eq!(read(&mut self.guest, at * 2048 + 77), at as u8 + 1, "at {at}");
        }
        assert_eq!(self.io.caller().stats().pid, self.serving, "the worker died");
        let disk = self.disk();
        assert_eq!((disk.errors, disk.overlay.unwrap().overflow_errors), (0, 0));
    }
}

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

const GROWS: &str = concat!(module_path!(), "::writes_go_on_when_the_file_system_grows");

#[test]
fn writes_go_on_when_the_file_system_grows() {
    on_reflinks(GROWS, |dir| {
        let free = rustix::fs::statvfs(dir).unwrap();
        let fill = (free.f_bavail * free.f_frsize).saturating_sub(8 * MIB).to_string();
        let filler = dir.join("filler");
        run("fallocate", &["-l", &fill, filler.to_str().unwrap()]);
        let writes = Writes::start(&dir.join("over"), |_| ());
        let (overlay, alert) = writes.wait_full();
        assert!(alert.contains("make room for the overflow file in its file system"), "{alert}");
        assert!(overlay.overflow_limit_bytes.unwrap() <= 9 * MIB, "{overlay:?}");
        let dir = dir.to_str().unwrap();
        let device = run("findmnt", &["-no", "SOURCE", dir]);
        let file = run("losetup", &["-nO", "BACK-FILE", &device]);
        run("truncate", &["-s", "500M", &file]);
        run("losetup", &["-c", &device]);
        run("xfs_growfs", &["-d", dir]);
        writes.end();
    })
    .unwrap();
}

/// Limits the sizes of files that a process writes. The limit can be raised later.
fn limit_file_sizes(process: u32, bytes: Option<u64>) {
    let pid = Pid::from_raw(process.try_into().unwrap());
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

#[test]
fn writes_go_on_when_the_limit_of_file_sizes_is_raised() {
    let folder = folder();
    let over = folder.path().join("over");
    let limit = |io: &Io| limit_file_sizes(io.caller().stats().pid, Some(2 * MIB));
    let writes = Writes::start(&over, limit);
    let full = |writes: &Writes, size: u64| {
        eventually("it waits at the limit", || {
            let disk = writes.disk();
            let overlay = disk.overlay.unwrap();
            let is_used = overlay.overflow_used_bytes + 4096 == size && overlay.is_full;
            disk.state == DiskState::Waiting && is_used
        });
        let (overlay, alert) = writes.wait_full();
        assert_eq!(overlay.file_limit_bytes, Some(size));
        assert_eq!(overlay.overflow_limit_bytes, Some(size - 4096));
        assert!(alert.contains("prlimit --fsize"), "{alert}");
        assert_eq!(std::fs::metadata(&over).unwrap().len(), size);
    };
    full(&writes, 2 * MIB);
    // One that is lower than the file loses nothing.
    limit_file_sizes(writes.serving, Some(MIB));
    limit_file_sizes(writes.serving, Some(4 * MIB));
    full(&writes, 4 * MIB);
    limit_file_sizes(writes.serving, None);
    writes.end();
}

/// Loop device over a file.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Self {
        Self(run("losetup", &["--find", "--show", file.to_str().unwrap()]))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn writes_go_on_when_a_block_device_grows() {
    let folder = folder();
    let path = image(&folder, "device.raw", 8 * MIB);
    let device = Loop::new(Path::new(&path));
    let writes = Writes::start(Path::new(&device.0), |_| ());
    let (overlay, alert) = writes.wait_full();
    assert!(alert.contains("or enlarge its block device"), "{alert}");
    assert_eq!(overlay.overflow_limit_bytes, Some(8 * MIB - 4096));
    run("truncate", &["-s", "64M", &path]);
    run("losetup", &["-c", &device.0]);
    writes.end();
}

#[test]
fn a_block_device_with_other_contents_is_refused() {
    let io = Io::start();
    let path = image(&io.folder, "device.raw", 8 * MIB);
    std::fs::write(&path, vec![7; MIB as usize]).unwrap();
    let device = Loop::new(Path::new(&path));
    let base = image(&io.folder, "base.raw", MIB);
    let overlay = json!({"base": {"file": base}, "ram": 4 * MIB, "overflow": device.0});
    let spec = io.spec("d", json!({ "overlay": overlay }));
    let refused = io.caller().call("disk.attach", spec).unwrap_err().message;
    assert!(refused.contains(&device.0), "{refused}");
    assert!(refused.contains("clear the first 4096 bytes of the device"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), vec![7; MIB as usize]);
}
