//! Backends that the user has started.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::blk::baseline::BlkBaseline;
use lab::blk::hung_disk::HungDisk;
use lab::experiment::Options;
use lab::peer::PeerArgument;
use lab::progress::Silent;
use testkit::driver::{self, Driver};
use testkit::process::{Backend, StorageDaemon, Target};

use super::{run, tiny};

fn peer(name: &str, socket: &std::path::Path, pid: u32) -> PeerArgument {
    format!("{name}={},{pid}", socket.display()).parse().unwrap()
}

#[test]
fn a_peer_that_somebody_else_has_started_takes_part() {
    let ours = Backend::ringway_blk(&["--null", "64M"]).unwrap();
    let theirs = Backend::storage_daemon(&StorageDaemon::new(Target::Null(64 << 20))).unwrap();
    let peers = vec![
        peer("first", ours.socket(), ours.process.id()),
        peer("second", theirs.socket(), theirs.process.id()),
    ];
    let options = Options { only: Some("null-4k-d1-poll".into()), peers, ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let results = run(&BlkBaseline, &options, &mut Silent, &stop).unwrap();
    let systems = &results.cells[0].systems;
    for name in ["first", "second"] {
        let series = systems.iter().find(|series| series.name == name).unwrap();
        assert!(series.median("iops") > 0.0 && series.median("backend_cpus") > 0.0, "{series:?}");
        assert!(results.run.notes.iter().any(|note| note.starts_with(name)));
    }
    // No backend stays stopped, and both still serve.
    for backend in [&ours, &theirs] {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", backend.process.id())).unwrap();
        assert!(!stat.contains(") T "), "{stat}");
        Driver::connect(backend.socket(), &driver::Options::default()).unwrap();
    }
}

#[test]
fn a_wrong_peer_is_refused_with_the_reason() {
    let ours = Backend::ringway_blk(&["--null", "64M"]).unwrap();
    let (socket, pid) = (ours.socket(), ours.process.id());
    let file = ours.dir().join("file");
    std::fs::write(&file, "").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    for (peer, reason) in [
        (peer("p", &ours.dir().join("none"), pid), "there is no "),
        (peer("p", &file, pid), "is no socket"),
        (peer("p", socket, i32::MAX as u32), "there is no process 2147483647"),
        (peer("p", socket, u32::MAX), "is no process id"),
        (peer("p", socket, std::process::id()), "does not listen on"),
    ] {
        let options =
            Options { only: Some("null-4k-d1-poll".into()), peers: vec![peer], ..tiny(false) };
        let error = run(&BlkBaseline, &options, &mut Silent, &stop).unwrap_err();
        assert!(format!("{error:#}").contains(reason), "{error:#}");
        let error = run(&HungDisk, &options, &mut Silent, &stop).unwrap_err();
        assert!(format!("{error:#}").contains("no peer can join"), "{error:#}");
    }
    for wrong in ["", "a", "a=b", "a=b,", "a=b,c", "a=,1", "=b,1", "a=b,0", "a=b,-1"] {
        let error = wrong.parse::<PeerArgument>().unwrap_err();
        assert!(error.contains("NAME=SOCKET,PID"), "{error}");
    }
    let with_comma = "a=/b,c,7".parse::<PeerArgument>().unwrap();
    assert_eq!((with_comma.socket.to_str(), with_comma.pid), (Some("/b,c"), 7));
}
