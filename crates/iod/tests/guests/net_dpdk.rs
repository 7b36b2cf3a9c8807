//! DPDK's virtio-user, a third-party front-end, at `ringway-net`. Needs root, for huge pages.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;

use crate::common::switch::Switch;
use rustix::process::Signal;
use testkit::process::PROCESS_DEADLINE;
use testkit::process::eventually;
use testkit::rounds;
use testkit::testpmd::{Memory, Nics, Testpmd, allow_huge_pages};

/// Memory of one testpmd in MiB.
const MEMORY_MIB: u32 = 256;

/// Returns two NICs of one testpmd at the ports `a` and `b`.
fn nics(switch: &Switch) -> Nics {
    let sockets: Vec<PathBuf> = ["a", "b"].map(|name| switch.port(name)).into();
    Nics { sockets, memory_mib: MEMORY_MIB, ..Nics::default() }
}

fn switch(pairs: u16) -> Switch {
    Switch::with(&["a", "b"], &["--queues", &pairs.to_string()])
}

/// Waits until each side has received this many more frames.
fn go_around(testpmd: &mut Testpmd, frames: u64) {
    let received = |testpmd: &mut Testpmd| [0, 1].map(|n| testpmd.counts(n).unwrap().received);
    let before = received(testpmd);
    // testpmd does not report progress by itself.
    eventually("frames go around", || {
        let now = received(testpmd);
        now.iter().zip(before).all(|(now, before)| *now >= before + frames)
    });
}

/// Checks that frames go around between both NICs and the switch loses none.
fn none_is_lost(what: &str, switch: &Switch, nics: &Nics) {
    let mut testpmd = nics.start().unwrap();
    testpmd.command("start tx_first 2").unwrap();
    go_around(&mut testpmd, rounds(20_000, 2_000_000) as u64);
    for port in [0, 1] {
        let queues = testpmd.received_by_queue(port).unwrap();
        assert_eq!(queues.len(), usize::from(nics.pairs), "{what}");
        assert!(queues.iter().all(|frames| *frames > 0), "{what}: {queues:?}");
    }
    testpmd.command("stop").unwrap();
    let [a, b] = [0, 1].map(|port| testpmd.counts(port).unwrap());
    assert_eq!((a.failed, b.failed), (0, 0), "{what}");
    assert!(a.received > 0 && b.received > 0, "{what}");
    for port in switch.ports() {
        assert_eq!((port.tx.lost(), port.rx.lost()), (0, 0), "{what}: {port:?}");
    }
    testpmd.quit().unwrap();
}

#[test]
fn frames_go_between_nics_of_every_kind() {
    allow_huge_pages(2 * u64::from(MEMORY_MIB)).unwrap();
    for pairs in [1, 2] {
        let mut switch = switch(pairs);
        for (mergeable, memory) in [
            (false, Memory::Small),
            (true, Memory::Small),
            (false, Memory::Huge),
            (true, Memory::Huge),
        ] {
            let what = format!("{pairs} pairs, mergeable: {mergeable}, {memory:?}");
            none_is_lost(&what, &switch, &Nics { pairs, mergeable, memory, ..nics(&switch) });
        }
        assert!(switch.process.terminate().unwrap().success());
    }
}

#[test]
fn full_frames_and_one_pair_of_two() {
    let switch = switch(2);
    none_is_lost("full frames", &switch, &Nics { frame_bytes: 1500, pairs: 2, ..nics(&switch) });
    none_is_lost("one pair", &switch, &Nics { mergeable: false, ..nics(&switch) });
}

/// A frame that is longer than a receive buffer is spread over several buffers.
#[test]
fn mergeable_buffers_hold_what_one_does_not() {
    let switch = Switch::with(&["a", "b"], &["--mtu", "9000"]);
    let mut testpmd = Nics { scattered: true, ..nics(&switch) }.start().unwrap();
    testpmd.command("set txpkts 2000,2000,2000,2000").unwrap();
    testpmd.command("start tx_first 1").unwrap();
    go_around(&mut testpmd, 2_000);
    testpmd.quit().unwrap();
}

/// The switch connects to a front-end that listens, which stops and starts its queues meanwhile.
#[test]
fn a_front_end_that_listens_starts_and_stops_its_queues() {
    let folder = crate::common::folder();
    let sockets: Vec<PathBuf> = ["a", "b"].map(|name| folder.path().join(name)).into();
    let ports = sockets.iter().flat_map(|socket| ["--port", socket.to_str().unwrap()]);
    let options: Vec<_> = ports.chain(["--connect"]).collect();
    let mut process = crate::common::ready(crate::common::NET, &options);
    let nics = Nics { sockets: sockets.clone(), listen: true, ..Nics::default() };
    let mut testpmd = nics.start().unwrap();
    for _ in 0..rounds(3, 100) {
        testpmd.command("start tx_first 1").unwrap();
        go_around(&mut testpmd, 2_000);
        testpmd.command("stop").unwrap();
        testpmd.command("port stop all").unwrap();
        testpmd.command("port start all").unwrap();
    }
    testpmd.quit().unwrap();
    assert!(process.terminate().unwrap().success());
}

/// After a testpmd is killed, the next one is served.
#[test]
fn one_that_is_killed_makes_room_for_the_next() {
    let mut switch = switch(1);
    for _ in 0..2 {
        let mut testpmd = nics(&switch).start().unwrap();
        testpmd.command("start tx_first 2").unwrap();
        go_around(&mut testpmd, 2_000);
        testpmd.kill().unwrap();
    }
    switch.process.signal(Signal::TERM).unwrap();
    assert!(switch.process.wait(PROCESS_DEADLINE).unwrap().success());
}
