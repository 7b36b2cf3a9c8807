//! Services that a guest gets from a network.

use std::path::Path;
use std::process::Command;

use testkit::in_namespace::in_own_network;
use testkit::net_namespace::NetNamespace;
use testkit::process::write_script;

use crate::internal_networks::world::{World, run, sh};

/// Script that udhcpc runs: it configures the lease and writes it to a file.
const SCRIPT: &str = "[ \"$1\" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
ip route add default via $router
echo $ip/$mask $router $dns > $LEASE";

/// Creates a host at the other end of the uplink, without routes to the guests' addresses.
fn beyond(world: &World) -> NetNamespace {
    let beyond = NetNamespace::new();
    beyond.cable("up0", "up1");
    sh("ip addr add 192.0.2.1/24 dev up0");
    beyond.sh("ip addr add 192.0.2.2/24 dev up1");
    let dir = world.dir.path().display();
    beyond.sh(&format!(
        "dnsmasq --conf-file=/dev/null --listen-address=192.0.2.2 --bind-interfaces --no-resolv \
         --no-hosts --address=/beyond.test/192.0.2.2 --pid-file={dir}/beyond.pid"
    ));
    let resolver = world.dir.path().join("resolv.conf");
    std::fs::write(&resolver, "nameserver 192.0.2.2\n").unwrap();
    // Only this process and its children see the mount.
    run(&["mount", "--bind", resolver.to_str().unwrap(), "/etc/resolv.conf"]);
    beyond
}

/// Creates a guest in the network `lan`. Returns it with its DHCP lease.
fn guest(world: &World, number: u8) -> (NetNamespace, Vec<String>) {
    let guest = NetNamespace::new();
    let near = format!("g{number}p");
    guest.cable(&near, "g0");
    sh(&format!("ip link set dev {near} master rw-lan"));
    let (script, lease) = (world.dir.path().join("script"), world.dir.path().join("lease"));
    write_script(&script, SCRIPT).unwrap();
    let (script, file) = (script.display(), lease.display());
    guest.sh(&format!(
        "env LEASE={file} busybox udhcpc -f -n -q -t 20 -T 1 -i g0 -x hostname:guest{number} -s {script}"
    ));
    let lease = std::fs::read_to_string(lease).unwrap();
    (guest, lease.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn guests_get_an_address_names_and_a_way_out() {
    in_own_network(concat!(module_path!(), "::guests_get_an_address_names_and_a_way_out"), || {
        let world = World::new();
        let _beyond = beyond(&world);
        let created_network = world.create("lan", true, true, None).unwrap();
        assert!(created_network.forwards_now, "it is off in a new namespace");
        assert_eq!(created_network.spec.subnet.to_string(), "10.213.0.0/24");
        assert_eq!(world.problems(), [] as [&str; 0]);
        let (first, lease) = guest(&world, 1);
        let [address, router, dns] = &lease[..] else { panic!("{lease:?}") };
        assert!(address.starts_with("10.213.0.") && address.ends_with("/24"), "{lease:?}");
        assert_eq!((router.as_str(), dns.as_str()), ("10.213.0.1", "10.213.0.1"));
        // That host has no route back to the guest's address.
        first.sh("busybox ping -c 1 -w 20 192.0.2.2");
        let output = first.sh("busybox nslookup -type=a beyond.test 10.213.0.1");
        assert!(output.contains("192.0.2.2"), "{output}");

        let (second, other) = guest(&world, 2);
        assert_ne!(other[0], *address);
        let output = second.sh("busybox nslookup -type=a guest1 10.213.0.1");
        let plain = address.split('/').next().unwrap();
        assert!(output.contains(plain), "{output}");
        second.sh(&format!("busybox ping -c 1 -w 20 {plain}"));
        assert_eq!(world.list()[0].leases, 2);
        assert!(Path::new("/sys/class/net/rwt-lan/tun_flags").exists());
    })
    .unwrap();
}

#[test]
fn nobody_comes_in_from_outside() {
    in_own_network(concat!(module_path!(), "::nobody_comes_in_from_outside"), || {
        let world = World::new();
        let beyond = beyond(&world);
        world.create("lan", true, true, None).unwrap();
        let (guest, lease) = guest(&world, 1);
        let address = lease[0].split('/').next().unwrap();
        beyond.sh("ip route add 10.213.0.0/24 via 192.0.2.1");
        assert!(!hears(&beyond, address));
        // A guest cannot send from an address outside its network.
        guest.sh("ip addr add 10.99.0.5/32 dev g0");
        assert!(!hears(&guest, "-I 10.99.0.5 192.0.2.2"));
        guest.sh("busybox ping -c 1 -w 20 192.0.2.2");
    })
    .unwrap();
}

#[test]
fn guests_give_the_host_no_addresses() {
    in_own_network(concat!(module_path!(), "::guests_give_the_host_no_addresses"), || {
        let world = World::new();
        world.create("lan", false, false, None).unwrap();
        // The kernel gives IPv6 addresses to devices with a carrier.
        let guest = NetNamespace::new();
        guest.cable("g1p", "g0");
        sh("ip link set dev g1p master rw-lan");
        let switch = |device: &str| format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
        let addresses = || sh("ip -6 addr show dev rw-lan");
        for device in ["rw-lan", "rwt-lan"] {
            assert_eq!(std::fs::read_to_string(switch(device)).unwrap(), "1\n", "{device}");
        }
        assert!(!addresses().contains("inet6"), "{}", addresses());

        // Another tool turns IPv6 on. The address comes with the carrier, and the next create
        // removes it.
        std::fs::write(switch("rw-lan"), "0").unwrap();
        while !addresses().contains("inet6 fe80::") {
            std::thread::yield_now();
        }
        let problem = "device rw-lan has IPv6 (net.ipv6.conf.rw-lan.disable_ipv6)";
        assert_eq!(world.problems(), [problem]);
        world.create("lan", false, false, None).unwrap();
        assert!(!addresses().contains("inet6"), "{}", addresses());
        assert_eq!(world.problems(), [] as [&str; 0]);
    })
    .unwrap();
}

/// Returns whether the host answers soon.
fn hears(net_namespace: &NetNamespace, whom: &str) -> bool {
    let ping = net_namespace.words(&format!("busybox ping -c 1 -w 2 {whom}"));
    Command::new(&ping[0]).args(&ping[1..]).output().unwrap().status.success()
}

/// Returns the number of pings that have arrived there.
fn pings(net_namespace: &NetNamespace) -> u64 {
    let counted = net_namespace.sh("cat /proc/net/snmp");
    let mut lines = counted.lines().filter(|line| line.starts_with("Icmp: "));
    let (names, counts) = (lines.next().unwrap().split(' '), lines.next().unwrap().split(' '));
    let (_, count) = names.zip(counts).find(|(name, _)| *name == "InEchos").unwrap();
    count.parse().unwrap()
}

#[test]
fn without_nat_nobody_comes_or_goes_whoever_turns_forwarding_on() {
    in_own_network(
        concat!(module_path!(), "::without_nat_nobody_comes_or_goes_whoever_turns_forwarding_on"),
        || {
            let world = World::new();
            let beyond = beyond(&world);
            world.create("lan", false, false, Some("10.5.0.0/24")).unwrap();
            let guest = NetNamespace::new();
            guest.cable("g1p", "g0");
            sh("ip link set dev g1p master rw-lan");
            guest.sh("ip addr add 10.5.0.2/24 dev g0");
            guest.sh("ip route add default via 10.5.0.1");
            beyond.sh("ip route add 10.5.0.0/24 via 192.0.2.1");
            // A container engine does the same.
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            guest.sh("busybox ping -c 1 -w 20 10.5.0.1");
            beyond.sh("busybox ping -c 1 -w 20 192.0.2.1");
            assert!(!hears(&guest, "192.0.2.2") && !hears(&beyond, "10.5.0.2"));
            assert_eq!((pings(&guest), pings(&beyond)), (0, 0), "not even one way");
            // Only the table separates them.
            sh("nft delete table ip ringway_lan");
            assert_eq!(world.problems().len(), 1, "{:?}", world.problems());
            guest.sh("busybox ping -c 1 -w 20 192.0.2.2");
            world.create("lan", false, false, None).unwrap();
            assert_eq!(world.problems(), [] as [&str; 0]);
            assert!(!hears(&guest, "192.0.2.2"));
        },
    )
    .unwrap();
}
