//! Bridges and TAP devices of this host. Needs root.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use model::id::{Uuid, VifId};
use testkit::in_namespace::in_own_network;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use toolstack::binaries::in_path;
use toolstack::net::{HostNet, Net};

/// Unique device names, removed even if the test fails.
struct Names {
    bridge: String,
    tap: String,
}

impl Names {
    fn new() -> Self {
        let id = std::process::id();
        Self { bridge: format!("rwb{id}"), tap: format!("rwp{id}") }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in [&self.tap, &self.bridge] {
            // The device need not exist.
            let _gone = Command::new("ip").args(["link", "del", "dev", name]).output();
        }
    }
}

fn there(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

fn shown(name: &str, what: &str) -> String {
    let file = Path::new("/sys/class/net").join(name).join(what);
    std::fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

fn net(instance: &str) -> HostNet {
    HostNet::new(in_path("ip").expect("ip is missing; install it with `make setup`"), instance)
}

#[tokio::test]
async fn devices_come_and_go_and_each_instance_has_its_own() {
    let names = Names::new();
    let (bridge, tap) = (names.bridge.as_str(), names.tap.as_str());
    let (ours, other) = (net(&format!("a{}", std::process::id())), net("b"));
    ours.remove_tap(tap).await.unwrap();
    ours.remove_bridge(bridge).await.unwrap();
    // A repeated call has no effect.
    for _ in 0..2 {
        ours.create_bridge(bridge, 1400).await.unwrap();
        ours.create_tap(tap, bridge, 1400).await.unwrap();
    }
    assert_eq!(ours.taps().await.unwrap(), [tap]);
    assert!(other.taps().await.unwrap().iter().all(|one| one != tap));
    assert_eq!((shown(bridge, "mtu"), shown(tap, "mtu")), ("1400".into(), "1400".into()));
    let master = std::fs::read_link(format!("/sys/class/net/{tap}/master")).unwrap();
    assert!(master.ends_with(bridge), "{master:?}");
    // The host ignores router advertisements there, and the device belongs to root.
    for device in [bridge, tap] {
        let switch = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
        assert!(!Path::new(&switch).exists() || std::fs::read_to_string(&switch).unwrap() == "1\n");
    }
    assert_eq!(shown(tap, "owner"), "0");

    // A bridge of another tool is used, and neither changed nor removed.
    other.create_bridge(bridge, 1500).await.unwrap();
    other.remove_bridge(bridge).await.unwrap();
    assert_eq!(shown(bridge, "mtu"), "1400");
    let taken = ours.create_bridge("lo", 1500).await.unwrap_err().to_string();
    assert!(taken.contains("not a bridge"), "{taken}");
    let taken = ours.create_tap(bridge, "lo", 1500).await.unwrap_err().to_string();
    assert!(taken.contains("not a TAP device"), "{taken}");

    ours.remove_tap(tap).await.unwrap();
    ours.remove_bridge(bridge).await.unwrap();
    assert!(!there(tap) && !there(bridge));
    assert_eq!(ours.taps().await.unwrap(), Vec::<String>::new());
}

const BRIDGE: &str = "rwb0";
const MAC: &str = "00:16:3e:00:00:07";
/// State of a forwarding port (`BR_STATE_FORWARDING`).
const FORWARDING: &str = "3";
/// Longer than the report of a claim takes.
const LONG: Duration = Duration::from_secs(30);

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// Creates a cable between the bridge and a guest's interface `<name>` with this MAC address.
fn cable(name: &str, mac: &str) {
    ip(&format!("link add {name} address {mac} type veth peer name {name}p"));
    ip(&format!("link set dev {name}p master {BRIDGE} up"));
    ip(&format!("link set dev {name} up"));
    // The bridge drops frames until it has seen the carrier, and sends no notification.
    let state = format!("/sys/class/net/{name}p/brport/state");
    let began = Instant::now();
    while std::fs::read_to_string(&state).unwrap().trim() != FORWARDING {
        assert!(began.elapsed() < LONG, "{name} has no link");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The guest sends one solicitation, which gets no answer.
    std::fs::write(format!("/proc/sys/net/ipv4/neigh/{name}/mcast_solicit"), "1").unwrap();
}

/// Lets a guest take an address and look for another host in its network.
fn claims(name: &str, address: &str, other: &str) {
    ip(&format!("addr add {address}/24 dev {name}"));
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.send_to(b"?", (other, 9)).unwrap();
}

/// Waits until the reported IPv4 addresses of an interface are these.
async fn until(net: &HostNet, receiver: &mut Receiver<VifId>, vif: VifId, expected: &[&str]) {
    let v4 = || {
        let all = net.addresses(vif).into_iter().filter(IpAddr::is_ipv4);
        all.map(|one| one.to_string()).collect::<Vec<_>>()
    };
    while v4() != expected {
        let who = timeout(LONG, receiver.recv()).await;
        assert_eq!(who, Ok(Some(vif)), "{:?}", v4());
    }
}

#[test]
fn addresses_are_seen_as_guests_claim_them() {
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(seen());
    };
    in_own_network(concat!(module_path!(), "::addresses_are_seen_as_guests_claim_them"), inside)
        .unwrap();
}

async fn seen() {
    let (net, vif) = (net("a"), VifId(Uuid::from_random([1; 16])));
    let mut receiver = net.claims().unwrap();
    assert!(net.claims().is_none(), "there is one who is told");
    net.watch(vif, BRIDGE, MAC, None).await.unwrap_err();
    net.create_bridge(BRIDGE, 1500).await.unwrap();
    net.watch(vif, BRIDGE, "nonsense", None).await.unwrap_err();
    net.watch(vif, BRIDGE, MAC, None).await.unwrap();
    cable("rwg0", MAC);
    cable("rwg1", "00:16:3e:00:00:08");
    // This interface is not watched.
    claims("rwg1", "10.9.7.8", "10.9.7.1");
    claims("rwg0", "10.9.8.7", "10.9.8.1");
    until(&net, &mut receiver, vif, &["10.9.8.7"]).await;
    if Path::new("/proc/net/if_inet6").exists() {
        let is_local = |one: &IpAddr| matches!(one, IpAddr::V6(one) if one.is_unicast_link_local());
        while !net.addresses(vif).iter().any(is_local) {
            assert_eq!(timeout(LONG, receiver.recv()).await, Ok(Some(vif)));
        }
    }
    // More addresses than the table stores, in at least two reads.
    let all: Vec<String> = (0..20).map(|n| format!("10.9.{}.7", 20 + n)).collect();
    for (n, address) in all.iter().enumerate() {
        claims("rwg0", address, &format!("10.9.{}.1", 20 + n));
    }
    let latest: Vec<&str> = all.iter().rev().take(16).map(String::as_str).collect();
    until(&net, &mut receiver, vif, &latest).await;

    // The interface is watched again, on a recreated bridge.
    ip(&format!("link del {BRIDGE}"));
    net.create_bridge(BRIDGE, 1500).await.unwrap();
    ip(&format!("link set dev rwg0p master {BRIDGE}"));
    net.watch(vif, BRIDGE, MAC, None).await.unwrap();
    assert_eq!(net.addresses(vif), [] as [IpAddr; 0]);
    claims("rwg0", "10.9.50.7", "10.9.50.1");
    until(&net, &mut receiver, vif, &["10.9.50.7"]).await;
    net.unwatch(vif);
    assert_eq!(net.addresses(vif), [] as [IpAddr; 0]);
}

/// Sends a DHCP client message for [`MAC`]: a search for a server, or a request for this address.
fn says(client: &UdpSocket, takes: Option<[u8; 4]>) {
    let mut message = [0; 240];
    // BOOTP request on Ethernet, the client's address, and the cookie (RFC 2131).
    message[..3].copy_from_slice(&[1, 1, 6]);
    message[28..34].copy_from_slice(&[0, 0x16, 0x3e, 0, 0, 7]);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    let kind = if takes.is_some() { 3 } else { 1 };
    let address = takes.map(|[a, b, c, d]| vec![50, 4, a, b, c, d]).unwrap_or_default();
    let message = [&message[..], &[53, 1, kind], &address, &[255]].concat();
    client.send_to(&message, (Ipv4Addr::BROADCAST, 67)).unwrap();
}

#[test]
fn what_a_guest_takes_by_dhcp_is_its_address() {
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(leased());
    };
    in_own_network(concat!(module_path!(), "::what_a_guest_takes_by_dhcp_is_its_address"), inside)
        .unwrap();
}

async fn leased() {
    let (net, vif) = (net("a"), VifId(Uuid::from_random([1; 16])));
    let mut receiver = net.claims().unwrap();
    net.create_bridge(BRIDGE, 1500).await.unwrap();
    net.watch(vif, BRIDGE, MAC, None).await.unwrap();
    // Turn IPv6 off, because its claims would be reported too.
    let ipv6 = Path::new("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    if ipv6.exists() {
        std::fs::write(ipv6, "1").unwrap();
    }
    cable("rwg0", MAC);
    let client = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68)).unwrap();
    client.set_broadcast(true).unwrap();
    socket2::SockRef::from(&client).bind_device(Some(b"rwg0")).unwrap();
    says(&client, None);
    says(&client, Some([10, 9, 8, 7]));
    until(&net, &mut receiver, vif, &["10.9.8.7"]).await;
    // The server has refused the address.
    says(&client, None);
    until(&net, &mut receiver, vif, &[]).await;
    for _ in 0..2 {
        says(&client, Some([10, 9, 8, 6]));
        // The guest's agent may know the address only now.
        assert_eq!(timeout(LONG, receiver.recv()).await, Ok(Some(vif)));
        until(&net, &mut receiver, vif, &["10.9.8.6"]).await;
    }
    claims("rwg0", "10.9.8.6", "10.9.8.1");
    assert_eq!(timeout(LONG, receiver.recv()).await, Ok(Some(vif)), "it uses it");
    says(&client, None);
    says(&client, Some([10, 9, 8, 5]));
    until(&net, &mut receiver, vif, &["10.9.8.5", "10.9.8.6"]).await;
}

#[test]
fn cards_are_seen_and_come_into_bridges() {
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(cards());
    };
    in_own_network(concat!(module_path!(), "::cards_are_seen_and_come_into_bridges"), inside)
        .unwrap();
}

async fn cards() {
    let net = net("a");
    net.create_bridge(BRIDGE, 1400).await.unwrap();
    net.create_bridge("rwb1", 1500).await.unwrap();
    let mut changes = net.changes();
    // Wait until the notifications pause: one command makes several changes.
    let mut has_changed = async || {
        let changed = tokio::time::timeout(Duration::from_secs(60), changes.changed()).await;
        changed.expect("nobody tells").unwrap();
        let more = Duration::from_millis(200);
        while tokio::time::timeout(more, changes.changed()).await.is_ok() {}
    };
    ip(&format!("link add card0 address {MAC} type veth peer name far0"));
    ip("link set dev far0 up");
    has_changed().await;
    let host_nics = net.cards().await.unwrap();
    let names: Vec<_> = host_nics.iter().map(|host_nic| host_nic.name.as_str()).collect();
    assert_eq!(names, ["card0", "far0"], "no bridge, and not the host's own");
    assert_eq!(
        (host_nics[0].mac.as_str(), host_nics[0].mtu, host_nics[0].physical),
        (MAC, 1500, false)
    );
    let master = |name: &str| {
        let link = std::fs::read_link(format!("/sys/class/net/{name}/master")).ok()?;
        Some(link.file_name()?.to_str()?.to_owned())
    };
    // The host is reachable through this NIC.
    ip("addr add 10.9.9.1/24 dev card0");
    has_changed().await;
    let refused = net.join("card0", BRIDGE).await.unwrap_err().to_string();
    assert!(refused.contains("10.9.9.1") && master("card0").is_none(), "{refused}");
    ip("addr del 10.9.9.1/24 dev card0");
    for _ in 0..2 {
        net.join("card0", BRIDGE).await.unwrap();
        assert_eq!(
            (master("card0").as_deref(), shown("card0", "mtu").as_str()),
            (Some(BRIDGE), "1400")
        );
    }
    assert!(net.cards().await.unwrap()[0].carrier, "both ends are up");
    let refused = net.join("card0", "rwb1").await.unwrap_err().to_string();
    assert!(refused.contains(&format!("it belongs to {BRIDGE}")), "{refused}");
    // A NIC does not leave a bridge that it is not in.
    net.leave("card0", "rwb1").await.unwrap();
    assert_eq!(master("card0").as_deref(), Some(BRIDGE));
    for _ in 0..2 {
        net.leave("card0", BRIDGE).await.unwrap();
        assert_eq!(master("card0"), None);
    }
    for (name, why) in [
        ("rwb1", "no Ethernet card"),
        ("lo", "no Ethernet card"),
        ("none", "no network device none"),
    ] {
        let refused = net.join(name, BRIDGE).await.unwrap_err().to_string();
        assert!(refused.contains(why), "{name}: {refused}");
    }
}
