//! Whole overlays: the conformance suite, a model, full memory, and processes that end.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::disk::conformance::{self, Client};
use ::disk::{Disk, FileDisk, FileOptions, IoError, MemoryDisk, OnFull, RequestKind};
use tempfile::TempDir;

use super::*;

/// Bytes of a disk in tests.
const SIZE: u64 = 8 << 20;
const MIB: u64 = 1 << 20;
const WRITE: RequestKind = RequestKind::Write { durable: false };
const DISCARD: RequestKind = RequestKind::Discard;

/// Overlay with its files, which can be opened again as by a successor.
pub(crate) struct Fixture {
    folder: TempDir,
    base: Arc<dyn Disk>,
    ram: u64,
    has_overflow: bool,
    overflow_size: Option<u64>,
    memory: Option<OwnedFd>,
}

fn file_disk(path: &Path) -> Arc<FileDisk> {
    let options = FileOptions {
        path: path.into(),
        read_only: false,
        direct: false,
        block_size: None,
        on_full: OnFull::Error,
    };
    Arc::new(FileDisk::open_container(options, None).unwrap())
}

fn base_byte(at: u64) -> u8 {
    (at / 512 % 251) as u8 + 1
}

impl Fixture {
    /// Creates a base of `SIZE` bytes, each of which says where it is.
    pub(crate) fn new(ram: u64, has_overflow: bool) -> Self {
        let base = MemoryDisk::new(SIZE, 512, false).unwrap();
        let bytes: Vec<_> = (0..SIZE).map(base_byte).collect();
        File::from(base.file().try_clone().unwrap()).write_all(&bytes).unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            base: Arc::new(base),
            ram,
            has_overflow,
            overflow_size: None,
            memory: None,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("overflow")
    }

    fn overflow(&self) -> Option<(Arc<FileDisk>, PathBuf)> {
        if !self.path().exists() {
            create_file(&self.path()).unwrap();
        }
        self.has_overflow.then(|| (file_disk(&self.path()), self.path()))
    }

    /// Opens the disk on the memory of the last one, if there was one.
    fn open(&mut self) -> Arc<OverlayDisk> {
        let disk = self.open_inactive();
        disk.activate().unwrap();
        self.memory = Some(disk.memory().try_clone().unwrap());
        Arc::new(disk)
    }

    /// Opens the disk without its cleaner.
    pub(crate) fn open_inactive(&mut self) -> OverlayDisk {
        let options = OverlayOptions {
            name: "test".into(),
            ram: self.ram,
            overflow_size: self.overflow_size,
            read_only: false,
            waits_for_room: true,
        };
        let (base, overflow) = (Arc::clone(&self.base), self.overflow());
        OverlayDisk::new(base, overflow, options, self.memory.take()).unwrap()
    }
}

fn counts(disk: &dyn Disk) -> ::disk::OverlayCounts {
    disk.overlay_counts().unwrap()
}

#[test]
fn overlays_pass_the_conformance_suite() {
    for (ram, has_overflow) in [(16 * MIB, false), (MIB, true), (16 * MIB, true)] {
        conformance::run(Fixture::new(ram, has_overflow).open());
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn random_requests_match_a_flat_buffer_over_many_lives() {
    let lives = if std::env::var_os("RINGWAY_SOAK").is_some() { 400 } else { 12 };
    // Of 7 slots, none waits for the base.
    for (seed, ram) in [(1, MIB), (2, 64 * GRANULE), (3, 16 * MIB), (4, 7 * GRANULE)] {
        let mut fixture = Fixture::new(ram, true);
        let mut flat: Vec<_> = (0..SIZE).map(base_byte).collect();
        let mut state = seed;
        for life in 0..lives {
            let disk: Arc<dyn Disk> = fixture.open();
            let clients = [Client::new(&disk), Client::new(&disk)];
            for turn in 0..60 {
                let client = &clients[turn % 2];
                let offset = random(&mut state, SIZE / 512) * 512;
                let longest = [8, 200, 4096][random(&mut state, 3) as usize];
                let len = (1 + random(&mut state, longest)) * 512;
                let len = len.min(SIZE - offset);
                let range = offset as usize..(offset + len) as usize;
                match random(&mut state, 6) {
                    0 | 1 => {
                        let byte = random(&mut state, 256) as u8;
                        flat[range].fill(byte);
                        client.write(offset, vec![byte; len as usize]);
                    }
                    2 => {
                        let kind = RequestKind::WriteZeroes { unmap: true, durable: false };
                        flat[range].fill(0);
                        assert_eq!(client.run(kind, offset, len, vec![]).0, Ok(()));
                    }
                    3 => {
                        assert_eq!(client.run(DISCARD, offset, len, vec![]).0, Ok(()));
                        let read = client.read(offset, len);
                        // Each byte is as it was, or zero.
                        let fine = |(at, byte): (usize, &u8)| {
                            *byte == 0 || *byte == flat[offset as usize + at]
                        };
                        assert!(read.iter().enumerate().all(fine));
                        flat[range].copy_from_slice(&read);
                    }
                    _ => {
                        let read = client.read(offset, len);
                        assert!(read == flat[range], "life {life}: {len} bytes at {offset}");
                    }
                }
            }
            drop(clients);
            assert!(Client::new(&disk).read(0, SIZE) == flat, "life {life} of seed {seed}");
            // A killed process neither deactivates nor drops anything. Its cleaner ends at any point.
            if life % 2 == 0 {
                disk.deactivate().unwrap();
            } else {
                disk.quiesce();
            }
        }
    }
}

#[test]
fn full_memory_without_overflow_waits_until_a_guest_discards() {
    let disk: Arc<dyn Disk> = Fixture::new(64 * GRANULE, false).open();
    let client = Client::new(&disk);
    client.write(0, vec![1; (64 * GRANULE) as usize]);
    let waiting = client.send(WRITE, 100 * GRANULE, GRANULE, vec![2; BYTES], 0);
    assert!(waiting.still_waits(Duration::from_millis(50)));
    assert_eq!((client.waiting(), disk.stalled(), counts(&*disk).is_full), (1, 1, true));
    assert_eq!(counts(&*disk).waiting_bytes, GRANULE);
    // Another queue reads, and gives space back.
    let other = Client::new(&disk);
    assert_eq!(other.read(0, GRANULE), vec![1; BYTES]);
    let late = client.send(WRITE, 101 * GRANULE, GRANULE, vec![3; BYTES], 0);
    assert_eq!(other.run(DISCARD, 8 * GRANULE, 8 * GRANULE, vec![]).0, Ok(()));
    assert_eq!(waiting.wait().0, Ok(()));
    assert_eq!(late.wait().0, Ok(()));
    assert_eq!((client.waiting(), disk.stalled(), counts(&*disk).is_full), (0, 0, false));
    assert_eq!(client.read(100 * GRANULE, GRANULE), vec![2; BYTES]);
}

#[test]
fn a_queue_that_drains_lets_writes_fail_that_wait_for_space() {
    let disk: Arc<dyn Disk> = Fixture::new(64 * GRANULE, false).open();
    let client = Client::new(&disk);
    client.write(0, vec![1; (64 * GRANULE) as usize]);
    let waiting = client.send(WRITE, 100 * GRANULE, GRANULE, vec![2; BYTES], 0);
    client.barrier();
    client.give_up();
    assert_eq!(waiting.wait().0, Err(IoError::Full));
    assert_eq!(disk.stalled(), 0);
}

#[test]
fn what_does_not_fit_into_memory_goes_to_the_overflow_file_and_comes_back() {
    let mut fixture = Fixture::new(MIB, true);
    let disk: Arc<dyn Disk> = fixture.open();
    let client = Client::new(&disk);
    for at in 0..SIZE / 65536 {
        client.write(at * 65536, vec![at as u8; 65536]);
    }
    let found = counts(&*disk);
    assert!(found.moved_bytes >= SIZE - MIB && found.ram_used_bytes <= MIB, "{found:?}");
    for at in (0..SIZE / 65536).rev() {
        assert_eq!(client.read(at * 65536, 65536), vec![at as u8; 65536], "at {at}");
    }
    // A part of a block that is in the file.
    client.write(512, vec![77; 512]);
    assert_eq!(client.read(0, 1536), [[0; 512], [77; 512], [0; 512]].concat());
    // Space comes back.
    assert_eq!(client.run(DISCARD, 0, SIZE, vec![]).0, Ok(()));
    client.write(0, vec![1; 65536]);
    let found = counts(&*disk);
    assert_eq!(found.overflow_used_bytes, 0, "{found:?}");
    assert_eq!(client.read(65536, SIZE - 65536), vec![0; (SIZE - 65536) as usize]);
}

#[test]
fn an_overflow_file_is_never_larger_than_its_limit() {
    let mut fixture = Fixture::new(MIB, true);
    fixture.overflow_size = Some(2 * MIB);
    let disk: Arc<dyn Disk> = fixture.open();
    let client = Client::new(&disk);
    for at in 0..2 * MIB / 65536 {
        client.write(at * 65536, vec![at as u8; 65536]);
    }
    let late: Vec<_> = (2 * MIB / 65536..4 * MIB / 65536)
        .map(|at| client.send(WRITE, at * 65536, 65536, vec![at as u8; 65536], 0))
        .collect();
    while disk.stalled() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let found = counts(&*disk);
    assert_eq!(found.overflow_limit_bytes, Some(2 * MIB - GRANULE), "{found:?}");
    assert!(found.overflow_used_bytes <= 2 * MIB - GRANULE && found.is_full, "{found:?}");
    assert!(std::fs::metadata(fixture.path()).unwrap().len() <= 2 * MIB);
    // A discard makes room below the limit.
    assert_eq!(Client::new(&disk).run(DISCARD, 0, 2 * MIB, vec![]).0, Ok(()));
    late.into_iter().for_each(|one| assert_eq!(one.wait().0, Ok(())));
    assert_eq!(client.read(3 * MIB, 512), vec![48; 512]);
    assert!(std::fs::metadata(fixture.path()).unwrap().len() <= 2 * MIB);
    // A successor with a lower limit keeps what is there.
    drop(client);
    disk.deactivate().unwrap();
    drop(disk);
    fixture.overflow_size = Some(MIB);
    let next: Arc<dyn Disk> = fixture.open();
    assert_eq!(Client::new(&next).read(3 * MIB, 512), vec![48; 512]);
}

/// Returns the bytes that the host provides for a file.
fn provided(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_blocks.unsigned_abs() * 512
}

#[test]
fn what_a_guest_discards_goes_back_to_the_host() {
    let ram = 32 * MIB;
    let mut fixture = Fixture::new(ram, true);
    let base = MemoryDisk::new(128 * MIB, 512, false).unwrap();
    fixture.base = Arc::new(base);
    let disk = fixture.open();
    let client = Client::new(&(Arc::clone(&disk) as Arc<dyn Disk>));
    for at in 0..128 {
        client.write(at * MIB, vec![at as u8; MIB as usize]);
    }
    let overflow: OwnedFd = File::open(fixture.path()).unwrap().into();
    assert!(provided(disk.memory()) > 30 * MIB && provided(&overflow) > 90 * MIB);
    let found = counts(&*disk);
    assert!(found.overflow_limit_bytes.unwrap() >= found.overflow_used_bytes, "{found:?}");
    assert_eq!(client.run(DISCARD, 0, 100 * MIB, vec![]).0, Ok(()));
    // The cleaner works beside the guest, and tells nothing.
    while provided(&overflow) > 28 * MIB + 3 * 4 * MIB {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.run(DISCARD, 100 * MIB, 27 * MIB, vec![]).0, Ok(()));
    // Three eighths of the memory, a stock for the next writes, and the map.
    while provided(disk.memory()) > 22 * MIB || provided(&overflow) > 8 * MIB {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.read(127 * MIB, MIB), vec![127; MIB as usize]);
    for at in 0..64 {
        client.write(at * MIB, vec![at as u8; MIB as usize]);
    }
    for at in 0..64 {
        assert_eq!(client.read(at * MIB, MIB), vec![at as u8; MIB as usize]);
    }
    let found = counts(&*disk);
    assert!(found.memory_reads > 0 && found.overflow_reads > 0, "{found:?}");
    assert_eq!((found.waiting_bytes, found.base_reads, found.bytes_per_second), (0, 0, None));
}

#[test]
fn an_overflow_file_with_foreign_contents_is_refused() {
    let mut fixture = Fixture::new(MIB, true);
    let options = || OverlayOptions {
        name: "test".into(),
        ram: MIB,
        overflow_size: None,
        read_only: false,
        waits_for_room: true,
    };
    let refused = |fixture: &Fixture, memory| {
        let base = Arc::clone(&fixture.base);
        let disk = OverlayDisk::new(base, fixture.overflow(), options(), memory);
        disk.and_then(|disk| disk.activate()).unwrap_err().to_string()
    };
    std::fs::write(fixture.path(), vec![5; 8192]).unwrap();
    assert!(refused(&fixture, None).contains("is no overflow file"));
    assert_eq!(std::fs::read(fixture.path()).unwrap(), vec![5; 8192], "untouched");
    // The file of another disk.
    std::fs::remove_file(fixture.path()).unwrap();
    create_file(&fixture.path()).unwrap();
    let disk: Arc<dyn Disk> = fixture.open();
    let client = Client::new(&disk);
    client.write(0, vec![1; 4 << 20]);
    drop(client);
    disk.deactivate().unwrap();
    std::fs::remove_file(fixture.path()).unwrap();
    create_file(&fixture.path()).unwrap();
    let memory = fixture.memory.take();
    assert!(refused(&fixture, memory).contains("not the overflow file that this disk has written"));
    // Memory of another disk.
    let other = Fixture::new(2 * MIB, false).open();
    let memory = other.memory().try_clone().unwrap();
    assert!(refused(&fixture, Some(memory)).contains("that of another disk"));
}

#[test]
fn extents_tell_what_is_stored_where() {
    let disk: Arc<dyn Disk> = Fixture::new(16 * MIB, false).open();
    let client = Client::new(&disk);
    client.write(0, vec![1; 8192]);
    assert_eq!(client.run(DISCARD, 16384, 16384, vec![]).0, Ok(()));
    let found = disk.extents(0, SIZE, 10).unwrap();
    let found: Vec<_> = found.iter().map(|one| (one.len, one.hole)).collect();
    assert_eq!(found, [(16384, false), (16384, true), (SIZE - 32768, false)]);
}
