//! A disk of 1 GiB with little data: its images are small. Only the raw format has every byte; a
//! small disk shows that one.

use std::os::unix::fs::FileExt;

use super::foreign::qemu_img;
use super::*;

/// Size of the disk in bytes.
const LARGE: u64 = 1 << 30;

/// Formats of images: Ringway's name, that of `qemu-img`, and its options.
const FORMATS: [(&str, &str, &str); 2] =
    [("vhd", "vpc", "force_size=on"), ("qcow2", "qcow2", "cluster_size=64k")];

/// Writes a file of the disk's size with this byte in a few pieces.
fn sparse(path: &Path, seed: u8, pieces: &[(u64, usize)]) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path).unwrap();
    file.set_len(LARGE).unwrap();
    for (offset, length) in pieces {
        file.write_all_at(&vec![seed; *length], *offset).unwrap();
    }
}

#[test]
fn a_sparse_disk_of_a_gibibyte_goes_out_and_comes_back() {
    let mut world = World::new();
    let folder = world.daemon.dir().join("files");
    std::fs::create_dir(&folder).unwrap();
    let pieces = [(0, 512), ((3 << 20) - 512, 1024), (700 << 20, 150_000), (LARGE - 512, 512)];
    sparse(&folder.join("first"), 5, &pieces);
    std::fs::copy(folder.join("first"), folder.join("second")).unwrap();
    sparse(&folder.join("second"), 8, &[(512, 4096), (900 << 20, 70_000)]);
    for (own, other) in [(0, 1), (1, 0)] {
        let (name, _, _) = FORMATS[own];
        let [disk, copy] = [name, "raw"].map(|format| world.disk_of_size(format, LARGE));
        // Whole, as `qemu-img` makes it and as Ringway does.
        fill(&world, &folder, &disk, "first", own);
        let image = out(&world, &disk, &format!("format={name}"));
        assert!(image.len() < 16 << 20, "{name}: {}", image.len());
        assert_same(&folder, &image, own, "first");
        assert_eq!(world.put(&format!("vdi={copy}&format={name}"), &image).status, 200);
        // The difference, which brings the copy to the second state.
        let snapshot = world.snapshot(&disk);
        fill(&world, &folder, &disk, "second", other);
        let delta = out(&world, &disk, &format!("format=vhd&base={snapshot}"));
        assert!(delta.len() < 16 << 20, "{name}: {}", delta.len());
        assert_eq!(world.put(&format!("vdi={copy}&format=vhd"), &delta).status, 200);
        for (one, content) in [(&disk, "second"), (&copy, "second"), (&snapshot, "first")] {
            let image = out(&world, one, &format!("format={}", FORMATS[other].0));
            assert_same(&folder, &image, other, content);
        }
        let used = world.client.record("VDI", &copy).unwrap().int("physical_utilisation");
        assert!(used < 16 << 20, "zeroes take no space: {used}");
    }
}

/// Imports a file into a disk as an image of `qemu-img`.
fn fill(world: &World, folder: &Path, disk: &str, content: &str, format: usize) {
    let (name, theirs, options) = FORMATS[format];
    let make = ["convert", "-f", "raw", "-O", theirs, "-o", options, content, "image"];
    qemu_img(folder, &make);
    let image = std::fs::read(folder.join("image")).unwrap();
    let put = world.put(&format!("vdi={disk}&format={name}"), &image);
    assert_eq!(put.status, 200, "{}", put.text());
}

fn out(world: &World, disk: &str, query: &str) -> Vec<u8> {
    let answer = world.get(&format!("vdi={disk}&{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.body
}

/// Checks that `qemu-img` finds the bytes of a file in an image.
fn assert_same(folder: &Path, image: &[u8], format: usize, content: &str) {
    write(&folder.join("exported"), image);
    qemu_img(folder, &["compare", "-f", "raw", "-F", FORMATS[format].1, content, "exported"]);
}
