//! Disks whose backend is a tree: a window of an image, and files that were handed in.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::actor::play;
use crate::common::sectors::{connect, read, write};
use crate::common::*;
use image::qcow2::{CreateOptions, create_file};
use model::report::DiskState;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::process::{PROCESS_DEADLINE, Process, eventually};
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::storage::Stalling;

const MIB: u64 = 1 << 20;

/// Returns the second MiB of an image, as a backend.
fn window(file: Value) -> Value {
    json!({"raw": {"child": {"file": file}, "offset": MIB, "size": MIB}})
}

fn open(path: &str, write: bool) -> File {
    File::options().read(true).write(write).open(path).unwrap()
}

/// Kills the worker that serves. After an upgrade, the former one may still be there.
fn kill_worker(io: &mut Io) {
    let serving = io.caller().stats().pid;
    let pid = rustix::process::Pid::from_raw(serving.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    io.process.next_worker(Some(serving)).unwrap();
}

/// Attaches `backend` with these descriptors. Writes before and after a kill of the worker and an
/// upgrade, and reads everything back.
fn survives(io: &mut Io, backend: Value, fds: &[BorrowedFd<'_>]) {
    let mut spec = io.spec("d", backend);
    spec["cache"] = json!("writeback");
    io.caller().attach_with(spec, fds).unwrap();
    let socket = io.socket("d");
    write(&mut connect(&socket), 7, 1);
    kill_worker(io);
    let mut guest = connect(&socket);
    assert_eq!(read(&mut guest, 7), 1);
    write(&mut guest, 8, 2);
    // The session goes on in the next process, and after that its successor has everything, too.
    io.caller().call("upgrade", Value::Null).unwrap();
    assert_eq!(read(&mut guest, 8), 2);
    write(&mut guest, 9, 3);
    drop(guest);
    kill_worker(io);
    let mut guest = connect(&socket);
    assert_eq!([7, 8, 9].map(|sector| read(&mut guest, sector)), [1, 2, 3]);
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, 2);
}

#[test]
fn a_window_survives_a_kill_and_an_upgrade_and_nothing_else_is_touched() {
    let mut io = Io::start();
    let path = image(&io.folder, "a.raw", 3 * MIB);
    open(&path, true).write_all_at(&[9; 512], 2 * MIB).unwrap();
    survives(&mut io, window(json!(path)), &[]);
    let mut caller = io.caller();
    let disk = caller.stats().disks.remove(0);
    assert_eq!((disk.geometry.size_bytes, disk.state), (MIB, DiskState::Active));
    assert_eq!(disk.backend.to_string(), format!("1048576 bytes at 1048576 of {path}"));
    // The whole file is locked.
    let error = caller.call("disk.attach", io.spec("e", json!({"file": path}))).unwrap_err();
    assert!(error.message.contains("in use"), "{error}");
    let error = caller.call("disk.resize", json!({"id": "d", "size": 2 * MIB})).unwrap_err();
    assert!(error.message.contains("a window of 1048576 bytes at 1048576"), "{error}");
    let mut guest = connect(&io.socket("d"));
    let behind = guest.run(0, &Request::read(MIB / 512, 512)).unwrap();
    assert_eq!(behind.status, status::IOERR);
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    let mut whole = vec![0; 3 * MIB as usize];
    open(&path, false).read_exact_at(&mut whole, 0).unwrap();
    let written: Vec<_> = (0..whole.len() / 512).filter(|at| whole[at * 512] != 0).collect();
    let first = (MIB / 512) as usize;
    assert_eq!(written, [first + 7, first + 8, first + 9, 2 * first]);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Creates a qcow2 image of 3 MiB over a raw file of 2 MiB full of sevens. Returns its path and the
/// backend.
fn layers(io: &Io, extended_l2: bool) -> (String, Value) {
    let base = image(&io.folder, "base.raw", 2 * MIB);
    open(&base, true).write_all_at(&[7; 2 << 20], 0).unwrap();
    let path = io.folder.path().join("top.qcow2");
    let options = CreateOptions { extended_l2, ..CreateOptions::new(3 * MIB) };
    create_file(&path, &options).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let backend = json!({"qcow2": {"file": path, "backing": {"file": base}}});
    (path, backend)
}

#[test]
fn a_qcow2_image_over_a_raw_file_survives_a_kill_and_an_upgrade() {
    for extended_l2 in [false, true] {
        let mut io = Io::start();
        let (path, backend) = layers(&io, extended_l2);
        survives(&mut io, backend.clone(), &[]);
        let mut guest = connect(&io.socket("d"));
        assert_eq!([6, 10, 4095].map(|sector| read(&mut guest, sector)), [7; 3]);
        assert_eq!([4096, 6143].map(|sector| read(&mut guest, sector)), [0; 2]);
        drop(guest);
        let mut caller = io.caller();
        let disk = caller.stats().disks.remove(0);
        assert_eq!((disk.geometry.size_bytes, disk.geometry.block_size), (3 * MIB, 512));
        // Both files are locked, as QEMU does it.
        let check = || Command::new("qemu-img").args(["check", &path]).output().unwrap();
        assert!(String::from_utf8_lossy(&check().stderr).contains("lock"));
        caller.call("disk.detach", json!({"id": "d"})).unwrap();
        let checked = check();
        assert!(checked.status.success(), "{checked:?}");
        caller.call("disk.attach", io.spec("d", backend)).unwrap();
        let mut guest = connect(&io.socket("d"));
        assert_eq!([7, 8, 9, 10].map(|sector| read(&mut guest, sector)), [1, 2, 3, 7]);
        drop(guest);
        assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    }
}

#[test]
fn a_window_is_exported() {
    let mut io = Io::start();
    let path = image(&io.folder, "a.raw", 3 * MIB);
    open(&path, true).write_all_at(&[9; 512], MIB + 512).unwrap();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", window(json!(path))));
    let socket = io.socket("nbd");
    let export = json!({"id": "d", "socket": socket, "read_only": true});
    let reply = caller.call("disk.export", export).unwrap();
    assert_eq!(reply["geometry"]["size_bytes"], json!(MIB));
    let first = |io: &Io| nbd::read(&mut nbd::client(&io.socket("nbd")), 512)[0];
    assert_eq!(first(&io), 9);
    // The next worker opens the export and its disk from the keeper's record.
    kill_worker(&mut io);
    assert_eq!(first(&io), 9);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_file_that_was_handed_in_survives_a_kill_and_an_upgrade_without_its_path() {
    for backend in [json!({"file": {"fd": 1}}), window(json!({"fd": 1}))] {
        let mut io = Io::start();
        let path = image(&io.folder, "a.raw", 3 * MIB);
        let (file, other) = (open(&path, true), File::open("/dev/null").unwrap());
        std::fs::remove_file(&path).unwrap();
        survives(&mut io, backend, &[other.as_fd(), file.as_fd()]);
        // Another user of the file sees the lock.
        let mut caller = io.caller();
        let spec = io.spec("e", json!({"file": {"fd": 0}}));
        let error = caller.attach_with(spec, &[file.as_fd()]).unwrap_err();
        assert!(error.message.contains("fd:0 is in use"), "{error}");
        caller.call("disk.detach", json!({"id": "d"})).unwrap();
        assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
        assert_eq!(names(&io.folder), [""; 0]);
    }
}

#[test]
fn a_tree_that_cannot_be_opened_is_refused_and_leaves_nothing() {
    let mut io = Io::start();
    let path = image(&io.folder, "a.raw", 3 * MIB);
    let link = io.folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let before = names(&io.folder);
    let reader = open(&path, false);
    let open_files = open_files(&io.process);
    let mut caller = io.caller();
    for (backend, reason) in [
        (json!({"file": {"fd": 1}}), "fd:1 is not among the 1 descriptors that were handed in"),
        (json!({"file": {"fd": 0}}), "fd:0 is not open for writing"),
        (json!({"qcow2": {"file": path}}), "the file is not a qcow2 image"),
        (json!({"qcow2": {"file": path, "backing": {"file": path}}}), "in the tree twice"),
        (json!({"raw": {"child": {"file": path}, "offset": MIB, "size": 3 * MIB}}), "not inside"),
        (json!({"raw": {"child": {"file": path}, "offset": 1, "size": 512}}), "not a multiple"),
        (json!({"raw": {"child": {"null": MIB}, "offset": 0, "size": 2 * MIB}}), "end behind"),
    ] {
        let spec = io.spec("d", backend.clone());
        let error = caller.attach_with(spec, &[reader.as_fd()]).unwrap_err();
        assert!(error.message.contains(reason), "{backend}: {error}");
    }
    // Descriptors do not outlive their request, however many there are.
    let many = vec![reader.as_fd(); 253];
    let error = caller.attach_with(io.spec("d", json!({"file": {"fd": 64}})), &many).unwrap_err();
    assert!(error.message.contains("fd:64 is not among the 64"), "{error}");
    let error = caller.call("disk.attach", io.spec("d", json!({"file": {"fd": 0}}))).unwrap_err();
    assert!(error.message.contains("fd:0 is not among the 0"), "{error}");
    // A reader may have what a reader handed in.
    let mut spec = io.spec("d", json!({"file": {"fd": 0}}));
    spec["read_only"] = json!(true);
    caller.attach_with(spec, &[reader.as_fd()]).unwrap();
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    assert_eq!(names(&io.folder), before);
    drop(caller);
    eventually("nothing is open", || self::open_files(&io.process) == open_files);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn the_deepest_tree_survives_a_kill() {
    let mut io = Io::start();
    let path = image(&io.folder, &"x".repeat(200), 3 * MIB);
    let over = |child| json!({"raw": {"child": child, "offset": 0, "size": 2 * MIB}});
    let tree = |nodes| (1..nodes).fold(json!({"file": path}), |child, _| over(child));
    let error = io.caller().call("disk.attach", io.spec("d", tree(61))).unwrap_err();
    assert!(error.message.contains("more than 60 nodes"), "{error}");
    survives(&mut io, tree(60), &[]);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_file_that_is_replaced_below_a_window_is_refused() {
    let mut io = Io::start();
    let path = image(&io.folder, "a.raw", 3 * MIB);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", window(json!(path))));
    let worker = io.process.worker().unwrap().unwrap();
    io.process.signal(Signal::STOP).unwrap();
    worker.kill().unwrap();
    std::fs::rename(&path, io.folder.path().join("old")).unwrap();
    image(&io.folder, "a.raw", 3 * MIB);
    io.process.signal(Signal::CONT).unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let mut caller = io.caller();
    let refused = |caller: &mut Caller| caller.stats().disks.remove(0).refused;
    let text = format!("{path} is another file than the one that was attached");
    eventually("it is refused", || refused(&mut caller).is_some_and(|why| why.contains(&text)));
    std::fs::rename(io.folder.path().join("old"), &path).unwrap();
    assert_eq!(caller.disk("disk.activate", json!({"id": "d"})).state, DiskState::Active);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn an_older_worker_gets_plain_disks_only() {
    let mut io = Io::start();
    let path = image(&io.folder, "a.raw", 3 * MIB);
    let mut caller = io.caller();
    let file = open(&path, true);
    for (backend, text) in [
        (window(json!(path)), format!("1048576 bytes at 1048576 of {path}")),
        (json!({"file": {"fd": 0}}), "fd:0".into()),
    ] {
        caller.attach_with(io.spec("tree", backend), &[file.as_fd()]).unwrap();
        let mut guest = connect(&io.socket("tree"));
        let older = play(&io, "'refuses'");
        let error = caller.call("upgrade", json!({"binary": older})).unwrap_err().message;
        assert!(error.contains("disk \"tree\" cannot be handed over"), "{error}");
        assert!(error.contains(&format!("its backend is {text}, and the new worker")), "{error}");
        write(&mut guest, 0, 1);
        drop(guest);
        caller.call("disk.detach", json!({"id": "tree"})).unwrap();
    }
    // Without trees, the destination refuses for its own reason.
    caller.disk("disk.attach", io.spec("plain", json!({"file": path})));
    let older = play(&io, "'refuses'");
    let error = caller.call("upgrade", json!({"binary": older})).unwrap_err().message;
    assert!(error.contains("refused: not today"), "{error}");
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Kills a worker with a write in flight in this backend of a stalled device. The next worker must
/// wait until the kernel has ended it.
fn is_fenced(slow: &Stalling, backend: Value, fds: &[BorrowedFd<'_>]) {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.attach_with(io.spec("d", backend), fds).unwrap();
    let worker = io.process.worker().unwrap().unwrap();
    slow.enclose(worker.id()).unwrap();
    slow.hang().unwrap();
    let mut guest = connect(&io.socket("d"));
    let _lost = guest.submit(0, &Request::write(0, &[0xaa; 16 << 10])).unwrap();
    guest.kick(0).unwrap();
    let silent = guest.wait(0, std::time::Duration::from_millis(200)).unwrap();
    assert_eq!(silent, WaitEvent::Silent, "it hangs");
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let mut caller = io.caller();
    eventually("it waits", || caller.stats().disks.iter().any(|disk| disk.fence.is_some()));
    slow.answer().unwrap();
    eventually("it is served", || caller.state("d") == Some(DiskState::Active));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn every_file_of_a_tree_has_a_fence() {
    let Some(slow) = Stalling::new(MIB as usize, 0).unwrap() else { return };
    let path = slow.device().to_str().unwrap();
    let part = |file| json!({"raw": {"child": {"file": file}, "offset": 0, "size": 1 << 19}});
    is_fenced(&slow, part(json!(path)), &[]);
    let file = open(path, true);
    is_fenced(&slow, json!({"file": {"fd": 0}}), &[file.as_fd()]);
}

/// Starts `ringway-blk` with a backend and `path` as descriptor 7.
fn blk_with(path: &str, socket: &Path, backend: &Value, more: &[&str]) -> Process {
    let (socket, backend) = (socket.to_str().unwrap(), backend.to_string());
    let script = "exec 7<>\"$0\" && exec \"$@\"";
    let words = ["-c", script, path, BLK, "--socket-path", socket, "--backend", &backend];
    let words = [&words[..], &["--cache", "writeback"], more].concat();
    ready("sh", &words)
}

#[test]
fn ringway_blk_serves_inherited_files() {
    let folder = folder();
    let path = image(&folder, "a.raw", 3 * MIB);
    let socket = folder.path().join("s");
    for (backend, first) in [(json!({"file": {"fd": 7}}), 0), (window(json!({"fd": 7})), MIB)] {
        let mut process = blk_with(&path, &socket, &backend, &[]);
        write(&mut connect(&socket), 5, 1);
        assert!(process.terminate().unwrap().success(), "{}", process.stderr());
        let mut found = [0; 1];
        open(&path, false).read_exact_at(&mut found, first + 5 * 512).unwrap();
        assert_eq!(found, [1]);

        let mut process = blk_with(&path, &socket, &backend, &["--supervise"]);
        write(&mut connect(&socket), 6, 2);
        let worker = process.next_worker(None).unwrap();
        worker.kill().unwrap();
        assert_eq!(read(&mut connect(&socket), 6), 2);
        assert!(process.terminate().unwrap().success(), "{}", process.stderr());
    }
    let options = |backend: &str| {
        let words = ["--socket-path", "/no/such/socket", "--backend", backend];
        let mut process = Process::start(Command::new(BLK).args(words)).unwrap();
        let code = process.wait(PROCESS_DEADLINE).unwrap().code();
        (code, process.stderr())
    };
    for (backend, text) in [
        (r#"{"file":{"fd":200}}"#, "fd:200 is not open"),
        (r#"{"file":{"fd":2}}"#, "fd:2 is a standard stream"),
        (r#"{"flie":"/a"}"#, "unknown variant `flie`"),
        (r#"{"qcow2":{"file":"/no/such/file"}}"#, "No such file"),
    ] {
        let (code, stderr) = options(backend);
        assert!(code.is_some_and(|code| code > 0) && stderr.contains(text), "{backend}: {stderr}");
    }
}
