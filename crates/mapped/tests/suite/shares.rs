//! Test that the metadata of an image is charged to its disk's share of the storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::conformance::Client;
use disk::{Disk, FileDisk, FileOptions, OnFull, RequestKind, Storage};
use share::{Cost, DiskConfig, Profile};

use crate::layers::{Layer, dir};

/// Bytes of a request.
const BYTES: usize = 4096;
/// Device time of a request, in nanoseconds. It does not depend on its bytes.
const COST: u64 = 20_000;

fn storage() -> Arc<Storage> {
    let cost = Cost { request_ns: COST, byte_ps: 0 };
    let profile = Profile {
        read: cost,
        write: cost,
        flush_ns: 0,
        knee_ns: 3 * COST,
        latency_ns: 4 * COST,
        requests_min: 2,
        piece: None,
        turn: None,
    };
    Storage::new(&profile).unwrap()
}

/// Keeps the storage busy until `stop`.
fn keep_busy(storage: &Arc<Storage>, stop: &AtomicBool) {
    let dir = dir();
    let path = dir.path().join("busy.raw");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let (read_only, direct, block_size, on_full) = (false, true, None, OnFull::Error);
    let file =
        FileDisk::open(FileOptions { path, read_only, direct, block_size, on_full }).unwrap();
    file.share_storage(storage.add_disk("busy", DiskConfig::default()).unwrap());
    let disk: Arc<dyn Disk> = Arc::new(file);
    disk.activate().unwrap();
    let client = Client::new(&disk);
    while !stop.load(Ordering::Relaxed) {
        let read =
            |at: u64| client.send(RequestKind::Read, at << 12, BYTES as u64, vec![0; BYTES], 0);
        let sent: Vec<_> = (0..32).map(read).collect();
        sent.into_iter().for_each(|one| assert_eq!(one.wait().0, Ok(())));
    }
}

#[test]
fn metadata_is_charged_while_others_want_the_storage() {
    let (storage, stop, dir) = (storage(), AtomicBool::new(false), dir());
    let storage_disk = storage.add_disk("image", DiskConfig::default()).unwrap();
    let mut layer = Layer::create(dir.path(), 16, false);
    (layer.direct, layer.storage_disk) = (true, Some(Arc::clone(&storage_disk)));
    let disk = layer.open();
    disk.activate().unwrap();
    let client = Client::new(&disk);
    std::thread::scope(|scope| {
        scope.spawn(|| keep_busy(&storage, &stop));
        // Each write takes a new cluster, and each flush writes the tables.
        let is_charged = (0..100_u64).any(|at| {
            client.write(at << 16, vec![at as u8; BYTES]);
            assert_eq!(client.run(RequestKind::Flush, 0, 0, Vec::new()).0, Ok(()));
            let stats = storage_disk.stats();
            // All scheduled requests cost the same, and flushes a nanosecond: the rest is metadata.
            stats.served_ns + stats.owed_ns > (stats.dispatches + 1) * COST
        });
        stop.store(true, Ordering::Relaxed);
        assert!(is_charged, "{:?}", storage_disk.stats());
    });
}
