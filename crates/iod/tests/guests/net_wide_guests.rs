//! Two guests with four queue pairs each, and the host at the switch: all the requests that guests
//! send to a network, and large segments. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::nics::{DRIVERS, HEAR, qemu, uml};
use crate::common::switch::Switch;
use crate::common::*;
use model::report::{DirectionStats, PortStats};
use testkit::guest::{Guest, Kind, Machine};
use testkit::in_namespace::in_own_network;
use testkit::process::{Process, eventually};
use testkit::raw::guest::wait_readable;

/// Far more time than any boot and load takes, even when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(300);
/// TAP device of the host.
const TAP: &str = "rww0";
const PAIRS: u16 = 4;
const MTU: u32 = 9000;
/// Bytes of an echo request that fills a packet of the MTU: without the headers of IPv4 and ICMP.
const ECHO: u32 = MTU - 28;

/// Additions that let a User-Mode Linux guest run the same script: modules by name, busybox
/// programs, all queue pairs (its one CPU starts with one), and a DHCP lease.
const UML: &str = r#"
modules() { for module in "$@"; do busybox insmod $modules/$module.ko || return; done; }
modprobe() { modules net/llc/llc net/802/stp net/802/garp net/802/mrp net/8021q/$1; }
modules lib/crc-ccitt net/ipv6/ipv6 || exit 1
for name in ping ping6 nc vconfig; do eval "$name() { busybox $name "\$@"; }"; done
printf '#!/bin/sh\n[ "$1" != bound ] || ip addr add $ip/$mask dev $interface\n' >/tmp/bound
chmod +x /tmp/bound
lease() { busybox udhcpc -i $1 -s /tmp/bound -n -q -t 60 -T 1; }
ip link set eth0 address $MAC && ethtool -L eth0 combined $PAIRS || exit 1
"#;

/// First steps of both guests. DHCP assigns their addresses.
const BEGIN: &str = "lease eth0 || exit 2
    [ $(cat /sys/class/net/eth0/mtu) = 9000 ] || exit 3
    number=$(cat /sys/class/net/eth0/address); number=${number##*:}; number=${number#0}
    ip -6 addr add fd09::$number/64 dev eth0
    modprobe 8021q && vconfig add eth0 7 >/dev/null || exit 4
    ip addr add 10.7.0.$number/24 dev eth0.7 && ip link set eth0.7 up";

/// Receives one stream after the other, until a line reports the end.
const SERVER: &str = "iperf3 -s -D
    hear 99";

/// The iperf3 server resets a new client while it finishes with the former one.
const STREAMS: &str =
    "streams() { for n in 1 2 3 4 5; do iperf3 -c \"$@\" && return; sleep 2; done; return 1; }";

/// Counts packets that were fragmented or reassembled, over IPv4 and IPv6.
const PIECES: &str = r#"
pieces() { awk '/^Ip:/ && !names { names = split($0, name); next }
    /^Ip:/ { split($0, value); for (at in name) count[name[at]] = value[at] }
    /^Ip6/ { sub("Ip6", "", $1); count[$1] += $2 }
    END { print count["FragOKs"] + count["FragCreates"] + count["ReasmReqds"] }' \
    /proc/net/snmp /proc/net/snmp6; }
"#;

/// Client that checks that no packet is fragmented in either direction.
const CLIENT: &str = "until ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
    for whom in 10.9.0.2 10.9.0.1 10.7.0.2; do
        for n in 1 2 3; do ping -c 1 -W 60 -s $ECHO $whom || exit 5; done
    done
    until ping6 -c 1 -W 1 fd09::2 >/dev/null; do :; done
    for whom in fd09::2 fd09::1; do
        for n in 1 2 3; do ping6 -c 1 -W 60 -s 8952 $whom || exit 6; done
    done
    [ \"$(pieces)\" = 0 ] || exit 7
    # What is longer by one byte is cut, and so is its answer: both are counted.
    ping -c 1 -W 60 -s $((ECHO + 1)) 10.9.0.2 && [ \"$(pieces)\" -gt 3 ] || exit 14
    until iperf3 -c 10.9.0.2 -n 64K; do sleep 1; done
    streams 10.9.0.2 -n 4M -P 8 || exit 8
    streams 10.9.0.2 -n 4M -P 8 -R || exit 9
    streams fd09::2 -n 1M || exit 10
    streams 10.7.0.2 -n 1M || exit 11
    streams 10.9.0.1 -n 2M -P 4 || exit 12
    streams 10.9.0.1 -n 2M -P 4 -R || exit 13
    echo enough | nc 10.9.0.2 99";

/// First steps of both guests at the standard MTU.
const BEGIN_SMALL: &str = "[ $(cat /sys/class/net/eth0/mtu) = 1500 ] || exit 3
    ip addr add 10.9.0.$NUMBER/24 dev eth0 && ip -6 addr add fd09::$NUMBER/64 dev eth0 || exit 4";

/// Streams to and from each address, and waits each time until the test has checked the counters.
const TURNS: &str = "until ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
    until ping6 -c 1 -W 1 fd09::2 >/dev/null; do :; done
    until ping6 -c 1 -W 1 fd09::1 >/dev/null; do :; done
    until iperf3 -c 10.9.0.2 -n 64K; do sleep 1; done
    mkfifo /tmp/nothing && exec 3<>/tmp/nothing
    nc 10.9.0.1 98 <&3
    for whom in 10.9.0.2 fd09::2 10.9.0.1 fd09::1; do
        for way in '' -R; do
            streams $whom -n 2M -w 128K $way || exit 5
            nc 10.9.0.1 98 <&3
        done
    done
    echo enough | nc 10.9.0.2 99";
/// Bytes of each of these streams that pass at least. iperf3 drops what the sender's buffer holds
/// when the last byte is written to it: 256 KiB with `-w 128K`, any number without.
const TURN_BYTES: u64 = 1 << 20;
/// Longest frame of one segment, at the least MTU that all networks support.
const FRAME_BYTES: u64 = 1514;

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// Starts a DHCP server for the guests at the host's device. The last byte of the MAC selects the
/// address.
fn dhcp(folder: &Path) -> Process {
    let mut command = Command::new("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--no-ping"]);
    command.args(["--bind-interfaces", "--interface", TAP, "--dhcp-range=10.9.0.2,static"]);
    for number in [2, 3] {
        command.arg(format!("--dhcp-host=02:00:00:00:00:0{number},10.9.0.{number}"));
    }
    for (option, file) in [("--dhcp-leasefile", "leases"), ("--pid-file", "dnsmasq.pid")] {
        command.arg(format!("{option}={}", folder.join(file).display()));
    }
    Process::start(&mut command).unwrap()
}

/// Starts an iperf3 server for streams to and from the host.
fn iperf() -> Process {
    let mut command = Command::new("iperf3");
    Process::start(command.arg("-s").stdout(Stdio::null())).unwrap()
}

/// Starts the switch with the host's port.
fn switch(mtu: u32) -> Switch {
    let (pairs, bytes) = (PAIRS.to_string(), mtu.to_string());
    let options = ["--tap", TAP, "--queues", &pairs, "--mtu", &bytes, "--reactors", "2"];
    let switch = Switch::with(&["a", "b"], &options);
    ip(&format!("link set dev {TAP} mtu {mtu} up"));
    ip(&format!("addr add 10.9.0.1/24 dev {TAP}"));
    ip(&format!("-6 addr add fd09::1/64 dev {TAP} nodad"));
    switch
}

/// Starts the guest of this number at a port, with all parts of the script.
fn guest(
    kind: Kind,
    (switch, mtu): (&Switch, u32),
    port: &str,
    number: u8,
    script: &[&str],
) -> Guest {
    let (socket, mac) = (switch.port(port), format!("02:00:00:00:00:0{number}"));
    let script = script.join("\n");
    let mut script = format!("ECHO={ECHO} PAIRS={PAIRS} MAC={mac} NUMBER={number}\n{script}");
    let machine = match kind {
        Kind::Qemu => {
            let mut machine: Machine = qemu(&socket, PAIRS, &mac);
            // QEMU shows the MTU of the backend's configuration only with this option.
            machine.args.last_mut().unwrap().push_str(&format!(",host_mtu={mtu}"));
            machine
        }
        Kind::Uml => {
            script = script.replacen('\n', &format!("\n{DRIVERS}\n{UML}"), 1);
            uml(&socket)
        }
    };
    Guest::start(kind, &machine, &script).unwrap()
}

/// Counts the pairs that have carried more frames than occasional traffic has, in each direction.
fn busy_pairs(port: &PortStats) -> (usize, usize) {
    let busy = |of: fn(&model::report::PairStats) -> u64| {
        port.each_queue.iter().filter(|pair| of(pair) > 20).count()
    };
    (busy(|pair| pair.tx.frames), busy(|pair| pair.rx.frames))
}

/// Waits for the end of both guests. The client's last line ends the server.
fn have_ended(client: Guest, server: Guest) {
    let client = client.finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    let server = server.finish(DEADLINE).unwrap();
    assert_eq!(server.code, 0, "{}", server.output);
    assert!(server.output.contains("enough"), "{}", server.output);
}

fn they_have_all_that_they_ask_for(kind: Kind) {
    let (folder, mut switch) = (folder(), switch(MTU));
    let (_dhcp, _iperf) = (dhcp(folder.path()), iperf());
    let server = guest(kind, (&switch, MTU), "a", 2, &[BEGIN, HEAR, SERVER]);
    let client = guest(kind, (&switch, MTU), "b", 3, &[BEGIN, STREAMS, PIECES, CLIENT]);
    have_ended(client, server);
    for port in &switch.ports() {
        if port.id != TAP {
            let (sent, got) = busy_pairs(port);
            assert!(sent > 1 && got > 1, "{sent} and {got} pairs carried frames: {port:?}");
        }
    }
    assert!(switch.process.terminate().unwrap().success());
}

#[test]
fn two_guests_and_the_host_have_all_that_they_ask_for() {
    in_own_network(
        concat!(module_path!(), "::two_guests_and_the_host_have_all_that_they_ask_for"),
        || {
            they_have_all_that_they_ask_for(Kind::Qemu);
        },
    )
    .unwrap();
}

#[test]
fn two_guests_of_user_mode_linux_have_all_that_they_ask_for() {
    in_own_network(
        concat!(module_path!(), "::two_guests_of_user_mode_linux_have_all_that_they_ask_for"),
        || {
            they_have_all_that_they_ask_for(Kind::Uml);
        },
    )
    .unwrap();
}

/// Checks the size of the frames of a stream from one port to another, since `before`.
fn went_in_large_pieces(switch: &Switch, before: &[PortStats], from: &str, to: &str) {
    let mut after = switch.ports();
    let grown = |after: &[PortStats], name: &str, way: fn(&PortStats) -> &DirectionStats| {
        let at = |ports: &[PortStats]| {
            let port = ports.iter().find(|port| port.id.ends_with(name)).unwrap();
            [way(port).frames, way(port).bytes]
        };
        let (before, after) = (at(before), at(after));
        [0, 1].map(|of| after[of] - before[of])
    };
    let both = |after: &[PortStats]| {
        [grown(after, from, |port| &port.tx), grown(after, to, |port| &port.rx)]
    };
    // The last bytes may leave a socket's buffer after its client has ended.
    eventually("the whole stream has passed", || {
        after = switch.ports();
        both(&after).iter().all(|[_, bytes]| *bytes >= TURN_BYTES)
    });
    for [frames, bytes] in both(&after) {
        assert!(
            bytes > frames * FRAME_BYTES,
            "{bytes} bytes from {from} to {to} in {frames} frames: not in large pieces"
        );
    }
}

/// Streams over IPv4 and IPv6 between guests, and between a guest and the host. A large segment
/// that one side leaves to offload is never split in between.
fn large_pieces_stay_whole(kind: Kind) {
    let mtu = 1500;
    let mut switch = switch(mtu);
    let turns = TcpListener::bind("10.9.0.1:98").unwrap();
    let _iperf = iperf();
    let server = guest(kind, (&switch, mtu), "a", 2, &[BEGIN_SMALL, HEAR, SERVER]);
    let client = guest(kind, (&switch, mtu), "b", 3, &[BEGIN_SMALL, STREAMS, TURNS]);
    // The client continues when its connection is closed.
    let next = || {
        let there = wait_readable(&[turns.as_fd()], DEADLINE).unwrap();
        assert_eq!(there, Some(0), "the client has ended: {}", client.console());
        let _turn = turns.accept().unwrap();
        switch.ports()
    };
    let mut before = next();
    for other in ["a", "a", TAP, TAP] {
        for (from, to) in [("b", other), (other, "b")] {
            let since = std::mem::replace(&mut before, next());
            went_in_large_pieces(&switch, &since, from, to);
        }
    }
    have_ended(client, server);
    assert!(switch.process.terminate().unwrap().success());
}

#[test]
fn guests_of_qemu_and_the_host_speak_in_large_pieces() {
    in_own_network(
        concat!(module_path!(), "::guests_of_qemu_and_the_host_speak_in_large_pieces"),
        || {
            large_pieces_stay_whole(Kind::Qemu);
        },
    )
    .unwrap();
}

#[test]
fn guests_of_user_mode_linux_and_the_host_speak_in_large_pieces() {
    in_own_network(
        concat!(module_path!(), "::guests_of_user_mode_linux_and_the_host_speak_in_large_pieces"),
        || {
            large_pieces_stay_whole(Kind::Uml);
        },
    )
    .unwrap();
}
