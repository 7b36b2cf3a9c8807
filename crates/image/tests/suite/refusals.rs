//! Refused images keep every byte.

use std::path::Path;

use image::qcow2::{Access, Image};
use image::{ImageError, PlainFile, run_now};

use crate::qemu::{Scratch, patch, qemu_img};

fn open(path: &Path, access: Access) -> Result<(), ImageError> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    run_now(Image::open(PlainFile::new(file.into()), access)).map(drop)
}

/// Checks that an image is refused in both ways, with this text, and unchanged.
fn refused(path: &Path, accesses: &[Access], says: &str) {
    let before = std::fs::read(path).unwrap();
    for access in accesses {
        let error = open(path, *access).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(std::fs::read(path).unwrap() == before, "{says}: the image was changed");
}

const BOTH: [Access; 2] = [Access::Read, Access::Write];

#[test]
fn unsupported_features_are_named() {
    let scratch = Scratch::new();
    let path = scratch.path("encrypted.qcow2");
    let (secret, name) = ("secret,id=s,data=password", path.to_str().unwrap());
    let options = "encrypt.format=aes,encrypt.key-secret=s";
    qemu_img(&["create", "-q", "--object", secret, "-f", "qcow2", "-o", options, name, "1M"]);
    refused(&path, &BOTH, "AES");
    // `qemu-img` measures its CPU time for LUKS, and fails where the host counts it coarsely.
    patch(&path, 32, &2u32.to_be_bytes());
    refused(&path, &BOTH, "LUKS");
    let data = scratch.path("data.raw");
    let options = format!("data_file={}", data.display());
    refused(&scratch.image("b.qcow2", &options, "1M"), &BOTH, "external data file");
    let path = scratch.image("c.qcow2", "", "1M");
    // The autoclear bits would be lost in a program that clears them before it refuses.
    patch(&path, 88, &1u64.to_be_bytes());
    patch(&path, 72, &(1u64 << 5).to_be_bytes());
    refused(&path, &BOTH, "incompatible feature 5");
    patch(&path, 72, &(1u64 << 3).to_be_bytes());
    patch(&path, 104, &[9]);
    refused(&path, &BOTH, "compression method 9");
}

#[test]
fn damaged_images_can_be_read_but_not_written() {
    for (bit, says) in [(1u64, "dirty"), (2, "corrupt")] {
        let scratch = Scratch::new();
        let path = scratch.image("a.qcow2", "", "1M");
        patch(&path, 72, &bit.to_be_bytes());
        refused(&path, &[Access::Write], says);
        open(&path, Access::Read).unwrap();
    }
}

#[test]
fn what_is_no_image_is_refused() {
    let scratch = Scratch::new();
    for (name, bytes) in
        [("empty", vec![]), ("zero", vec![0; 4096]), ("short", b"QFI\xfb".to_vec())]
    {
        let path = scratch.path(name);
        std::fs::write(&path, bytes).unwrap();
        refused(&path, &BOTH, "not a qcow2 image");
    }
}

#[test]
fn fields_out_of_range_are_refused() {
    let word = |value: u64| value.to_be_bytes().to_vec();
    let half = |value: u32| value.to_be_bytes().to_vec();
    let cases = [
        (4, half(1), "version is 1"),
        (4, half(4), "version is 4"),
        (20, half(8), "cluster_bits"),
        (20, half(22), "cluster_bits"),
        (8, word(1 << 40), "backing"),
        (24, word(u64::MAX), "L1 table"),
        (32, half(3), "encryption method 3"),
        (36, half(0), "L1 table"),
        (36, half(u32::MAX), "L1 table"),
        (40, word(0x3_0200), "within a cluster"),
        (40, word(1 << 60), "behind the file"),
        (48, word(0), "no refcount table"),
        (48, word(u64::MAX << 16), "behind the file"),
        (56, half(0), "no refcount table"),
        (56, half(u32::MAX), "refcount table"),
        (60, half(65537), "snapshots"),
        (60, half(1), "snapshot"),
        (96, half(7), "refcount_order"),
        (100, half(103), "header_length"),
        (100, half(1 << 20), "header_length"),
        (104, vec![1], "contradicts"),
        (72, word(1 << 3), "contradicts"),
        (116, half(u32::MAX), "extension"),
    ];
    for (offset, bytes, says) in cases {
        let scratch = Scratch::new();
        let path = scratch.image("a.qcow2", "", "10M");
        if offset == 8 {
            patch(&path, 16, &10u32.to_be_bytes());
        }
        if says == "snapshot" {
            patch(&path, 64, &(1u64 << 40).to_be_bytes());
        }
        patch(&path, offset, &bytes);
        refused(&path, &BOTH, says);
    }
}
