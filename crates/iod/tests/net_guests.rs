//! Two real guests that speak to each other through `ringway-net`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::time::Duration;

use common::nics::*;
use common::*;
use testkit::guest::{Guest, Kind};

/// Far beyond any boot and load, also when several share two busy cores.
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
        ping -c 5 10.9.0.2 && ping -c 2 -s 1400 10.9.0.2 || exit 2
        until iperf3 -c 10.9.0.2 -n 4M -P 4; do sleep 1; done";
    let start = |socket: &Path, mac: &str, script: &str| {
        Guest::start(Kind::Qemu, &qemu(socket, 2, mac), script).unwrap()
    };
    let server = start(&b, "02:00:00:00:00:02", server);
    let client = start(&a, "02:00:00:00:00:01", client).finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    assert!(client.output.contains("5 packets received"), "{}", client.output);
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
    // Neither end may find its input at an end first: the other one would take that for the end.
    let server = format!(
        "{DRIVERS}
        ip addr add 10.9.0.2/24 dev eth0
        mkfifo /tmp/nothing && exec 3<>/tmp/nothing
        busybox nc -l -p 99 <&3 | md5sum"
    );
    let client = format!(
        "{DRIVERS}
        ip addr add 10.9.0.1/24 dev eth0
        until busybox ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
        busybox ping -c 5 10.9.0.2 || exit 2
        seq 1 1000000 | md5sum
        until seq 1 1000000 | busybox nc 10.9.0.2 99; do sleep 0.2; done"
    );
    let start =
        |socket: &Path, script: &str| Guest::start(Kind::Uml, &uml(socket), script).unwrap();
    let server = start(&b, &server);
    let client = start(&a, &client).finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    assert!(client.output.contains("5 packets received"), "{}", client.output);
    let server = server.finish(DEADLINE).unwrap();
    let sum = server.output.lines().find(|line| line.ends_with("  -")).expect("no sum");
    assert!(client.output.contains(sum), "{} and {}", client.output, server.output);
    assert!(switch.terminate().unwrap().success());
}
