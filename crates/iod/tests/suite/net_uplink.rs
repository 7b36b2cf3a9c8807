//! `ringway-net` with the host at the switch, by a TAP device in a network namespace of the test.
//! Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::nics::*;
use crate::common::switch::Switch;
use crate::common::*;
use testkit::guest::{Guest, Kind, Machine};
use testkit::in_namespace::in_own_network;
use testkit::process::PROCESS_DEADLINE;
use testkit::process::eventually;
use testkit::raw::nic::PLAIN;
use testkit::raw::{Guest as Driver, Setup};

/// Far more time than any boot and load takes, even when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);
/// Name of the device.
const TAP: &str = "rwu0";
/// IP addresses of the host and of the guest.
const HOST: &str = "10.9.0.1";
const GUEST: &str = "10.9.0.2";
/// Bytes that the host streams.
const STREAM_BYTES: usize = 8 << 20;
/// Log text after the device was deleted.
const GONE: &str = "uplink closed: the TAP device was deleted";
/// Longest frame of one segment.
const FRAME_BYTES: u64 = 1514;

/// Runs a program in the network namespace of the test. Returns its output.
fn run(words: &str) -> String {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

impl Switch {
    /// Starts a switch with the ports `a` and `b` and the host, which has an address.
    fn with_host(options: &[&str]) -> Self {
        let switch = Self::with(&["a", "b"], &[&["--tap", TAP], options].concat());
        // Without a link-local address the host sends nothing by itself.
        run(&format!("ip link set dev {TAP} addrgenmode none"));
        run(&format!("ip addr add {HOST}/24 dev {TAP}"));
        run(&format!("ip link set dev {TAP} up"));
        switch
    }

    /// Starts a front-end with one queue pair and buffers.
    fn driver(&self, name: &str) -> Driver {
        let setup = Setup { queues: 2, ..Setup::default() };
        let mut driver = Driver::start(&self.port(name), &setup).unwrap();
        driver.post_buffers(0, 64, 2048).unwrap();
        driver
    }
}

/// Returns a counter of the device, as the host sees it.
fn counter(name: &str) -> u64 {
    let path = format!("/sys/class/net/{TAP}/statistics/{name}");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

fn md5(bytes: &[u8]) -> String {
    let mut command = Command::new("md5sum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

/// Returns the frames and bytes that the host has sent.
fn sent() -> [u64; 2] {
    ["tx_packets", "tx_bytes"].map(counter)
}

/// Checksums of the streams from and to the guest, and the host's counters before its stream.
struct Streamed {
    received: String,
    sent: String,
    before: [u64; 2],
}

/// Runs the host's part: it receives a stream, pings, and sends another stream.
fn host() -> JoinHandle<Streamed> {
    let listen = |port: u16| TcpListener::bind((HOST, port)).unwrap();
    let (from_guest, to_guest) = (listen(99), listen(98));
    let next = |listener: &TcpListener| -> TcpStream { listener.accept().unwrap().0 };
    std::thread::spawn(move || {
        let mut all = Vec::new();
        next(&from_guest).read_to_end(&mut all).unwrap();
        let mut stream = next(&to_guest);
        run(&format!("busybox ping -c 3 {GUEST}"));
        let before = sent();
        let data: Vec<u8> = (0..STREAM_BYTES as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        stream.write_all(&data).unwrap();
        Streamed { received: md5(&all), sent: md5(&data), before }
    })
}

/// Script of a guest with a NIC. It pings once at a time: of several requests, `ping` waits for the
/// last one only twice as long as for the others, which is too short on a busy host. The input of
/// `nc` stays open, because it would stop early at the end of its input.
const SCRIPT: &str = "ip addr add 10.9.0.2/24 dev eth0
    until busybox ping -c 1 -W 1 10.9.0.1 >/dev/null; do :; done
    for n in 1 2 3 4 5; do busybox ping -c 1 -W 60 10.9.0.1 || exit 2; done
    seq 1 1000000 >/tmp/stream
    echo \"gave $(busybox md5sum </tmp/stream)\"
    busybox nc 10.9.0.1 99 </tmp/stream || exit 4
    mkfifo /tmp/nothing && exec 3<>/tmp/nothing
    echo \"took $(busybox nc 10.9.0.1 98 <&3 | busybox md5sum)\"";

/// Pings and streams between a guest and the host, in both directions.
fn speaks_with_the_host(switch: &mut Switch, kind: Kind, machine: &Machine, script: &str) {
    let host = host();
    let guest = Guest::start(kind, machine, script).unwrap().finish(DEADLINE).unwrap();
    assert_eq!(guest.code, 0, "{}", guest.output);
    let streamed = host.join().unwrap();
    for (what, sum) in [("gave", &streamed.received), ("took", &streamed.sent)] {
        assert!(guest.output.contains(&format!("{what} {sum}")), "{sum}: {}", guest.output);
    }
    let after = sent();
    let [frames, bytes] = [0, 1].map(|at| after[at] - streamed.before[at]);
    assert!(bytes > frames * FRAME_BYTES, "{bytes} bytes in {frames} frames: not in large pieces");
    assert!(switch.process.terminate().unwrap().success());
}

#[test]
fn a_guest_of_qemu_and_the_host() {
    in_own_network(concat!(module_path!(), "::a_guest_of_qemu_and_the_host"), || {
        let mut switch = Switch::with_host(&["--queues", "2", "--reactors", "2"]);
        for queue in ["rx-0", "rx-1", "tx-0", "tx-1"] {
            assert!(Path::new("/sys/class/net").join(TAP).join("queues").join(queue).exists());
        }
        let machine = qemu(&switch.port("a"), 2, "02:00:00:00:00:02");
        speaks_with_the_host(&mut switch, Kind::Qemu, &machine, SCRIPT);
        assert!(!Path::new("/sys/class/net").join(TAP).exists(), "it was made, and stays");
    })
    .unwrap();
}

#[test]
fn a_guest_of_user_mode_linux_and_the_host() {
    in_own_network(concat!(module_path!(), "::a_guest_of_user_mode_linux_and_the_host"), || {
        run(&format!("ip tuntap add dev {TAP} mode tap multi_queue vnet_hdr"));
        let mut switch = Switch::with_host(&[]);
        let machine = uml(&switch.port("a"));
        let script = format!("{DRIVERS}\n{SCRIPT}");
        speaks_with_the_host(&mut switch, Kind::Uml, &machine, &script);
        assert!(Path::new("/sys/class/net").join(TAP).exists(), "it was there before, and is gone");
    })
    .unwrap();
}

/// MAC address of a front-end.
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
const EVERYBODY: [u8; 6] = [0xff; 6];

/// Builds a broadcast ARP request for the host's address.
fn question() -> Vec<u8> {
    let kind = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    let tail = [0, 0, 0, 0, 0, 0, 10, 9, 0, 1];
    [&EVERYBODY[..], &STATION, &kind, &STATION, &[10, 9, 0, 2], &tail].concat()
}

/// Returns the next ARP frame with this operation.
fn arp(driver: &mut Driver, operation: u8) -> Vec<u8> {
    loop {
        let frame = driver.receive_frame(0, PROCESS_DEADLINE).unwrap().expect("no frame came");
        if frame.bytes[12..14] == [8, 6] && frame.bytes[21] == operation {
            return frame.bytes;
        }
    }
}

/// Checks that a broadcast of one front-end reaches the other one.
fn reaches(a: &mut Driver, b: &mut Driver) {
    a.send_frame(0, &PLAIN, &question()).unwrap();
    assert_eq!(arp(b, 1), question());
}

#[test]
fn when_the_device_is_gone_others_still_speak() {
    in_own_network(concat!(module_path!(), "::when_the_device_is_gone_others_still_speak"), || {
        let mut switch = Switch::with_host(&["--reactors", "2"]);
        let [mut a, mut b] = ["a", "b"].map(|name| switch.driver(name));
        reaches(&mut a, &mut b);
        let address = run(&format!("cat /sys/class/net/{TAP}/address"));
        let answer = arp(&mut a, 2);
        let sender: Vec<_> = answer[22..28].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            (sender.join(":"), &answer[28..32]),
            (address.trim().into(), &[10, 9, 0, 1][..])
        );
        run(&format!("ip link del {TAP}"));
        eventually("told that it is gone", || switch.process.stderr().contains(GONE));
        (0..20).for_each(|_| reaches(&mut a, &mut b));
        assert!(switch.process.terminate().unwrap().success());
        let stderr = switch.process.stderr();
        assert!(
            stderr.matches(GONE).count() == 1 && stderr.contains("restart ringway-net"),
            "{stderr}"
        );
        assert!(stderr.contains(&format!("tap:{TAP}")), "nothing is said of its frames: {stderr}");
    })
    .unwrap();
}

/// Sends datagrams to the guest until its network is gone. Returns their number, including those
/// that found no room.
fn datagrams() -> u64 {
    let socket = UdpSocket::bind((HOST, 0)).unwrap();
    let mut count = 0;
    loop {
        match socket.send_to(&[7; 1000], (GUEST, 9)) {
            Err(error) if error.kind() == ErrorKind::NetworkUnreachable => return count,
            // The device's queue may be full.
            _ => count += 1,
        }
    }
}

#[test]
fn a_device_may_go_while_frames_go_both_ways() {
    in_own_network(concat!(module_path!(), "::a_device_may_go_while_frames_go_both_ways"), || {
        let mut switch = Switch::with_host(&["--reactors", "2"]);
        let [mut a, mut b] = ["a", "b"].map(|name| switch.driver(name));
        reaches(&mut a, &mut b);
        let host: [u8; 6] = arp(&mut a, 2)[22..28].try_into().unwrap();
        run(&format!("ip neigh replace {GUEST} lladdr 02:00:00:00:00:02 dev {TAP}"));
        let stream = std::thread::spawn(datagrams);
        eventually("frames of the host", || counter("tx_packets") > 1000);
        let frame = [&host[..], &STATION, &[0x12, 0x34], &[0; 86]].concat();
        let mut deletion = None;
        for sent in 0u32.. {
            a.offer_frame(0, &PLAIN, &frame).unwrap();
            assert!(matches!(a.wait(1, PROCESS_DEADLINE), Ok(testkit::raw::WaitEvent::Used(_))));
            if sent == 1000 {
                eventually("frames of the guest", || counter("rx_packets") >= 500);
                deletion = Some(Command::new("ip").args(["link", "del", TAP]).spawn().unwrap());
            }
            if sent > 1000 && stream.is_finished() {
                break;
            }
        }
        assert!(deletion.unwrap().wait().unwrap().success());
        assert!(stream.join().unwrap() > 1000);
        eventually("told that it is gone", || switch.process.stderr().contains(GONE));
        // Without the device, the host's address is unknown: everybody got the frames to it, as many
        // as there were buffers. They are posted again.
        while b.take_frame(0, Duration::ZERO).unwrap().is_some() {}
        reaches(&mut a, &mut b);
        assert!(switch.process.terminate().unwrap().success());
        assert_eq!(switch.process.stderr().matches(GONE).count(), 1);
    })
    .unwrap();
}

#[test]
fn a_device_that_is_down_loses_frames_and_comes_back() {
    in_own_network(
        concat!(module_path!(), "::a_device_that_is_down_loses_frames_and_comes_back"),
        || {
            let mut switch = Switch::with_host(&[]);
            let mut a = switch.driver("a");
            run(&format!("ip link set dev {TAP} down"));
            (0..20).for_each(|_| a.send_frame(0, &PLAIN, &question()).unwrap());
            run(&format!("ip link set dev {TAP} up"));
            a.send_frame(0, &PLAIN, &question()).unwrap();
            arp(&mut a, 2);
            assert!(switch.process.terminate().unwrap().success());
            let stderr = switch.process.stderr();
            assert!(stderr.contains("receiver-closed 20"), "{stderr}");
        },
    )
    .unwrap();
}

#[test]
fn an_idle_uplink_costs_no_wake_up() {
    in_own_network(concat!(module_path!(), "::an_idle_uplink_costs_no_wake_up"), || {
        let switch = Switch::with_host(&["--reactors", "2"]);
        let mut a = switch.driver("a");
        a.send_frame(0, &PLAIN, &question()).unwrap();
        arp(&mut a, 2);
        // Recent events may have effects for a while, but periodic work never ends.
        let pid = switch.process.id();
        eventually("still", || {
            let before = (sleeps(pid), ticks(pid));
            std::thread::sleep(stillness());
            (sleeps(pid), ticks(pid)) == before
        });
        a.send_frame(0, &PLAIN, &question()).unwrap();
        arp(&mut a, 2);
    })
    .unwrap();
}

#[test]
fn devices_that_cannot_be_had_are_named_with_the_next_step() {
    in_own_network(
        concat!(module_path!(), "::devices_that_cannot_be_had_are_named_with_the_next_step"),
        || {
            run("ip tuntap add dev rwone mode tap");
            run("ip link add rwbr type bridge");
            let switch = Switch::with_host(&[]);
            let socket = switch.port("c");
            for (name, message) in [
                ("a/b", "is no name of a TAP device"),
                ("rwone", "ip tuntap add dev rwone mode tap multi_queue vnet_hdr"),
                ("rwbr", "network device rwbr is not a TAP device"),
                (TAP, "TAP device rwu0 is in use by another process"),
            ] {
                let options = ["--port", socket.to_str().unwrap(), "--tap", name];
                let (code, stderr) = ends(NET, &options);
                assert!(code == 1 && stderr.contains(message), "{stderr}");
                assert!(!socket.exists(), "its socket is left");
            }
        },
    )
    .unwrap();
}
