//! Disks of the request path, full of data.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use disk::{Disk, FileDisk, FileOptions, MemoryDisk, NullDisk, OnFull, Storage};
use image::ImageWriter;
use image::map::PagePool;
use image::qcow2::{CreateOptions, create_file};
use image::{PlainFile, run_now};
use mapped::{JOURNAL, LayerOptions, MappedDisk, READ_ONLY_JOURNAL};
use memory::Mapping;
use overlay::{OverlayDisk, OverlayOptions};
use share::{Cost, DiskConfig, Profile};

/// Opens the disk of a name: `null`, `memory`, `file` (raw), or `qcow2-N` (a qcow2 image full of
/// data below N - 1 empty ones). Files lie on tmpfs, whose reads end at once. `direct` is a file past
/// the page cache; `shared` is the same alone on a storage with a scheduler. `overlay` has room for all
/// writes in memory.
pub(crate) fn open(name: &str, size: u64) -> Arc<dyn Disk> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    match name {
        "null" => Arc::new(NullDisk::new(size, 512, false)),
        "memory" => Arc::new(MemoryDisk::new(size, 512, false).unwrap()),
        "file" => {
            let path = dir.path().join("raw");
            std::fs::write(&path, vec![7; size as usize]).unwrap();
            file(&path, false)
        }
        "overlay" => {
            let base = Arc::new(MemoryDisk::new(size, 512, false).unwrap());
            let options = OverlayOptions {
                name: "overlay".into(),
                ram: 64 << 20,
                overflow_size: None,
                read_only: false,
                waits_for_room: true,
            };
            Arc::new(OverlayDisk::new(base, None, options, None).unwrap())
        }
        "direct" | "shared" => {
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let path = dir.path().join("raw");
            std::fs::write(&path, vec![7; size as usize]).unwrap();
            let disk = direct(&path);
            if name == "shared" {
                let storage = Storage::new(&profile()).unwrap();
                disk.share_storage(storage.add_disk("d", DiskConfig::default()).unwrap());
            }
            disk
        }
        _ => match name.strip_prefix("qcow2-").map(str::parse) {
            Some(Ok(count)) => layers(dir.path(), size, count),
            _ => panic!("no disk called {name}"),
        },
    }
}

/// Opens a file past the page cache.
fn direct(path: &Path) -> Arc<FileDisk> {
    let (path, on_full) = (path.to_path_buf(), OnFull::Wait);
    let options = FileOptions { path, read_only: false, direct: true, block_size: None, on_full };
    Arc::new(FileDisk::open(options).unwrap())
}

/// Profile of a fast storage.
fn profile() -> Profile {
    let cost = Cost { request_ns: 2_000, byte_ps: 300 };
    Profile {
        read: cost,
        write: cost,
        flush_ns: 20_000,
        knee_ns: 200_000,
        latency_ns: 300_000,
        requests_min: 2,
        piece: None,
        turn: None,
    }
}

fn file(path: &Path, read_only: bool) -> Arc<FileDisk> {
    let (path, on_full) = (path.to_path_buf(), OnFull::Error);
    let options = FileOptions { path, read_only, direct: false, block_size: None, on_full };
    Arc::new(FileDisk::open_container(options, None).unwrap())
}

fn layers(dir: &Path, size: u64, count: usize) -> Arc<dyn Disk> {
    let pages = Arc::new(PagePool::new(64));
    let mut disk: Option<Arc<dyn Disk>> = None;
    for layer in 0..count {
        let (path, read_only) = (dir.join(layer.to_string()), layer + 1 < count);
        if layer == 0 {
            let new = File::options().read(true).write(true).create_new(true).open(&path);
            let new = Arc::new(PlainFile::new(new.unwrap().into()));
            let mut writer = run_now(ImageWriter::create_qcow2(new, size, None)).unwrap();
            run_now(writer.write(0, &vec![7; size as usize])).unwrap();
            run_now(writer.finish()).unwrap();
        } else {
            create_file(&path, &CreateOptions::new(size)).unwrap();
        }
        let cells = if read_only { READ_ONLY_JOURNAL } else { JOURNAL }.cells().unwrap();
        let options = LayerOptions {
            path: path.clone(),
            read_only,
            direct: false,
            waits_for_room: false,
            journal: Arc::new(Mapping::private(cells * 8).unwrap()),
            pages: Arc::clone(&pages),
        };
        let top = MappedDisk::open_qcow2(file(&path, read_only), disk, options).unwrap();
        disk = Some(Arc::new(top));
    }
    disk.unwrap()
}
