//! Image layers as users see them: holes, counts, notes, and writes that a kill does not lose.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::sectors::{connect, read, write, write_bytes};
use crate::common::*;
use image::qcow2::{Backing, CreateOptions, create_file};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::{Process, eventually};

const MIB: u64 = 1 << 20;
/// Bytes of a cluster, in sectors.
const CLUSTER: u64 = 128;

fn text(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A qcow2 image of 16 MiB over a raw file of 8 MiB with sevens in its second MiB.
struct Layers {
    top: String,
    base: String,
}

impl Layers {
    fn new(folder: &TempDir, extended_l2: bool) -> Self {
        let base = image(folder, "base.raw", 8 * MIB);
        let file = std::fs::File::options().write(true).open(&base).unwrap();
        file.write_all_at(&[7; 1 << 20], MIB).unwrap();
        let top = folder.path().join("top.qcow2");
        let backing = Some(Backing { file: "base.raw".into(), format: Some("raw".into()) });
        let options = CreateOptions { extended_l2, backing, ..CreateOptions::new(16 * MIB) };
        create_file(&top, &options).unwrap();
        Self { top: top.to_str().unwrap().into(), base }
    }

    fn backend(&self) -> Value {
        json!({"qcow2": {"file": self.top, "backing": {"file": self.base}}})
    }

    fn check(&self) {
        let output = Command::new("qemu-img").args(["check", &self.top]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the journal that a process has for the top image, if there is one.
    fn journal(&self, folder: &TempDir) -> Option<PathBuf> {
        let inode = std::fs::metadata(&self.top).unwrap().ino();
        let folders = [Path::new("/run/ringway"), folder.path()];
        let entries = folders.iter().filter_map(|one| one.read_dir().ok()).flatten();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("journal-") && name.contains(&format!("-{inode:x}-"))
        })
    }

    /// Starts `ringway-blk` without a keeper.
    fn serve(&self, folder: &TempDir) -> Process {
        let socket = folder.path().join("s");
        ready(BLK, &self.options(&socket))
    }

    fn options<'a>(&'a self, socket: &'a Path) -> [&'a str; 12] {
        let socket = socket.to_str().unwrap();
        let (top, base) = (self.top.as_str(), self.base.as_str());
        let file = ["--socket-path", socket, "--blk-file", top, "--format", "qcow2"];
        let backing = ["--backing", base, "--backing-format", "raw", "--cache", "writeback"];
        let mut all = file.into_iter().chain(backing);
        std::array::from_fn(|_| all.next().unwrap())
    }
}

#[test]
fn clients_see_the_holes_of_a_tree() {
    let io = Io::start();
    let layers = Layers::new(&io.folder, true);
    let mut caller = io.caller();
    let mut spec = io.spec("d", layers.backend());
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let mut guest = connect(&io.socket("d"));
    write_bytes(&mut guest, 8, &[1; 4096]);
    write_bytes(&mut guest, 10 * MIB / 512, &[2; 65536]);
    let export = json!({"id": "d", "socket": io.socket("nbd"), "read_only": true});
    let uri = caller.call("disk.export", export).unwrap()["uri"].as_str().unwrap().to_owned();
    let map = text(Command::new("nbdinfo").args(["--map", "--json", &uri]));
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let data = map.iter().filter(|extent| extent["type"] == json!(0));
    let data: Vec<_> =
        data.map(|one| [&one["offset"], &one["length"]].map(|n| n.as_u64().unwrap())).collect();
    assert_eq!(data, [[4096, 4096], [MIB, MIB], [10 * MIB, 65536]]);
    let map = text(Command::new("qemu-img").args(["map", "-f", "raw", "--output=json", &uri]));
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let data = map.iter().filter(|extent| extent["data"] == json!(true)).count();
    assert_eq!(data, 3, "{map:?}");
    drop(guest);
}

#[test]
fn a_copy_of_many_layers_looks_at_each_place_once_in_each_layer() {
    let io = Io::start();
    let layer = |at: u64| io.folder.path().join(format!("{at}.qcow2"));
    let mut tree = json!({"file": image(&io.folder, "base.raw", 16 * MIB)});
    for at in 0..12 {
        create_file(&layer(at), &CreateOptions::new(16 * MIB)).unwrap();
        let write = format!("write -q -P {} {} 64k", at + 1, 15 * MIB + at * 65536);
        text(Command::new("qemu-io").args(["-f", "qcow2", "-c", &write]).arg(layer(at)));
        tree = json!({"qcow2": {"file": layer(at), "backing": tree}});
    }
    // For each cluster of each layer, a look at all that lies below would take years.
    let copy = io.folder.path().join("copy");
    let params = json!({"source": tree, "path": copy, "format": "raw"});
    io.caller().call("image.convert", params).unwrap();
    let content = std::fs::read(&copy).unwrap();
    let found = content.chunks(65536).map(|cluster| cluster[0]);
    let found: Vec<_> = (0..).zip(found).filter(|(_, value)| *value != 0).collect();
    assert_eq!(found, (1..=12).map(|at| (239 + u64::from(at), at)).collect::<Vec<_>>());
}

#[test]
fn the_work_of_layers_is_in_stats_and_metrics() {
    let io = Io::start();
    let layers = Layers::new(&io.folder, false);
    let mut caller = io.caller();
    let mut spec = io.spec("d", layers.backend());
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    caller.disk("disk.attach", io.spec("plain", json!({"memory": MIB})));
    let mut guest = connect(&io.socket("d"));
    write(&mut guest, 2 * CLUSTER, 1);
    let stats = caller.stats();
    let layers = stats.disks[0].layers.unwrap();
    assert_eq!((layers.count, layers.allocations, layers.fills), (1, 1, 1));
    assert_eq!((layers.read_modify_writes, layers.map_pages), (1, 1));
    assert!(layers.wait_seconds > 0.0 && layers.questions > 0);
    assert!(stats.disks[1].layers.is_none());
    let page = caller.call("metrics", Value::Null).unwrap();
    let page = page["openmetrics"].as_str().unwrap();
    assert!(page.contains("ringway_disk_map_fills_total{disk=\"d\"} 1\n"), "{page}");
    assert!(page.contains("ringway_disk_map_pages{disk=\"d\"} 1\n"), "{page}");
    assert!(!page.contains("map_fills_total{disk=\"plain\"}"), "{page}");
}

#[test]
fn an_attach_compares_the_reference_in_an_image_with_the_tree() {
    let io = Io::start();
    let layers = Layers::new(&io.folder, true);
    let mut caller = io.caller();
    let mut attach = |backend: Value| {
        let reply = caller.call("disk.attach", io.spec("d", backend));
        if reply.is_ok() {
            caller.call("disk.detach", json!({"id": "d"})).unwrap();
        }
        reply.map(|reply| reply["notes"].clone()).map_err(|error| error.message)
    };
    assert_eq!(attach(layers.backend()), Ok(Value::Null));
    let error = attach(json!({"qcow2": {"file": layers.top}})).unwrap_err();
    let tree = json!({"qcow2": {"file": layers.top, "backing": {"file": layers.base}}});
    assert!(error.contains("has only a part of its disk: it refers to base.raw"), "{error}");
    assert!(error.ends_with(&tree.to_string()), "{error}");
    let other = image(&io.folder, "other.raw", 8 * MIB);
    let notes = attach(json!({"qcow2": {"file": layers.top, "backing": {"file": other}}})).unwrap();
    assert!(notes[0].as_str().unwrap().contains("refers to base.raw (raw)"), "{notes}");
    // A size that no disk has comes from metadata, so no advice makes the file larger.
    let odd = io.folder.path().join("odd.raw");
    std::fs::write(&odd, [&b"QFI\xfb"[..], &[0; 196_612]].concat()).unwrap();
    let error = attach(json!({"file": odd})).unwrap_err();
    assert!(error.contains("is no raw image") && error.contains("--format qcow2"), "{error}");
}

#[test]
fn a_kill_of_ringway_blk_loses_no_acknowledged_write() {
    for extended_l2 in [false, true] {
        let folder = folder();
        let layers = Layers::new(&folder, extended_l2);
        let socket = folder.path().join("s");
        // Clusters at random places, more than once, with blocks of them, without a flush.
        let places: Vec<_> = (0..150_u64).map(|at| at * 7919 % (16 * MIB / 512)).collect();
        for (life, part) in places.chunks(50).enumerate() {
            let mut process = layers.serve(&folder);
            let mut guest = connect(&socket);
            for (at, sector) in part.iter().enumerate() {
                write(&mut guest, *sector, (life * 50 + at + 1) as u8);
            }
            let journal = layers.journal(&folder).unwrap();
            assert_eq!(std::fs::metadata(journal).unwrap().mode() & 0o777, 0o600);
            process.child().kill().unwrap();
            process.child().wait().unwrap();
            assert!(layers.journal(&folder).is_some());
        }
        let mut process = layers.serve(&folder);
        let mut guest = connect(&socket);
        for (at, sector) in places.iter().enumerate() {
            assert_eq!(read(&mut guest, *sector), (at + 1) as u8, "{sector}");
        }
        drop(guest);
        assert!(process.terminate().unwrap().success(), "{}", process.stderr());
        assert_eq!(layers.journal(&folder), None);
        layers.check();
    }
}

/// Leaves a journal with a write of sector 1.
fn killed(folder: &TempDir, layers: &Layers) -> PathBuf {
    let mut process = layers.serve(folder);
    write(&mut connect(&folder.path().join("s")), 1, 9);
    process.child().kill().unwrap();
    process.child().wait().unwrap();
    // The kernel ends the rings of a dead process later, and with them its locks.
    let info = || Command::new("qemu-img").args(["info", "-f", "qcow2"]).arg(&layers.top).output();
    eventually("the image is free", || info().unwrap().status.success());
    layers.journal(folder).unwrap()
}

#[test]
fn a_journal_that_does_not_fit_the_image_any_more_is_refused() {
    let folder = folder();
    let layers = Layers::new(&folder, true);
    let journal = killed(&folder, &layers);
    let socket = folder.path().join("s");
    let command = "write -P 5 2M 256k";
    text(Command::new("qemu-io").args(["-f", "qcow2", "-c", command, &layers.top]));
    let (code, stderr) = ends(BLK, &layers.options(&socket));
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("another program has written to the image"), "{stderr}");
    let remedy = format!("rm {}", journal.display());
    assert!(stderr.contains(&remedy), "{stderr}");
    std::fs::remove_file(journal).unwrap();
    let mut process = layers.serve(&folder);
    let mut guest = connect(&socket);
    assert_eq!((read(&mut guest, 1), read(&mut guest, 2 * MIB / 512)), (0, 5));
    drop(guest);
    assert!(process.terminate().unwrap().success(), "{}", process.stderr());
    layers.check();
}

#[test]
fn another_program_takes_over_what_a_killed_one_left() {
    let io = Io::start();
    let layers = Layers::new(&io.folder, true);
    killed(&io.folder, &layers);
    let mut caller = io.caller();
    let mut spec = io.spec("d", layers.backend());
    spec["read_only"] = json!(true);
    let error = caller.call("disk.attach", spec).unwrap_err().message;
    assert!(error.contains("serve it once for writing"), "{error}");
    caller.disk("disk.attach", io.spec("d", layers.backend()));
    assert_eq!(layers.journal(&io.folder), None);
    assert_eq!(read(&mut connect(&io.socket("d")), 1), 9);
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    layers.check();
}
