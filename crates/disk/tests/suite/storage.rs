//! Tests of disks that share a storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::conformance::{self, Client};
use disk::{Disk, FileDisk, FileOptions, OnFull, RequestKind, Storage, StorageDisk};
use share::{Cost, DiskConfig, Piece, Profile, Turn};

use crate::backends::image;

const SIZE: u64 = 8 << 20;

/// Profile of a storage on which few requests fit at a time.
fn profile(piece: Option<Piece>, turn: Option<Turn>) -> Profile {
    let cost = Cost { request_ns: 20_000, byte_ps: 500 };
    Profile {
        read: cost,
        write: cost,
        flush_ns: 50_000,
        knee_ns: 60_000,
        latency_ns: 100_000,
        requests_min: 2,
        piece,
        turn,
    }
}

fn piece() -> Option<Piece> {
    Some(Piece { bytes: 16 << 10, gain_percent: 50 })
}

fn disk(dir: &std::path::Path, on_full: OnFull, storage_disk: &Arc<StorageDisk>) -> Arc<dyn Disk> {
    let path = image(dir, SIZE);
    let (read_only, block_size) = (false, None);
    let options = FileOptions { path, read_only, direct: true, block_size, on_full };
    let disk = FileDisk::open(options).unwrap();
    disk.share_storage(Arc::clone(storage_disk));
    Arc::new(disk)
}

/// Runs `work` while other disks of the storage write all the time.
fn beside_others(storage: &Arc<Storage>, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
                let storage_disk = storage.add_disk("d", DiskConfig::default()).unwrap();
                let disk = disk(dir.path(), OnFull::Wait, &storage_disk);
                disk.activate().unwrap();
                let client = Client::new(&disk);
                let write = |at: u64| {
                    let kind = RequestKind::Write { durable: false };
                    client.send(kind, at << 16, 1 << 16, vec![at as u8; 1 << 16], 0)
                };
                while !stop.load(Ordering::Relaxed) {
                    let sent: Vec<_> = (0..16).map(write).collect();
                    sent.into_iter().for_each(|one| assert_eq!(one.wait().0, Ok(())));
                }
            });
        }
        work();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_disk_that_shares_its_storage_conforms() {
    for (piece, turn) in [(None, None), (piece(), None), (None, Some(Turn::DEFAULT))] {
        let storage = Storage::new(&profile(piece, turn)).unwrap();
        for on_full in [OnFull::Wait, OnFull::Error] {
            let storage_disk = storage.add_disk("d", DiskConfig::default()).unwrap();
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let disk = disk(dir.path(), on_full, &storage_disk);
            conformance::run(Arc::clone(&disk));
            beside_others(&storage, || conformance::run(disk));
        }
    }
}
