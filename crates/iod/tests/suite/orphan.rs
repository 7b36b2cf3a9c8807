//! Workers whose keeper was killed.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::sectors::{connect, read, write};
use crate::common::*;
use model::report::DiskState;
use model::spec::PollMode;
use rustix::process::Signal;
use serde_json::json;
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Process, Worker};
use testkit::raw::Guest;
use testkit::raw::guest::wait_readable;

use std::os::fd::AsFd;

/// Worker without a keeper. It ends with the test.
struct Orphan(Worker);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Kills the keeper of `io`.
fn orphan(io: &mut Io) -> Orphan {
    let worker = Orphan(io.process.worker().unwrap().unwrap());
    io.process.kill().unwrap();
    worker
}

fn keep(io: &Io) -> Process {
    ready(IO, &["--control", io.socket("control").to_str().unwrap()])
}

/// Returns whether the only NIC has the polling settings and limits that were set.
fn has_settings(io: &Io) -> bool {
    let stats = io.caller().stats();
    let ([nic], [port]) = (&stats.nics[..], &stats.ports[..]) else { return false };
    let mode = port.polling.as_ref().map(|polling| polling.set.mode);
    nic.connected && nic.locked && nic.flood == Some(7) && mode == Some(PollMode::Off)
}

/// Sends a frame that the address lock drops, and checks the number of drops since the worker
/// started.
fn is_locked(io: &Io, nic: &mut Guest, refused: u64) {
    frames::send(nic, &frames::frame(0xff, 9, "of somebody else"));
    let counters = io.caller().stats().nics.swap_remove(0).frames;
    assert_eq!(counters.tx_dropped.get("locked-mac"), Some(&refused), "{counters:?}");
}

#[test]
fn it_goes_on_serving_and_a_new_keeper_adopts_it() {
    let mut io = Io::lasting(&[]);
    let mut caller = io.caller();
    for id in ["a", "b"] {
        caller.disk("disk.attach", io.spec(id, json!({"memory": 1 << 20})));
    }
    frames::attach(&io, "n", "lan", 1);
    caller.call("nic.poll", json!({"id": "n", "poll": "off"})).unwrap();
    let mut guest = connect(&io.socket("a"));
    let mut nic = frames::guest(&io.socket("n"), 1);
    write(&mut guest, 0, 1);
    let worker = orphan(&mut io);
    // The session and the caller are the same.
    write(&mut guest, 1, 2);
    eventually("nobody keeps it", || caller.stats().keeper.is_none());
    // The next keeper also receives the changes that happen meanwhile.
    caller.call("disk.detach", json!({"id": "b"})).unwrap();
    caller.disk("disk.attach", io.spec("c", json!({"memory": 1 << 20})));
    caller.disk("disk.pause", json!({"id": "c"}));
    let limits = json!({"locked": {"ipv4": ["10.0.0.1"]}, "flood": 7});
    caller.call("nic.limits", json!({"id": "n", "limits": limits})).unwrap();
    is_locked(&io, &mut nic, 1);

    let mut keeper = keep(&io);
    write(&mut guest, 2, 3);
    let stats = caller.stats();
    assert_eq!(stats.pid, worker.0.id(), "it is the same worker");
    assert_eq!(stats.keeper.unwrap().pid, keeper.id());
    assert!(has_settings(&io), "{:?}", io.caller().stats());
    is_locked(&io, &mut nic, 2);
    drop((guest, nic));

    worker.0.kill().unwrap();
    keeper.next_worker(None).unwrap();
    let mut caller = io.caller();
    let stats = caller.stats();
    let restarted = stats.keeper.unwrap();
    assert_eq!((restarted.pid, restarted.restarts), (keeper.id(), 1));
    assert!(restarted.last_exit.unwrap().contains("unknown status"));
    let mut guest = connect(&io.socket("a"));
    assert_eq!([0, 1, 2].map(|at| read(&mut guest, at)), [1, 2, 3]);
    let mut nic = frames::guest(&io.socket("n"), 1);
    eventually("the NIC is as it was told", || has_settings(&io));
    is_locked(&io, &mut nic, 1);
    eventually("the others are there", || caller.state("c") == Some(DiskState::Paused));
    assert_eq!(caller.stats().disks.len(), 2);
    assert!(keeper.terminate().unwrap().success(), "{}", keeper.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn one_that_serves_metrics_is_adopted_too() {
    let folder = folder();
    let metrics = format!("unix:{}", folder.path().join("metrics").display());
    let options = ["--metrics", metrics.as_str()];
    let mut io = Io::lasting(&options);
    let worker = orphan(&mut io);
    let control = io.socket("control");
    let mut keeper =
        ready(IO, &[&["--control", control.to_str().unwrap()], options.as_slice()].concat());
    let stats = io.caller().stats();
    assert_eq!((stats.pid, stats.keeper.unwrap().pid), (worker.0.id(), keeper.id()));
    assert!(keeper.terminate().unwrap().success(), "{}", keeper.stderr());
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn keepers_come_and_go_and_the_worker_stays() {
    let mut io = Io::lasting(&[]);
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let mut guest = connect(&io.socket("d"));
    let worker = orphan(&mut io);
    for round in 0..testkit::rounds(5, 100) {
        let mut keeper = keep(&io);
        write(&mut guest, round as u64, round as u8);
        assert_eq!(io.caller().stats().keeper.unwrap().pid, keeper.id());
        keeper.kill().unwrap();
    }
    let mut last = keep(&io);
    assert_eq!(io.caller().stats().pid, worker.0.id());
    // An adopted worker ends in order too, and its keeper with it.
    io.caller().call("shutdown", json!({})).unwrap();
    assert!(last.wait(PROCESS_DEADLINE).unwrap().success(), "{}", last.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn the_death_of_an_adopted_worker_is_no_orderly_end() {
    let mut io = Io::lasting(&[]);
    let worker = orphan(&mut io);
    let mut keeper = keep(&io);
    // When it continues, the stopped keeper sees the end of its worker and the signal together.
    keeper.signal(Signal::STOP).unwrap();
    worker.0.kill().unwrap();
    wait_readable(&[worker.0.ended().as_fd()], PROCESS_DEADLINE).unwrap();
    keeper.signal(Signal::TERM).unwrap();
    keeper.signal(Signal::CONT).unwrap();
    assert!(!keeper.wait(PROCESS_DEADLINE).unwrap().success());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn a_worker_that_is_kept_is_not_adopted() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    let mut guest = connect(&io.socket("d"));
    let (code, stderr) = ends(IO, &["--control", io.socket("control").to_str().unwrap()]);
    let served = format!("already served by process {}", io.process.id());
    assert!(code == 1 && stderr.contains(&served), "{stderr}");
    let error = caller.call("keeper.adopt", json!({})).unwrap_err();
    assert_eq!(error.message, served);
    write(&mut guest, 0, 1);
    assert_eq!(caller.stats().keeper.unwrap().restarts, 0);
    assert!(io.process.terminate().unwrap().success());
}

#[test]
fn somebody_elses_socket_is_not_adopted() {
    let folder = folder();
    let path = folder.path().join("control");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let talker = std::thread::spawn(move || {
        // One of the two connections only checks whether a server listens.
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 512]);
            let _ = std::io::Write::write_all(&mut stream, b"220 hello\n");
        }
    });
    let (code, stderr) = ends(IO, &["--control", path.to_str().unwrap()]);
    assert!(code == 1 && stderr.contains("running process"), "{stderr}");
    assert!(stderr.contains("not valid JSON-RPC"), "{stderr}");
    talker.join().unwrap();
}

#[test]
fn together_means_that_a_worker_ends_with_its_keeper() {
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    let worker = orphan(&mut io);
    let ended = wait_readable(&[worker.0.ended().as_fd()], PROCESS_DEADLINE).unwrap();
    assert_eq!(ended, Some(0), "it has ended");
    assert_eq!(names(&io.folder), [""; 0], "in order");
}

/// Runs `work` on a thread with another user ID. This process must be root.
fn as_nobody<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let nobody = rustix::process::Uid::from_raw(65534);
    let us = rustix::process::geteuid();
    assert!(us.is_root(), "only root can be somebody else");
    let change = move || rustix::thread::set_thread_res_uid(us, nobody, us).unwrap();
    std::thread::scope(|scope| scope.spawn(|| (change(), work()).1).join().unwrap())
}

#[test]
fn only_its_own_user_may_keep_a_worker() {
    let mut io = Io::lasting(&["--control-mode", "666"]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(io.folder.path(), open).unwrap();
    let worker = orphan(&mut io);
    let error = as_nobody(|| {
        let mut caller = io.caller();
        // This user may call other methods.
        caller.stats();
        caller.call("keeper.adopt", json!({})).unwrap_err()
    });
    assert!(error.message.contains("only the user of this process"), "{error}");
    // The refused call has not changed the worker.
    let mut keeper = keep(&io);
    assert_eq!(io.caller().stats().pid, worker.0.id());
    assert!(keeper.terminate().unwrap().success(), "{}", keeper.stderr());
}

#[test]
fn a_worker_of_another_user_is_not_trusted() {
    let folder = folder();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let path = folder.path().join("control");
    let _listener = as_nobody(|| std::os::unix::net::UnixListener::bind(&path).unwrap());
    let (code, stderr) = ends(IO, &["--control", path.to_str().unwrap()]);
    assert!(code == 1 && stderr.contains("belongs to user 65534"), "{stderr}");
}
