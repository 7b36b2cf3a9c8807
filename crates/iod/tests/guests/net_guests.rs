//! Two real guests that talk to each other through `ringway-net`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use crate::common::nics::*;
use crate::common::*;
use testkit::guest::{Guest, Kind};

/// Far more time than any boot and load takes, even when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);

#[test]
fn two_guests_ping_and_stream_over_two_pairs() {
    let folder = folder();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let ports = ["--port", a.to_str().unwrap(), "--port", b.to_str().unwrap(), "--queues", "2"];
    let mut switch = ready(NET, &ports);
    let server = "ip addr add 10.9.0.2/24 dev eth0
        ls /sys/class/net/eth0/queues
        iperf3 -s -1 >/dev/null";
    let client = "ip addr add 10.9.0.1/24 dev eth0
        until ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
        for n in 1 2 3 4 5; do
            ping -c 1 -W 60 10.9.0.2 && ping -c 1 -W 60 -s 1400 10.9.0.2 || exit 2
        done
        until iperf3 -c 10.9.0.2 -n 4M -P 4; do sleep 1; done";
    let start = |socket: &Path, mac: &str, script: &str| {
        Guest::start(Kind::Qemu, &qemu(socket, 2, mac), script).unwrap()
    };
    let server = start(&b, "02:00:00:00:00:02", server);
    let client = start(&a, "02:00:00:00:00:01", client).finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    let server = server.finish(DEADLINE).unwrap();
    assert_eq!(server.code, 0, "{}", server.output);
    for queue in ["rx-0", "rx-1", "tx-0", "tx-1"] {
        assert!(server.output.contains(queue), "{}", server.output);
    }
    assert!(switch.terminate().unwrap().success());
}

#[test]
fn user_mode_linux_pings_and_streams() {
    let folder = folder();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let ports = ["--port", a.to_str().unwrap(), "--port", b.to_str().unwrap()];
    let mut switch = ready(NET, &ports);
    let server = format!(
        "{DRIVERS}
        {HEAR}
        ip addr add 10.9.0.2/24 dev eth0
        hear 99 | md5sum"
    );
    let client = format!(
        "{DRIVERS}
        ip addr add 10.9.0.1/24 dev eth0
        until busybox ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
        for n in 1 2 3 4 5; do busybox ping -c 1 -W 60 10.9.0.2 || exit 2; done
        seq 1 1000000 | md5sum
        until seq 1 1000000 | busybox nc 10.9.0.2 99; do sleep 0.2; done"
    );
    let start =
        |socket: &Path, script: &str| Guest::start(Kind::Uml, &uml(socket), script).unwrap();
    let server = start(&b, &server);
    let client = start(&a, &client).finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    let server = server.finish(DEADLINE).unwrap();
    let sum = server.output.lines().find(|line| line.ends_with("  -")).expect("no sum");
    assert!(client.output.contains(sum), "{} and {}", client.output, server.output);
    assert!(switch.terminate().unwrap().success());
}

/// Counts the queues of a direction that have carried packets, by the driver's statistics.
fn busy_queues(output: &str, direction: &str) -> usize {
    let count = |line: &&str| {
        let line = line.trim().strip_prefix(direction)?.strip_prefix("_queue_")?;
        let (queue, packets) = line.split_once("_packets: ")?;
        queue.parse::<u8>().ok()?;
        packets.parse::<u64>().ok()
    };
    output.lines().filter(|line| count(line).is_some_and(|packets| packets > 0)).count()
}

/// Part of the script of a User-Mode Linux guest, after its drivers.
const IPV6: &str = "for module in lib/crc-ccitt net/ipv6/ipv6; do
        busybox insmod $modules/$module.ko || exit 3
    done";

/// The guest has one CPU, so its driver starts with one pair. `ethtool` requests more over the
/// control queue. Filters are set there, too: IPv6 neighbour discovery needs them.
#[test]
fn user_mode_linux_changes_its_pairs() {
    let folder = folder();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let ports = ["--port", a.to_str().unwrap(), "--port", b.to_str().unwrap(), "--queues", "4"];
    let mut switch = ready(NET, &ports);
    let server = format!(
        "{DRIVERS}
        {IPV6}
        ip addr add 10.9.0.2/24 dev eth0 && ip addr add fd09::2/64 dev eth0 nodad
        ethtool -L eth0 combined 4 || exit 4
        {HEAR}
        for port in 91 92 93 94 95 96 97 98; do
            busybox nc -l -p $port <&3 >/tmp/$port &
            jobs=\"$jobs $!\"
        done
        wait $jobs
        seq 1 20000 >/tmp/all
        for port in 91 92 93 94 95 96 97 98; do cmp /tmp/all /tmp/$port || exit 5; done
        ethtool -S eth0
        hear 99"
    );
    let client = format!(
        "{DRIVERS}
        {IPV6}
        ip addr add 10.9.0.1/24 dev eth0 && ip addr add fd09::1/64 dev eth0 nodad
        ethtool -l eth0
        until busybox ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
        ethtool -L eth0 combined 4 || exit 4
        ls /sys/class/net/eth0/queues
        for port in 91 92 93 94 95 96 97 98; do
            until seq 1 20000 | busybox nc 10.9.0.2 $port; do sleep 0.2; done &
            jobs=\"$jobs $!\"
        done
        wait $jobs
        ethtool -S eth0
        busybox ping6 -c 1 -W 60 fd09::2 || exit 6
        ethtool -L eth0 combined 1 || exit 7
        busybox ping -c 1 -W 60 10.9.0.2 || exit 8
        until echo enough | busybox nc 10.9.0.2 99; do sleep 0.2; done"
    );
    let start =
        |socket: &Path, script: &str| Guest::start(Kind::Uml, &uml(socket), script).unwrap();
    let server = start(&b, &server);
    let client = start(&a, &client).finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    let server = server.finish(DEADLINE).unwrap();
    assert_eq!(server.code, 0, "{}", server.output);
    let numbers =
        |line: &str| line.strip_prefix("Combined:").map(|number| number.trim().to_owned());
    let combined: Vec<_> = client.output.lines().filter_map(numbers).collect();
    assert_eq!(combined, ["4", "1"], "most, and at first: {}", client.output);
    for queue in ["rx-3", "tx-3"] {
        assert!(client.output.contains(queue), "{}", client.output);
    }
    assert!(busy_queues(&server.output, "rx") > 1, "{}", server.output);
    assert!(busy_queues(&client.output, "tx") > 1, "{}", client.output);
    assert!(server.output.contains("enough"), "{}", server.output);
    assert!(switch.terminate().unwrap().success());
}
