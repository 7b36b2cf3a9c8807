//! Real guests that talk to each other through a `ringway-io` whose worker is replaced.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::{Duration, Instant};

use crate::common::frames::{self, attach};
use crate::common::nics::*;
use crate::common::*;
use serde_json::{Value, json};
use testkit::guest::{Guest, Kind};
use testkit::process::eventually;

/// Far more time than any boot and load takes, even when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);

/// Time that guests talk, in seconds, beside the time that upgrades need.
const SECONDS: u64 = 5;

/// Prints the number of unanswered pings, and how many more were lost since. The kernel's counters
/// are used: on a busy host more replies arrive at once than busybox's socket holds (7 KiB), so
/// `ping` misses some. The last replies may still be in flight.
const UNANSWERED: &str = r#"
unanswered() { busybox awk '/^Icmp:/ && !names { names = split($0, name); next }
    /^Icmp:/ { split($0, value); for (at in name) count[name[at]] = value[at]
        print count["OutEchos"] - count["InEchoReps"] }' /proc/net/snmp; }
lost() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(unanswered)" = "$1" ] && break
        sleep 1
    done
    echo lost $(($(unanswered) - $1))
    grep Icmp /proc/net/snmp
}
"#;

/// Answers until a line on its console ends it. The client may still ping for a moment after its
/// stream.
const SERVER: &str = "ip addr add 10.9.0.2/24 dev eth0
    iperf3 -s >/dev/null & server=$!
    read stop </dev/console
    kill $server";

/// Evaluates the output of a `ping` that sent one request each 10 ms. Prints the number of replies,
/// and the longest time between two of them in milliseconds. The time of a reply follows from its
/// number and round-trip time.
const ANSWERS: &str = r#"
answers() { busybox awk '/ seq=[0-9]/ {
        split($0, of, /seq=|time=/)
        came = of[2] * 10 + of[3]
        if (count++ && came - last > longest) longest = came - last
        last = came
    }
    END { print "answers", count + 0, "longest", int(longest) }'; }
"#;

/// Pings all the time, and keeps one connection busy, until a line on the console ends it. The
/// server may be missing at first, and after each probe. Once the main stream runs, nothing
/// restarts.
const CLIENT: &str = r#"
ip addr add 10.9.0.1/24 dev eth0
until ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
until iperf3 -c 10.9.0.2 -n 64K >/dev/null; do sleep 0.2; done
stream() {
    rm -f /tmp/stream /tmp/code
    (iperf3 -c 10.9.0.2 -t @SECONDS@ -b 1M --forceflush >/tmp/stream 2>&1; echo $? >/tmp/code) &
    stream=$!
    until grep -q 'KBytes' /tmp/stream 2>/dev/null; do
        [ -e /tmp/code ] && return 1
        sleep 0.2
    done
}
until stream; do :; done
before=$(unanswered)
grep Icmp: /proc/net/snmp
ping -i 0.01 10.9.0.2 >/tmp/pings & pings=$!
until grep -q ' seq=20 ' /tmp/pings 2>/dev/null; do sleep 0.1; done
echo "it speaks"
read stop </dev/console
wait $stream
cat /tmp/stream
[ "$(cat /tmp/code)" = 0 ] || exit 5
kill -INT $pings || exit 6
wait $pings
lost $before
tail -2 /tmp/pings
answers </tmp/pings
"#;

/// Returns the number that follows a word.
fn number(output: &str, word: &str) -> u64 {
    let mut words = output.split_whitespace().skip_while(|one| *one != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{output}"))
}

/// Runs two guests that ping and stream for this many seconds during `meanwhile`. Returns the
/// client's output.
fn guests_that_speak(seconds: u64, meanwhile: impl FnOnce(&mut Io)) -> String {
    let mut io = Io::start_with(&["--reactors", "2"]);
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    let start = |id: &str, mac: &str, script: &str| {
        Guest::start(Kind::Qemu, &qemu_that_reconnects(&io.socket(id), 1, mac), script).unwrap()
    };
    let mut server = start("b", "02:00:00:00:00:02", SERVER);
    let script = [UNANSWERED, ANSWERS, &CLIENT.replace("@SECONDS@", &seconds.to_string())].concat();
    let mut client = start("a", "02:00:00:00:00:01", &script);
    client.wait_for("it speaks", DEADLINE).unwrap();
    let began = Instant::now();
    meanwhile(&mut io);
    assert!(began.elapsed() < DEADLINE);
    client.type_in("stop\n").unwrap();
    let client = client.finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    server.type_in("stop\n").unwrap();
    let server = server.finish(DEADLINE).unwrap();
    assert_eq!(server.code, 0, "{}", server.output);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    is_one_connection(&client.output);
    client.output
}

/// Checks that one run of iperf3 began and ended.
fn is_one_connection(output: &str) {
    for text in ["connected to", "sender", "receiver"] {
        assert_eq!(output.matches(text).count(), 1, "{text}: {output}");
    }
    assert!(number(output, "answers") > 10, "{output}");
}

#[test]
fn guests_do_not_notice_upgrades() {
    let (mut paused, upgrades) = (Vec::new(), testkit::rounds(4, 40));
    // The guests talk until after the last upgrade: half a second each, and some time for a busy
    // host.
    let output = guests_that_speak(SECONDS + upgrades as u64, |io| {
        for _ in 0..upgrades {
            let reply = io.caller().call("upgrade", Value::Null).unwrap();
            paused.push(reply["paused_ms"].as_f64().unwrap());
            assert_eq!(reply["nics"], 2);
            // Leave time between upgrades, so that frames are in flight at each.
            std::thread::sleep(Duration::from_millis(500));
        }
        let stats = io.caller().stats();
        assert!(stats.nics.iter().all(|nic| nic.connected), "{:?}", stats.nics);
    });
    paused.sort_by(f64::total_cmp);
    println!("guests waited {paused:.1?} ms: {output}");
    assert_eq!(number(&output, "lost"), 0, "{output}");
}

#[test]
fn connections_survive_a_killed_worker() {
    let output = guests_that_speak(SECONDS, |io| {
        let worker = io.process.worker().unwrap().unwrap();
        worker.kill().unwrap();
        io.process.next_worker(Some(worker.id())).unwrap();
        // The new worker counts from zero.
        eventually("an answer comes again", || {
            let stats = io.caller().stats();
            stats.ports.iter().any(|port| port.id == "a" && port.rx.frames > 0)
        });
    });
    println!("longest gap for the guest {} ms: {output}", number(&output, "longest"));
}

/// User-Mode Linux cannot reconnect, and lets the backend serve its control queue. So the settings
/// that its driver made there are handed over.
#[test]
fn guests_that_cannot_connect_again_do_not_notice_upgrades() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    for (number, id) in (1..).zip(["a", "b"]) {
        let mut spec = frames::spec(&io, id, "lan", number);
        spec["queues"] = json!(2);
        io.caller().call("nic.attach", spec).unwrap();
    }
    let script = |address: u8, more: &str| {
        format!(
            "{DRIVERS}
            ip addr add 10.9.0.{address}/24 dev eth0
            ethtool -L eth0 combined 2 || exit 4
            {more}"
        )
    };
    let server = format!("{HEAR}\nhear 99");
    let client = "until busybox ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
        before=$(unanswered)
        echo 'it speaks'
        busybox ping -i 0.02 -c 250 10.9.0.2 || exit 5
        lost $before
        ethtool -L eth0 combined 1 || exit 6
        until echo enough | busybox nc 10.9.0.2 99; do sleep 0.2; done";
    let start =
        |id: &str, script: &str| Guest::start(Kind::Uml, &uml(&io.socket(id)), script).unwrap();
    let server = start("b", &script(2, &server));
    let mut client = start("a", &(UNANSWERED.to_owned() + &script(1, client)));
    client.wait_for("it speaks", DEADLINE).unwrap();
    for _ in 0..testkit::rounds(4, 8) {
        let reply = io.caller().call("upgrade", Value::Null).unwrap();
        assert_eq!(reply["nics"], 2);
        // Leave time between upgrades, so that frames are in flight at each.
        std::thread::sleep(Duration::from_millis(500));
    }
    let client = client.finish(DEADLINE).unwrap();
    assert_eq!(client.code, 0, "{}", client.output);
    assert_eq!(number(&client.output, "lost"), 0, "{}", client.output);
    let server = server.finish(DEADLINE).unwrap();
    assert!(server.code == 0 && server.output.contains("enough"), "{}", server.output);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Guest script that stops the NIC's driver, starts it again after a line on the console, pings, and
/// streams both ways.
const NO_DRIVER: &str = r#"
V=$(basename $(readlink -f /sys/class/net/eth0/device))
echo $V >/sys/bus/virtio/drivers/virtio_net/unbind
echo 'no driver'
read go </dev/console
echo $V >/sys/bus/virtio/drivers/virtio_net/bind
ip addr add 10.9.0.1/24 dev eth0 && ip link set eth0 up || exit 4
echo 'a driver'
for n in $(seq 60); do ping -c 1 -W 1 10.9.0.2 && break; done || exit 3
until iperf3 -c 10.9.0.2 -n 4M; do sleep 0.2; done
iperf3 -c 10.9.0.2 -n 4M -R || exit 5
"#;

/// Starts two guests. The one without a driver comes first; both are ready.
fn guests_without_a_driver(io: &Io) -> [Guest; 2] {
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(io, id, "lan", number));
    let start = |id: &str, mac: &str, script: &str| {
        Guest::start(Kind::Qemu, &qemu_that_reconnects(&io.socket(id), 1, mac), script).unwrap()
    };
    let mut server = start("b", "02:00:00:00:00:02", &format!("echo serves\n{SERVER}"));
    let mut client = start("a", "02:00:00:00:00:01", NO_DRIVER);
    client.wait_for("no driver\n", DEADLINE).unwrap();
    server.wait_for("serves\n", DEADLINE).unwrap();
    [client, server]
}

/// Waits until the client has spoken to the server, and ends both.
fn speaks([client, mut server]: [Guest; 2]) {
    let outcome = client.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    server.type_in("stop\n").unwrap();
    assert_eq!(server.finish(DEADLINE).unwrap().code, 0);
}

fn both_connected(io: &Io) {
    let is_back = |io: &Io| io.caller().stats().nics.iter().all(|nic| nic.connected);
    eventually("both are back", || is_back(io));
}

#[test]
fn a_guest_has_its_nic_after_a_death_while_no_driver_runs() {
    let mut io = Io::start();
    let mut guests = guests_without_a_driver(&io);
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    both_connected(&io);
    guests[0].type_in("go\n").unwrap();
    speaks(guests);
}

/// QEMU 7.2 loses the features of a driver that starts while it is not connected.
#[test]
fn a_guest_has_its_nic_if_its_driver_starts_while_no_worker_runs() {
    let mut io = Io::start();
    let mut guests = guests_without_a_driver(&io);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    guests[0].type_in("go\n").unwrap();
    guests[0].wait_for("a driver\n", DEADLINE).unwrap();
    let io = io.again();
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    both_connected(&io);
    speaks(guests);
}
