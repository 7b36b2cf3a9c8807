//! Content, map and check of images of every kind agree with QEMU's.

use std::path::Path;

use crate::qemu::{
    Scratch, check, converted, map, open, qemu_check, qemu_img, qemu_io, qemu_map, read_all,
};

/// Size of the disks, not a multiple of the larger clusters.
pub(crate) const SIZE: u64 = (10 << 20) + 3 * 512;

/// Simple generator of numbers that repeat with the seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Returns writes, zeroes and discards for `qemu-io`. If the image is empty, compressed writes
/// come first: QEMU refuses them where a cluster is allocated.
pub(crate) fn work(seed: u64, count: u64, cluster: u64, is_empty: bool) -> Vec<String> {
    let mut numbers = Numbers(seed);
    let clusters = SIZE / cluster;
    let compressed = (0..if is_empty { clusters.min(24) } else { 0 }).map(|index| {
        let at = index * (clusters / clusters.min(24)) * cluster;
        format!("write -q -c -P {} {at} {cluster}", index + 1)
    });
    let command = |_| {
        let first = numbers.below(clusters);
        let len = (numbers.below(3) + 1).min(clusters - first).min((1 << 20) / cluster).max(1);
        let (at, bytes) = (first * cluster, len * cluster);
        let sector = numbers.below(SIZE / 512 - 64) * 512;
        let sectors = (numbers.below(64) + 1) * 512;
        let pattern = numbers.below(255) + 1;
        match numbers.below(8) {
            0 | 1 => format!("write -q -P {pattern} {at} {bytes}"),
            2 | 3 => format!("write -q -P {pattern} {sector} {sectors}"),
            4 => format!("write -q -z {sector} {sectors}"),
            5 => format!("write -q -z -u {at} {bytes}"),
            6 => format!("discard -q {at} {bytes}"),
            _ => format!("write -q -P {pattern} {sector} 512"),
        }
    };
    compressed.chain((0..count).map(command)).collect()
}

/// Compares everything that both sides can say about an image.
fn agree(scratch: &Scratch, path: &Path, backing: &[u8], what: &str) {
    let expected = converted(scratch, path);
    let mut image = open(path);
    assert!(read_all(&mut image, backing) == expected, "{what}: content");
    assert_eq!(map(&mut image), qemu_map(path), "{what}: map");
    let report = check(path);
    assert_eq!((report.errors, report.leaks), qemu_check(path), "{what}: {:?}", report.faults);
    assert!(report.is_clean(), "{what}: {:?}", report.faults);
}

#[test]
fn images_of_every_kind_read_as_by_qemu() {
    let kinds = [
        ("compat=0.10", 65536, true),
        ("compat=0.10,cluster_size=4k", 4096, true),
        ("", 65536, true),
        ("cluster_size=512", 512, true),
        ("cluster_size=4k,refcount_bits=8", 4096, true),
        ("cluster_size=2M", 2 << 20, true),
        ("refcount_bits=1", 65536, true),
        ("refcount_bits=2,cluster_size=1k", 1024, true),
        ("refcount_bits=64", 65536, true),
        ("lazy_refcounts=on", 65536, false),
        ("compression_type=zstd", 65536, true),
        ("compression_type=zstd,cluster_size=2M", 2 << 20, true),
        ("extended_l2=on", 65536, true),
        ("extended_l2=on,cluster_size=16k", 16384, true),
        ("extended_l2=on,cluster_size=2M", 2 << 20, true),
        ("extended_l2=on,compression_type=zstd,cluster_size=128k", 131_072, true),
        ("preallocation=metadata", 65536, false),
        ("preallocation=falloc", 65536, false),
        ("preallocation=full", 65536, false),
        ("preallocation=metadata,extended_l2=on", 65536, false),
    ];
    for (seed, (options, cluster, can_compress)) in (1..).zip(kinds) {
        let scratch = Scratch::new();
        let path = scratch.image("a.qcow2", options, &SIZE.to_string());
        agree(&scratch, &path, &[], &format!("{options:?}, empty"));
        qemu_io(&path, &work(seed, 60, cluster, can_compress));
        agree(&scratch, &path, &[], &format!("{options:?}"));
    }
}

#[test]
fn what_an_image_does_not_have_is_that_of_its_backing() {
    for options in ["", "extended_l2=on", "cluster_size=4k"] {
        let scratch = Scratch::new();
        let base = scratch.path("base.raw");
        let bytes: Vec<u8> = (0..SIZE - 40960).map(|n| (n / 512 % 251) as u8 + 1).collect();
        std::fs::write(&base, &bytes).unwrap();
        let over_raw = format!("backing_file={},backing_fmt=raw", base.display());
        let all = [options, &over_raw].join(if options.is_empty() { "" } else { "," });
        let top = scratch.image("top.qcow2", &all, &SIZE.to_string());
        qemu_io(&top, &work(77, 40, 65536, true));
        agree(&scratch, &top, &bytes, options);
        let middle_bytes = converted(&scratch, &top);
        let over_qcow2 = format!("backing_file={},backing_fmt=qcow2", top.display());
        let all = [options, &over_qcow2].join(if options.is_empty() { "" } else { "," });
        let leaf = scratch.image("leaf.qcow2", &all, &SIZE.to_string());
        qemu_io(&leaf, &work(78, 40, 65536, true));
        agree(&scratch, &leaf, &middle_bytes, options);
        let image = open(&leaf);
        let backing = image.header().backing().unwrap();
        assert_eq!((&*backing.file, backing.format.as_deref()), (&*top, Some("qcow2")));
    }
}

#[test]
fn snapshots_bitmaps_and_resizes_of_others_are_accounted_for() {
    for options in ["compat=1.1", "extended_l2=on", "cluster_size=1k"] {
        let scratch = Scratch::new();
        let path = scratch.image("a.qcow2", options, &SIZE.to_string());
        let name = path.to_str().unwrap();
        qemu_img(&["bitmap", "--add", "-g", "65536", name, "changes"]);
        qemu_io(&path, &work(5, 40, 65536, true));
        qemu_img(&["snapshot", "-c", "first", name]);
        qemu_io(&path, &work(6, 40, 65536, false));
        qemu_img(&["snapshot", "-c", "second", name]);
        qemu_io(&path, &work(7, 20, 65536, false));
        agree(&scratch, &path, &[], options);
        let info = image::run_now(open(&path).info()).unwrap();
        let names: Vec<_> = info.snapshots.iter().map(|snapshot| &*snapshot.name).collect();
        assert_eq!(names, ["first", "second"]);
        assert_eq!(info.snapshots[0].disk_bytes, Some(SIZE));
        assert_eq!((&*info.bitmaps[0].name, info.bitmaps[0].granularity), ("changes", 65536));
        qemu_img(&["bitmap", "--remove", name, "changes"]);
        qemu_img(&["resize", "-q", "-f", "qcow2", name, "40M"]);
        qemu_img(&["snapshot", "-d", "first", name]);
        agree(&scratch, &path, &[], options);
    }
}

#[test]
fn a_bitmap_that_a_foreign_writer_invalidated_is_leaked() {
    let scratch = Scratch::new();
    let path = scratch.image("a.qcow2", "", &SIZE.to_string());
    qemu_img(&["bitmap", "--add", path.to_str().unwrap(), "changes"]);
    qemu_io(&path, &work(5, 10, 65536, false));
    crate::qemu::patch(&path, 88, &0u64.to_be_bytes()); // autoclear bits
    let report = check(&path);
    assert!(report.errors == 0 && report.leaks > 0);
    assert_eq!((0, report.leaks), qemu_check(&path));
}

/// A small cache must evict, and give the same answers.
#[test]
fn the_answers_do_not_depend_on_the_cache() {
    let scratch = Scratch::new();
    let path = scratch.image("a.qcow2", "cluster_size=512", &SIZE.to_string());
    qemu_io(&path, &work(3, 80, 512, true));
    let expected = converted(&scratch, &path);
    let mut image = open(&path);
    image.set_cache_budget(0);
    assert!(read_all(&mut image, &[]) == expected);
}
