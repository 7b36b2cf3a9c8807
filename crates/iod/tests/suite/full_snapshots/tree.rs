//! A guest whose writes wait for room on a qcow2 tree.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use image::qcow2::{CreateOptions, create_file};
use model::rpc::RpcError;
use serde_json::{Value, json};
use testkit::process::{eventually, find_tool};
use testkit::raw::guest::{Pending, WaitEvent};
use testkit::raw::request::{Request, kind, status};
use testkit::raw::wire::protocol;
use testkit::raw::{Guest, Setup};

use crate::common::*;

/// Size of the disks: an L2 table covers a quarter of them.
const BYTES: u64 = 1 << 30;
/// Sectors of a cluster of 64 KiB.
const CLUSTER_SECTORS: u64 = 128;
/// Clusters of a write that waits.
const WRITE_CLUSTERS: u64 = 4;
/// Writes that wait on each of the two queues.
const WRITES: u64 = 4;
/// Cluster that a discard frees.
const DISCARDED: u64 = 7;
/// Cluster that is the first of its L2 table.
const NEW_TABLE: u64 = 5000;

/// Storage that a qcow2 tree fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// It reserves space: the owner of the image waits. The guest has no in-flight region.
    Reserving,
    /// It cannot reserve space: writes find out that it is full, also in the middle.
    Unreserving,
}

/// Folder on storage that is full soon.
pub(super) struct Place {
    folder: PathBuf,
    /// Image of the file system that is mounted there, if it is not the test's own.
    image: Option<PathBuf>,
}

impl Place {
    fn new(dir: &Path, storage: Storage) -> Self {
        let image = (storage == Storage::Unreserving).then(|| dir.join("image"));
        let place = Self { folder: dir.join("place"), image };
        std::fs::create_dir(&place.folder).unwrap();
        if let Some(image) = &place.image {
            std::fs::File::create(image).unwrap().set_len(16 << 20).unwrap();
            let (image, folder) = (image.to_str().unwrap(), place.folder.to_str().unwrap());
            let make = find_tool("mkfs.ext3", "e2fsprogs").unwrap();
            run(make.to_str().unwrap(), &["-q", "-F", "-J", "size=1", image]);
            // In this mode it stores single pages, so that writes stop in the middle.
            run("mount", &["-o", "loop,data=journal", image, folder]);
        }
        place
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn free_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.folder).unwrap();
        found.f_bfree * found.f_frsize
    }

    /// Fills the storage to the last byte.
    fn fill(&self, name: &str) {
        let error = std::fs::write(self.file(name), vec![1; 64 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(image) = &self.image {
            run("umount", &[self.folder.to_str().unwrap()]);
            std::fs::remove_file(image).unwrap();
        }
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
}

/// Returns the byte that a cluster has.
fn value(cluster: u64) -> u8 {
    (cluster % 251 + 1) as u8
}

pub(super) fn write(first: u64, clusters: u64) -> Request {
    let data: Vec<_> = (first..first + clusters).flat_map(|at| [value(at); 1 << 16]).collect();
    Request::write(first * CLUSTER_SECTORS, &data)
}

/// Guest whose writes wait for room on a qcow2 tree, and the `ringway-io` that serves it.
pub(super) struct FullTree {
    pub(super) io: Io,
    pub(super) place: Place,
    guest: Guest,
    /// Requests of each queue that have not ended.
    pending: [Vec<Pending>; 2],
    /// Clusters that the guest has written.
    pub(super) written: Vec<u64>,
}

impl FullTree {
    /// Fills the storage until a write waits, then submits eight writes that wait, too.
    pub(super) fn start(dir: &Path, storage: Storage) -> Self {
        let mut tree = Self::attach(dir, storage, 30_000);
        tree.fill();
        tree
    }

    /// Starts a tree with room. Verbs of its disk have this deadline.
    pub(super) fn attach(dir: &Path, storage: Storage, deadline_ms: u32) -> Self {
        let place = Place::new(dir, storage);
        let (base, top) = (place.file("base.raw"), place.file("top.qcow2"));
        std::fs::write(&base, vec![0xbb; 1 << 20]).unwrap();
        create_file(&top, &CreateOptions::new(BYTES)).unwrap();
        let io = Io::start();
        let backend = json!({"qcow2": {"file": top, "backing": {"file": base}}});
        let mut spec = io.spec("d", backend);
        (spec["cache"], spec["queues"]) = (json!("writeback"), json!(2));
        spec["stop_deadline_ms"] = json!(deadline_ms);
        io.caller().disk("disk.attach", spec);
        let guest = connect(&io.socket("d"), storage == Storage::Unreserving);
        let mut tree = Self { io, place, guest, pending: Default::default(), written: Vec::new() };
        tree.run(&write(0, 16));
        tree.run(&Request::flush());
        tree.written.extend(0..16);
        tree
    }

    pub(super) fn fill(&mut self) {
        self.place.fill("filler");
        self.use_up();
        self.submit_all();
    }

    pub(super) fn waiting(&self) -> u64 {
        self.io.caller().stats().disks[0].waiting
    }

    pub(super) fn run(&mut self, request: &Request) {
        assert_eq!(self.guest.run(0, request).unwrap().status, status::OK);
    }

    fn submit(&mut self, queue: usize, request: &Request) {
        self.pending[queue].push(self.guest.submit(queue, request).unwrap());
        self.guest.kick(queue).unwrap();
    }

    /// Writes to new clusters until a write waits. Then no byte is left.
    fn use_up(&mut self) {
        for at in 1000.. {
            self.submit(0, &write(at, 1));
            self.written.push(at);
            let mut event = WaitEvent::Silent;
            while event == WaitEvent::Silent {
                if self.waiting() > 0 {
                    return self.place.fill("crumbs");
                }
                event = self.guest.wait(0, Duration::from_millis(20)).unwrap();
            }
            self.pending[0].clear();
        }
    }

    fn submit_all(&mut self) {
        for at in 0..2 * WRITES {
            let first = 2000 + at * 10;
            self.submit((at % 2) as usize, &write(first, WRITE_CLUSTERS));
            self.written.extend(first..first + WRITE_CLUSTERS);
        }
        self.all_wait();
    }

    /// Submits a discard of a cluster. Storage that can take space back has a cluster more then.
    pub(super) fn discard(&mut self) {
        let sectors = CLUSTER_SECTORS as u32;
        self.submit(1, &Request::range(kind::DISCARD, DISCARDED * CLUSTER_SECTORS, sectors, 0));
        self.written.retain(|at| *at != DISCARDED);
    }

    pub(super) fn all_wait(&self) {
        eventually("all writes wait", || self.waiting() >= 2 * WRITES);
    }

    /// Lets a waiting write go on for some pages, until the storage is full again.
    pub(super) fn stop_midway(&self) {
        let filler = std::fs::File::options().write(true).open(self.place.file("filler")).unwrap();
        let len = filler.metadata().unwrap().len();
        filler.set_len(len - (20 << 10)).unwrap();
        eventually("a part is stored", || self.place.free_bytes() == 0);
        self.all_wait();
    }

    /// Takes a snapshot. It is repeated if the host's storage takes longer than the drain deadline.
    pub(super) fn snapshot(&self, file: &Path) -> Result<Value, RpcError> {
        let params = json!({"disks": [{"id": "d", "file": file}]});
        let slow = |error: &RpcError| error.message.contains("the requests in flight in time");
        let mut outcome = self.io.caller().call("disk.snapshot", params.clone());
        eventually("storage ends what it has", || {
            let again = outcome.as_ref().is_err_and(slow);
            if again {
                outcome = self.io.caller().call("disk.snapshot", params.clone());
            }
            !again
        });
        outcome
    }

    pub(super) fn make_room(&self) {
        std::fs::remove_file(self.place.file("filler")).unwrap();
    }

    /// Waits for all requests. Returns for how long.
    pub(super) fn finish(&mut self) -> Duration {
        let began = Instant::now();
        for (queue, pending) in std::mem::take(&mut self.pending).iter().enumerate() {
            for done in self.guest.finish_all(queue, pending).unwrap() {
                assert_eq!(done.status, status::OK);
            }
        }
        let took = began.elapsed();
        eventually("none waits", || self.waiting() == 0);
        took
    }

    fn read(&mut self, cluster: u64) -> u8 {
        let request = Request::read(cluster * CLUSTER_SECTORS, 1 << 16);
        let done = self.guest.run(0, &request).unwrap();
        assert_eq!(done.status, status::OK);
        assert!(done.data.iter().all(|byte| *byte == done.data[0]), "torn cluster {cluster}");
        done.data[0]
    }

    /// Reads everything back, ends the server, and checks the images.
    pub(super) fn end(mut self, images: &[&Path]) {
        self.run(&Request::flush());
        for cluster in std::mem::take(&mut self.written) {
            assert_eq!(self.read(cluster), value(cluster), "cluster {cluster}");
        }
        assert_eq!([DISCARDED, 500].map(|cluster| self.read(cluster)), [0; 2]);
        drop(self.guest);
        let mut caller = self.io.caller();
        caller.call("disk.detach", json!({"id": "d"})).unwrap();
        for image in images {
            let params = json!({"path": image, "format": "qcow2"});
            let report = caller.call("image.check", params).unwrap();
            assert_eq!((&report["errors"], &report["leaks"]), (&json!(0), &json!(0)), "{report}");
            run("qemu-img", &["check", image.to_str().unwrap()]);
        }
        drop(caller);
        assert!(self.io.process.terminate().unwrap().success(), "{}", self.io.process.stderr());
    }
}

/// Starts a guest with two queues, and with an in-flight region if it has one.
fn connect(socket: &Path, has_region: bool) -> Guest {
    let more = if has_region { protocol::INFLIGHT_SHMFD } else { 0 };
    let protocol = protocol::ALL_KNOWN | more;
    let setup = Setup { queues: 2, protocol, memory_bytes: 64 << 20, ..Setup::default() };
    let mut guest = Guest::start(socket, &setup).unwrap();
    if has_region {
        let area = guest.frontend.get_inflight(2, setup.queue_size).unwrap();
        guest.frontend.set_inflight(&area).unwrap();
        for queue in 0..2 {
            let base = guest.stop_queue(queue).unwrap();
            guest.start_queue(queue, base).unwrap();
        }
    }
    guest
}

/// Folder on storage with room, for a snapshot.
pub(super) fn elsewhere() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("new.qcow2");
    (folder, file)
}

/// Starts a full tree with a write whose flush needs room for a table.
pub(super) fn with_new_table(dir: &Path, deadline_ms: u32) -> FullTree {
    let mut tree = FullTree::attach(dir, Storage::Unreserving, deadline_ms);
    tree.run(&write(NEW_TABLE, 1));
    tree.written.push(NEW_TABLE);
    tree.fill();
    tree
}
