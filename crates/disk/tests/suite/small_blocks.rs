//! Tests of disks whose blocks are smaller than those of their storage.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::path::Path;
use std::sync::Arc;

use disk::conformance::{self, Client};
use disk::{Disk, FileDisk, FileOptions, IoError, MemoryDisk, OnFull, RequestKind, SmallBlocks};
use testkit::storage::LoopDevice;

use crate::backends::{SIZE, Small, dir, image, options};

fn over(storage: impl Disk + 'static) -> Arc<dyn Disk> {
    assert_eq!(storage.geometry().block_size, 4096);
    Arc::new(SmallBlocks::new(Arc::new(storage), 512))
}

fn file(path: &Path, direct: bool) -> FileDisk {
    FileDisk::open(FileOptions { direct, block_size: Some(4096), ..options(path) }).unwrap()
}

#[test]
fn small_blocks_over_files_conform() {
    let dir = dir();
    for (name, direct) in [("a", false), ("b", true)] {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        conformance::run(over(file(&path, direct)));
    }
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    conformance::run(over(file(&image(memory.path(), SIZE), false)));
}

#[test]
fn small_blocks_over_a_device_with_large_sectors_conform() {
    let device = LoopDevice::new(SIZE, 4096).unwrap();
    // Asking for small blocks gives those that direct I/O needs.
    let path = device.path();
    let options = FileOptions { direct: true, block_size: Some(512), ..options(path) };
    let disk = over(FileDisk::open(options).unwrap());
    conformance::run(Arc::clone(&disk));
    assert!(disk.small_writes() > 0);
}

#[test]
fn small_blocks_over_memory_conform() {
    conformance::run(over(MemoryDisk::new(SIZE, 4096, false).unwrap()));
}

/// Two channels change sectors and blocks of the same few blocks at once. Every sector has what one
/// of its writers wrote, or what it had before if there was none.
#[test]
fn no_byte_of_a_writer_is_lost_to_another() {
    const BLOCKS: u64 = 4;
    const SECTORS: u64 = BLOCKS * 8;
    let dir = dir();
    let disk = over(file(&image(dir.path(), SIZE), true));
    let clients = [Client::new(&disk), Client::new(&disk)];
    let rounds = if std::env::var_os("RINGWAY_SOAK").is_some() { 10_000 } else { 300 };
    let mut state = 7u64;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut before = vec![0; SECTORS as usize];
    for round in 0..rounds {
        let mut writers = vec![vec![]; SECTORS as usize];
        let mut sent = vec![];
        for i in 0..16u8 {
            let (first, count) = match random(4) {
                0 => (random(BLOCKS) * 8, 8),
                1 => (random(SECTORS - 12), 1 + random(12)),
                _ => (random(SECTORS), 1),
            };
            let zeroes = random(8) == 0;
            let value = if zeroes { 0 } else { ((round * 16) as u8).wrapping_add(i) | 1 };
            (first..first + count).for_each(|at| writers[at as usize].push(value));
            let kind = match zeroes {
                true => RequestKind::WriteZeroes { unmap: random(2) == 0, durable: false },
                false => RequestKind::Write { durable: random(8) == 0 },
            };
            let len = count * 512;
            let data = vec![value; if zeroes { 0 } else { len as usize }];
            let client = &clients[usize::from(i % 2)];
            sent.push(client.send(kind, first * 512, len, data, 0));
        }
        assert!(sent.into_iter().all(|one| one.wait().0 == Ok(())));
        let read = clients[(round % 2) as usize].read(0, SECTORS * 512);
        for (at, sector) in read.chunks(512).enumerate() {
            let value = sector[0];
            assert!(sector.iter().all(|byte| *byte == value), "round {round}: torn sector {at}");
            let allowed = match writers[at].as_slice() {
                [] => value == before[at],
                values => values.contains(&value),
            };
            assert!(
                allowed,
                "round {round}, sector {at}: {value}, written {:?} over {}",
                writers[at], before[at]
            );
            before[at] = value;
        }
    }
    assert!(disk.small_writes() > rounds);
}

#[test]
fn requests_behind_one_that_waits_for_space_count_and_fail_with_it() {
    let small = Small::new();
    let path = image(small.path(), SIZE);
    std::fs::write(small.path().join("ballast"), vec![1; 3 << 20]).unwrap_err();
    let disk = over(file(&path, false));
    let clients = [Client::new(&disk), Client::new(&disk)];
    let kind = RequestKind::Write { durable: false };
    let stalled = clients[0].send(kind, 0, 512, vec![1; 512], 0);
    while disk.stalled() == 0 {
        clients[0].barrier();
    }
    let behind = clients[1].send(kind, 512, 512, vec![1; 512], 0);
    clients[1].barrier();
    assert_eq!(clients.each_ref().map(Client::waiting), [1, 1]);
    clients[1].give_up();
    assert_eq!(behind.wait().0, Err(IoError::Full));
    assert_eq!(disk.stalled(), 1);
    std::fs::remove_file(small.path().join("ballast")).unwrap();
    assert_eq!(stalled.wait().0, Ok(()));
    assert_eq!(clients.each_ref().map(Client::waiting), [0, 0]);
    let options = FileOptions { on_full: OnFull::Error, block_size: Some(4096), ..options(&path) };
    std::fs::write(small.path().join("ballast"), vec![1; 3 << 20]).unwrap_err();
    let failing = Client::new(&over(FileDisk::open(options).unwrap()));
    assert_eq!(failing.run(kind, 8192, 512, vec![1; 512]).0, Err(IoError::Full));
}
