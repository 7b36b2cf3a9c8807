//! Tests that mapped disks serve requests as other disks do.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use disk::conformance::{self, Client};
use disk::{Disk, FileDisk, FileOptions, Geometry, OnFull};
use image::PlainFile;
use image::journal::Cells;
use image::map::PagePool;
use mapped::{JOURNAL, MappedDisk, MappedOptions};

use crate::format::TestFormat;

const SIZE: u64 = 8 << 20;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn cells() -> Cells {
    Arc::new((0..JOURNAL.cells().unwrap()).map(|_| AtomicU64::new(0)).collect::<Vec<_>>())
}

fn file(path: &Path, read_only: bool) -> FileDisk {
    let path = path.into();
    let options =
        FileOptions { path, read_only, direct: false, block_size: None, on_full: OnFull::Error };
    FileDisk::open(options).unwrap()
}

/// Opens a layer in a file over a raw file of half its size, filled with sevens.
fn open(dir: &Path, has_blocks: bool, journal: Cells) -> Arc<dyn Disk> {
    let (top, base) = (dir.join("top"), dir.join("base"));
    if !top.exists() {
        std::fs::File::create(&top).unwrap().set_len(4 << 20).unwrap();
        std::fs::write(&base, vec![0; (SIZE / 2) as usize]).unwrap();
    }
    let top = Arc::new(file(&top, false));
    let owned = top.handover().0.try_clone().unwrap();
    let geometry = Geometry {
        size: SIZE,
        block_size: if has_blocks { 4096 } else { 512 },
        read_only: false,
        discard: true,
        discard_granularity: 64 << 10,
    };
    let path = dir.join("top");
    let pages = Arc::new(PagePool::new(64));
    let options = MappedOptions { path, geometry, waits_for_room: true, journal, pages };
    let below: Arc<dyn Disk> = Arc::new(file(&base, true));
    let open =
        move || Ok(TestFormat::new(PlainFile::new(owned.try_clone().unwrap()), SIZE, has_blocks));
    Arc::new(MappedDisk::new(top, Some(below), options, open))
}

#[test]
fn a_mapped_disk_conforms() {
    for has_blocks in [false, true] {
        let dir = dir();
        conformance::run(open(dir.path(), has_blocks, cells()));
    }
}

#[test]
fn writes_survive_a_close_and_shine_over_the_base() {
    for has_blocks in [false, true] {
        let dir = dir();
        let disk = open(dir.path(), has_blocks, cells());
        let base = std::fs::File::options().write(true).open(dir.path().join("base")).unwrap();
        base.write_all_at(&[7; 128 << 10], 0).unwrap();
        disk.activate().unwrap();
        let client = Client::new(&disk);
        client.write(8192, vec![1; 4096]);
        client.write(60 << 10, vec![2; 8192]);
        let expected = |read: Vec<u8>| {
            assert_eq!(read[..8192], [7; 8192]);
            assert_eq!(read[8192..12288], [1; 4096]);
            assert_eq!(read[12288..60 << 10], [7; 48 << 10]);
            assert_eq!(read[60 << 10..68 << 10], [2; 8192]);
            assert_eq!(read[68 << 10..128 << 10], [7; 60 << 10]);
            assert_eq!(read[128 << 10..], [0; 64 << 10]);
        };
        expected(client.read(0, 192 << 10));
        drop(client);
        disk.deactivate().unwrap();
        let disk = open(dir.path(), has_blocks, cells());
        disk.activate().unwrap();
        expected(Client::new(&disk).read(0, 192 << 10));
    }
}
