//! Two guests with four pairs of queues each, and the host at the switch: all that guests of a network
//! ask for. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::nics::{DRIVERS, qemu, uml};
use common::switch::Switch;
use common::*;
use model::report::PortStats;
use testkit::guest::{Guest, Kind, Machine};
use testkit::inside::in_own_network;
use testkit::process::Process;

/// Far beyond any boot and load, also when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(300);
/// The host's device.
const TAP: &str = "rww0";
const PAIRS: u16 = 4;
const MTU: u32 = 9000;
/// Bytes of an echo that fills a packet of the MTU: without the headers of IPv4 and ICMP.
const ECHO: u32 = MTU - 28;

/// What a guest of User-Mode Linux needs to run the same script: modules by their names, programs that
/// are busybox's, all its pairs (it has one CPU, so it begins with one), and a lease.
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

/// What both do first. DHCP tells who they are.
const BEGIN: &str = "lease eth0 || exit 2
    [ $(cat /sys/class/net/eth0/mtu) = 9000 ] || exit 3
    number=$(cat /sys/class/net/eth0/address); number=${number##*:}; number=${number#0}
    ip -6 addr add fd09::$number/64 dev eth0
    modprobe 8021q && vconfig add eth0 7 >/dev/null || exit 4
    ip addr add 10.7.0.$number/24 dev eth0.7 && ip link set eth0.7 up";

/// Takes one stream after the other, until it is told that those were all.
const SERVER: &str = "iperf3 -s -D
    mkfifo /tmp/nothing && exec 3<>/tmp/nothing
    nc -l -p 99 <&3";

/// All in one piece: no packet may have been cut, on either way.
const CLIENT: &str = "until ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
    for whom in 10.9.0.2 10.9.0.1 10.7.0.2; do
        for n in 1 2 3; do ping -c 1 -W 60 -s $ECHO $whom || exit 5; done
    done
    until ping6 -c 1 -W 1 fd09::2 >/dev/null; do :; done
    for whom in fd09::2 fd09::1; do
        for n in 1 2 3; do ping6 -c 1 -W 60 -s 8952 $whom || exit 6; done
    done
    [ \"$(awk '/^Ip: [0-9]/ {print $18 + $20}' /proc/net/snmp)\" = 0 ] || exit 7
    until iperf3 -c 10.9.0.2 -n 4M; do sleep 1; done
    # Its server resets who comes before it is done with who was there.
    streams() { for n in 1 2 3 4 5; do iperf3 -c \"$@\" && return; sleep 2; done; return 1; }
    streams 10.9.0.2 -n 16M -P 8 || exit 8
    streams 10.9.0.2 -n 16M -P 8 -R || exit 9
    streams fd09::2 -n 4M || exit 10
    streams 10.7.0.2 -n 4M || exit 11
    streams 10.9.0.1 -n 8M -P 4 || exit 12
    streams 10.9.0.1 -n 8M -P 4 -R || exit 13
    echo enough | nc 10.9.0.2 99";

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// DHCP for the guests at the host's device, by the last part of their MAC.
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

/// Streams to the host and from it.
fn iperf() -> Process {
    let mut command = Command::new("iperf3");
    Process::start(command.args(["-s", "-B", "10.9.0.1"]).stdout(Stdio::null())).unwrap()
}

fn guest(kind: Kind, switch: &Switch, port: &str, number: u8, script: &str) -> Guest {
    let (socket, mac) = (switch.port(port), format!("02:00:00:00:00:0{number}"));
    let mut script = format!("ECHO={ECHO} PAIRS={PAIRS} MAC={mac}\n{BEGIN}\n{script}");
    let machine = match kind {
        Kind::Qemu => {
            let mut machine: Machine = qemu(&socket, PAIRS, &mac);
            // What the backend's configuration says, QEMU shows only if it is told, too.
            machine.args.last_mut().unwrap().push_str(",host_mtu=9000");
            machine
        }
        Kind::Uml => {
            script = script.replacen('\n', &format!("\n{DRIVERS}\n{UML}"), 1);
            uml(&socket)
        }
    };
    Guest::start(kind, &machine, &script).unwrap()
}

/// Pairs that have carried more than a word now and then, as many frames as that each way.
fn busy_pairs(port: &PortStats) -> (usize, usize) {
    let busy = |of: fn(&model::report::PairStats) -> u64| {
        port.each_queue.iter().filter(|pair| of(pair) > 20).count()
    };
    (busy(|pair| pair.sent.frames), busy(|pair| pair.got.frames))
}

fn they_have_all_that_they_ask_for(kind: Kind) {
    let folder = folder();
    let (pairs, mtu) = (PAIRS.to_string(), MTU.to_string());
    let options = ["--tap", TAP, "--queues", &pairs, "--mtu", &mtu, "--reactors", "2"];
    let mut switch = Switch::with(&["a", "b"], &options);
    ip(&format!("link set dev {TAP} mtu {MTU} up"));
    ip(&format!("addr add 10.9.0.1/24 dev {TAP}"));
    ip(&format!("-6 addr add fd09::1/64 dev {TAP} nodad"));
    let (_dhcp, _iperf) = (dhcp(folder.path()), iperf());
    let server = guest(kind, &switch, "a", 2, SERVER);
    let client = guest(kind, &switch, "b", 3, CLIENT).finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    let server = server.finish(DEADLINE).unwrap();
    assert_eq!(server.code, 0, "{}", server.output);
    assert!(server.output.contains("enough"), "{}", server.output);
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
    in_own_network("two_guests_and_the_host_have_all_that_they_ask_for", || {
        they_have_all_that_they_ask_for(Kind::Qemu);
    })
    .unwrap();
}

#[test]
fn two_guests_of_user_mode_linux_have_all_that_they_ask_for() {
    in_own_network("two_guests_of_user_mode_linux_have_all_that_they_ask_for", || {
        they_have_all_that_they_ask_for(Kind::Uml);
    })
    .unwrap();
}
