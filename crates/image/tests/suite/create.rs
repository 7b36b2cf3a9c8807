//! Images that we create are clean and usable for QEMU.

use std::path::Path;

use image::qcow2::{Backing, CreateOptions, MAX_DISK_BYTES, create_file};
use image::{ImageError, run_now};

use crate::qemu::{Scratch, check, open, qemu_check, qemu_img, qemu_io};

fn options(size: u64, cluster_bits: u32, extended_l2: bool) -> CreateOptions {
    CreateOptions { size, cluster_bits, extended_l2, backing: None }
}

#[test]
fn created_images_are_clean_for_qemu_and_for_us() {
    let cases = [
        CreateOptions::new(512),
        CreateOptions::new(10 << 30),
        CreateOptions::new(MAX_DISK_BYTES),
        options(MAX_DISK_BYTES, 21, true),
        options(MAX_DISK_BYTES, 21, false),
        options(1 << 20, 9, false),
        options(64 << 30, 9, false),
        options(1 << 40, 14, true),
    ];
    for case in cases {
        let scratch = Scratch::new();
        let path = scratch.path("a.qcow2");
        create_file(&path, &case).unwrap();
        assert_eq!(qemu_check(&path), (0, 0), "{case:?}");
        let report = check(&path);
        assert!(report.is_clean(), "{case:?} {:?}", report.faults);
        let info = run_now(open(&path).info()).unwrap();
        assert_eq!((info.size, info.version, info.needs_repair), (case.size, 3, false));
        qemu_io(&path, &["write -q -P 7 0 512".into(), "read -q -P 7 0 512".into()]);
        assert_eq!(qemu_check(&path), (0, 0), "{case:?}, written");
    }
}

#[test]
fn a_created_image_refers_to_its_backing() {
    let scratch = Scratch::new();
    let base = scratch.path("base.raw");
    std::fs::write(&base, vec![9; 1 << 20]).unwrap();
    let path = scratch.path("a.qcow2");
    for (cluster_bits, extended_l2) in [(16, true), (9, false)] {
        let backing = Some(Backing { file: base.clone(), format: Some("raw".into()) });
        let case = CreateOptions {
            backing: backing.clone(),
            ..options(1 << 20, cluster_bits, extended_l2)
        };
        create_file(&path, &case).unwrap();
        assert_eq!(open(&path).header().backing(), backing.as_ref());
        qemu_io(&path, &["read -q -P 9 0 1M".into(), "write -q -P 3 0 1k".into()]);
        let info: serde_json::Value =
            serde_json::from_str(&qemu_img(&["info", "--output=json", path.to_str().unwrap()]))
                .unwrap();
        assert_eq!(info["backing-filename-format"], "raw");
        assert_eq!(qemu_check(&path), (0, 0));
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn impossible_images_are_refused_and_leave_no_file() {
    let scratch = Scratch::new();
    let path = scratch.path("a.qcow2");
    let backing = |file: &Path, format: Option<&str>| {
        let backing = Backing { file: file.into(), format: format.map(Into::into) };
        CreateOptions { backing: Some(backing), ..CreateOptions::new(1 << 20) }
    };
    let long = "x".repeat(1024);
    let cases = [
        CreateOptions::new(0),
        CreateOptions::new(513),
        CreateOptions::new(MAX_DISK_BYTES + 512),
        options(1 << 20, 22, false),
        options(1 << 20, 8, false),
        options(1 << 20, 13, true),
        options(1 << 40, 9, false),
        backing(Path::new("base.raw"), None),
        backing(Path::new("base.raw"), Some("vmdk")),
        backing(Path::new(""), Some("raw")),
        backing(Path::new(&long), Some("raw")),
        CreateOptions {
            cluster_bits: 9,
            extended_l2: false,
            ..backing(Path::new(&long[..500]), Some("raw"))
        },
    ];
    for case in cases {
        let refused = create_file(&path, &case);
        assert!(matches!(refused, Err(ImageError::Create { .. })), "{case:?} {refused:?}");
        assert!(!path.exists());
    }
    create_file(&path, &CreateOptions::new(1 << 20)).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(create_file(&path, &CreateOptions::new(1 << 20)).is_err(), "the file exists");
    assert!(std::fs::read(&path).unwrap() == before);
}
