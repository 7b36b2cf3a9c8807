//! Calls on image files without a disk.

use std::path::Path;
use std::process::Command;

use model::image::{
    ImageCheckReport, ImageExtent, ImageExtentKind, ImageInfo, ImageMapReply, Qcow2Info,
};
use model::rpc::code;
use serde_json::{Value, json};

use crate::common::*;

fn qcow2(io: &Io, name: &str) -> Value {
    json!({"path": io.socket(name), "format": "qcow2"})
}

fn with(mut params: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    params.as_object_mut().unwrap().extend(more);
    params
}

fn typed<T: serde::de::DeserializeOwned>(caller: &mut Caller, method: &str, params: Value) -> T {
    serde_json::from_value(caller.call(method, params).unwrap()).unwrap()
}

fn qemu_io(path: &Path, command: &str) {
    let mut program = Command::new("qemu-io");
    let status = program.args(["-f", "qcow2", "-c", command]).arg(path).status();
    assert!(status.unwrap().success(), "{command}");
}

#[test]
fn an_image_is_created_shown_checked_and_mapped() {
    let io = Io::start();
    let mut caller = io.caller();
    let size = 1u64 << 30;
    let created: ImageInfo =
        typed(&mut caller, "image.create", with(qcow2(&io, "a"), json!({"size": size})));
    assert_eq!(created.size_bytes, size);
    qemu_io(&io.socket("a"), "write -q -P 1 64k 64k");
    let info: ImageInfo = typed(&mut caller, "image.info", qcow2(&io, "a"));
    let found = info.qcow2.unwrap();
    let Qcow2Info { version, cluster_bytes, subcluster_bytes, .. } = found;
    assert_eq!((version, cluster_bytes, subcluster_bytes), (3, 65536, Some(2048)));
    assert_eq!((info.notes.len(), info.stored_bytes > 0), (0, true));
    let report: ImageCheckReport = typed(&mut caller, "image.check", qcow2(&io, "a"));
    assert_eq!((report.errors, report.leaks, report.allocated_clusters), (0, 0, 1));
    let map: ImageMapReply =
        typed(&mut caller, "image.map", with(qcow2(&io, "a"), json!({"limit": 2})));
    let kinds: Vec<_> = map.extents.iter().map(|extent| extent.kind).collect();
    assert_eq!(kinds, [ImageExtentKind::Unallocated, ImageExtentKind::Data]);
    assert_eq!(map.next, Some(131_072));
    let rest: ImageMapReply =
        typed(&mut caller, "image.map", with(qcow2(&io, "a"), json!({"start": 131_072})));
    let unallocated = ImageExtent {
        start: 131_072,
        bytes: size - 131_072,
        kind: ImageExtentKind::Unallocated,
        file_offset: None,
    };
    assert_eq!((rest.extents, rest.next), (vec![unallocated], None));
    let again = caller.call("image.create", with(qcow2(&io, "a"), json!({"size": size})));
    assert!(again.unwrap_err().message.contains("exists"));
}

#[test]
fn raw_images_have_a_size_and_holes() {
    let io = Io::start();
    let mut caller = io.caller();
    let raw = json!({"path": io.socket("a.raw"), "format": "raw"});
    let created: ImageInfo =
        typed(&mut caller, "image.create", with(raw.clone(), json!({"size": 1 << 20})));
    assert_eq!((created.size_bytes, created.qcow2), (1 << 20, None));
    let map: ImageMapReply = typed(&mut caller, "image.map", raw.clone());
    assert_eq!(map.extents.len(), 1);
    assert_eq!(map.extents[0].kind, ImageExtentKind::Zero);
    let refused = caller.call("image.check", raw).unwrap_err();
    assert!(refused.message.contains("nothing to check"), "{}", refused.message);
}

/// A disk that is served, here as raw, holds the lock that QEMU would hold.
#[test]
fn an_image_in_use_is_shown_but_neither_checked_nor_mapped() {
    let io = Io::start();
    let mut caller = io.caller();
    let params = with(qcow2(&io, "a"), json!({"size": 1 << 20}));
    caller.call("image.create", params).unwrap();
    let path = io.socket("a");
    // A disk has whole blocks, an image need not.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len().next_multiple_of(4096)).unwrap();
    let mut spec = io.spec("d", json!({"file": path}));
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let info: ImageInfo = typed(&mut caller, "image.info", qcow2(&io, "a"));
    assert!(info.notes[0].contains("writes the image"), "{:?}", info.notes);
    for (method, more) in [
        ("image.check", json!({})),
        ("image.check", json!({"repair_leaks": true})),
        ("image.map", json!({})),
    ] {
        let refused = caller.call(method, with(qcow2(&io, "a"), more)).unwrap_err();
        assert_eq!(refused.code, code::FAILED);
        assert!(refused.message.contains("in use"), "{}", refused.message);
    }
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    caller.call("image.check", qcow2(&io, "a")).unwrap();
}

#[test]
fn what_cannot_be_done_is_refused_with_the_path_and_the_cause() {
    let io = Io::start();
    let mut caller = io.caller();
    std::fs::write(io.socket("zero"), [0; 4096]).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        io.socket("pipe"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    for (name, says) in
        [("missing", "No such file"), ("zero", "not a qcow2 image"), ("pipe", "is a pipe")]
    {
        let refused = caller.call("image.info", qcow2(&io, name)).unwrap_err();
        let is_named = refused.message.contains(io.socket(name).to_str().unwrap());
        assert!(is_named && refused.message.contains(says), "{}", refused.message);
    }
    let backing = json!({"size": 512, "backing": {"file": "missing", "format": "raw"}});
    let refused = caller.call("image.create", with(qcow2(&io, "b"), backing)).unwrap_err();
    assert!(refused.message.contains("missing"), "{}", refused.message);
    assert!(!io.socket("b").exists());
}

#[test]
fn a_leak_is_released() {
    let io = Io::start();
    let mut caller = io.caller();
    caller.call("image.create", with(qcow2(&io, "a"), json!({"size": 1 << 20}))).unwrap();
    let path = io.socket("a");
    qemu_io(&path, "write -q -P 1 0 64k");
    // The refcount of the last cluster, in the block behind header and refcount table.
    let last = path.metadata().unwrap().len().div_ceil(65536) - 1;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0, 2], 2 * 65536 + last * 2).unwrap();
    let report: ImageCheckReport = typed(&mut caller, "image.check", qcow2(&io, "a"));
    assert_eq!(report.leaks, 1, "{report:?}");
    let repair = with(qcow2(&io, "a"), json!({"repair_leaks": true}));
    let report: ImageCheckReport = typed(&mut caller, "image.check", repair);
    assert_eq!(report.repaired_leaks, 1, "{report:?}");
    assert_eq!((report.errors, report.leaks), (0, 0), "{report:?}");
    let report: ImageCheckReport = typed(&mut caller, "image.check", qcow2(&io, "a"));
    assert_eq!((report.errors, report.leaks), (0, 0), "{report:?}");
}
