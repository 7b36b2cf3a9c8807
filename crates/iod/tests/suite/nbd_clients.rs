//! Exports with common clients: libnbd's tools, QEMU and fio.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::*;
use model::rpc::ExportReply;
use serde_json::{Value, json};
use testkit::process::{PROCESS_DEADLINE, Process};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

pub(crate) const SIZE: u64 = 16 << 20;

/// Runs a tool that must succeed. Returns its output.
pub(crate) fn tool(line: &[&str]) -> String {
    let out = tempfile::tempfile().unwrap();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).stdin(Stdio::null()).stdout(out.try_clone().unwrap());
    let mut process = Process::start(&mut command).unwrap();
    let status = process.wait(PROCESS_DEADLINE).unwrap();
    let mut text = vec![0; out.metadata().unwrap().len() as usize];
    out.read_exact_at(&mut text, 0).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(status.success(), "{line:?}: {status}\n{text}\n{}", process.stderr());
    text
}

fn parsed(line: &[&str]) -> Value {
    serde_json::from_str(&tool(line)).unwrap()
}

/// Creates an image of [`SIZE`] bytes with data, holes, and stored zeroes.
pub(crate) fn sparse(io: &Io, name: &str) -> String {
    let path = image(&io.folder, name, SIZE);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let mut state = 1u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(1 << 20)
    .collect();
    for at in [0, 3 << 20, 9 << 20] {
        file.write_all_at(&noise, at).unwrap();
    }
    file.write_all_at(&[0; 1 << 16], 6 << 20).unwrap();
    file.sync_all().unwrap();
    path
}

fn attach(io: &Io, id: &str, backend: Value, active: bool) {
    let mut spec = io.spec(id, backend);
    spec["activate"] = json!(active);
    spec["cache"] = json!("writeback");
    io.caller().disk("disk.attach", spec);
}

/// Exports a disk on the socket `ID.nbd`. Returns the address.
pub(crate) fn export(io: &Io, id: &str, read_only: bool) -> String {
    let socket = io.socket(&format!("{id}.nbd"));
    let spec = json!({"id": id, "socket": socket, "read_only": read_only});
    let reply = io.caller().call("disk.export", spec).unwrap();
    serde_json::from_value::<ExportReply>(reply).unwrap().uri
}

#[test]
fn nbdinfo_reads_what_an_export_can_do() {
    let io = Io::start();
    attach(&io, "d", json!({"memory": SIZE}), false);
    attach(&io, "r", json!({"file": sparse(&io, "r.raw")}), true);
    let uri = export(&io, "d", false);
    let all = parsed(&["nbdinfo", "--json", &uri]);
    assert_eq!((&all["protocol"], &all["TLS"]), (&json!("newstyle-fixed"), &json!(false)));
    assert_eq!(all["structured"], json!(true));
    let one = &all["exports"][0];
    assert_eq!((&one["export-name"], &one["export-size"]), (&json!("d"), &json!(SIZE)));
    assert_eq!(one["contexts"], json!(["base:allocation"]));
    let sizes = ["block_size_minimum", "block_size_preferred", "block_size_maximum"];
    assert_eq!(sizes.map(|size| one[size].as_u64().unwrap()), [512, 4096, 32 << 20]);
    for can in ["cache", "df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero"] {
        assert_eq!(one[format!("can_{can}")], json!(true), "{can}: {one}");
    }
    assert_eq!(one["is_read_only"], json!(false));
    // The default export is the same, and every listed export can be opened.
    let default = uri.replace("///d?", "///?");
    assert_eq!(tool(&["nbdinfo", "--size", &default]).trim(), SIZE.to_string());
    let listed = parsed(&["nbdinfo", "--list", "--json", &default]);
    assert_eq!(listed["exports"][0]["export-name"], json!("d"));
    let read_only = parsed(&["nbdinfo", "--json", &export(&io, "r", true)]);
    let one = &read_only["exports"][0];
    assert_eq!((&one["is_read_only"], &one["can_trim"]), (&json!(true), &json!(false)));
    assert!(one["description"].as_str().unwrap().ends_with("r.raw"), "{one}");
}

#[test]
fn disks_are_copied_in_and_out() {
    let io = Io::start();
    let source = sparse(&io, "source.raw");
    let target = image(&io.folder, "target.raw", SIZE);
    attach(&io, "d", json!({"file": target}), false);
    let uri = export(&io, "d", false);
    let same = |one: &str, other: &str| {
        tool(&["qemu-img", "compare", "-f", "raw", "-F", "raw", one, other]);
    };
    // Several connections each, with one flush at the end that covers all of them.
    tool(&["nbdcopy", "--connections=4", "--flush", &source, &uri]);
    same(&source, &uri);
    let copy = image(&io.folder, "copy.raw", SIZE);
    tool(&["nbdcopy", "--connections=4", &uri, &copy]);
    assert!(std::fs::read(&copy).unwrap() == std::fs::read(&source).unwrap());
    // As QEMU does it: with zeroes and discards, to and from its own format.
    let path = |name: &str| io.folder.path().join(name).to_str().unwrap().to_owned();
    tool(&["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", &copy, &uri]);
    same(&source, &uri);
    let qcow = path("copy.qcow2");
    tool(&["qemu-img", "convert", "-f", "raw", "-O", "qcow2", &uri, &qcow]);
    tool(&["qemu-img", "compare", "-F", "raw", &qcow, &source]);
    io.caller().disk("disk.unexport", json!({"id": "d"}));
    assert!(std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap());
}

#[test]
fn block_status_is_what_qemu_finds_in_the_file() {
    let io = Io::start();
    let path = sparse(&io, "a.raw");
    attach(&io, "d", json!({"file": path}), true);
    let uri = export(&io, "d", true);
    let map = |name: &str| {
        let map = parsed(&["qemu-img", "map", "-U", "--output=json", "-f", "raw", name]);
        let piece =
            |one: &Value| (one["start"].clone(), one["length"].clone(), one["data"].clone());
        map.as_array().unwrap().iter().map(piece).collect::<Vec<_>>()
    };
    let found = map(&uri);
    assert!(found.len() >= 7, "{found:?}");
    assert_eq!(found, map(&path));
    let totals = tool(&["nbdinfo", "--map=base:allocation", "--totals", &uri]);
    assert!(totals.contains("hole,zero"), "{totals}");
}

#[test]
fn qemu_io_writes_zeroes_discards_and_verifies() {
    let io = Io::start();
    attach(&io, "d", json!({"memory": SIZE}), false);
    attach(&io, "f", json!({"file": image(&io.folder, "f.raw", SIZE)}), false);
    for id in ["d", "f"] {
        let uri = export(&io, id, false);
        let commands = [
            "write -P 1 0 1M",
            "write -f -P 2 64k 512",
            "write -P 3 1000 300", // less than a block: QEMU reads the rest itself
            "write -z 128k 64k",
            "write -z -u 256k 64k",
            "discard 512k 64k",
            "flush",
            "read -P 1 0 1000",
            "read -P 3 1000 300",
            "read -P 2 64k 512",
            "read -P 0 128k 64k",
            "read -P 0 256k 64k",
            "read -P 1 600k 100k",
            "read 15M 1M",
            "aio_write -P 4 2M 4M",
            "aio_flush",
            "read -P 4 2M 4M",
        ];
        let mut line = vec!["qemu-io", "-f", "raw", uri.as_str()];
        commands.iter().for_each(|command| line.extend(["-c", command]));
        let output = tool(&line);
        assert!(!output.contains("verification failed") && !output.contains("error"), "{output}");
    }
}

#[test]
fn fio_verifies_what_it_writes_over_several_connections() {
    let io = Io::start();
    attach(&io, "d", json!({"memory": SIZE}), false);
    let uri = format!("--uri={}", export(&io, "d", false));
    // One process each, because the deadline is for one process.
    for _ in 0..testkit::rounds(1, 20) {
        tool(&[
            "fio",
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-256k",
            "--bs_unaligned=0",
            "--iodepth=32",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--numjobs=4",
            "--size=4m",
            "--offset_increment=4m",
            "--group_reporting",
        ]);
    }
    let written = io.caller().stats().disks[0].exports[0].written_bytes;
    assert!(written >= SIZE, "{written}");
}

#[test]
fn an_export_is_the_same_while_a_guest_writes_to_other_disks() {
    let io = Io::start();
    let path = sparse(&io, "a.raw");
    attach(&io, "d", json!({"file": path}), true);
    attach(&io, "other", json!({"file": image(&io.folder, "b.raw", SIZE)}), true);
    let uri = export(&io, "d", true);
    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let mut guest = Guest::start(&io.socket("other"), &Setup::default()).unwrap();
            let mut writes = 0u64;
            while !done.load(Ordering::Relaxed) {
                let sector = writes * 8 % (SIZE / 512);
                let ended = guest.run(0, &Request::write(sector, &[writes as u8; 4096])).unwrap();
                assert_eq!(ended.status, status::OK);
                writes += 1;
                written.store(writes, Ordering::Relaxed);
            }
            writes
        });
        let (ended, mut compared) = (Ended(&done), 0);
        // Slow storage writes less during a comparison.
        while !guest.is_finished()
            && (compared < testkit::rounds(3, 50) || written.load(Ordering::Relaxed) <= 100)
        {
            tool(&["qemu-img", "compare", "-U", "-f", "raw", "-F", "raw", &uri, &path]);
            compared += 1;
        }
        drop(ended);
        assert!(guest.join().unwrap() > 100);
    });
}
