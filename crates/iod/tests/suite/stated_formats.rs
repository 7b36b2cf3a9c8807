//! Raw files that begin like other images: refused at the first attach, and never afterwards.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::sectors::{connect, read, write_bytes};
use crate::common::*;
use model::report::DiskState;
use model::rpc::{RpcError, code};
use serde_json::{Value, json};
use testkit::process::eventually;

const MIB: u64 = 1 << 20;
/// Images with metadata: place and bytes of their signature, and QEMU's name of the format.
const IMAGES: [(u64, &[u8], &str); 7] = [
    (0, b"QFI\xfb", "qcow2"),
    (0, b"conectix", "vpc"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"KDMV", "vmdk"),
    (0, b"# Disk DescriptorFile", "vmdk"),
    (0x40, b"\x7f\x10\xda\xbe", "vdi"),
    (0, b"QED\0", "qed"),
];
/// Bytes that guests write to their first sectors.
const OF_GUESTS: [&[u8]; 4] =
    [b"LUKS\xba\xbe", b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];

fn begin_with(path: impl AsRef<Path>, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Attaches a disk and detaches it. Returns the notes of the attach.
fn attach(io: &Io, backend: Value, more: &Value) -> Result<String, RpcError> {
    let mut spec = io.spec("d", backend);
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = io.caller().call("disk.attach", spec)?;
    io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
    Ok(reply["notes"].to_string())
}

#[test]
fn an_image_is_refused_as_raw_until_that_is_stated() {
    let io = Io::start();
    let (none, stated) = (json!({}), json!({"format": "raw"}));
    for (at, bytes, format) in IMAGES {
        let file = image(&io.folder, "a.raw", MIB);
        std::fs::remove_file(&file).unwrap();
        let file = image(&io.folder, "a.raw", MIB);
        begin_with(&file, at, bytes);
        let backend = json!({"file": file});
        for more in [&none, &json!({"read_only": true})] {
            let error = attach(&io, backend.clone(), more).unwrap_err();
            assert_eq!(error.code, code::FORMAT_NOT_STATED, "{error}");
            let command = format!("`qemu-img convert -p -f {format} -O raw {file} NEW`");
            assert!(error.message.contains(&command), "{error}");
            assert!(error.message.contains("format=raw"), "{error}");
        }
        assert!(attach(&io, backend.clone(), &stated).unwrap().contains(&file));
        // A guest could write it since.
        assert!(attach(&io, backend, &none).unwrap().contains("begins like"));
    }
    for bytes in OF_GUESTS {
        let file = image(&io.folder, "b.raw", MIB);
        begin_with(&file, 0, bytes);
        assert!(attach(&io, json!({"file": file}), &none).unwrap().contains("begins like"));
    }
    // A backing is a raw file, too. A window says that it is raw.
    let base = image(&io.folder, "c.raw", MIB);
    begin_with(&base, 0, b"KDMV");
    let window = json!({"raw": {"child": {"file": base}, "offset": 4096, "size": 4096}});
    attach(&io, window, &none).unwrap();
    let top = io.folder.path().join("top.qcow2");
    image::qcow2::create_file(&top, &image::qcow2::CreateOptions::new(MIB)).unwrap();
    let tree = json!({"qcow2": {"file": top, "backing": {"file": base}}});
    assert_eq!(attach(&io, tree.clone(), &none).unwrap_err().code, code::FORMAT_NOT_STATED);
    attach(&io, tree, &stated).unwrap();
    let other = attach(&io, json!({"file": base}), &json!({"format": "qcow2"})).unwrap_err();
    assert!(other.code == code::INVALID_PARAMS && other.message.contains("backend"), "{other}");
}

/// Attaches a blank disk whose guest writes the header of another image.
fn written(io: &Io) -> Value {
    let backend = json!({"file": image(&io.folder, "a.raw", MIB)});
    io.caller().disk("disk.attach", io.spec("d", backend.clone()));
    write_bytes(&mut connect(&io.socket("d")), 0, &sector());
    backend
}

fn sector() -> Vec<u8> {
    let mut sector = b"QFI\xfb".to_vec();
    sector.resize(512, 0);
    sector
}

#[test]
fn a_disk_whose_guest_wrote_a_header_is_always_reopened() {
    let mut io = Io::start();
    let backend = written(&io);
    let serves = |io: &Io| {
        eventually("the disk is served", || io.caller().state("d") == Some(DiskState::Active));
        assert_eq!(read(&mut connect(&io.socket("d")), 1), 0);
    };
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    serves(&io);
    io.caller().call("upgrade", json!({})).unwrap();
    serves(&io);
    io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
    assert!(attach(&io, backend.clone(), &json!({})).unwrap().contains("begins like"));
    assert!(io.process.terminate().unwrap().success());
}

#[test]
fn ringway_blk_is_started_again_whatever_its_guest_wrote() {
    let folder = folder();
    let socket = folder.path().join("s");
    let file = image(&folder, "a.raw", MIB);
    for options in [&["--blk-file", &file][..], &["--blk-file", &file, "--supervise"]] {
        let mut process = blk(&socket, options);
        write_bytes(&mut connect(&socket), 0, &sector());
        process.child().kill().unwrap();
        process.child().wait().unwrap();
    }
    assert!(blk(&socket, &["--blk-file", &file]).terminate().unwrap().success());
    // A copy is another file, and its first attach is to come.
    let copy = folder.path().join("copy.raw");
    std::fs::write(&copy, std::fs::read(&file).unwrap()).unwrap();
    let copy = copy.to_str().unwrap();
    let path = socket.to_str().unwrap();
    let tree = format!(r#"{{"file":"{copy}"}}"#);
    for disk in [["--blk-file", copy], ["--backend", &tree]] {
        let options = [&["--socket-path", path][..], &disk].concat();
        let (exit, error) = ends(BLK, &options);
        assert!(exit == 1 && error.contains("--format raw"), "{exit}: {error}");
        assert!(error.contains(&format!("-f qcow2 -O raw {copy} NEW")), "{error}");
        let (exit, error) = ends(BLK, &[&options[..], &["--supervise"]].concat());
        assert!(exit == 1 && error.contains("--format raw"), "{exit}: {error}");
    }
    for disk in [["--backend", &tree], ["--blk-file", copy]] {
        let mut process = blk(&socket, &[&disk[..], &["--format", "raw", "--read-only"]].concat());
        assert!(process.terminate().unwrap().success());
    }
}
