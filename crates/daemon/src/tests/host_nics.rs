//! Host NICs: from the kernel to records and bridges.

use std::time::Duration;

use tokio::sync::Notify;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{host, network, pif, pif_metrics};

use super::simulated_host::*;

/// Longer than any wait here.
const SOON: Duration = Duration::from_secs(60);

fn host(sim_host: &SimulatedHost) -> Ref {
    let db = &sim_host.test_app.app.db;
    db.read(|view| view.all(&host::CLASS).next().unwrap().reference().clone())
}

fn pifs(sim_host: &SimulatedHost) -> Vec<Ref> {
    let all = sim_host.get(&host(sim_host), host::Field::PIFs);
    let Value::Set(all) = all else { panic!("{all:?}") };
    all.iter().map(|one| Ref::from(text(one))).collect()
}

/// Returns the bridge of the only NIC.
fn place(sim_host: &SimulatedHost) -> Option<String> {
    sim_host.sim.cards().into_iter().next().unwrap().1
}

#[tokio::test]
async fn cards_are_found_and_brought_into_bridges() {
    let sim_host = SimulatedHost::new().await;
    let scan = || sim_host.done("PIF.scan", [host(&sim_host).value()]);
    scan().await;
    assert_eq!(pifs(&sim_host), []);
    sim_host.sim.add_card("eth0");
    for _ in 0..2 {
        scan().await;
        assert_eq!(pifs(&sim_host).len(), 1, "once");
    }
    let pif = pifs(&sim_host).remove(0);
    let net = Ref::from(text(&sim_host.get(&pif, pif::Field::network)));
    let label = sim_host.get(&net, network::Field::name_label);
    assert_eq!(label, Value::text("Pool-wide network associated with eth0"));
    let metrics = Ref::from(text(&sim_host.get(&pif, pif::Field::metrics)));
    assert_eq!(sim_host.get(&metrics, pif_metrics::Field::carrier), yes());
    assert_eq!(sim_host.get(&pif, pif::Field::MAC), Value::text("02:00:00:00:00:01"));
    let attached = || sim_host.get(&pif, pif::Field::currently_attached) == yes();
    assert!(!attached() && place(&sim_host).is_none(), "nobody has asked for that");

    for _ in 0..2 {
        sim_host.done("PIF.plug", [pif.value()]).await;
        assert!(attached());
        assert_eq!(
            place(&sim_host).as_deref(),
            Some(text(&sim_host.get(&net, network::Field::bridge)))
        );
    }
    let refused = sim_host.refused("PIF.forget", [pif.value()]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED");
    sim_host.done("PIF.set_disallow_unplug", [pif.value(), yes()]).await;
    let refused = sim_host.refused("PIF.unplug", [pif.value()]).await;
    assert_eq!(refused, ["PIF_DOES_NOT_ALLOW_UNPLUG", pif.as_str()]);
    sim_host.done("PIF.set_disallow_unplug", [pif.value(), no()]).await;
    for _ in 0..2 {
        sim_host.done("PIF.unplug", [pif.value()]).await;
        assert!(!attached() && place(&sim_host).is_none());
    }
    let refused = sim_host.refused("network.destroy", [net.value()]).await;
    assert_eq!(refused, ["NETWORK_CONTAINS_PIF", pif.as_str()]);
    sim_host.done("PIF.forget", [pif.value()]).await;
    sim_host.done("network.destroy", [net.value()]).await;
    assert_eq!(pifs(&sim_host), []);
    let left = sim_host.test_app.app.db.read(|view| view.count(&pif_metrics::CLASS));
    assert_eq!(left, 0);
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_card_is_introduced_by_name_or_address() {
    let sim_host = SimulatedHost::new().await;
    sim_host.sim.add_card("eth0");
    let introduce = |mac: &str, device: &str| {
        [host(&sim_host).value(), Value::text(mac), Value::text(device), yes()]
    };
    let none = "COULD_NOT_FIND_NETWORK_INTERFACE_WITH_SPECIFIED_DEVICE_NAME_AND_MAC_ADDRESS";
    for (mac, device) in [("", ""), ("", "eth1"), ("02:00:00:00:00:09", "eth0")] {
        let refused = sim_host.refused("PIF.introduce", introduce(mac, device)).await;
        assert_eq!(refused, [none, device, mac]);
    }
    let made = sim_host.made("PIF.introduce", introduce("02:00:00:00:00:01", "")).await;
    assert_eq!(sim_host.get(&made, pif::Field::device), Value::text("eth0"));
    let refused = sim_host.refused("PIF.introduce", introduce("", "eth0")).await;
    assert_eq!(refused, ["DUPLICATE_PIF_DEVICE_NAME", "eth0"]);
    sim_host.done("PIF.forget", [made.value()]).await;
    // Another tool manages this one.
    let [host, mac, device, _] = introduce("", "eth0");
    let made = sim_host.made("PIF.introduce", [host, mac, device, no()]).await;
    let refused = sim_host.refused("PIF.plug", [made.value()]).await;
    assert_eq!(refused, ["PIF_UNMANAGED", made.as_str()]);
}

/// Makes joins of a bridge succeed without an answer. Notifies of each.
fn joins_hang(sim_host: &SimulatedHost) -> Arc<Notify> {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    sim_host.sim.rule(move |call| {
        if call.call_kind != CallKind::Join {
            return SimBehaviour::default();
        }
        begins.notify_one();
        SimBehaviour::ends(SimResult::HangsDone)
    });
    begun
}

#[tokio::test]
async fn a_card_that_is_forgotten_while_it_is_plugged_is_in_no_bridge() {
    let sim_host = SimulatedHost::new().await;
    sim_host.sim.add_card("eth0");
    sim_host.done("PIF.scan", [host(&sim_host).value()]).await;
    let pif = pifs(&sim_host).remove(0);
    let begun = joins_hang(&sim_host);
    let forget = async {
        begun.notified().await;
        sim_host.done("PIF.forget", [pif.value()]).await;
        sim_host.sim.rule(|_| SimBehaviour::default());
    };
    let (refused, ()) = tokio::join!(sim_host.refused("PIF.plug", [pif.value()]), forget);
    assert_eq!(refused[0], "HANDLE_INVALID");
    assert_eq!(place(&sim_host), None);
}

/// Returns the state after a kill, with plugged NICs.
fn killed(cards: &[&str]) -> SimulatedHost {
    life(async {
        let sim_host = SimulatedHost::new().await;
        cards.iter().for_each(|card| sim_host.sim.add_card(card));
        sim_host.done("PIF.scan", [host(&sim_host).value()]).await;
        for pif in pifs(&sim_host) {
            sim_host.done("PIF.plug", [pif.value()]).await;
        }
        sim_host.killed();
        sim_host
    })
}

/// A booted host has no bridges, and its NICs are in none.
#[test]
fn a_card_is_plugged_again_by_the_next_daemon() {
    let sim_host = killed(&["eth0"]);
    sim_host.sim.add_card("eth0");
    assert_eq!(place(&sim_host), None);
    life(async {
        let sim_host = sim_host.again("second").await;
        let attached = || sim_host.get(&pifs(&sim_host)[0], pif::Field::currently_attached);
        let plugged = async {
            while place(&sim_host).is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, plugged).await.unwrap();
        assert_eq!(attached(), yes());
    });
}

async fn until_all_attached(sim_host: &SimulatedHost, attached: bool) {
    let is = |pif: &Ref| sim_host.get(pif, pif::Field::currently_attached) == Value::Bool(attached);
    tokio::time::timeout(SOON, sim_host.until(|sim_host| pifs(sim_host).iter().all(is)))
        .await
        .unwrap();
}

/// A missing NIC is recorded as unplugged. When it appears it is plugged, also by a later daemon.
#[test]
fn a_card_that_comes_late_is_plugged_then() {
    for daemons in [["second"].as_slice(), &["second", "third"]] {
        let mut sim_host = killed(&["eth0"]);
        sim_host.sim.remove_card("eth0");
        for daemon in daemons {
            sim_host = life(async {
                let sim_host = sim_host.again(daemon).await;
                until_all_attached(&sim_host, false).await;
                let pif = pifs(&sim_host).remove(0);
                let refused = sim_host.refused("PIF.plug", [pif.value()]).await;
                assert_eq!(refused, ["PIF_DEVICE_NOT_FOUND"]);
                sim_host.sim.add_card("other");
                if Some(daemon) == daemons.last() {
                    sim_host.sim.add_card("eth0");
                    until_all_attached(&sim_host, true).await;
                    assert!(place(&sim_host).is_some());
                    assert_eq!(
                        sim_host.get(&pif, pif::Field::other_config),
                        Value::Map(Default::default())
                    );
                } else {
                    sim_host.killed();
                }
                sim_host
            });
        }
    }
}

/// The NIC's address may be missing only for a moment, so only a call may plug it.
#[test]
fn a_card_by_which_the_host_is_reached_is_not_owed_a_plug() {
    let mut sim_host = killed(&["eth0"]);
    sim_host.sim.add_card("eth0");
    sim_host.sim.reach_by("eth0", Some([192, 0, 2, 7].into()));
    for daemon in ["second", "third"] {
        sim_host = life(async {
            let sim_host = sim_host.again(daemon).await;
            until_all_attached(&sim_host, false).await;
            let pif = pifs(&sim_host).remove(0);
            let config = sim_host.get(&pif, pif::Field::other_config);
            assert_eq!(config, Value::Map(Default::default()), "{daemon}");
            let refused = sim_host.refused("PIF.plug", [pif.value()]).await;
            assert_eq!(refused[0], "OPERATION_NOT_ALLOWED");
            assert!(refused[1].contains("192.0.2.7"), "{refused:?}");
            sim_host.killed();
            sim_host
        });
    }
    sim_host.sim.reach_by("eth0", None);
    life(async {
        let sim_host = sim_host.again("fourth").await;
        assert_eq!(place(&sim_host), None);
        sim_host.done("PIF.plug", [pifs(&sim_host)[0].value()]).await;
        assert!(place(&sim_host).is_some());
    });
}

#[test]
fn a_card_that_is_forgotten_while_it_is_plugged_late_is_in_no_bridge() {
    let sim_host = killed(&["eth0"]);
    sim_host.sim.remove_card("eth0");
    life(async {
        let sim_host = sim_host.again("second").await;
        until_all_attached(&sim_host, false).await;
        let pif = pifs(&sim_host).remove(0);
        let begun = joins_hang(&sim_host);
        sim_host.sim.add_card("eth0");
        tokio::time::timeout(SOON, begun.notified()).await.unwrap();
        sim_host.done("PIF.forget", [pif.value()]).await;
        let left = Arc::new(Notify::new());
        let leaves = Arc::clone(&left);
        sim_host.sim.rule(move |call| {
            if call.call_kind == CallKind::Leave {
                leaves.notify_one();
            }
            SimBehaviour::default()
        });
        tokio::time::timeout(SOON, left.notified()).await.unwrap();
        let out = async {
            while place(&sim_host).is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, out).await.unwrap();
    });
}

/// A NIC that was unplugged or forgotten meanwhile stays unplugged.
#[test]
fn a_card_that_nobody_wants_any_more_is_not_plugged() {
    let cards = ["eth0", "eth1", "eth2"];
    let sim_host = killed(&cards);
    cards.iter().for_each(|card| sim_host.sim.remove_card(card));
    life(async {
        let sim_host = sim_host.again("second").await;
        until_all_attached(&sim_host, false).await;
        let of = |card: &str| {
            let is = |pif: &Ref| sim_host.get(pif, pif::Field::device) == Value::text(card);
            pifs(&sim_host).into_iter().find(is).unwrap()
        };
        sim_host.done("PIF.unplug", [of("eth0").value()]).await;
        sim_host.done("PIF.forget", [of("eth1").value()]).await;
        let unplugged = sim_host.get(&of("eth0"), pif::Field::other_config);
        assert_eq!(unplugged, Value::Map(Default::default()));
        cards.iter().for_each(|card| sim_host.sim.add_card(card));
        let wanted = of("eth2");
        let is = |sim_host: &SimulatedHost| {
            sim_host.get(&wanted, pif::Field::currently_attached) == yes()
        };
        tokio::time::timeout(SOON, sim_host.until(is)).await.unwrap();
        let places: Vec<_> =
            sim_host.sim.cards().into_iter().map(|(_, place)| place.is_some()).collect();
        assert_eq!(places, [false, false, true]);
    });
}

fn flag_of(sim_host: &SimulatedHost, pif: &Ref, field: pif::Field) -> bool {
    sim_host.get(pif, field) == yes()
}

/// Clients take the management interface of a host as given.
#[tokio::test]
async fn the_device_that_reaches_the_host_has_a_record_from_the_start() {
    let sim_host = SimulatedHost::new().await;
    let manages = async || {
        let found = sim_host.call("host.get_management_interface", [host(&sim_host).value()]).await;
        Ref::from(text(&found))
    };
    let refresh = async || crate::calls::pif::management::refresh(&sim_host.test_app.app).await;
    refresh().await;
    assert!(manages().await.is_null(), "no device has the address");
    sim_host.sim.add_card("eth0");
    sim_host.sim.reach_by("eth0", Some("192.0.2.7".parse().unwrap()));
    for _ in 0..2 {
        refresh().await;
        assert_eq!(pifs(&sim_host).len(), 1);
    }
    let first = manages().await;
    assert!(flag_of(&sim_host, &first, pif::Field::currently_attached));
    for (field, value) in [
        (pif::Field::IP, "127.0.0.1"),
        (pif::Field::netmask, "255.255.255.0"),
        (pif::Field::gateway, "192.0.2.1"),
        (pif::Field::DNS, "192.0.2.53"),
        (pif::Field::ip_configuration_mode, "Static"),
        (pif::Field::device, "eth0"),
    ] {
        assert_eq!(sim_host.get(&first, field), Value::text(value), "{field:?}");
    }
    // The host's tools manage it: nothing plugs, unplugs or forgets it, a restart included.
    for method in ["PIF.plug", "PIF.unplug"] {
        assert_eq!(
            sim_host.refused(method, [first.value()]).await,
            ["PIF_UNMANAGED", first.as_str()]
        );
    }
    let refused = sim_host.refused("PIF.forget", [first.value()]).await;
    assert_eq!(refused, ["PIF_IS_MANAGEMENT_INTERFACE", first.as_str()]);
    crate::calls::pif::replug(&sim_host.test_app.app);
    tokio::task::yield_now().await;
    assert!(
        flag_of(&sim_host, &first, pif::Field::currently_attached) && place(&sim_host).is_none()
    );

    // The address moves to a bridge, whose network then reaches what is behind it.
    sim_host.sim.reach_by("eth0", None);
    sim_host.sim.reach_by("br0", Some("192.0.2.7".parse().unwrap()));
    let net = &sim_host.test_app.app.drivers.net;
    net.create_bridge("br0", 1500).await.unwrap();
    refresh().await;
    let second = manages().await;
    assert_ne!(second, first);
    let of = Ref::from(text(&sim_host.get(&second, pif::Field::network)));
    assert_eq!(sim_host.get(&of, network::Field::bridge), Value::text("br0"));
    assert!(!flag_of(&sim_host, &first, pif::Field::management));
    sim_host.done("PIF.forget", [first.value()]).await;
}

/// A plugged card whose network's bridge has the host's address is the management interface.
#[tokio::test]
async fn the_card_behind_the_bridge_of_the_address_is_the_management_interface() {
    let sim_host = SimulatedHost::new().await;
    sim_host.sim.add_card("eth0");
    sim_host.done("PIF.scan", [host(&sim_host).value()]).await;
    let pif = pifs(&sim_host).remove(0);
    sim_host.done("PIF.plug", [pif.value()]).await;
    let bridge = place(&sim_host).unwrap();
    sim_host.sim.reach_by(&bridge, Some("192.0.2.7".parse().unwrap()));
    crate::calls::pif::management::refresh(&sim_host.test_app.app).await;
    assert_eq!(pifs(&sim_host).as_slice(), std::slice::from_ref(&pif));
    assert!(flag_of(&sim_host, &pif, pif::Field::management));
    assert_eq!(sim_host.get(&pif, pif::Field::device), Value::text("eth0"));
    let refused = sim_host.refused("PIF.unplug", [pif.value()]).await;
    assert_eq!(refused, ["PIF_IS_MANAGEMENT_INTERFACE", pif.as_str()]);
}

#[tokio::test]
async fn vlans_bonds_and_addresses_are_refused_with_their_own_codes() {
    let sim_host = SimulatedHost::new().await;
    sim_host.sim.add_card("eth0");
    sim_host.done("PIF.scan", [host(&sim_host).value()]).await;
    let pif = pifs(&sim_host).remove(0);
    let it = || pif.value();
    let net = || sim_host.get(&pif, pif::Field::network);
    let refused = async |method: &str, params: Vec<Value>| sim_host.refused(method, params).await;
    for tag in [-1, 4095] {
        let expected = ["VLAN_TAG_INVALID".to_owned(), tag.to_string()];
        let tag = Value::Int(tag);
        assert_eq!(refused("VLAN.create", vec![it(), tag.clone(), net()]).await, expected);
        let from_pif = vec![it(), net(), tag.clone()];
        assert_eq!(refused("pool.create_VLAN_from_PIF", from_pif).await, expected);
        let of_device = vec![Value::text("eth0"), net(), tag];
        assert_eq!(refused("pool.create_VLAN", of_device).await, expected);
    }
    let texts = |count: usize| vec![Value::text(""); count];
    let calls = [
        ("VLAN.create", vec![it(), Value::Int(7), net()]),
        ("pool.create_VLAN_from_PIF", vec![it(), net(), Value::Int(7)]),
        ("Bond.create", vec![net(), Value::Set(vec![it()]), Value::text("")]),
        ("PIF.reconfigure_ip", [vec![it(), Value::text("DHCP")], texts(4)].concat()),
        ("PIF.reconfigure_ipv6", [vec![it(), Value::text("None")], texts(3)].concat()),
    ];
    for (method, params) in &calls {
        assert_eq!(refused(method, params.clone()).await, ["NOT_IMPLEMENTED", method]);
    }
    assert_eq!(refused("PIF.destroy", vec![it()]).await, ["PIF_IS_PHYSICAL", pif.as_str()]);
    let unmanaged = |tx: &mut crate::db::Tx<'_>| tx.set(&pif, pif::Field::managed, no());
    sim_host.test_app.app.db.change(unmanaged).unwrap();
    for (method, params) in calls {
        assert_eq!(refused(method, params).await, ["PIF_UNMANAGED", pif.as_str()], "{method}");
    }
}
