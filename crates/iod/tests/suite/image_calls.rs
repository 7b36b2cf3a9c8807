//! Calls on image files without a disk.

use std::path::Path;
use std::process::Command;

use model::image::{
    ImageCheckReport, ImageExtent, ImageExtentKind, ImageInfo, ImageMapReply, Qcow2Info,
};
use model::rpc::code;
use serde_json::{Value, json};

use crate::common::*;
use crate::golden_servers::Server;

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
    let spec = io.spec("d", json!({"file": path}));
    caller.disk("disk.attach", with(spec, json!({"cache": "writeback", "format": "raw"})));
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

fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// Creates a raw image of 8 MiB and three sectors, with data, holes, stored zeroes, and an end within
/// a cluster.
fn content(path: &Path) {
    use std::os::unix::fs::FileExt;
    let size = (8 << 20) + 1536;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    let noise: Vec<u8> =
        (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for at in [0, 70_000, 3 << 20, size - 5000] {
        let part = &noise[..noise.len().min((size - at) as usize)];
        file.write_all_at(part, at).unwrap();
    }
    file.write_all_at(&[0; 1 << 20], 5 << 20).unwrap();
}

#[test]
fn disks_are_converted_to_the_same_disks() {
    let io = Io::start();
    let mut caller = io.caller();
    let path = |name: &str| io.socket(name).to_str().unwrap().to_owned();
    let (raw, base, top) = (path("a.raw"), path("base.qcow2"), path("top.qcow2"));
    content(Path::new(&raw));
    let compressed = ["convert", "-q", "-c", "-f", "raw", "-O", "qcow2", &raw, &base];
    run("qemu-img", &compressed);
    let over = ["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top, "16M"];
    run("qemu-img", &over);
    for command in ["write -q -P 5 1M 100k", "write -q -z 3M 128k", "write -q -P 6 12M 4k"] {
        qemu_io(Path::new(&top), command);
    }
    let layers = json!({"qcow2": {"file": top, "backing": {"qcow2": {"file": base}}}});
    let part = json!({"raw": {"child": {"file": raw}, "offset": 65536, "size": 1 << 20}});
    for (source, oracle) in
        [(json!({"file": raw}), &raw), (json!({"qcow2": {"file": base}}), &base), (layers, &top)]
    {
        for format in ["raw", "qcow2"] {
            let new = path("new");
            let params = json!({"source": source, "path": new, "format": format});
            let info: ImageInfo = typed(&mut caller, "image.convert", params);
            let from = if oracle.ends_with("raw") { "raw" } else { "qcow2" };
            run("qemu-img", &["compare", "-q", "-f", from, "-F", format, oracle, &new]);
            if format == "qcow2" {
                run("qemu-img", &["check", "-q", "-f", "qcow2", &new]);
            }
            // Zeroes take no space: at most 1 MiB of data, and what a qcow2 file grows by.
            assert!(info.stored_bytes < 3 << 20, "{source} {format}: {}", info.stored_bytes);
            std::fs::remove_file(&new).unwrap();
        }
    }
    let params = json!({"source": part, "path": path("part"), "format": "raw"});
    typed::<ImageInfo>(&mut caller, "image.convert", params);
    let whole = std::fs::read(&raw).unwrap();
    assert!(std::fs::read(path("part")).unwrap() == whole[65536..65536 + (1 << 20)]);
    assert_eq!(caller.call("image.progress", Value::Null).unwrap(), json!({"converting": []}));
}

#[test]
fn a_conversion_that_fails_leaves_nothing() {
    let io = Io::start();
    let mut caller = io.caller();
    let path = |name: &str| io.socket(name).to_str().unwrap().to_owned();
    let (raw, top) = (path("a.raw"), path("top.qcow2"));
    content(Path::new(&raw));
    let over = ["create", "-q", "-f", "qcow2", "-b", &raw, "-F", "raw", &top, "16M"];
    run("qemu-img", &over);
    let before = names(&io.folder);
    let mut refused = |source: Value, new: &str, text: &str| {
        let params = json!({"source": source, "path": new, "format": "qcow2"});
        let error = caller.call("image.convert", params).unwrap_err().message;
        assert!(error.contains(text), "{error}");
    };
    let new = path("new");
    refused(json!({"file": raw}), &top, "File exists");
    refused(json!({"file": raw}), "/no/such/folder/a", "No such file");
    refused(json!({"file": "a.raw"}), &new, "absolute paths");
    refused(json!({"qcow2": {"file": raw}}), &new, "not a qcow2 image");
    refused(json!({"qcow2": {"file": top}}), &new, "only a part of its disk");
    refused(json!({"memory": 1 << 20}), &new, "consists of files");
    caller.disk("disk.attach", io.spec("d", json!({"file": raw, })));
    let mut caller = io.caller();
    let params = json!({"source": {"file": raw}, "path": new, "format": "raw"});
    let error = caller.call("image.convert", params).unwrap_err().message;
    assert!(error.contains("in use"), "{error}");
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    assert_eq!(names(&io.folder), before);
}

#[test]
fn an_offline_snapshot_refers_to_its_base() {
    let io = Io::start();
    let mut caller = io.caller();
    let path = |name: &str| io.socket(name).to_str().unwrap().to_owned();
    content(Path::new(&path("a.raw")));
    let snapshot = |base: &str, format: &str, new: &str| json!({"base": path(base), "base_format": format, "path": path(new)});
    let params = snapshot("a.raw", "raw", "b.qcow2");
    let info: ImageInfo = typed(&mut caller, "image.snapshot", params.clone());
    assert_eq!(info.size_bytes, (8 << 20) + 1536);
    let backing = info.qcow2.unwrap().backing.unwrap();
    assert_eq!((backing.file, backing.format.as_deref()), ("a.raw".into(), Some("raw")));
    typed::<ImageInfo>(&mut caller, "image.snapshot", snapshot("b.qcow2", "qcow2", "c.qcow2"));
    run(
        "qemu-img",
        &["compare", "-q", "-f", "raw", "-F", "qcow2", &path("a.raw"), &path("c.qcow2")],
    );
    let error = caller.call("image.snapshot", params).unwrap_err().message;
    assert!(error.contains("File exists"), "{error}");
    let layers = json!({"qcow2": {"file": path("b.qcow2"), "backing": {"file": path("a.raw")}}});
    let mut spec = io.spec("d", layers);
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let error = caller.call("image.snapshot", snapshot("b.qcow2", "qcow2", "d.qcow2")).unwrap_err();
    assert!(error.message.contains("in use"), "{error}");
}

#[test]
fn a_copy_of_a_golden_image_stores_no_zeroes() {
    let io = Io::start();
    let mut caller = io.caller();
    // Its server tells nothing about zeroes.
    let mut bytes = vec![0; 16 << 20];
    bytes[5 << 20..][..100_000].fill(5);
    *bytes.last_mut().unwrap() = 7;
    let server = Server::nbd(bytes.clone());
    let golden = json!({"golden": {"source": server.source, "cache": io.socket("cache")}});
    let new = io.socket("new");
    let is_same = |format: &str| {
        let (from, to) = (new.to_str().unwrap(), io.socket("back"));
        let words = ["convert", "-f", format, "-O", "raw", from, to.to_str().unwrap()];
        run("qemu-img", &words);
        std::fs::read(to).unwrap() == bytes
    };
    for (format, name) in [("raw", "raw"), ("qcow2", "qcow2"), ("vhd", "vpc")] {
        let params = json!({"source": golden, "path": new, "format": format});
        let info: ImageInfo = typed(&mut caller, "image.convert", params);
        // A qcow2 file grows by some MiB, and a VHD by blocks of 2 MiB, of which two have data.
        assert!(info.stored_bytes < 5 << 20, "{format}: {}", info.stored_bytes);
        assert!(is_same(name), "{format}");
        std::fs::remove_file(&new).unwrap();
    }
    let present = image(&io.folder, "present.raw", 16 << 20);
    let params = json!({"source": golden, "present": {"file": present}, "path": new});
    caller.call("image.copy", params).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&new).unwrap());
    assert!(blocks * 512 < 1 << 20 && is_same("raw"), "{blocks}");
}
