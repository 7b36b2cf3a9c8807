//! NICs of `ringway-io`, with front-ends that do exactly what a test says.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::frames::*;
use crate::common::*;
use model::report::{NetworkStats, NicStats, PortStats};
use model::rpc::code;
use model::spec::PollMode;
use serde_json::{Value, json};
use testkit::in_namespace::in_own_network;
use testkit::process::PROCESS_DEADLINE;
use testkit::process::eventually;
use testkit::raw::nic::PLAIN;
use testkit::raw::wire::Request;
use testkit::raw::{Guest, WaitEvent};

/// Time to wait for a frame that must not arrive.
const BRIEFLY: Duration = Duration::from_millis(50);
/// Feature bits that need a control queue: CTRL_VQ, CTRL_RX, MQ, CTRL_MAC_ADDR.
const CONTROL: [u32; 4] = [17, 18, 22, 23];

fn nic(io: &Io, id: &str) -> NicStats {
    io.caller().stats().nics.into_iter().find(|nic| nic.id == id).unwrap()
}

#[test]
fn the_life_of_nics_in_two_networks() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    let mut caller = io.caller();
    let mut first = spec(&io, "a", "lan", 1);
    first["queues"] = json!(2);
    first["mtu"] = json!(9000);
    let reply = caller.call("nic.attach", first.clone()).unwrap();
    assert_eq!(reply, json!({"id": "a", "network": "lan", "mtu": 9000, "queues": 2}));
    assert_eq!(caller.call("nic.attach", first.clone()).unwrap(), reply);
    first["vlan"] = json!(5);
    assert_eq!(caller.call("nic.attach", first).unwrap_err().code, code::WRONG_STATE);
    attach(&io, "b", "lan", 2);
    attach(&io, "c", "wan", 3);
    let mut a = guest(&io.socket("a"), 2);
    let config = a.frontend.get_config(24).unwrap();
    assert_eq!(config[..12], [2, 0, 0, 0, 0, 1, 1, 0, 2, 0, 0x28, 0x23], "MAC, link, pairs, MTU");
    assert_eq!(a.frontend.get_u64(Request::GET_QUEUE_NUM).unwrap(), 5, "with the control queue");
    let [mut b, mut c] = ["b", "c"].map(|id| guest(&io.socket(id), 1));
    talk(&mut a, &mut b, |_| {});
    assert_eq!(c.receive_frame(0, BRIEFLY).unwrap(), None, "another network");

    let stats = caller.stats();
    let networks: Vec<_> = stats.networks.iter().map(|one| (one.name.as_str(), one.nics)).collect();
    assert_eq!(networks, [("lan", 2), ("wan", 1)]);
    let [a_stats, b_stats, c_stats] = &stats.nics[..] else { panic!("{stats:?}") };
    assert!(
        a_stats.connected && a_stats.queues == 2 && a_stats.mac.to_string() == "02:00:00:00:00:01"
    );
    assert_eq!((a_stats.frames.tx_frames, b_stats.frames.rx_frames), (20, 20));
    assert_eq!(c_stats.frames.rx_frames, 0);
    let ports: Vec<_> = stats.ports.iter().map(|one| (one.id.as_str(), one.pairs)).collect();
    assert_eq!(ports, [("a", 2), ("b", 1), ("c", 1)]);
    let one: model::report::Stats =
        serde_json::from_value(caller.call("stats", json!({"id": "b"})).unwrap()).unwrap();
    assert_eq!((one.nics.len(), one.disks.len(), one.networks.len()), (1, 0, 0));
    let [port] = &one.ports[..] else { panic!("{one:?}") };
    assert_eq!((port.rx.frames, port.tx.frames, port.pairs_started), (20, 20, 1));
    let sizes =
        |port: &PortStats| port.each_queue[0].rx.sizes.iter().map(|size| size.frames).sum::<u64>();
    assert_eq!((sizes(port), sizes(&stats.ports[1])), (20, 0), "sizes are told of one alone");

    caller.call("nic.detach", json!({"id": "b"})).unwrap();
    b.frontend.connection.wait_closed().unwrap();
    assert_eq!(caller.call("nic.detach", json!({"id": "b"})).unwrap_err().code, code::NO_SUCH_NIC);
    send(&mut a, &frame(2, 1, "anybody"));
    assert_eq!(nic(&io, "a").frames.tx_dropped.get("no-receiver"), Some(&1));
    // Disks are served beside NICs.
    caller.disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn what_a_nic_may_not_it_does_not() {
    let io = Io::start();
    let mut caller = io.caller();
    let mut locked = spec(&io, "locked", "lan", 1);
    locked["locked"] = json!({"ipv4": ["10.0.0.1"]});
    caller.call("nic.attach", locked).unwrap();
    let mut access = spec(&io, "access", "lan", 2);
    access["vlan"] = json!(5);
    caller.call("nic.attach", access).unwrap();
    attach(&io, "trunk", "lan", 3);
    let [mut locked, mut access, mut trunk] =
        ["locked", "access", "trunk"].map(|id| guest(&io.socket(id), 1));
    // Neither a foreign source address nor a protocol that is not allowed passes.
    send(&mut locked, &frame(0xff, 9, "not me"));
    send(&mut locked, &frame(0xff, 1, "what is this"));
    send(&mut access, &frame(0xff, 2, "in five"));
    let tagged = received(&mut trunk);
    assert_eq!(tagged[12..16], [0x81, 0, 0, 5]);
    assert_eq!(tagged[16..], frame(0xff, 2, "in five")[12..]);
    let counters = nic(&io, "locked").frames;
    assert_eq!(counters.tx_dropped.values().sum::<u64>(), 2, "{counters:?}");
    assert!(counters.tx_dropped.contains_key("locked-mac"), "{counters:?}");
}

#[test]
fn hostile_and_wrong_calls_are_answered() {
    let io = Io::start();
    let mut caller = io.caller();
    attach(&io, "a", "lan", 1);
    for (field, value, expected) in [
        ("id", json!("../a"), code::INVALID_PARAMS),
        ("id", json!("x".repeat(5000)), code::INVALID_PARAMS),
        ("network", json!("a b"), code::INVALID_PARAMS),
        ("network", json!("x".repeat(65)), code::INVALID_PARAMS),
        ("mac", json!("ff:ff:ff:ff:ff:ff"), code::INVALID_PARAMS),
        ("queues", json!(0), code::INVALID_PARAMS),
        ("queues", json!(65535), code::INVALID_PARAMS),
        ("mtu", json!(67), code::INVALID_PARAMS),
        ("mtu", json!(9000), code::WRONG_STATE),
        ("vlan", json!(4095), code::INVALID_PARAMS),
        ("locked", json!({"ipv4": vec!["1.2.3.4"; 257]}), code::INVALID_PARAMS),
        ("rate", json!({"bytes_per_second": 1}), code::INVALID_PARAMS),
        ("socket", json!(io.socket("a")), code::FAILED),
        ("socket", json!(io.socket("control")), code::FAILED),
        ("socket", json!("/nowhere/s"), code::FAILED),
        ("socket", json!("x".repeat(108)), code::INVALID_PARAMS),
    ] {
        let mut wrong = spec(&io, "b", "lan", 2);
        wrong[field] = value;
        let error = caller.call("nic.attach", wrong).unwrap_err();
        assert_eq!(error.code, expected, "{field}: {error}");
    }
    let file = image(&io.folder, "file", 1);
    let mut wrong = spec(&io, "b", "lan", 2);
    wrong["socket"] = json!(file);
    let error = caller.call("nic.attach", wrong).unwrap_err();
    assert!(error.message.contains("is not a socket"), "{error}");
    let error = caller.call("network.uplink", json!({"network": "no", "tap": "x"})).unwrap_err();
    assert_eq!(error.code, code::NO_SUCH_NETWORK);
    let stats = caller.stats();
    assert_eq!((stats.nics.len(), stats.networks.len()), (1, 1));
    assert_eq!(names(&io.folder), ["a", "a.lock", "control", "control.lock", "file"]);
}

#[test]
fn nics_come_and_go_under_load() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    attach(&io, "a", "lan", 1);
    let mut a = guest(&io.socket("a"), 1);
    let loud = frame(0xff, 1, "to everybody");
    for round in 0..20u8 {
        // The same port, alternately in this network and in another one.
        let network = if round % 4 == 3 { "wan" } else { "lan" };
        attach(&io, "b", network, 2);
        let mut b = guest(&io.socket("b"), 1);
        if network == "lan" {
            send(&mut a, &loud);
            assert_eq!(received(&mut b), loud);
        }
        for _ in 0..8 {
            a.offer_frame(0, &PLAIN, &loud).unwrap();
            b.offer_frame(0, &PLAIN, &frame(9, 2, "to nobody")).unwrap();
        }
        io.caller().call("nic.detach", json!({"id": "b"})).unwrap();
        b.frontend.connection.wait_closed().unwrap();
        for _ in 0..8 {
            assert!(matches!(a.wait(1, SOON), Ok(WaitEvent::Used(_))));
        }
        while a.receive_frame(0, Duration::ZERO).unwrap().is_some() {}
        a = match round % 8 {
            7 => {
                drop(a);
                guest(&io.socket("a"), 1)
            }
            _ => a,
        };
    }
    let stats = nic(&io, "a");
    assert!(stats.connected && stats.frames.tx_frames == 15 + 160, "{stats:?}");
    assert!(io.process.terminate().unwrap().success());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn a_shutdown_with_front_ends_connected_leaves_nothing() {
    let mut io = Io::start();
    ["a", "b"].into_iter().for_each(|id| attach(&io, id, "lan", 1));
    let mut a = guest(&io.socket("a"), 1);
    (0..32).for_each(|_| a.offer_frame(0, &PLAIN, &frame(0xff, 1, "x")).unwrap());
    io.caller().call("shutdown", Value::Null).unwrap();
    a.frontend.connection.wait_closed().unwrap();
    assert!(io.process.wait(PROCESS_DEADLINE).unwrap().success());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn a_killed_worker_is_replaced_and_front_ends_come_back() {
    let mut io = Io::start();
    let mut jumbo = spec(&io, "b", "lan", 2);
    jumbo["mtu"] = json!(9000);
    io.caller().call("nic.attach", jumbo).unwrap();
    attach(&io, "a", "lan", 1);
    attach(&io, "gone", "wan", 3);
    io.caller().call("nic.detach", json!({"id": "gone"})).unwrap();
    let before = names(&io.folder);
    let mut a = guest(&io.socket("a"), 1);
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    a.frontend.connection.wait_closed().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    // A front-end that connects before the worker serves waits.
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    send(&mut a, &frame(0xff, 1, "again"));
    assert_eq!(received(&mut b), frame(0xff, 1, "again"));
    let stats = io.caller().stats();
    let NetworkStats { mtu, nics, .. } = &stats.networks[0];
    assert_eq!((stats.networks.len(), *mtu, *nics), (1, 9000, 2));
    assert_eq!(names(&io.folder), before);
    io.caller().call("nic.detach", json!({"id": "a"})).unwrap();
    a.frontend.connection.wait_closed().unwrap();
    assert!(io.process.terminate().unwrap().success());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn polling_is_that_of_the_process_or_a_nics_own() {
    let mut io = Io::start_with(&["--poll", "off"]);
    let mut caller = io.caller();
    let mut own = spec(&io, "own", "lan", 1);
    own["poll"] = json!("always");
    let reply = caller.call("nic.attach", own.clone()).unwrap();
    attach(&io, "b", "lan", 2);
    let _guests = ["own", "b"].map(|id| guest(&io.socket(id), 1));
    let set = |caller: &mut Caller, id: &str| {
        let stats = caller.stats();
        let port = stats.ports.into_iter().find(|port| port.id == id).unwrap();
        port.polling.map(|polling| polling.set.mode)
    };
    eventually("both are served", || {
        let set = ["own", "b"].map(|id| set(&mut caller, id));
        set == [Some(PollMode::Always), Some(PollMode::Off)]
    });
    caller.call("poll.defaults", json!({"poll": "auto"})).unwrap();
    let both = |caller: &mut Caller| ["own", "b"].map(|id| set(caller, id).unwrap());
    assert_eq!(both(&mut caller), [PollMode::Always, PollMode::Auto]);
    assert_eq!(caller.call("nic.poll", json!({"id": "own", "poll": null})).unwrap(), reply);
    assert_eq!(both(&mut caller), [PollMode::Auto; 2]);
    caller.call("nic.poll", json!({"id": "b", "poll": "off"})).unwrap();
    // The spec counts as the same, whatever has changed its polling since.
    assert_eq!(caller.call("nic.attach", own).unwrap(), reply);
    let error = caller.call("nic.poll", json!({"id": "c", "poll": "off"})).unwrap_err();
    assert_eq!(error.code, code::NO_SUCH_NIC);
    // A new worker restores this setting.
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let _guests = ["own", "b"].map(|id| guest(&io.socket(id), 1));
    let mut caller = io.caller();
    eventually("both are served", || {
        let set = ["own", "b"].map(|id| set(&mut caller, id));
        set == [Some(PollMode::Auto), Some(PollMode::Off)]
    });
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn limits_change_while_a_nic_is_served() {
    let mut io = Io::start();
    ["a", "b"].into_iter().zip(1..).for_each(|(id, number)| attach(&io, id, "lan", number));
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    let loud = frame(0xff, 1, "to everybody");
    send(&mut a, &loud);
    assert_eq!(received(&mut b), loud);
    let refused = |io: &Io| nic(io, "a").frames.tx_dropped.values().sum::<u64>();
    let limit = |io: &Io, limits: Value| {
        io.caller().call("nic.limits", json!({"id": "a", "limits": limits}))
    };
    // A locked NIC may not send frames of this protocol.
    for (limits, reason) in [
        (
            json!({"locked": {"ipv4": ["10.0.0.1"]}, "rate": {"bytes_per_second": 1 << 20}}),
            "locked",
        ),
        (json!({"disabled": true}), "closed"),
    ] {
        let before = refused(&io);
        limit(&io, limits.clone()).unwrap();
        send(&mut a, &loud);
        assert_eq!(refused(&io), before + 1, "{limits}");
        let reasons = nic(&io, "a").frames.tx_dropped;
        assert!(reasons.keys().any(|one| one.starts_with(reason)), "{reasons:?}");
    }
    // A disabled NIC receives nothing, and stays disabled in later workers.
    io.caller().call("upgrade", Value::Null).unwrap();
    assert!(nic(&io, "a").disabled);
    send(&mut b, &frame(0xff, 2, "to everybody else"));
    assert_eq!(a.receive_frame(0, BRIEFLY).unwrap(), None);
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    assert!(nic(&io, "a").disabled);
    send(&mut a, &loud);
    assert_eq!(refused(&io), 1);
    limit(&io, json!({})).unwrap();
    send(&mut a, &loud);
    assert_eq!(received(&mut b), loud);
    let stats = nic(&io, "a");
    assert!(!stats.disabled && !stats.locked && stats.rate.is_none(), "{stats:?}");
    let wrong = json!({"id": "a", "limits": {"rate": {"bytes_per_second": 1}}});
    let error = io.caller().call("nic.limits", wrong).unwrap_err();
    assert_eq!(error.code, code::INVALID_PARAMS);
    let error = io.caller().call("nic.limits", json!({"id": "c"})).unwrap_err();
    assert_eq!(error.code, code::NO_SUCH_NIC);
}

/// Neither another cap nor an upgrade grants a new burst. A lifted cap holds nothing back.
#[test]
fn what_was_used_of_a_cap_counts() {
    const RATE: u64 = 8192;
    const FRAMES: usize = 60;
    let io = Io::start();
    let mut spec = spec(&io, "a", "lan", 1);
    spec["mtu"] = json!(9000);
    io.caller().call("nic.attach", spec).unwrap();
    let mut a = guest(&io.socket("a"), 1);
    let limit = |limits: Value| {
        io.caller().call("nic.limits", json!({"id": "a", "limits": limits})).unwrap();
    };
    let began = Instant::now();
    limit(json!({"rate": {"bytes_per_second": RATE}}));
    let long = frame(0xff, 1, &"long ".repeat(1780));
    (0..FRAMES).for_each(|_| a.offer_frame(0, &PLAIN, &long).unwrap());
    let mut passed = 0;
    let mut see = |a: &mut Guest, patience| {
        while passed < FRAMES && matches!(a.wait(1, patience).unwrap(), WaitEvent::Used(_)) {
            passed += 1;
        }
        passed
    };
    // One burst, the tokens of the rate, and for each cap one frame that overdraws.
    let most = |caps: usize| {
        let bytes = (128 << 10) as f64 + RATE as f64 * began.elapsed().as_secs_f64();
        caps + (bytes / long.len() as f64).ceil() as usize
    };
    for (caps, rate) in (1..).zip([RATE, RATE / 2, RATE]) {
        assert!(see(&mut a, BRIEFLY) <= most(caps));
        limit(json!({"rate": {"bytes_per_second": rate}, "flood": rate}));
    }
    assert!(see(&mut a, BRIEFLY) <= most(4));
    io.caller().call("upgrade", Value::Null).unwrap();
    eventually("it is served", || io.caller().stats().ports[0].pairs_started == 1);
    assert!(see(&mut a, BRIEFLY) <= most(4));
    limit(json!({}));
    assert_eq!(see(&mut a, SOON), FRAMES, "nothing holds them");
}

/// A storm of one guest does not reach the others, but its frames to a known station do.
#[test]
fn a_storm_is_limited_and_stations_are_reached() {
    let io = Io::start();
    ["a", "b"].into_iter().zip(1..).for_each(|(id, number)| attach(&io, id, "lan", number));
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    send(&mut b, &frame(0xff, 2, "here I am"));
    let limit = |frames: Value| {
        let limits = json!({"id": "a", "limits": {"flood": frames}});
        io.caller().call("nic.limits", limits).unwrap();
    };
    let refused = |io: &Io| {
        let refused = nic(io, "a").frames.tx_dropped;
        refused.get("flood-limit").copied().unwrap_or_default()
    };
    limit(json!(1));
    assert_eq!(nic(&io, "a").flood, Some(1));
    let loud = frame(0xff, 1, "to everybody");
    // Some frames pass, even if this is slow.
    while refused(&io) < 5 {
        send(&mut a, &loud);
        send(&mut a, &frame(9, 1, "to whom nobody knows"));
    }
    let known = frame(2, 1, "to you");
    send(&mut a, &known);
    while received(&mut b) != known {}
    limit(json!(0));
    let before = refused(&io);
    for _ in 0..20 {
        send(&mut a, &loud);
        assert_eq!(received(&mut b), loud);
    }
    assert_eq!(refused(&io), before);
}

#[test]
fn a_nic_without_mq_has_one_pair_and_no_control_queue() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    let mut one = spec(&io, "a", "lan", 1);
    (one["queues"], one["mq"]) = (json!(4), json!(false));
    let mut four = spec(&io, "b", "lan", 2);
    (four["queues"], four["mq"]) = (json!(4), json!(true));
    let reply = io.caller().call("nic.attach", one.clone()).unwrap();
    assert_eq!(io.caller().call("nic.attach", one).unwrap(), reply);
    io.caller().call("nic.attach", four).unwrap();
    // Later workers also have it, from the handover and from the keeper.
    for round in ["at first", "after an upgrade", "after a death"] {
        let [mut a, mut b] = [("a", 1), ("b", 4)].map(|(id, pairs)| guest(&io.socket(id), pairs));
        let offers = [&a, &b].map(|guest| CONTROL.map(|bit| guest.negotiated.offered >> bit & 1));
        assert_eq!(offers, [[0; 4], [1; 4]], "{round}");
        let queues = |guest: &mut Guest| guest.frontend.get_u64(Request::GET_QUEUE_NUM).unwrap();
        assert_eq!((queues(&mut a), queues(&mut b)), (2, 9), "{round}");
        send(&mut a, &frame(0xff, 1, round));
        assert_eq!(received(&mut b), frame(0xff, 1, round));
        send(&mut b, &frame(1, 2, round));
        assert_eq!(received(&mut a), frame(1, 2, round));
        drop((a, b));
        if round == "at first" {
            io.caller().call("upgrade", Value::Null).unwrap();
        } else {
            let worker = io.process.worker().unwrap().unwrap();
            worker.kill().unwrap();
            io.process.next_worker(Some(worker.id())).unwrap();
        }
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn the_host_is_in_a_network_by_its_uplink() {
    in_own_network(concat!(module_path!(), "::the_host_is_in_a_network_by_its_uplink"), || {
        let mut io = Io::start_with(&["--reactors", "2"]);
        let mut caller = io.caller();
        attach(&io, "a", "lan", 1);
        attach(&io, "b", "wan", 2);
        let lan = json!({"network": "lan", "tap": "rwi0"});
        let there = || Path::new("/sys/class/net/rwi0").exists();
        let up = || {
            // A new worker that opens the device before the kernel has released it for the killed one
            // keeps the device, and so its address.
            run("ip addr replace 10.9.0.1/24 dev rwi0");
            run("ip link set dev rwi0 up");
        };
        caller.call("network.uplink", lan.clone()).unwrap();
        caller.call("network.uplink", lan.clone()).unwrap();
        up();
        let mut a = guest(&io.socket("a"), 1);
        send(&mut a, &question());
        answer(&mut a);
        for (wrong, says) in [
            (json!({"network": "lan", "tap": "rwi1"}), "has the uplink \"rwi0\""),
            (json!({"network": "wan", "tap": "rwi0"}), "is the uplink of network \"lan\""),
            (json!({"network": "wan", "tap": "lo"}), "is not a TAP device"),
        ] {
            let error = caller.call("network.uplink", wrong).unwrap_err();
            assert!(error.message.contains(says), "{error}");
        }
        // A new worker restores the host's port.
        let worker = io.process.worker().unwrap().unwrap();
        worker.kill().unwrap();
        io.process.next_worker(Some(worker.id())).unwrap();
        let mut a = guest(&io.socket("a"), 1);
        let mut caller = io.caller();
        eventually("the host is back", || caller.stats().networks[0].uplink.is_some());
        up();
        send(&mut a, &question());
        answer(&mut a);
        // A deleted device is reported, and the same call restores it.
        run("ip link del rwi0");
        let failed = || io.caller().stats().networks[0].uplink.as_ref().unwrap().failed.is_some();
        eventually("told that it is gone", failed);
        caller.call("network.uplink", lan.clone()).unwrap();
        up();
        send(&mut a, &question());
        answer(&mut a);
        caller.call("network.uplink", json!({"network": "lan"})).unwrap();
        assert!(caller.stats().networks[0].uplink.is_none());
        eventually("the device is gone", || !there());
        // A network loses its uplink together with its last NIC.
        caller.call("network.uplink", lan).unwrap();
        caller.call("nic.detach", json!({"id": "a"})).unwrap();
        eventually("the device is gone", || !there());
        assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
        assert_eq!(names(&io.folder), [""; 0]);
    })
    .unwrap();
}
