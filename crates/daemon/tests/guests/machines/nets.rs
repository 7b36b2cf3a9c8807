//! Guests on a network of the host. The switch connects them to each other, its uplink to the host,
//! and NAT to networks beyond.

use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::in_namespace::in_own_network;
use testkit::net_namespace::NetNamespace;
use testkit::process::find_binary;
use testkit::ringwayd::Shell;
use xenapi::Value;

use super::records::{interface, of, record, start, with};
use super::world::{Machine, PATIENCE, World};

/// Address of the host in its network.
const HOST: &str = "10.213.0.1";
/// A peer on another network of the host. It has no route to guests.
const BEYOND: &str = "192.0.2.2";
/// An address that a guest requests.
const OTHER: &str = "10.213.0.199";
/// Cap in kilobytes per second, and amount of data sent under it in kilobytes.
const KBPS: u64 = 64;
const SENT_KB: u64 = 256;
/// Possible burst in kilobytes. No cap delays less data.
const BURST_KB: u64 = 128;

/// Runs a program in the network namespace of the test.
pub(super) fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Returns whether an address answers one of this many pings of a guest, each within a second.
pub(super) fn hears(shell: &mut Shell, address: &str, questions: u32) -> bool {
    let ping = format!(
        "for n in $(seq {questions}); do ping -c 1 -W 1 {address} >/dev/null && echo heard && break; \
         done; :"
    );
    shell.run(&ping, PATIENCE).unwrap() == "heard"
}

/// Network `lan` of the host, with NAT. Dropping it stops its dnsmasq, which is not a child
/// process.
struct Nat(TempDir);

impl Nat {
    fn new() -> Self {
        run("ip link set dev lo up");
        let state = tempfile::tempdir().unwrap();
        ringway_net(&state, "create lan --nat --dhcp");
        Self(state)
    }

    fn leases(&self) -> PathBuf {
        self.0.path().join("lan/leases")
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        // After a failure the namespace may be in any state.
        if !std::thread::panicking() {
            ringway_net(&self.0, "destroy lan");
        }
    }
}

/// Creates a peer at the other end of a cable of the host.
fn beyond() -> NetNamespace {
    let beyond = NetNamespace::new();
    beyond.cable("up0", "up1");
    run("ip addr add 192.0.2.1/24 dev up0");
    beyond.sh(&format!("ip addr add {BEYOND}/24 dev up1"));
    beyond
}

fn ringway_net(state: &TempDir, words: &str) {
    let ringway = find_binary("ringway").unwrap();
    run(&format!("{} net --state {} {words}", ringway.display(), state.path().display()));
}

/// A guest with one VIF.
struct Guest {
    machine: Machine,
    vif: String,
    shell: Shell,
    address: String,
}

impl Guest {
    fn new(world: &mut World, name: &str, net: &str, vcpus: i64) -> Self {
        let machine = world.guest(name);
        for field in ["VCPUs_max", "VCPUs_at_startup"] {
            let set = with(&machine.reference, [Value::Int(vcpus)]);
            world.call(&format!("VM.set_{field}"), &set);
        }
        let vif = world.made("VIF.create", &[interface(&machine.reference, net)]);
        world.call("VM.start", &start(&machine.reference));
        let mut shell = world.shell(&machine);
        // The guest requests an address by DHCP at boot.
        let shown = "ip -4 addr show dev eth0 | grep -o 'inet [0-9.]*'";
        let shown = shell.run(&format!("until {shown}; do sleep 0.2; done"), PATIENCE).unwrap();
        let address = shown.trim_start_matches("inet ").to_owned();
        assert!(address.starts_with("10.213.0."), "{address}");
        Self { machine, vif, shell, address }
    }

    /// Waits until the guest has requested an address for its VIF, which was plugged again.
    fn again(&mut self) {
        assert_eq!(self.shell.run("lease eth0", PATIENCE).unwrap(), self.address);
    }

    fn hears(&mut self, address: &str, questions: u32) -> bool {
        hears(&mut self.shell, address, questions)
    }

    fn set<const N: usize>(&self, world: &mut World, what: &str, values: [&str; N]) {
        let values = values.map(Value::text);
        world.call(&format!("VIF.{what}"), &with(&self.vif, values));
    }
}

#[test]
fn guests_reach_each_other_and_beyond_until_they_may_not() {
    let name = concat!(module_path!(), "::guests_reach_each_other_and_beyond_until_they_may_not");
    in_own_network(name, || {
        let _lan = Nat::new();
        let _beyond = beyond();
        let mut world = World::new();
        let net = network(&mut world);
        let mut a = Guest::new(&mut world, "a", &net, 2);
        let mut b = Guest::new(&mut world, "b", &net, 1);
        reach(&mut world, &mut a, &mut b);
        takes_its_time(&mut world, &mut b);
        come_back(&mut world, &mut a, &mut b);
        are_held(&mut world, &mut a);
        is_slow(&mut world, &mut a);
        comes_and_goes(&mut world, &mut a, &mut b);
        for guest in [&a, &b] {
            world.call("VM.hard_shutdown", &of(&guest.machine.reference));
        }
        assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    })
    .unwrap();
}

/// Creates the network record for `lan`.
fn network(world: &mut World) -> String {
    let net = [
        ("name_label", Value::text("lan")),
        ("bridge", Value::text("rw-lan")),
        ("other_config", record([])),
    ];
    world.made("network.create", &[record(net)])
}

/// The firmware's DHCP client uses one queue, without interrupts.
#[test]
fn firmware_asks_for_an_address_by_the_switch() {
    in_own_network(concat!(module_path!(), "::firmware_asks_for_an_address_by_the_switch"), || {
        let lan = Nat::new();
        let mut world = World::new();
        let net = network(&mut world);
        let machine = world.plain("firmware");
        let vif = world.made("VIF.create", &[interface(&machine.reference, &net)]);
        let order = record([("order", Value::text("n"))]);
        world.call("VM.set_HVM_boot_params", &with(&machine.reference, [order]));
        world.call("VM.start", &start(&machine.reference));
        let mac = world.record("VIF", &vif).text("MAC").to_owned();
        let leases = lan.leases();
        world.until("a lease", |_| {
            std::fs::read_to_string(&leases).is_ok_and(|leases| leases.contains(&mac))
        });
        world.call("VM.hard_shutdown", &of(&machine.reference));
        assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    })
    .unwrap();
}

/// Both guests are on one switch, with the host at its uplink.
fn reach(world: &mut World, a: &mut Guest, b: &mut Guest) {
    // The guests have requested addresses, but sent no other traffic.
    wait_for_address(world, a);
    wait_for_address(world, b);
    assert!(a.hears(&b.address, 20) && b.hears(HOST, 20));
    run(&format!("busybox ping -c 1 -w 20 {}", a.address));
    // The peer can answer only the host, so NAT works.
    assert!(a.hears(BEYOND, 20));
    let switches: Vec<_> =
        world.datapaths().into_iter().filter(|one| !one.nics.is_empty()).collect();
    let [switch] = &switches[..] else { panic!("{switches:?}") };
    let [network] = &switch.networks[..] else { panic!("{switch:?}") };
    assert_eq!((network.name.as_str(), network.nics), ("rw-lan", 2));
    // A VIF has as many queue pairs as the guest has CPUs, limited by the CPUs of the host.
    let host = std::thread::available_parallelism().unwrap().get();
    for (guest, vcpus) in [(&mut *a, 2), (&mut *b, 1)] {
        let pairs = vcpus.min(host);
        assert_eq!(usize::from(world.port(&guest.vif).unwrap().queues), pairs);
        let queues = guest.shell.run("ls /sys/class/net/eth0/queues | grep -c rx", PATIENCE);
        assert_eq!(queues.unwrap(), pairs.to_string());
    }
}

/// The guest uses another address, but assigns it only after its agent was polled.
fn takes_its_time(world: &mut World, guest: &mut Guest) {
    let slow = r#"printf '#!/bin/sh\n[ "$1" = bound ] && sleep 3\nexec /etc/udhcpc/default.script "$@"\n'"#;
    guest.shell.run(&format!("{slow} >/tmp/slow; chmod +x /tmp/slow"), PATIENCE).unwrap();
    // The guest releases its current address.
    for line in [
        "killall -USR2 udhcpc; while ip -4 addr show dev eth0 | grep -q inet; do sleep 0.1; done",
        "killall udhcpc; while pidof udhcpc; do sleep 0.1; done",
        // If the release was lost, the server offers the same address again, so repeat the request.
        &format!(
            "until udhcpc -b -S -t 20 -T 1 -A 2 -r {OTHER} -i eth0 -s /tmp/slow >/dev/null 2>&1; \
             ip -4 addr show dev eth0 | grep -q {OTHER}; \
             do killall -USR2 udhcpc; sleep 1; killall udhcpc; done"
        ),
    ] {
        guest.shell.run(line, PATIENCE).unwrap();
    }
    guest.address = OTHER.to_owned();
    wait_for_address(world, guest);
}

/// Waits until the address of the guest is recorded. No agent is needed for that.
fn wait_for_address(world: &mut World, of: &Guest) {
    let (networks, address) = ("VM_guest_metrics", of.address.clone());
    world.until("its address", |world| {
        let metrics = world.record("VM", &of.machine.reference).text("guest_metrics").to_owned();
        let recorded = world.client.record(networks, &metrics);
        recorded.is_ok_and(|recorded| {
            recorded.pairs("networks").get("0/ip").is_some_and(|one| *one == address)
        })
    });
}

/// Kills the worker of the switch, then worker and keeper, then the daemon. Traffic resumes each
/// time.
fn come_back(world: &mut World, a: &mut Guest, b: &mut Guest) {
    let switch = |world: &World| {
        let mut all = world.datapaths().into_iter();
        all.find(|one| !one.nics.is_empty()).unwrap()
    };
    let kill = |pid: u32| run(&format!("kill -9 {pid}"));
    kill(switch(world).pid);
    assert!(a.hears(&b.address, 60) && a.hears(HOST, 60));
    let stats = switch(world);
    kill(stats.keeper.unwrap().pid);
    kill(stats.pid);
    assert!(a.hears(&b.address, 60) && a.hears(HOST, 60) && a.hears(BEYOND, 60));
    world.killed();
    for guest in [a, b] {
        assert!(world.is_served(&guest.vif));
        assert!(world.record("VIF", &guest.vif).flag("currently_attached"));
        assert!(guest.hears(HOST, 20));
    }
}

/// A locked VIF may use only its allowed addresses. A disabled one passes no traffic.
fn are_held(world: &mut World, a: &mut Guest) {
    let address = a.address.clone();
    a.set(world, "add_ipv4_allowed", ["10.213.0.250"]);
    for (mode, allowed, hears) in [
        ("locked", None, false),
        ("locked", Some(address.as_str()), true),
        ("disabled", None, false),
        ("unlocked", None, true),
    ] {
        a.set(world, "set_locking_mode", [mode]);
        if let Some(allowed) = allowed {
            a.set(world, "add_ipv4_allowed", [allowed]);
        }
        let (locked, closed) = (mode == "locked", mode == "disabled");
        let port = world.port(&a.vif).unwrap();
        assert_eq!((port.locked, port.disabled), (locked, closed), "{mode}");
        assert_eq!(a.hears(HOST, if hears { 20 } else { 3 }), hears, "{mode} {allowed:?}");
    }
}

/// The cap applies to the guest's traffic until it is removed.
fn is_slow(world: &mut World, a: &mut Guest) {
    let rate =
        |world: &mut World| world.port(&a.vif).unwrap().rate.map(|rate| rate.bytes_per_second);
    let params = record([("kbps", Value::text(KBPS.to_string()))]);
    world.call("VIF.set_qos_algorithm_params", &with(&a.vif, [params]));
    world.call("VIF.set_qos_algorithm_type", &with(&a.vif, [Value::text("ratelimit")]));
    assert_eq!(rate(world), Some(KBPS * 1024));
    let listener = TcpListener::bind((HOST, 99)).unwrap();
    let host = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let (stream, _) = listener.accept().unwrap();
        stream.take(SENT_KB * 1024).read_to_end(&mut bytes).unwrap();
        bytes.len() as u64
    });
    let began = Instant::now();
    let send = format!("dd if=/dev/zero bs=1024 count={SENT_KB} 2>/dev/null | nc {HOST} 99; :");
    a.shell.run(&send, PATIENCE).unwrap();
    assert_eq!(host.join().unwrap(), SENT_KB * 1024);
    let (took, allowed) = (began.elapsed(), Duration::from_secs((SENT_KB - BURST_KB) / KBPS / 2));
    assert!(took >= allowed, "{SENT_KB} KiB in {took:?}, {KBPS} a second are allowed");
    a.set(world, "set_qos_algorithm_type", [""]);
    assert_eq!(rate(world), None);
}

/// A VIF is unplugged from a running guest and plugged again.
fn comes_and_goes(world: &mut World, a: &mut Guest, b: &mut Guest) {
    world.call("VIF.unplug", &of(&b.vif));
    assert!(world.port(&b.vif).is_none() && world.is_served(&a.vif));
    b.shell.run("[ ! -e /sys/class/net/eth0 ]", PATIENCE).unwrap();
    assert!(a.hears(HOST, 20));
    world.call("VIF.plug", &of(&b.vif));
    b.again();
    assert!(a.hears(&b.address, 20));
}
