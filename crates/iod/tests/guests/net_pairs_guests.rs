//! A QEMU guest that changes the number of queue pairs of its NIC while it talks to the host. QEMU
//! answers its control queue, and disables and enables rings. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::frames::run;
use crate::common::nics::qemu;
use crate::common::switch::Switch;
use model::report::{PairStats, PortStats};
use testkit::guest::{Guest, Kind};
use testkit::in_namespace::in_own_network;
use testkit::process::Process;
use testkit::process::eventually;

/// Far more time than any boot and load takes, even when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(300);
/// TAP device of the host.
const TAP: &str = "rwp0";
/// Queue pairs of the NIC. The driver of a guest with as many CPUs uses all of them at first.
const PAIRS: u16 = 4;
/// Numbers of pairs in use, one after the other.
const IN_USE: [u16; 3] = [PAIRS, 1, PAIRS];
/// Fewest frames that each CPU of the guest sends. Its driver has a queue for each CPU, if there
/// are enough.
const PINGS: u64 = 30;
/// More frames than occasional traffic has.
const STREAM: u64 = 20;

/// Streams in both directions for each number of pairs, and pings by each CPU. The script waits for
/// a line before and after.
const SCRIPT: &str = r#"
ip addr add 10.9.0.2/24 dev eth0
until ping -c 1 -W 1 10.9.0.1 >/dev/null; do :; done
until iperf3 -c 10.9.0.1 -n 64K >/dev/null; do sleep 0.2; done
# Its server resets who comes before it is done with who was there.
streams() {
    for n in 1 2 3 4 5; do iperf3 -c 10.9.0.1 -n 8M -P 8 "$@" && return; sleep 2; done
    return 1
}
in_use() { ethtool -l eth0 | awk '/^Combined:/ { last = $2 } END { print last }'; }
for pairs in @IN_USE@; do
    [ "$(in_use)" = $pairs ] || ethtool -L eth0 combined $pairs || exit 2
    [ "$(in_use)" = $pairs ] || exit 3
    echo "uses $pairs pairs"
    read go </dev/console
    streams || exit 4
    streams -R || exit 5
    for cpu in 1 2 4 8; do
        taskset $cpu ping -i 0.01 -c @PINGS@ 10.9.0.1 >/dev/null || exit 6
    done
    echo "has spoken"
    read go </dev/console
done
"#;

/// Returns the frames that each pair has carried, as its guest sees them: sent and received.
fn carried(port: &PortStats) -> Vec<[u64; 2]> {
    port.each_queue.iter().map(|pair: &PairStats| [pair.tx.frames, pair.rx.frames]).collect()
}

fn port(switch: &Switch) -> PortStats {
    switch.ports().into_iter().find(|port| port.id == "a").unwrap()
}

/// Checks that a guest with this many pairs in use carries all its streams on them.
fn streams(guest: &mut Guest, switch: &Switch, pairs: u16) {
    guest.wait_for(&format!("uses {pairs} pairs"), DEADLINE).unwrap();
    // QEMU does not wait for a reply when it disables a ring.
    eventually("the rings are as the driver wants them", || port(switch).pairs_started == pairs);
    let before = carried(&port(switch));
    guest.type_in("go\n").unwrap();
    guest.wait_for("has spoken", DEADLINE).unwrap();
    let after = carried(&port(switch));
    let grown = after.iter().zip(&before);
    let grown = grown.map(|(after, before)| [after[0] - before[0], after[1] - before[1]]);
    let grown: Vec<_> = grown.collect();
    let (used, others) = grown.split_at(pairs.into());
    assert!(used.iter().all(|[sent, _]| *sent >= PINGS), "{pairs} pairs: {grown:?}");
    // Hashes decide which flow uses which queue.
    let busy = used.iter().filter(|[_, got]| *got > STREAM).count();
    assert!(busy > usize::from(pairs > 1), "{pairs} pairs: {grown:?}");
    assert!(others.iter().all(|carried| *carried == [0, 0]), "{pairs} pairs: {grown:?}");
    guest.type_in("go\n").unwrap();
}

#[test]
fn a_guest_of_qemu_changes_its_pairs_while_it_speaks() {
    in_own_network(
        concat!(module_path!(), "::a_guest_of_qemu_changes_its_pairs_while_it_speaks"),
        || {
            let pairs = PAIRS.to_string();
            let options = ["--tap", TAP, "--queues", &pairs, "--reactors", "2"];
            let mut switch = Switch::with(&["a"], &options);
            run(&format!("ip addr add 10.9.0.1/24 dev {TAP}"));
            run(&format!("ip link set dev {TAP} up"));
            let mut server = Command::new("iperf3");
            server.args(["-s", "-B", "10.9.0.1"]).stdout(Stdio::null());
            let _server = Process::start(&mut server).unwrap();
            let script =
                SCRIPT.replace("@IN_USE@", &IN_USE.map(|pairs| pairs.to_string()).join(" "));
            let script = script.replace("@PINGS@", &PINGS.to_string());
            let machine = qemu(&switch.port("a"), PAIRS, "02:00:00:00:00:02");
            let mut guest = Guest::start(Kind::Qemu, &machine, &script).unwrap();
            for pairs in IN_USE {
                streams(&mut guest, &switch, pairs);
            }
            let guest = guest.finish(DEADLINE).unwrap();
            assert_eq!(guest.code, 0, "{}", guest.output);
            assert!(switch.process.terminate().unwrap().success());
        },
    )
    .unwrap();
}
