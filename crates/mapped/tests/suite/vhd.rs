//! Tests that layers in VHDs serve requests as other disks do, and that QEMU reads what they wrote.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use disk::conformance::{self, Client};
use disk::{Disk, FileDisk, FileOptions, OnFull, RequestKind};
use image::vhd::{CreateOptions, Parent, create_file};
use mapped::MappedDisk;

use crate::layers::{Layer, dir, in_sectors};
use crate::xenserver;

const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 2 << 20;

fn open(layer: &Layer, below: Option<Arc<dyn Disk>>) -> Arc<dyn Disk> {
    let file = layer.file(&layer.path, false);
    in_sectors(MappedDisk::open_vhd(file, below, None, layer.options(false)).unwrap())
}

fn change(client: &Client, kind: RequestKind, offset: u64, len: u64) {
    client.run(kind, offset, len, Vec::new()).0.unwrap();
}

fn created(path: &Path, options: &CreateOptions) -> Layer {
    create_file(path, options).unwrap();
    Layer::of(path.into())
}

/// Returns a differencing image over a raw file of half its size, filled with sevens.
fn over_raw(dir: &Path, size: u64) -> (Layer, Arc<dyn Disk>) {
    let base = dir.join("base.raw");
    std::fs::write(&base, vec![7; (SIZE / 2) as usize]).unwrap();
    let parent = Parent { file: "base.raw".into(), unique_id: [0; 16], unix_seconds: 0 };
    let layer = created(&dir.join("top.vhd"), &CreateOptions::differencing(size, parent));
    let below = layer.file(&base, true);
    (layer, below)
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} (package qemu-utils): {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // qemu-io exits with 0 when a pattern differs.
    let is_good = output.status.success() && !text.contains("failed");
    assert!(is_good, "{program} {args:?}: {text}");
}

/// Returns the disk of an image as QEMU reads it.
fn read_by_qemu(layer: &Layer) -> Vec<u8> {
    let raw = layer.path.with_extension("raw");
    let (path, out) = (layer.path.to_str().unwrap(), raw.to_str().unwrap());
    run("qemu-img", &["convert", "-f", "vpc", "-O", "raw", path, out]);
    std::fs::read(raw).unwrap()
}

#[test]
fn layers_conform() {
    for size in [SIZE, SIZE - 512] {
        let dir = dir();
        let layer = created(&dir.path().join("a.vhd"), &CreateOptions::dynamic(size));
        conformance::run(open(&layer, None));
        let direct = layer.direct();
        let disk = open(&direct, None);
        conformance::run(Arc::clone(&disk));
        disk.activate().unwrap();
        let found = Client::new(&disk).read(0, size);
        disk.deactivate().unwrap();
        assert!(read_by_qemu(&direct) == found);
        let (over, below) = over_raw(dir.path(), size);
        conformance::run(open(&over, Some(below)));
    }
}

#[test]
fn images_of_qemu_are_written() {
    for options in ["subformat=dynamic", "subformat=dynamic,force_size=on"] {
        let dir = dir();
        let path = dir.path().join("a.vhd");
        let text = path.to_str().unwrap();
        run("qemu-img", &["create", "-q", "-f", "vpc", "-o", options, text, "8M"]);
        run("qemu-io", &["-f", "vpc", "-c", "write -q -P 5 1M 64k", text]);
        let layer = Layer::of(path.clone());
        let disk = open(&layer, None);
        disk.activate().unwrap();
        let (client, size) = (Client::new(&disk), disk.geometry().size);
        assert_eq!(client.read(1 << 20, 65536), [5; 65536]);
        client.write((1 << 20) + 512, vec![6; 1024]);
        client.write(3 << 20, vec![9; 4096]);
        client.write(size - 512, vec![8; 512]);
        let found = client.read(0, size);
        drop(client);
        disk.deactivate().unwrap();
        assert!(read_by_qemu(&layer) == found, "{options}");
        for command in [
            "read -q -P 6 1048 1k".replace("1048 ", "1049088 "),
            "write -q -P 3 5M 4k".into(),
            "read -q -P 9 3M 4k".into(),
        ] {
            run("qemu-io", &["-f", "vpc", "-c", &command, text]);
        }
        let disk = open(&layer, None);
        disk.activate().unwrap();
        assert_eq!(Client::new(&disk).read(5 << 20, 4096), [3; 4096]);
        disk.deactivate().unwrap();
    }
}

#[test]
fn writes_survive_a_close_and_hide_the_parent() {
    let dir = dir();
    let (layer, below) = over_raw(dir.path(), SIZE);
    let disk = open(&layer, Some(Arc::clone(&below)));
    disk.activate().unwrap();
    let client = Client::new(&disk);
    client.write(8192, vec![1; 4096]);
    client.write(SIZE / 2 - 512, vec![3; 1024]);
    change(&client, RequestKind::WriteZeroes { unmap: true, durable: false }, 1 << 20, 1 << 20);
    let expected = |client: &Client| {
        let read = client.read(0, 16384);
        assert_eq!((&read[..8192], &read[8192..12288]), (&[7; 8192][..], &[1; 4096][..]));
        assert_eq!(client.read(SIZE / 2 - 1024, 512), [7; 512]);
        assert_eq!(client.read(SIZE / 2 - 512, 1024), [3; 1024]);
        assert_eq!(client.read(1 << 20, 1 << 20), [0; 1 << 20]);
        assert_eq!(client.read(2 << 20, 4096), [7; 4096]);
    };
    expected(&client);
    drop(client);
    disk.deactivate().unwrap();
    let disk = open(&layer, Some(below));
    disk.activate().unwrap();
    expected(&Client::new(&disk));
    disk.deactivate().unwrap();
}

#[test]
fn a_discarded_block_is_free_and_used_again() {
    let dir = dir();
    let layer = created(&dir.path().join("a.vhd"), &CreateOptions::dynamic(SIZE));
    let disk = open(&layer, None);
    disk.activate().unwrap();
    let client = Client::new(&disk);
    for round in 0..3 {
        client.write(BLOCK, vec![round + 1; BLOCK as usize]);
        change(&client, RequestKind::Flush, 0, 0);
        assert_eq!(client.read(2 * BLOCK - 512, 512), [round + 1; 512]);
        change(&client, RequestKind::Discard, BLOCK, BLOCK);
        change(&client, RequestKind::Flush, 0, 0);
        assert_eq!(client.read(BLOCK, BLOCK), [0; BLOCK as usize]);
    }
    client.write(3 * BLOCK, vec![9; 4096]);
    drop(client);
    disk.deactivate().unwrap();
    drop(disk);
    let found = read_by_qemu(&layer);
    assert!(found[BLOCK as usize..2 * BLOCK as usize].iter().all(|byte| *byte == 0));
    assert_eq!(found[3 * BLOCK as usize], 9);
}

#[test]
fn a_disk_grows() {
    let dir = dir();
    let layer = created(&dir.path().join("a.vhd"), &CreateOptions::dynamic(SIZE));
    let disk = open(&layer, None);
    disk.activate().unwrap();
    Client::new(&disk).write(SIZE - 4096, vec![1; 4096]);
    disk.resize(Some(3 * SIZE)).unwrap();
    let client = Client::new(&disk);
    assert_eq!(client.read(SIZE, 4096), [0; 4096]);
    client.write(3 * SIZE - 4096, vec![2; 4096]);
    let found = client.read(0, 3 * SIZE);
    drop(client);
    disk.deactivate().unwrap();
    assert!(read_by_qemu(&layer) == found);
}

#[test]
fn another_parent_is_refused() {
    let dir = dir();
    let parent = Parent { file: "b.vhd".into(), unique_id: [4; 16], unix_seconds: 0 };
    let layer = created(&dir.path().join("a.vhd"), &CreateOptions::differencing(SIZE, parent));
    let base = created(&dir.path().join("b.vhd"), &CreateOptions::dynamic(SIZE));
    let before = std::fs::read(&layer.path).unwrap();
    for (id, text) in [(Some([5; 16]), "with that identity"), (None, "state the parent")] {
        let below = open(&base, None);
        let file = layer.file(&layer.path, false);
        let refused = MappedDisk::open_vhd(file, Some(below), id, layer.options(false));
        let problem = refused.unwrap_err().to_string();
        assert!(problem.contains(text) && problem.contains("04040404-0404"), "{problem}");
    }
    let file = base.file(&base.path, false);
    let refused = MappedDisk::open_vhd(file, Some(open(&layer, None)), None, base.options(false));
    let problem = refused.unwrap_err().to_string();
    assert!(problem.contains("no differencing image"), "{problem}");
    assert!(std::fs::read(&layer.path).unwrap() == before);
}

/// Returns a child over a parent, both as XenServer makes them. The child has a part of 4 KiB.
fn chain(dir: &Path) -> (Layer, Arc<dyn Disk>) {
    let stored = [(0, 128), (128, 136), (300, 303)];
    let child = xenserver::image(SIZE, true, &[Some((&stored, 5)), None, None, None]);
    let mut parent = xenserver::image(SIZE, false, &[Some((&[(0, 4096)], 7)), None, None, None]);
    for at in [0, parent.len() - 512] {
        xenserver::put(&mut parent, at + 68, &xenserver::PARENT_ID);
        xenserver::seal(&mut parent[at..at + 512], 64);
    }
    std::fs::write(dir.join("child.vhd"), child).unwrap();
    std::fs::write(dir.join("parent.vhd"), parent).unwrap();
    let parent = Layer::of(dir.join("parent.vhd"));
    let below =
        MappedDisk::open_vhd(parent.file(&parent.path, true), None, None, parent.options(true));
    (Layer::of(dir.join("child.vhd")), in_sectors(below.unwrap()))
}

#[test]
fn parts_of_a_block_are_read_and_filled() {
    let dir = dir();
    let (layer, below) = chain(dir.path());
    let open = || {
        let file = layer.file(&layer.path, false);
        let (below, id) = (Some(Arc::clone(&below)), Some(xenserver::PARENT_ID));
        in_sectors(MappedDisk::open_vhd(file, below, id, layer.options(false)).unwrap())
    };
    let mut expected = vec![7; BLOCK as usize];
    for (first, end) in [(0, 136), (300, 303)] {
        expected[first * 512..end * 512].fill(5);
    }
    let file = layer.file(&layer.path, true);
    let id = Some(xenserver::PARENT_ID);
    let lower = MappedDisk::open_vhd(file, Some(Arc::clone(&below)), id, layer.options(true));
    let top = dir.path().join("top.qcow2");
    image::qcow2::create_file(&top, &image::qcow2::CreateOptions::new(SIZE)).unwrap();
    let disk = Layer::of(top).open_over(Some(Arc::new(lower.unwrap())), false);
    disk.activate().unwrap();
    assert!(Client::new(&disk).read(0, BLOCK) == expected, "below another layer");
    disk.deactivate().unwrap();
    drop(disk);
    let disk = open();
    disk.activate().unwrap();
    let client = Client::new(&disk);
    assert!(client.read(0, BLOCK) == expected);
    // A sector of the part, a block beside it, and sectors of the parent.
    for (sector, count, value) in [(301, 1, 1), (304, 8, 2), (298, 2, 3), (1000, 1, 4)] {
        let (at, len) = (sector * 512, count * 512);
        client.write(at as u64, vec![value; len]);
        expected[at..at + len].fill(value);
    }
    assert!(client.read(0, BLOCK) == expected);
    drop(client);
    disk.deactivate().unwrap();
    drop(disk);
    let disk = open();
    disk.activate().unwrap();
    assert!(Client::new(&disk).read(0, BLOCK) == expected);
    disk.deactivate().unwrap();
    drop(disk);
    let file = std::fs::File::open(&layer.path).unwrap();
    let file = image::PlainFile::new(file.into());
    let image = image::run_now(image::vhd::Image::open(file, image::format::Access::Read));
    let report = image::run_now(image.unwrap().check()).unwrap();
    assert_eq!(report.faults, []);
}

#[test]
fn data_beside_the_blocks_of_direct_storage_is_refused() {
    let dir = dir();
    let path = dir.path().join("a.vhd");
    let text = path.to_str().unwrap();
    run("qemu-img", &["create", "-q", "-f", "vpc", "-o", "force_size=on", text, "8M"]);
    run("qemu-io", &["-f", "vpc", "-c", "write -q -P 5 1M 64k", text]);
    let layer = Layer::of(path).direct();
    let options = FileOptions {
        path: layer.path.clone(),
        read_only: true,
        direct: true,
        block_size: Some(4096),
        on_full: OnFull::Error,
    };
    let file = Arc::new(FileDisk::open_container(options, None).unwrap());
    let refused = MappedDisk::open_vhd(file, None, None, layer.options(true));
    let problem = refused.unwrap_err().to_string();
    assert!(problem.contains("cache=writeback"), "{problem}");
}
