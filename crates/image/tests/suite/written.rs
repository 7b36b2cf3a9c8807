//! Images that are written through a map agree with QEMU's tools.

use std::path::Path;

use image::qcow2::Qcow2Format;
use image::{ImageError, run_now};

use crate::content::{Numbers, SIZE, work};
use crate::disk::{MappedDisk, file, new_journal};
use crate::qemu::{Scratch, check, converted, qemu_check, qemu_img, qemu_io};

/// Writes and discards at random, in three processes: the second one dies without a flush.
fn churn(seed: u64, path: &Path, below: Option<&[u8]>, expected: &mut [u8]) {
    let journal = new_journal();
    let mut numbers = Numbers(seed);
    for life in 0..3 {
        let mut disk = MappedDisk::open(path, below, &journal);
        assert!(disk.read() == expected, "life {life}");
        let (size, granule) = (disk.size(), disk.granule_bytes());
        for _ in 0..60 {
            match numbers.below(8) {
                0 | 1 => {
                    let first = numbers.below(size / granule);
                    disk.discard(first);
                    let range = (first * granule) as usize..((first + 1) * granule) as usize;
                    expected[range].fill(0);
                }
                2 => disk.flush(),
                3 => disk.withdraw_discard(numbers.below(size / granule)),
                _ => {
                    let at = numbers.below(size / 512 - 200) * 512;
                    let len = (numbers.below(200) + 1) * 512;
                    let data = vec![numbers.below(255) as u8 + 1; len as usize];
                    disk.write(at, &data);
                    expected[at as usize..(at + len) as usize].copy_from_slice(&data);
                }
            }
        }
        assert!(disk.read() == expected, "life {life}");
        if life != 1 {
            disk.flush();
        }
    }
}

fn agree(scratch: &Scratch, path: &Path, expected: &[u8], what: &str) {
    let report = check(path);
    assert_eq!(report.errors, 0, "{what}: {:?}", report.faults);
    assert_eq!((0, report.leaks), qemu_check(path), "{what}: {:?}", report.faults);
    let raw = scratch.path("expected.raw");
    std::fs::write(&raw, expected).unwrap();
    let (path, raw) = (path.to_str().unwrap(), raw.to_str().unwrap());
    qemu_img(&["compare", "-f", "qcow2", "-F", "raw", path, raw]);
}

#[test]
fn written_images_are_clean_and_have_what_was_written() {
    let kinds = [
        ("cluster_size=512", 512),
        ("cluster_size=1k,refcount_bits=1", 1024),
        ("cluster_size=4k,refcount_bits=64", 4096),
        ("compat=0.10,cluster_size=4k", 4096),
        ("", 65536),
        ("compression_type=zstd,cluster_size=128k", 131_072),
        ("cluster_size=2M", 2 << 20),
        ("extended_l2=on,cluster_size=16k", 16384),
        ("extended_l2=on", 65536),
        ("extended_l2=on,cluster_size=2M", 2 << 20),
    ];
    for (seed, (options, cluster)) in (1..).zip(kinds) {
        let scratch = Scratch::new();
        let path = scratch.image("a.qcow2", options, &SIZE.to_string());
        qemu_io(&path, &work(seed, 30, cluster, true));
        let mut expected = converted(&scratch, &path);
        churn(seed, &path, None, &mut expected);
        agree(&scratch, &path, &expected, options);
        assert!(check(&path).is_clean(), "{options}: {:?}", check(&path).faults);
    }
}

#[test]
fn written_images_over_a_backing_are_clean() {
    for (seed, options) in (50..).zip(["extended_l2=on", "cluster_size=4k", ""]) {
        let scratch = Scratch::new();
        let base = scratch.path("base.raw");
        let bytes: Vec<u8> = (0..SIZE - 40960).map(|n| (n / 512 % 251) as u8 + 1).collect();
        std::fs::write(&base, &bytes).unwrap();
        let over = format!("backing_file={},backing_fmt=raw", base.display());
        let all = [options, &over].join(if options.is_empty() { "" } else { "," });
        let path = scratch.image("top.qcow2", &all, &SIZE.to_string());
        qemu_io(&path, &work(seed, 30, 65536, true));
        let mut expected = converted(&scratch, &path);
        churn(seed, &path, Some(&bytes), &mut expected);
        agree(&scratch, &path, &expected, options);
        assert!(check(&path).is_clean(), "{options}: {:?}", check(&path).faults);
    }
}

#[test]
fn snapshots_of_others_keep_their_content() {
    for (seed, options) in (70..).zip(["extended_l2=on", "cluster_size=1k", "", "refcount_bits=8"])
    {
        let scratch = Scratch::new();
        let path = scratch.image("a.qcow2", options, &SIZE.to_string());
        let name = path.to_str().unwrap();
        qemu_io(&path, &work(seed, 30, 65536, true));
        let first = converted(&scratch, &path);
        qemu_img(&["snapshot", "-c", "first", name]);
        qemu_io(&path, &work(seed + 1, 5, 65536, false));
        let mut expected = converted(&scratch, &path);
        qemu_img(&["snapshot", "-c", "second", name]);
        churn(seed, &path, None, &mut expected);
        agree(&scratch, &path, &expected, options);
        assert!(check(&path).is_clean(), "{options}: {:?}", check(&path).faults);
        qemu_img(&["snapshot", "-a", "first", name]);
        agree(&scratch, &path, &first, options);
        qemu_img(&["snapshot", "-d", "first", name]);
        qemu_img(&["snapshot", "-d", "second", name]);
        assert!(check(&path).is_clean(), "{options}: {:?}", check(&path).faults);
    }
}

/// Opens an image to write it, without a map.
fn open_format(path: &Path, has_below: bool) -> Result<Qcow2Format<crate::disk::File>, ImageError> {
    run_now(Qcow2Format::open(file(path), has_below))
}

#[test]
fn bitmaps_are_given_up_before_the_first_write_and_not_by_opening() {
    let scratch = Scratch::new();
    let path = scratch.image("a.qcow2", "", "1M");
    qemu_img(&["bitmap", "--add", path.to_str().unwrap(), "changes"]);
    let before = std::fs::read(&path).unwrap();
    drop(open_format(&path, false).unwrap());
    assert!(std::fs::read(&path).unwrap() == before);
    drop(MappedDisk::open(&path, None, &new_journal()));
    assert_eq!(crate::qemu::word(&path, 88), 0);
    assert!(run_now(crate::qemu::open(&path).bitmaps(1)).unwrap().is_empty());
    assert_eq!(qemu_check(&path).0, 0);
}

#[test]
fn version_2_over_a_backing_is_refused_because_it_cannot_say_zero() {
    let scratch = Scratch::new();
    let path = scratch.image("a.qcow2", "compat=0.10", "1M");
    let refused = open_format(&path, true).unwrap_err();
    assert!(refused.to_string().contains("amend"), "{refused}");
    assert!(open_format(&path, false).is_ok());
}

#[test]
fn a_larger_refcount_table_is_made_when_the_image_outgrows_it() {
    let scratch = Scratch::new();
    let options = "cluster_size=512,refcount_bits=64";
    let path = scratch.image("a.qcow2", options, "4M");
    qemu_io(&path, &["write -q -P 1 0 1980k".into()]);
    let before = crate::qemu::word(&path, 48);
    let mut disk = MappedDisk::open(&path, None, &new_journal());
    let mut expected = vec![1; 1980 << 10];
    expected.resize(4 << 20, 0);
    for at in (2 << 20..4 << 20).step_by(8192) {
        disk.write(at as u64, &[2; 8192]);
        expected[at..at + 8192].fill(2);
    }
    disk.flush();
    agree(&scratch, &path, &expected, options);
    assert!(check(&path).is_clean(), "{:?}", check(&path).faults);
    assert_ne!(crate::qemu::word(&path, 48), before);
}

#[test]
fn resized_disks_are_zero_where_they_are_new() {
    let kinds =
        [("cluster_size=512", 3 << 20), ("extended_l2=on", 1 << 30), ("", (10 << 20) + 512)];
    for (options, size) in kinds {
        let scratch = Scratch::new();
        let path = scratch.image("a.qcow2", options, "1M");
        let name = path.to_str().unwrap();
        qemu_io(&path, &["write -q -P 5 64k 900k".into()]);
        qemu_img(&["snapshot", "-c", "first", name]);
        let mut expected = converted(&scratch, &path);
        run_now(open_format(&path, false).unwrap().resize(size, 0)).unwrap();
        expected.resize(size as usize, 0);
        agree(&scratch, &path, &expected, options);
        assert!(check(&path).is_clean(), "{options}: {:?}", check(&path).faults);
        qemu_img(&["snapshot", "-a", "first", name]);
        assert!(check(&path).is_clean(), "{options}: {:?}", check(&path).faults);
    }
}

#[test]
fn a_larger_disk_does_not_show_more_of_a_longer_backing() {
    for options in ["cluster_size=4k", "extended_l2=on"] {
        let scratch = Scratch::new();
        let base = scratch.path("base.raw");
        std::fs::write(&base, vec![9; 3 << 20]).unwrap();
        let all = format!("{options},backing_file={},backing_fmt=raw", base.display());
        let path = scratch.image("a.qcow2", &all, "1M");
        let mut expected = converted(&scratch, &path);
        run_now(open_format(&path, true).unwrap().resize(5 << 20, 3 << 20)).unwrap();
        expected.resize(5 << 20, 0);
        agree(&scratch, &path, &expected, options);
        assert!(check(&path).is_clean(), "{options}: {:?}", check(&path).faults);
        let shrunk = run_now(open_format(&path, true).unwrap().resize(1 << 20, 3 << 20));
        assert!(matches!(shrunk, Err(ImageError::Resize { .. })));
    }
}
