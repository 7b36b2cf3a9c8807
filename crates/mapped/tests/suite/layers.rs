//! Tests that layers in qcow2 images serve requests as other disks do.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use disk::conformance::{self, Client};
use disk::{
    Disk, FileDisk, FileOptions, LayerCounts, OnFull, RequestKind, SmallBlocks, StorageDisk,
};
use image::map::PagePool;
use image::qcow2::{CreateOptions, create_file};
use mapped::{JOURNAL, LayerOptions, MappedDisk, READ_ONLY_JOURNAL};
use memory::Mapping;

const SIZE: u64 = 8 << 20;

pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Layer in an image, over a raw file if there is one.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) path: PathBuf,
    base: Option<PathBuf>,
    pub(crate) direct: bool,
    journal: Arc<Mapping>,
    pages: Arc<PagePool>,
    /// Storage that its files share with others.
    pub(crate) storage_disk: Option<Arc<StorageDisk>>,
}

impl Layer {
    /// Creates an image with clusters of `2^cluster_bits` bytes.
    pub(crate) fn create(dir: &Path, cluster_bits: u32, extended_l2: bool) -> Self {
        let path = dir.join("top.qcow2");
        let options = CreateOptions { cluster_bits, extended_l2, ..CreateOptions::new(SIZE) };
        create_file(&path, &options).unwrap();
        Self::of(path)
    }

    pub(crate) fn of(path: PathBuf) -> Self {
        let bytes = JOURNAL.cells().unwrap() as u64 * 8;
        let journal = Arc::new(Mapping::memfd("journal", bytes).unwrap());
        let pages = Arc::new(PagePool::new(64));
        Self { path, base: None, direct: false, journal, pages, storage_disk: None }
    }

    /// Puts the layer over a raw file of half its size, filled with sevens.
    fn over_base(self, dir: &Path) -> Self {
        let base = dir.join("base.raw");
        std::fs::write(&base, vec![7; (SIZE / 2) as usize]).unwrap();
        Self { base: Some(base), ..self }
    }

    pub(crate) fn file(&self, path: &Path, read_only: bool) -> Arc<FileDisk> {
        let options = FileOptions {
            path: path.into(),
            read_only,
            direct: self.direct,
            block_size: None,
            on_full: OnFull::Error,
        };
        let file = FileDisk::open_container(options, None).unwrap();
        self.storage_disk.iter().for_each(|disk| file.share_storage(Arc::clone(disk)));
        Arc::new(file)
    }

    pub(crate) fn open(&self) -> Arc<dyn Disk> {
        let below = self.base.as_ref().map(|base| self.file(base, true) as Arc<dyn Disk>);
        self.open_over(below, false)
    }

    /// Opens the layer over another disk.
    pub(crate) fn open_over(&self, below: Option<Arc<dyn Disk>>, read_only: bool) -> Arc<dyn Disk> {
        let file = self.file(&self.path, read_only);
        in_sectors(MappedDisk::open_qcow2(file, below, self.options(read_only)).unwrap())
    }

    /// Returns the layer with direct I/O.
    pub(crate) fn direct(self) -> Self {
        Self { direct: true, ..self }
    }

    pub(crate) fn options(&self, read_only: bool) -> LayerOptions {
        let journal = match read_only {
            true => Arc::new(Mapping::private(READ_ONLY_JOURNAL.cells().unwrap() * 8).unwrap()),
            false => self.journal.clone(),
        };
        LayerOptions {
            path: self.path.clone(),
            read_only,
            direct: self.direct,
            waits_for_room: true,
            journal,
            pages: self.pages.clone(),
        }
    }

    /// Checks the closed image with QEMU's tool.
    pub(crate) fn check(&self) {
        let output = Command::new("qemu-img").arg("check").arg(&self.path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
    }
}

/// Lets a disk have blocks of 512 bytes.
pub(crate) fn in_sectors(disk: MappedDisk) -> Arc<dyn Disk> {
    let disk = Arc::new(disk);
    match disk.geometry().block_size {
        512 => disk,
        _ => Arc::new(SmallBlocks::new(disk, 512)),
    }
}

#[test]
fn layers_conform() {
    for (bits, extended_l2) in [(16, true), (16, false), (12, false), (9, false), (21, true)] {
        let dir = dir();
        let layer = Layer::create(dir.path(), bits, extended_l2);
        conformance::run(layer.open());
        layer.check();
        let direct = Layer { direct: true, ..layer.over_base(dir.path()) };
        conformance::run(direct.open());
        direct.check();
    }
}

#[test]
fn writes_survive_a_close_and_hide_the_base() {
    for extended_l2 in [false, true] {
        let dir = dir();
        let layer = Layer::create(dir.path(), 16, extended_l2).over_base(dir.path());
        let disk = layer.open();
        disk.activate().unwrap();
        let client = Client::new(&disk);
        client.write(8192, vec![1; 4096]);
        client.write(60 << 10, vec![2; 8192]);
        client.write(SIZE / 2 - 512, vec![3; 1024]);
        let expected = |client: &Client| {
            let read = client.read(0, 192 << 10);
            assert_eq!(read[..8192], [7; 8192]);
            assert_eq!(read[8192..12288], [1; 4096]);
            assert_eq!(read[12288..60 << 10], [7; 48 << 10]);
            assert_eq!(read[60 << 10..68 << 10], [2; 8192]);
            assert_eq!(read[68 << 10..], [7; 124 << 10]);
            let read = client.read(SIZE / 2 - 1024, 4096);
            assert_eq!(read[..512], [7; 512]);
            assert_eq!(read[512..1536], [3; 1024]);
            assert_eq!(read[1536..], [0; 2560]);
        };
        expected(&client);
        drop(client);
        disk.deactivate().unwrap();
        drop(disk);
        layer.check();
        let disk = layer.open();
        disk.activate().unwrap();
        expected(&Client::new(&disk));
    }
}

#[test]
fn a_compressed_image_is_read_and_overwritten() {
    let dir = dir();
    let (raw, path) = (dir.path().join("content.raw"), dir.path().join("top.qcow2"));
    let content: Vec<_> = (0..SIZE).map(|at| (at / 3000 * 7) as u8).collect();
    std::fs::write(&raw, &content).unwrap();
    let convert = ["convert", "-c", "-O", "qcow2"];
    let status = Command::new("qemu-img").args(convert).arg(&raw).arg(&path).status().unwrap();
    assert!(status.success());
    let layer = Layer::of(path);
    let disk = layer.open();
    disk.activate().unwrap();
    let client = Client::new(&disk);
    assert!(client.read(0, SIZE) == content);
    client.write(100 << 10, vec![9; 3072]);
    let mut expected = content;
    expected[100 << 10..103 << 10].fill(9);
    assert!(client.read(0, SIZE) == expected);
    drop(client);
    disk.deactivate().unwrap();
    layer.check();
    assert!(layer.base.is_none());
    let file = std::fs::File::open(&layer.path).unwrap();
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).unwrap();
    assert_eq!(&magic, b"QFI\xfb");
}

/// Returns where data is, in units of 4 KiB.
fn stored(disk: &Arc<dyn Disk>, limit: usize) -> Vec<(u64, u64)> {
    let (mut at, mut stored) = (0, Vec::new());
    while at < SIZE {
        let found = disk.extents(at, SIZE - at, limit).unwrap();
        assert!((1..=limit).contains(&found.len()), "{found:?}");
        for extent in found {
            if !extent.hole {
                stored.push((at >> 12, extent.len >> 12));
            }
            at += extent.len;
        }
    }
    assert_eq!(at, SIZE);
    stored
}

#[test]
fn extents_show_what_the_layers_store() {
    for extended_l2 in [false, true] {
        let dir = dir();
        let layer = Layer::create(dir.path(), 16, extended_l2).over_base(dir.path());
        let base = std::fs::File::create(dir.path().join("base.raw")).unwrap();
        base.set_len(SIZE / 2).unwrap();
        base.write_all_at(&[7; 1 << 20], 1 << 20).unwrap();
        let disk = layer.open();
        assert_eq!(stored(&disk, 9), [(0, SIZE >> 12)], "no owner knows the map");
        disk.activate().unwrap();
        let client = Client::new(&disk);
        assert_eq!(stored(&disk, 9), [(256, 256)], "the base");
        client.write(4096, vec![1; 4096]);
        client.write(6 << 20, vec![2; 128 << 10]);
        let zeroes = disk::RequestKind::WriteZeroes { unmap: true, durable: false };
        assert_eq!(client.run(zeroes, 1 << 20, 64 << 10, Vec::new()).0, Ok(()));
        // Without subclusters, a write fills its cluster.
        let first = if extended_l2 { (1, 1) } else { (0, 16) };
        let expected = [first, (272, 240), (1536, 32)];
        assert_eq!(stored(&disk, 1), expected);
        assert_eq!(stored(&disk, 99), expected);
        drop(client);
        disk.deactivate().unwrap();
        disk.activate().unwrap();
        assert_eq!(stored(&disk, 99), expected, "loaded from the image");
        assert_eq!(disk.extents(1 << 20, 4096, 1).unwrap().len(), 1);
        disk.deactivate().unwrap();
        assert_eq!(stored(&disk, 99), [(0, SIZE >> 12)], "the owner has stopped");
    }
}

#[test]
fn a_scan_for_extents_takes_no_pages_of_the_map() {
    let dir = dir();
    let layer = Layer::create(dir.path(), 16, true);
    let disk = layer.open();
    disk.activate().unwrap();
    stored(&disk, 99);
    let client = Client::new(&disk);
    client.write(0, vec![1; 4096]);
    assert_eq!(stored(&disk, 99), [(0, 1)]);
    assert_eq!(layer.pages.used(), 1, "the page of the write");
}

#[test]
fn the_work_of_a_layer_is_counted() {
    let dir = dir();
    let layer = Layer::create(dir.path(), 16, false).over_base(dir.path());
    let disk = layer.open();
    let counts = || disk.layer_counts().unwrap();
    assert_eq!(counts(), LayerCounts { layers: 1, ..LayerCounts::default() });
    disk.activate().unwrap();
    let client = Client::new(&disk);
    client.write(4096, vec![1; 4096]);
    let first = counts();
    assert_eq!((first.fills, first.read_modify_writes, first.allocations), (1, 1, 1));
    assert_eq!((first.questions, first.answers), (1, 1));
    assert!(first.wait_ns > 0);
    assert_eq!((first.pages, first.rounds, first.limbo_bytes), (1, 0, 0));
    // A known place asks nothing.
    client.write(4096, vec![2; 4096]);
    assert_eq!(counts(), first);
    client.write(64 << 10, vec![3; 64 << 10]);
    assert_eq!((counts().fills, counts().read_modify_writes), (2, 1), "a whole cluster");
    let zeroes = disk::RequestKind::WriteZeroes { unmap: true, durable: false };
    assert_eq!(client.run(zeroes, 0, 64 << 10, Vec::new()).0, Ok(()));
    assert_eq!((counts().limbo_bytes, counts().held_bytes), (64 << 10, 0), "not durable");
    let waited = counts().wait_ns;
    assert_eq!(client.run(disk::RequestKind::Flush, 0, 0, Vec::new()).0, Ok(()));
    assert_eq!((counts().rounds, counts().wait_ns), (1, waited), "a flush waits for the storage");
    // The owner frees clusters before it answers the next question.
    client.read(1 << 20, 512);
    client.write(1 << 20, vec![4; 64 << 10]);
    assert_eq!(counts().limbo_bytes, 0);
    drop(client);
    disk.deactivate().unwrap();
    disk.activate().unwrap();
    assert_eq!(counts().allocations, 3, "counts go on");
    disk.deactivate().unwrap();
}

#[test]
fn an_image_grows_and_shows_nothing_of_a_longer_base() {
    for extended_l2 in [false, true] {
        let dir = dir();
        let layer = Layer::create(dir.path(), 12 + 4 * u32::from(extended_l2), extended_l2);
        let layer = layer.over_base(dir.path());
        std::fs::write(dir.path().join("base.raw"), vec![7; 3 * SIZE as usize / 2]).unwrap();
        let disk = layer.open();
        let refused = |size| disk.resize(Some(size)).unwrap_err().to_string();
        assert!(refused(2 * SIZE).contains("not active"));
        disk.activate().unwrap();
        let client = Client::new(&disk);
        client.write(4096, vec![1; 4096]);
        drop(client);
        assert!(refused(SIZE / 2).contains("cannot shrink"));
        assert!(refused(SIZE + 7).contains("not a multiple"));
        assert_eq!(disk.resize(None).unwrap().size, SIZE);
        assert_eq!(disk.resize(Some(2 * SIZE)).unwrap().size, 2 * SIZE);
        let client = Client::new(&disk);
        let read = client.read(0, 2 * SIZE);
        let part = |start: u64, end: u64| &read[start as usize..end as usize];
        assert!(part(4096, 8192).iter().all(|byte| *byte == 1));
        assert!(part(8192, SIZE).iter().all(|byte| *byte == 7));
        assert!(part(SIZE, 2 * SIZE).iter().all(|byte| *byte == 0));
        client.write(2 * SIZE - 4096, vec![2; 4096]);
        drop(client);
        disk.deactivate().unwrap();
        layer.check();
        let again = layer.open();
        assert_eq!(again.geometry().size, 2 * SIZE);
        again.activate().unwrap();
        assert_eq!(Client::new(&again).read(2 * SIZE - 4096, 4096), [2; 4096]);
    }
}

#[test]
fn known_blocks_ask_nothing_and_sequential_writes_little() {
    let dir = dir();
    let layer = Layer::create(dir.path(), 16, true);
    let disk = layer.open();
    disk.activate().unwrap();
    let client = Client::new(&disk);
    let questions = || disk.layer_counts().unwrap().questions;
    for at in 0..SIZE >> 16 {
        client.write(at << 16, vec![1; 64 << 10]);
    }
    assert!(questions() < 20, "{} questions for 128 clusters", questions());
    client.write(SIZE / 2, vec![2; 4096]);
    let before = questions();
    client.write(SIZE / 2 + 8192, vec![3; 4096]);
    assert_eq!(client.read(SIZE / 2, 4096), [2; 4096]);
    assert_eq!(client.read(SIZE / 2 + 8192, 4096), [3; 4096]);
    assert_eq!(questions(), before);
    drop(client);
    disk.deactivate().unwrap();
    layer.check();
}
/// Returns a layer whose map has 32 pages of 256 KiB, with these pages in memory at most.
fn layer_of_many_pages(dir: &Path, pages: &Arc<PagePool>) -> Layer {
    Layer { pages: Arc::clone(pages), ..Layer::create(dir, 9, false) }
}

#[test]
fn a_layer_conforms_with_few_pages_in_memory() {
    for reads_base in [false, true] {
        let (dir, pages) = (dir(), Arc::new(PagePool::new(0)));
        let layer = layer_of_many_pages(dir.path(), &pages);
        let layer = if reads_base { layer.over_base(dir.path()) } else { layer };
        conformance::run(layer.open());
        layer.check();
        assert_eq!(pages.used(), 0, "a closed disk gives its pages back");
    }
}

#[test]
fn a_disk_that_touches_everything_leaves_other_disks_their_pages() {
    let pages = Arc::new(PagePool::new(16));
    let (greedy_dir, other_dir) = (dir(), dir());
    let greedy = layer_of_many_pages(greedy_dir.path(), &pages).open();
    let other = layer_of_many_pages(other_dir.path(), &pages).open();
    let clients = [&greedy, &other].map(|disk| {
        disk.activate().unwrap();
        Client::new(disk)
    });
    let places = |round: u64| (0..32).map(move |page| (page * 7 + round) % 32 * (256 << 10));
    for at in places(0) {
        clients[0].write(at, vec![1; 512]);
    }
    assert_eq!(pages.used(), 16, "no page is left");
    for round in 1..4 {
        for at in places(round) {
            clients[1].write(at, vec![2; 512]);
            clients[0].write(at + 512, vec![3; 512]);
        }
    }
    assert!(pages.used() <= 16 + 4, "{} pages", pages.used());
    for at in places(5) {
        assert_eq!(clients[0].read(at, 1024), [[1; 512], [3; 512]].concat());
        assert_eq!(clients[1].read(at, 1024), [[2; 512], [0; 512]].concat());
    }
}

#[test]
fn fills_that_wait_for_memory_go_on_when_others_end() {
    const CLUSTERS: u64 = 24;
    let dir = dir();
    let path = dir.path().join("top.qcow2");
    let options =
        CreateOptions { cluster_bits: 21, extended_l2: false, ..CreateOptions::new(SIZE) };
    create_file(&path, &CreateOptions { size: CLUSTERS << 21, ..options }).unwrap();
    let layer = Layer::of(path);
    let disk = layer.open();
    disk.activate().unwrap();
    // Together they need three times the memory that fills may have.
    let client = Client::new(&disk);
    let write = RequestKind::Write { durable: false };
    let places = || (0..CLUSTERS).map(|cluster| (cluster << 21) + 4096 * cluster);
    let sent: Vec<_> =
        places().map(|place| client.send(write, place, 512, vec![9; 512], 0)).collect();
    sent.into_iter().for_each(|one| assert_eq!(one.wait().0, Ok(())));
    for place in places() {
        let around = client.read(place & !0x1f_ffff, 1 << 20);
        assert!(around.iter().filter(|byte| **byte == 9).count() == 512, "at {place}");
        assert!(around.iter().filter(|byte| **byte == 0).count() == (1 << 20) - 512);
    }
    drop(client);
    disk.deactivate().unwrap();
    layer.check();
}

#[test]
fn a_write_that_waits_for_another_channel_ends_when_that_channel_has_nothing_else() {
    let dir = dir();
    // The first write to a cluster fills it, and the second one waits for that.
    let disk = Layer::create(dir.path(), 16, false).over_base(dir.path()).open();
    disk.activate().unwrap();
    let clients = [Client::new(&disk), Client::new(&disk)];
    for cluster in 0..(SIZE / 2) >> 16 {
        let write = |(client, at): (&Client, u64)| {
            let offset = (cluster << 16) + (at << 12);
            client.send(RequestKind::Write { durable: false }, offset, 4096, vec![1; 4096], 0)
        };
        let sent: Vec<_> = clients.iter().zip(0..).map(write).collect();
        sent.into_iter().for_each(|one| assert_eq!(one.wait().0, Ok(())));
    }
    drop(clients);
    disk.deactivate().unwrap();
}

#[test]
fn a_discard_of_many_clusters_asks_little() {
    let dir = dir();
    let layer = Layer::create(dir.path(), 12, false).over_base(dir.path());
    let disk = layer.open();
    disk.activate().unwrap();
    let client = Client::new(&disk);
    for at in (0..SIZE).step_by(1 << 20) {
        client.write(at, vec![1; 1 << 20]);
    }
    let before = disk.layer_counts().unwrap().questions;
    // 2,047 whole clusters, and a part of one at both ends.
    assert_eq!(client.run(RequestKind::Discard, 512, SIZE - 1024, Vec::new()).0, Ok(()));
    let asked = disk.layer_counts().unwrap().questions - before;
    assert!(asked <= 10, "{asked} questions");
    let content = client.read(0, SIZE);
    assert!(content[4096..content.len() - 4096].iter().all(|byte| *byte == 0));
    assert!(content[..4096].iter().all(|byte| *byte == 1));
    drop(client);
    disk.deactivate().unwrap();
    layer.check();
}
