//! Control groups of a daemon: members and weights, while it runs and after a restart.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod idle;
mod machines;

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use testkit::process::{PROCESS_DEADLINE, Process, eventually, find_binary};
use testkit::ringwayd::{Ringwayd, Slices};
use xenapi::Value;
use xenapi::client::Client;

/// Starts a daemon without VMs. Returns it and its slices.
fn simulator() -> Option<(Ringwayd, Slices)> {
    let daemon = Ringwayd::with_slices(&["--hypervisor", "simulator"]).unwrap()?;
    let slices = daemon.slices().unwrap();
    Some((daemon, slices))
}

fn the_host(client: &mut Client) -> Value {
    let Value::Set(hosts) = client.call("host.get_all", &[]).unwrap() else { panic!("no hosts") };
    hosts.into_iter().next().unwrap()
}

/// Sets a weight in the host's record. Returns the code if it is refused.
fn set(client: &mut Client, key: &str, weight: &str) -> Result<(), String> {
    let host = the_host(client);
    client.call("host.remove_from_other_config", &[host.clone(), Value::text(key)]).unwrap();
    let pair = [host, Value::text(key), Value::text(weight)];
    let set = client.call("host.add_to_other_config", &pair);
    set.map(drop).map_err(|error| error.code().unwrap().to_owned())
}

#[test]
fn weights_are_set_live_and_outlive_the_daemon() {
    let Some((mut daemon, slices)) = simulator() else { return };
    let are = |of: &Slices, weights: [u32; 3]| of.weights() == weights.map(Some);
    assert!(are(&slices, [1000, 200, 100]), "{:?}", slices.weights());
    let mut client = daemon.client().unwrap();
    set(&mut client, "slice-weight-guests", "50").unwrap();
    eventually("the guests' weight is set", || are(&slices, [1000, 200, 50]));
    set(&mut client, "slice-weight-control", "10000").unwrap();
    eventually("control's weight is set", || are(&slices, [10_000, 200, 50]));
    for bad in ["0", "10001", "-1", "many", ""] {
        let refused = set(&mut client, "slice-weight-datapath", bad);
        assert_eq!(refused, Err("INVALID_VALUE".to_owned()), "{bad}");
    }
    assert!(are(&slices, [10_000, 200, 50]), "{:?}", slices.weights());
    daemon.process.kill().unwrap();
    // Another program changes a weight that the record does not set.
    slices.set_weight("datapath", 100).unwrap();
    assert!(are(&slices, [10_000, 100, 50]), "{:?}", slices.weights());
    daemon.start_again().unwrap();
    eventually("the weights are as they were set", || are(&slices, [10_000, 200, 50]));
    let mut client = daemon.client().unwrap();
    let host = the_host(&mut client);
    for key in ["slice-weight-guests", "slice-weight-control"] {
        client.call("host.remove_from_other_config", &[host.clone(), Value::text(key)]).unwrap();
    }
    eventually("what is not set is as usual", || are(&slices, [1000, 200, 100]));
}

#[test]
fn a_daemon_without_machines_leaves_nothing() {
    let Some((mut daemon, slices)) = simulator() else { return };
    assert!(slices.members("control/daemon").contains(&daemon.process.id()));
    let output = daemon.xe_prints(&["host-list", "params=software-version", "--minimal"]).unwrap();
    let group = slices.path("control").display().to_string();
    assert!(output.contains("control_slice: version") && output.contains(&group), "{output}");
    let folder = slices.path("guests").join("11111111-2222-4333-8444-555555555555");
    std::fs::create_dir(&folder).unwrap();
    daemon.process.kill().unwrap();
    assert!(slices.are_there());
    daemon.start_again().unwrap();
    assert!(!folder.exists(), "the group of a machine that is gone");
    assert!(slices.members("control/daemon").contains(&daemon.process.id()));
    daemon.stop().unwrap();
    assert!(!slices.are_there(), "{}", daemon.process.stderr());
    assert!(daemon.slices().is_none(), "nobody is let into what is not there");
}

/// A second daemon on the same state fails and leaves the first one unaffected. A daemon that fails
/// after it started workers leaves no groups.
#[test]
fn a_start_that_fails_leaves_nothing_and_takes_nothing_away() {
    // No other test uses this address, so the port stays free.
    let port = TcpListener::bind("127.0.77.1:0").unwrap().local_addr().unwrap().to_string();
    let place = format!("{port},plain");
    let options = ["--hypervisor", "qemu", "--listen", &place];
    let Some(mut daemon) = Ringwayd::with_slices(&options).unwrap() else { return };
    let slices = daemon.slices().unwrap();
    let refused = daemon.start_again().unwrap_err().to_string();
    assert!(refused.contains("is open in"), "{refused}");
    assert!(slices.members("control/daemon").contains(&daemon.process.id()));
    assert_eq!(daemon.slices().as_ref(), Some(&slices), "clients are still let in");
    daemon.stop().unwrap();
    assert!(!slices.are_there() && daemon.slices().is_none());
    let _taken = TcpListener::bind(&port).unwrap();
    let refused = daemon.start_again().unwrap_err().to_string();
    assert!(refused.contains("CPU time for control") && refused.contains(&port), "{refused}");
    assert!(!slices.are_there() && daemon.slices().is_none(), "{refused}");
}

#[test]
fn xe_joins_the_slice_of_its_daemon() {
    let Some((daemon, slices)) = simulator() else { return };
    let mut command = daemon.xe(&["event-wait", "class=vm", "name-label=nobody"]).unwrap();
    let xe = Process::start(&mut command).unwrap();
    eventually("xe has joined", || slices.members("control/clients").contains(&xe.id()));
    assert_eq!(slices.leaves("guests").len() + slices.leaves("datapath").len(), 0);
}

/// A user waits for the completion, so it needs the control slice, too.
#[test]
fn a_completion_joins_the_slice_of_its_daemon() {
    let Some((daemon, slices)) = simulator() else { return };
    // The completion requests values, which arrive when the daemon continues.
    daemon.process.signal(Signal::STOP).unwrap();
    let mut command = Command::new(find_binary("xe").unwrap());
    command
        .args(["complete", "xe", "host-param-list", "uuid="])
        .env("XE_EXTRA_ARGS", format!("server={}", daemon.socket().display()))
        .env("HOME", daemon.dir())
        .env("XDG_CACHE_HOME", daemon.dir().join("cache"));
    let mut xe = Process::start(command.stdout(Stdio::piped())).unwrap();
    eventually("xe has joined", || slices.members("control/clients").contains(&xe.id()));
    daemon.process.signal(Signal::CONT).unwrap();
    assert!(xe.wait(PROCESS_DEADLINE).unwrap().success());
    let mut output = String::new();
    xe.child().stdout.take().unwrap().read_to_string(&mut output).unwrap();
    let host = daemon.xe_prints(&["host-list", "--minimal"]).unwrap();
    assert_eq!(output.trim(), format!("uuid={host}"));
}

#[test]
fn a_daemon_that_wants_no_slices_makes_none() {
    let daemon = Ringwayd::simulator(&["--slices", "off"]).unwrap();
    assert!(daemon.slices().is_none());
    let output = daemon.xe_prints(&["host-list", "params=software-version", "--minimal"]).unwrap();
    assert!(output.contains("control_slice: off"), "{output}");
    assert_eq!(daemon.xe_prints(&["vm-list", "is-control-domain=false", "--minimal"]).unwrap(), "");
}
