//! A real guest that is reset while another one streams to it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use crate::common::nics::qemu;
use crate::common::switch::Switch;
use crate::common::*;
use testkit::guest::{Guest, Image, Kind};

/// Far more time than any boots and load take, even when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(300);

/// Script of a guest that is reset while it receives a stream. It stores its progress on a disk.
/// Then it receives a stream again.
const RESET: &str = r#"
done=$(disk DONE)
ip addr add 10.9.0.1/24 dev eth0
iperf3 -s -D
got() { cat /sys/class/net/eth0/statistics/rx_bytes; }
first=$(got)
until [ $(($(got) - first)) -gt 100000 ]; do sleep 0.1; done
if [ "$(head -c 5 $done)" != reset ]; then
    echo 'it is streamed to'
    printf reset | dd of=$done conv=fsync,notrunc 2>/dev/null
    echo b >/proc/sysrq-trigger
    sleep 100
    exit 2
fi
echo 'it is reached again'
for n in 1 2 3; do ping -c 1 -W 60 10.9.0.2 || exit 3; done
"#;

/// Datagrams are sent whether or not the receiver exists. iperf3 would wake up each millisecond, which
/// takes a translated guest's CPU from the one that boots.
const STREAM: &str = r#"
ip addr add 10.9.0.2/24 dev eth0
while :; do
    iperf3 -c 10.9.0.1 -u -b 2M --pacing-timer 20000 -l 1000 -t 100 >/dev/null 2>&1
    sleep 0.2
done & stream=$!
read stop </dev/console
kill $stream
killall iperf3
exit 0
"#;

#[test]
fn a_guest_that_is_reset_under_load_is_reached_again() {
    let switch = Switch::with(&["a", "b"], &["--queues", "2", "--reactors", "2"]);
    let folder = folder();
    let path = image(&folder, "done", 4096).into();
    let mut machine = qemu(&switch.port("a"), 2, "02:00:00:00:00:01");
    machine.images.push(Image { path, serial: "DONE".into(), read_only: false });
    // Guests of tests normally end when they reboot. This one resets.
    machine.args.extend(["-action", "reboot=reset"].map(String::from));
    let reset = Guest::start(Kind::Qemu, &machine, RESET).unwrap();
    let machine = qemu(&switch.port("b"), 2, "02:00:00:00:00:02");
    let mut streams = Guest::start(Kind::Qemu, &machine, STREAM).unwrap();
    let outcome = reset.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    assert!(outcome.output.contains("it is reached again"), "{}", outcome.output);
    let ports = switch.ports();
    let got = &ports.iter().find(|port| port.id == "a").unwrap().rx;
    assert!(got.frames > 0 && got.lost() > 0, "nothing came while it was reset: {got:?}");
    streams.type_in("stop\n").unwrap();
    assert_eq!(streams.finish(DEADLINE).unwrap().code, 0);
    let mut process = switch.process;
    assert!(process.terminate().unwrap().success(), "{}", process.stderr());
}
