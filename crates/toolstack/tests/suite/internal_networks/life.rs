//! Networks: creation, completion, removal, and devices of other owners.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use testkit::in_namespace::in_own_network;
use testkit::net_namespace::NetNamespace;

use crate::internal_networks::world::{World, devices, sh, there};

/// User id that no other process has.
const STRANGER: u32 = 64_999;

fn rules() -> String {
    sh("nft list ruleset")
}

#[test]
fn what_is_missing_is_made_again_and_nothing_is_left() {
    in_own_network(
        concat!(module_path!(), "::what_is_missing_is_made_again_and_nothing_is_left"),
        || {
            let world = World::new();
            for _ in 0..2 {
                let before = rules();
                world.create("lan", true, true, Some("10.5.0.0/24")).unwrap();
                let [process] = world.processes()[..] else { panic!("{:?}", world.processes()) };
                let again = world.create("lan", true, true, None).unwrap();
                assert!(!again.forwards_now && again.spec.subnet.to_string() == "10.5.0.0/24");
                assert_eq!(world.processes(), [process], "what runs goes on");

                // A crash, and the removal of files by another tool.
                sh(&format!("kill -9 {process}"));
                sh("nft delete table ip ringway_lan");
                sh("ip link del rwt-lan");
                sh("ip addr flush dev rw-lan");
                while world.processes() == [process] {
                    std::thread::yield_now();
                }
                assert_eq!(world.problems().len(), 4, "{:?}", world.problems());
                world.create("lan", true, true, None).unwrap();
                assert_eq!(world.problems(), [] as [&str; 0]);
                assert!(sh("ip -br addr show dev rw-lan").contains("10.5.0.1/24"));

                // Another tool replaces the rules, or adds one.
                for (change, there) in [
                    ("nft flush table ip ringway_lan", 0),
                    ("nft add rule ip ringway_lan forward accept", 5),
                ] {
                    sh(change);
                    let problem =
                        format!("table ip ringway_lan of nftables has {there} rules of 4");
                    assert_eq!(world.problems(), [problem]);
                    world.create("lan", true, true, None).unwrap();
                    assert_eq!(world.problems(), [] as [&str; 0]);
                }

                // As after a reboot, but the process still runs: its bridge is gone.
                let [process] = world.processes()[..] else { panic!("{:?}", world.processes()) };
                sh("ip link del rw-lan");
                assert_eq!(world.problems(), ["device rw-lan is missing"]);
                world.create("lan", true, true, None).unwrap();
                assert_eq!(world.problems(), [] as [&str; 0]);
                assert!(world.processes().len() == 1 && world.processes() != [process]);

                assert!(world.destroy("lan", false).unwrap());
                assert_eq!((devices(), rules()), (vec![], before));
                assert_eq!((world.processes(), world.list().len()), (vec![], 0));
                assert!(!there(&world.dir.path().join("networks/lan")));
                assert!(!world.destroy("lan", false).unwrap());
            }
        },
    )
    .unwrap();
}

#[test]
fn a_network_without_nat_or_dhcp_is_a_bridge() {
    in_own_network(concat!(module_path!(), "::a_network_without_nat_or_dhcp_is_a_bridge"), || {
        let world = World::new();
        let (before, forward) = (rules(), "/proc/sys/net/ipv4/ip_forward");
        world.create("quiet", false, false, Some("192.168.7.0/28")).unwrap();
        assert_eq!(std::fs::read_to_string(forward).unwrap(), "0\n");
        let ruled = rules();
        assert!(
            ruled.contains("table ip ringway_quiet") && !ruled.contains("masquerade"),
            "{ruled}"
        );
        assert_eq!((world.problems(), world.processes()), (vec![], vec![]));
        assert_eq!(devices(), ["rw-quiet", "rwt-quiet"]);
        // The host has a stable MAC address for guests, whatever ports the bridge has.
        let mac = || std::fs::read_to_string("/sys/class/net/rw-quiet/address").unwrap();
        let first = mac();
        let guest = NetNamespace::new();
        guest.cable("g0p", "g0");
        sh("ip link set dev g0p address 02:00:00:00:00:01 master rw-quiet");
        assert_eq!(mac(), first);
        let error = world.destroy("quiet", false).unwrap_err().to_string();
        assert!(error.contains("in use by g0p"), "{error}");
        assert!(world.destroy("quiet", true).unwrap());
        assert_eq!((devices(), rules()), (vec![], before));
    })
    .unwrap();
}

#[test]
fn what_is_others_is_not_touched() {
    in_own_network(concat!(module_path!(), "::what_is_others_is_not_touched"), || {
        let world = World::new();
        sh("nft add table ip filter");
        sh("nft add table inet ringway_lan");
        sh("ip link add rw-mine type bridge");
        sh("ip tuntap add dev rwt-too mode tap");
        sh("ip link add up0 type veth peer name up1");
        sh("ip link set dev up1 up");
        sh("ip addr add 10.213.0.9/24 dev up0");
        sh("ip link set dev up0 up");
        let (before, there) = (rules(), devices());
        for name in ["mine", "too"] {
            for _ in 0..2 {
                let error = world.create(name, true, true, None).unwrap_err().to_string();
                assert!(error.contains("another program"), "{error}");
                assert!(!world.destroy(name, true).unwrap());
            }
        }
        assert_eq!((rules(), devices()), (before.clone(), there.clone()));
        let error = world.create("lan", true, false, Some("10.213.0.128/25")).unwrap_err();
        assert!(error.to_string().contains("overlaps 10.213.0.0/24"), "{error}");
        let lan = world.create("lan", true, false, None).unwrap();
        assert_eq!(lan.spec.subnet.to_string(), "10.213.1.0/24");
        let second = world.create("two", false, true, None).unwrap();
        assert_eq!(second.spec.subnet.to_string(), "10.213.2.0/24");
        for (nat, dhcp, subnet) in
            [(false, false, None), (true, true, None), (true, false, Some("10.213.7.0/24"))]
        {
            let error = world.create("lan", nat, dhcp, subnet).unwrap_err().to_string();
            assert!(error.contains("10.213.1.0/24, NAT, no DHCP"), "{error}");
        }
        let names: Vec<_> = world.list().iter().map(|one| one.spec.name.to_string()).collect();
        assert_eq!(names, ["lan", "two"]);
        assert!(world.destroy("lan", false).unwrap());
        assert_eq!(world.problems(), [] as [&str; 0], "the other one goes on");
        assert!(world.destroy("two", false).unwrap());
        assert_eq!((rules(), devices()), (before, there));
    })
    .unwrap();
}

#[test]
fn an_address_that_somebody_listens_at_is_told() {
    in_own_network(
        concat!(module_path!(), "::an_address_that_somebody_listens_at_is_told"),
        || {
            let world = World::new();
            let taken = std::net::UdpSocket::bind("0.0.0.0:53").unwrap();
            let error = world.create("lan", true, true, None).unwrap_err().to_string();
            assert!(error.contains("dnsmasq") && error.contains("in use"), "{error}");
            drop(taken);
            world.create("lan", true, true, None).unwrap();
            assert_eq!(world.problems(), [] as [&str; 0]);
            let dir = world.dir.path().join("networks/lan");
            let pid = std::fs::read_to_string(dir.join("dnsmasq.pid")).unwrap();
            assert_eq!(world.processes(), [pid.trim().parse::<u32>().unwrap()]);
            // The lock is free again.
            let output = Command::new("flock")
                .args([world.dir.path().join("networks/lock").to_str().unwrap(), "true"])
                .output();
            assert!(output.unwrap().status.success());
            assert!(world.destroy("lan", false).unwrap());
        },
    )
    .unwrap();
}

#[test]
fn a_dnsmasq_of_another_user_is_not_ours() {
    in_own_network(concat!(module_path!(), "::a_dnsmasq_of_another_user_is_not_ours"), || {
        let world = World::new();
        let place = world.dir.path();
        let (dir, theirs) = (place.join("networks/lan"), place.join("theirs"));
        for path in [&dir, &theirs] {
            std::fs::create_dir_all(path).unwrap();
        }
        for (path, mode) in [(place, 0o755), (theirs.as_path(), 0o777)] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        // Another user starts the same program, with the argument that Ringway would use.
        let (conf, pid) = (dir.join("dnsmasq.conf"), theirs.join("pid"));
        let text = format!("port=0\nkeep-in-foreground\npid-file={}\n", pid.display());
        std::fs::write(&conf, text).unwrap();
        let mut command = Command::new("dnsmasq");
        command.arg(format!("--conf-file={}", conf.display())).uid(STRANGER).gid(STRANGER);
        let mut stranger = command.spawn().unwrap();
        while !there(&pid) {
            assert_eq!(stranger.try_wait().unwrap(), None);
            std::thread::yield_now();
        }
        world.create("lan", false, true, None).unwrap();
        assert_eq!(world.problems(), [] as [&str; 0]);
        let mut all = world.processes();
        all.retain(|id| *id != stranger.id());
        let [ours] = all[..] else { panic!("{all:?}") };
        sh(&format!("kill -9 {ours}"));
        while world.processes().contains(&ours) {
            std::thread::yield_now();
        }
        assert_eq!(world.problems(), ["dnsmasq does not run"]);
        world.create("lan", false, true, None).unwrap();
        assert!(world.destroy("lan", false).unwrap());
        assert_eq!(world.processes(), [stranger.id()], "it goes on");
        assert_eq!(stranger.try_wait().unwrap(), None);
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    })
    .unwrap();
}
