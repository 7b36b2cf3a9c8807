//! NICs and networks as callers name them, without guests.

mod kept;

use std::path::Path;

use model::nic::{Locked, MacAddress, NicRate};
use model::rpc::NicReply;
use net::switch::{NETWORKS_MAX, PORTS_MAX};
use tempfile::TempDir;

use super::networks::Networks;
use super::*;
use crate::pool::PoolSize;

/// Limit of open files that suffices for all tests.
const MANY: u64 = 1 << 20;

fn pool() -> Arc<Pool> {
    Arc::new(Pool::start(PoolSize::asked(2)).unwrap())
}

fn nics() -> (NicRegistry, TempDir) {
    (NicRegistry::new(pool(), KeeperClient::default()), tempfile::tempdir().unwrap())
}

fn spec(folder: &TempDir, id: &str, network: &str) -> NicSpec {
    let mac = MacAddress::try_from([2, 0, 0, 0, 0, 1]).unwrap();
    NicSpec::new(id, folder.path().join(id), network, mac)
}

fn attach(nics: &NicRegistry, spec: &NicSpec) -> Result<NicReply, RpcError> {
    nics.attach(spec.clone(), MANY, 0)
}

fn names(folder: &Path) -> usize {
    folder.read_dir().unwrap().count()
}

fn code_of<T: std::fmt::Debug>(outcome: Result<T, RpcError>, says: &str) -> i64 {
    let error = outcome.unwrap_err();
    assert!(error.message.contains(says), "{error}");
    error.code
}

#[test]
fn an_attach_that_is_told_again_does_nothing_and_another_one_is_refused() {
    let (nics, folder) = nics();
    let whole = NicSpec {
        queues: 4,
        vlan: Some(7),
        locked: Some(Locked { ipv4: vec!["10.0.0.1".parse().unwrap()], ipv6: Vec::new() }),
        rate: Some(NicRate { bytes_per_second: 1 << 20, bytes_burst: None }),
        mtu: Some(9000),
        ..spec(&folder, "a", "lan")
    };
    let reply = attach(&nics, &whole).unwrap();
    assert_eq!((reply.network.as_str(), reply.mtu, reply.queues), ("lan", 9000, 4));
    assert_eq!(attach(&nics, &whole).unwrap(), reply);
    // A spec without MTU means the same as one with the network's MTU.
    assert_eq!(attach(&nics, &NicSpec { mtu: None, ..whole.clone() }).unwrap(), reply);
    for other in [
        NicSpec { queues: 3, ..whole.clone() },
        NicSpec { network: "wan".into(), ..whole.clone() },
        NicSpec { locked: None, ..whole.clone() },
        NicSpec { rate: None, ..whole.clone() },
        NicSpec { socket: folder.path().join("other"), ..whole.clone() },
        NicSpec { mtu: Some(1500), ..whole.clone() },
    ] {
        assert_eq!(code_of(attach(&nics, &other), "other parameters"), code::WRONG_STATE);
    }
    let all = nics.stats(|_| true);
    let [nic_stats] = &all[..] else { panic!("{all:?}") };
    assert!(
        nic_stats.locked
            && !nic_stats.connected
            && nic_stats.vlan == Some(7)
            && nic_stats.rate == whole.rate
    );
    assert_eq!(nics.network_stats().len(), 1);
    nics.detach("a").unwrap();
    assert_eq!(code_of(nics.detach("a"), "\"a\""), code::NO_SUCH_NIC);
    assert_eq!((names(folder.path()), nics.network_stats(), nics.has("a")), (0, Vec::new(), false));
}

#[test]
fn a_network_is_there_as_long_as_a_nic_is_in_it() {
    let (nics, folder) = nics();
    let [a, b] = ["a", "b"].map(|id| spec(&folder, id, "lan"));
    let jumbo = |spec: &NicSpec| NicSpec { mtu: Some(9000), ..spec.clone() };
    let uplink = UplinkSpec { network: "lan".into(), tap: None };
    assert_eq!(code_of(nics.uplink(&uplink), "\"lan\""), code::NO_SUCH_NETWORK);
    assert_eq!(attach(&nics, &a).unwrap().mtu, 1500);
    nics.uplink(&uplink).unwrap();
    assert_eq!(code_of(attach(&nics, &jumbo(&b)), "MTU of 1500"), code::WRONG_STATE);
    assert_eq!(names(folder.path()), 2, "a socket and its lock");
    attach(&nics, &b).unwrap();
    assert_eq!(nics.network_stats()[0].nics, 2);
    ["a", "b"].iter().for_each(|id| nics.detach(id).unwrap());
    assert_eq!(attach(&nics, &jumbo(&b)).unwrap().mtu, 9000);
}

#[test]
fn what_cannot_be_had_leaves_nothing_behind() {
    let (nics, folder) = nics();
    let a = spec(&folder, "a", "lan");
    attach(&nics, &a).unwrap();
    for (wrong, says) in [
        (NicSpec { id: "b".into(), network: "wan".into(), ..a.clone() }, "running process"),
        (NicSpec { socket: "/nowhere/b".into(), ..spec(&folder, "b", "wan") }, "/nowhere"),
        (NicSpec { socket_group: Some("no such".into()), ..spec(&folder, "b", "wan") }, "group"),
    ] {
        assert_eq!(code_of(attach(&nics, &wrong), says), code::FAILED);
        assert_eq!(
            (nics.network_stats().len(), nics.has("b"), nics.is_held("b")),
            (1, false, false)
        );
    }
    let small = nics.attach(spec(&folder, "b", "lan"), 100, 90);
    assert_eq!(code_of(small, "open files"), code::FAILED);
    assert_eq!(names(folder.path()), 2);
}

#[test]
fn nothing_comes_while_all_goes() {
    let (nics, folder) = nics();
    let a = spec(&folder, "a", "lan");
    attach(&nics, &a).unwrap();
    nics.begin_upgrade().unwrap();
    assert_eq!(code_of(nics.detach("a"), "upgrade"), code::BUSY);
    nics.end_upgrade();
    nics.begin_end();
    assert_eq!(code_of(attach(&nics, &spec(&folder, "b", "lan")), "shutting"), code::WRONG_STATE);
    assert_eq!(code_of(nics.detach("a"), "shutting"), code::WRONG_STATE);
    nics.shut_down();
    assert_eq!((names(folder.path()), nics.files()), (0, 0));
    let (nics, folder) = self::nics();
    nics.begin_upgrade().unwrap();
    assert_eq!(code_of(attach(&nics, &spec(&folder, "a", "lan")), "upgrade"), code::BUSY);
    nics.end_upgrade();
    attach(&nics, &spec(&folder, "a", "lan")).unwrap();
}

#[test]
fn ports_and_networks_are_bounded_and_come_back() {
    let mut networks = Networks::new(Arc::new(Pool::start(PoolSize::asked(1)).unwrap()));
    let ports: Vec<_> =
        (0..PORTS_MAX).map(|_| networks.join("lan", None).map(|(_, port)| port).unwrap()).collect();
    assert!(networks.join("lan", None).unwrap_err().to_string().contains("1024 ports"));
    assert!(!networks.leave("lan", ports[500]));
    assert_eq!(networks.join("lan", None).unwrap().1, ports[500]);
    ports.iter().for_each(|port| {
        networks.leave("lan", *port);
    });
    assert_eq!(networks.iter().count(), 0);
    let name = |number: usize| format!("n{number}");
    (0..NETWORKS_MAX).for_each(|at| assert!(networks.join(&name(at), None).is_ok()));
    let refused = networks.join("more", None).unwrap_err();
    assert!(refused.to_string().contains("256 networks"), "{refused}");
    // The failed attempt has released its port.
    let (switch_network, port) = networks.join(&name(0), None).unwrap();
    assert_eq!((switch_network.number().0, usize::from(port.0)), (0, NETWORKS_MAX));
}
