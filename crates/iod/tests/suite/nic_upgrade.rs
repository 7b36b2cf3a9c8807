//! NICs that continue in another worker while front-ends use them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::actor::play;
use crate::common::frames::*;
use crate::common::*;
use model::rpc::{RpcError, UpgradeReply};
use serde_json::{Value, json};
use testkit::in_namespace::in_own_network;
use testkit::process::eventually;
use testkit::raw::nic::PLAIN;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup, WaitEvent};

/// Time to wait for a frame that must not arrive.
const BRIEFLY: Duration = Duration::from_millis(50);
/// Time that a front-end has to finish a message while all others are served.
const GRACE: Duration = Duration::from_millis(500);
/// Frames in flight at a time.
const WINDOW: u64 = 16;

fn upgrade(io: &Io, binary: Option<&str>) -> Result<UpgradeReply, RpcError> {
    let params = binary.map_or(Value::Null, |binary| json!({"binary": binary}));
    let reply = io.caller().call("upgrade", params)?;
    Ok(serde_json::from_value(reply).unwrap())
}

/// Sends numbered frames to station 2 and receives each of them back, in order and once, until
/// `over` is set. Returns their number. A lost frame makes this wait in vain.
fn ask(guest: &mut Guest, over: &AtomicBool) -> u64 {
    let (mut sent, mut arrived) = (0, 0);
    loop {
        // Send some frames even if `over` is set at once.
        while sent < arrived + WINDOW && (sent < WINDOW || !over.load(Ordering::Relaxed)) {
            guest.pass_frame(0, &frame(2, 1, &format!("{sent:8}"))).unwrap();
            sent += 1;
        }
        if arrived == sent {
            return sent;
        }
        let back = guest.take_frame(0, SOON).unwrap();
        let back = back.unwrap_or_else(|| panic!("{arrived} of {sent} came back"));
        assert_eq!(back.bytes, frame(1, 2, &format!("{arrived:8}")));
        arrived += 1;
    }
}

/// Sends received frames back, until none arrives any more and `over` is set.
fn answer(guest: &mut Guest, over: &AtomicBool) {
    loop {
        match guest.take_frame(0, BRIEFLY).unwrap() {
            Some(asked) => {
                let text = String::from_utf8(asked.bytes[14..].to_vec()).unwrap();
                guest.pass_frame(0, &frame(1, 2, &text)).unwrap();
            }
            None if over.load(Ordering::Relaxed) => return,
            None => {}
        }
    }
}

/// Runs two guests that exchange frames during `meanwhile`. Returns the number of frames.
fn while_they_speak(a: &mut Guest, b: &mut Guest, meanwhile: impl FnOnce()) -> u64 {
    let (enough, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(a, &enough));
        let answering = scope.spawn(|| answer(b, &over));
        let ended = [Ended(&enough), Ended(&over)];
        meanwhile();
        enough.store(true, Ordering::Relaxed);
        let count = asking.join();
        drop(ended);
        answering.join().unwrap();
        count.unwrap()
    })
}

#[test]
fn front_ends_under_load_lose_nothing_and_do_not_notice() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    (1..).zip(["a", "b", "c"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|id| guest(&io.socket(id), 1));
    while_they_speak(&mut a, &mut b, || {});
    // The first frame was flooded, because its destination was not learnt yet.
    while c.receive_frame(0, BRIEFLY).unwrap().is_some() {}
    let mut paused = Vec::new();
    let frames = while_they_speak(&mut a, &mut b, || {
        for _ in 0..testkit::rounds(5, 50) {
            let reply = upgrade(&io, None).unwrap();
            assert_eq!((reply.disks, reply.nics), (1, 3));
            assert_eq!(io.caller().stats().pid, reply.pid);
            paused.push(reply.paused_ms);
        }
    });
    paused.sort_by(f64::total_cmp);
    println!("{frames} frames; guests waited {paused:.1?} ms");
    assert!(frames > 2 * WINDOW);
    // No frame was flooded: the stations stayed known.
    assert_eq!(c.receive_frame(0, BRIEFLY).unwrap(), None);
    let stats = io.caller().stats();
    assert!(stats.nics.iter().all(|nic| nic.connected), "{:?}", stats.nics);
    let lost: u64 = stats.ports.iter().map(|port| port.tx.lost() + port.rx.lost()).sum();
    assert_eq!((lost, stats.keeper.unwrap().restarts), (0, 0));
    // The new worker serves its sockets, also for later front-ends.
    drop(c);
    let mut c = guest(&io.socket("c"), 1);
    send(&mut a, &frame(0xff, 1, "to everybody"));
    assert_eq!(received(&mut c), frame(0xff, 1, "to everybody"));
    io.caller().call("nic.detach", json!({"id": "a"})).unwrap();
    a.frontend.connection.wait_closed().unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn a_new_worker_that_does_not_take_over_changes_nothing() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    let pid = io.caller().stats().pid;
    let frames = while_they_speak(&mut a, &mut b, || {
        for (part, why) in [
            ("refuses", "does not support NICs"),
            ("future nics", "reads formats 98 to 99 of the record of a NIC"),
            ("nics refuses", "refused: not today"),
            ("nics gets everything and dies", "the other worker has ended"),
            ("nics dies late", "has ended"),
            ("nics hangs", "did not answer in time"),
        ] {
            let binary = play(&io, &format!("'{part}'"));
            let error = upgrade(&io, Some(&binary)).unwrap_err();
            assert!(error.message.contains(why), "{part}: {error}");
            assert_eq!(io.caller().stats().pid, pid, "{part}");
        }
    });
    assert!(frames > WINDOW);
    let stats = io.caller().stats();
    assert!(stats.nics.iter().all(|nic| nic.connected), "{:?}", stats.nics);
    upgrade(&io, None).unwrap();
    while_they_speak(&mut a, &mut b, || {});
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["successor"]);
}

#[test]
fn many_are_handed_over_at_once() {
    let count = testkit::rounds(40, 200);
    let mut io = Io::start_with(&["--reactors", "2"]);
    let ids: Vec<_> = (0..count).map(|number| format!("n{number}")).collect();
    ids.iter().zip(0..).for_each(|(id, number)| attach(&io, id, "lan", number));
    let setup = || Setup { queues: 2, memory_bytes: 1 << 20, ..Setup::default() };
    let connect = |id: &String| Guest::start(&io.socket(id), &setup()).unwrap();
    let mut guests: Vec<_> = ids.iter().map(connect).collect();
    guests.iter_mut().for_each(|one| one.post_buffers(0, 8, 2048).unwrap());
    let mut paused = Vec::new();
    for round in 0..3u8 {
        let reply = upgrade(&io, None).unwrap();
        assert_eq!(reply.nics, count as u64);
        paused.push(reply.paused_ms);
        let (first, others) = guests.split_first_mut().unwrap();
        let loud = frame(0xff, 1, &format!("round {round}"));
        send(first, &loud);
        others.iter_mut().for_each(|one| assert_eq!(received(one), loud));
    }
    paused.sort_by(f64::total_cmp);
    println!("{count} NICs: guests waited {paused:.1?} ms");
    assert_eq!(io.caller().stats().ports.len(), count);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Commands (virtio 1.2, 5.1.6.5): promiscuous mode off, and two queue pairs.
const NOT_PROMISCUOUS: [u8; 3] = [0, 0, 0];
const TWO_PAIRS: [u8; 4] = [4, 0, 2, 0];

#[test]
fn what_drivers_asked_for_stays() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    let mut wide = spec(&io, "a", "lan", 1);
    wide["queues"] = json!(2);
    io.caller().call("nic.attach", wide).unwrap();
    attach(&io, "b", "lan", 2);
    let setup = Setup { queues: 5, ..Setup::default() };
    let mut a = Guest::start(&io.socket("a"), &setup).unwrap();
    (0..2).for_each(|pair| a.post_buffers(pair, 32, 2048).unwrap());
    assert_eq!(a.command(4, &NOT_PROMISCUOUS).unwrap(), 0);
    let mut b = guest(&io.socket("b"), 1);
    for round in 0..3 {
        // No station has this address.
        send(&mut b, &frame(9, 2, "to nobody"));
        send(&mut b, &frame(1, 2, &format!("{round}")));
        assert_eq!(received(&mut a), frame(1, 2, &format!("{round}")));
        upgrade(&io, None).unwrap();
    }
    assert_eq!(a.command(4, &TWO_PAIRS).unwrap(), 0);
    assert_eq!(a.command(4, &[9, 9, 9]).unwrap(), 1);
    upgrade(&io, None).unwrap();
    send(&mut b, &frame(1, 2, "after all"));
    assert_eq!(received(&mut a), frame(1, 2, "after all"));
    // After a driver reset the settings are the defaults, in any worker.
    drop(a);
    let mut a = guest(&io.socket("a"), 2);
    send(&mut b, &frame(9, 2, "to nobody"));
    assert_eq!(received(&mut a), frame(9, 2, "to nobody"));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_front_end_within_a_message_is_sent_away_and_holds_up_nobody() {
    let mut io = Io::start();
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    let mut rude = UnixStream::connect(io.socket("a")).unwrap();
    // Send a message, which is answered, and a part of another one.
    rude.write_all(&[&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..], &[1, 0, 0, 0, 1]].concat())
        .unwrap();
    rude.read_exact(&mut [0; 20]).unwrap();
    let mut b = guest(&io.socket("b"), 1);
    eventually("both are there", || io.caller().stats().nics.iter().all(|nic| nic.connected));
    let began = Instant::now();
    let sent_away = std::thread::spawn(move || {
        assert_eq!(rude.read(&mut [0; 16]).unwrap(), 0);
        began.elapsed()
    });
    upgrade(&io, None).unwrap();
    assert!(sent_away.join().unwrap() >= GRACE, "it has its time");
    // The last messages may still be in flight, because they have no reply.
    let serves_b =
        || io.caller().stats().ports.iter().any(|one| one.id == "b" && one.pairs_started > 0);
    eventually("b is served", serves_b);
    let mut a = guest(&io.socket("a"), 1);
    send(&mut a, &frame(0xff, 1, "politely"));
    assert_eq!(received(&mut b), frame(0xff, 1, "politely"));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Runs a front-end that stays in the middle of a message whenever it is accepted, until `over` is
/// set.
fn be_rude(socket: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let Ok(mut rude) = UnixStream::connect(socket) else { continue };
        rude.set_read_timeout(Some(BRIEFLY)).unwrap();
        let _ = rude.write_all(&[1, 0, 0, 0, 1]);
        while !over.load(Ordering::Relaxed) && rude.read(&mut [0; 16]).is_err() {}
    }
}

/// Reads from a disk during `meanwhile`. Returns its result, and the longest time between two
/// replies.
fn while_it_reads<T>(disk: &mut Guest, meanwhile: impl FnOnce() -> T) -> (T, Duration) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut longest, mut last) = (Duration::ZERO, Instant::now());
            while !over.load(Ordering::Relaxed) {
                assert_eq!(disk.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        let ends = Ended(&over);
        let done = meanwhile();
        drop(ends);
        (done, reading.join().unwrap())
    })
}

#[test]
fn nobody_waits_for_front_ends_that_are_always_within_a_message() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    (1..).zip(["a", "b", "rude"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    for id in ["d", "worse"] {
        io.caller().disk("disk.attach", io.spec(id, json!({"memory": 1 << 20})));
    }
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    let mut disk = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    let are_there = || {
        let stats = io.caller().stats();
        stats.nics.iter().all(|nic| nic.connected) && stats.disks.iter().all(|disk| disk.connected)
    };
    let (mut longest, over) = (Vec::new(), AtomicBool::new(false));
    let sockets = ["rude", "worse"].map(|id| io.socket(id));
    std::thread::scope(|scope| {
        let ends = Ended(&over);
        for socket in &sockets {
            scope.spawn(|| be_rude(socket, &over));
        }
        for _ in 0..3 {
            eventually("all are there", are_there);
            while_they_speak(&mut a, &mut b, || {
                let (reply, waited) = while_it_reads(&mut disk, || upgrade(&io, None).unwrap());
                assert_eq!((reply.disks, reply.nics), (2, 3));
                longest.push(waited);
            });
        }
        drop(ends);
    });
    println!("between two answers: {longest:.1?}");
    // Each upgrade would take the whole grace if it waited. A busy host delays some of them.
    assert!(longest.iter().min().unwrap() < &GRACE, "{longest:?}");
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Returns the payload of a UDP datagram in an IPv4 frame without options.
fn datagram(frame: &[u8]) -> Option<&[u8]> {
    let is_udp = frame.get(12..14)? == [8, 0] && frame.get(23)? == &17;
    frame.get(42..).filter(|_| is_udp)
}

#[test]
fn the_host_stays_in_its_network() {
    in_own_network(concat!(module_path!(), "::the_host_stays_in_its_network"), || {
        let mut io = Io::start_with(&["--reactors", "2"]);
        attach(&io, "a", "lan", 1);
        let lan = json!({"network": "lan", "tap": "rwu0"});
        io.caller().call("network.uplink", lan).unwrap();
        run("ip addr add 10.9.0.1/24 dev rwu0");
        run("ip link set dev rwu0 up");
        run("ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:01 dev rwu0");
        let index = || std::fs::read_to_string("/sys/class/net/rwu0/ifindex").unwrap();
        let before = index();
        let mut a = guest(&io.socket("a"), 1);
        // The switch learns the station of the guest here.
        send(&mut a, &frame(0xff, 1, "here"));
        let host = UdpSocket::bind("10.9.0.1:0").unwrap();
        let over = AtomicBool::new(false);
        let frames = std::thread::scope(|scope| {
            let speaking = scope.spawn(|| {
                let (mut sent, mut arrived) = (0u64, 0);
                while arrived < sent || !over.load(Ordering::Relaxed) {
                    while sent < arrived + WINDOW && !over.load(Ordering::Relaxed) {
                        host.send_to(format!("{sent:8}").as_bytes(), "10.9.0.2:9").unwrap();
                        sent += 1;
                    }
                    let frame = a.take_frame(0, SOON).unwrap();
                    let frame = frame.unwrap_or_else(|| panic!("{arrived} of {sent} came"));
                    if let Some(text) = datagram(&frame.bytes) {
                        assert_eq!(text[..8], *format!("{arrived:8}").as_bytes());
                        arrived += 1;
                    }
                }
                arrived
            });
            for _ in 0..testkit::rounds(5, 50) {
                assert_eq!(upgrade(&io, None).unwrap().nics, 1);
            }
            let binary = play(&io, "'nics gets everything and dies'");
            upgrade(&io, Some(&binary)).unwrap_err();
            over.store(true, Ordering::Relaxed);
            speaking.join().unwrap()
        });
        assert!(frames > WINDOW, "{frames}");
        assert_eq!(index(), before, "it is the same device");
        let stats = io.caller().stats();
        assert_eq!(stats.networks[0].uplink.as_ref().unwrap().failed, None);
        io.caller().call("network.uplink", json!({"network": "lan"})).unwrap();
        eventually("the device is gone", || !Path::new("/sys/class/net/rwu0").exists());
        assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    })
    .unwrap();
}

#[test]
fn front_ends_come_back_to_a_worker_that_learns_anew() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    // The keeper waits longer before each restart.
    let rounds = testkit::rounds(3, 8) as u64;
    for round in 0..rounds {
        while_they_speak(&mut a, &mut b, || {});
        let worker = io.process.worker().unwrap().unwrap();
        worker.kill().unwrap();
        [&mut a, &mut b].iter_mut().for_each(|one| one.frontend.connection.wait_closed().unwrap());
        // A frame sent while no worker runs waits in its ring.
        let late = frame(0xff, 1, &format!("late {round}"));
        a.offer_frame(0, &PLAIN, &late).unwrap();
        io.process.next_worker(Some(worker.id())).unwrap();
        // The same rings continue from their positions.
        reconnect(&mut b, &io.socket("b"));
        reconnect(&mut a, &io.socket("a"));
        assert_eq!(b.take_frame(0, SOON).unwrap().unwrap().bytes, late);
        assert!(matches!(a.wait(1, SOON), Ok(WaitEvent::Used(_))));
    }
    while_they_speak(&mut a, &mut b, || {});
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, rounds);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
