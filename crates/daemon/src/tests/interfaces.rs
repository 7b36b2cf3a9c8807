//! VIF limits, from the record to the switch.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use model::report::NicStats;
use tokio::sync::Notify;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{network, vif};

use super::simulated_host::*;

/// Creates a VM with a VIF on a network.
async fn machine(sim_host: &SimulatedHost) -> (Ref, Ref, Ref) {
    let machine = sim_host.machine().await;
    let net = record([("name_label", Value::text("n")), ("other_config", none())]);
    let net = sim_host.made("network.create", [net]).await;
    let device = sim_host.made("VIF.create", [device(&machine, &net, "")]).await;
    (machine, net, device)
}

/// Returns the parameters of a new VIF.
pub(super) fn device(machine: &Ref, net: &Ref, algorithm: &str) -> Value {
    record([
        ("VM", machine.value()),
        ("network", net.value()),
        ("device", Value::text("autodetect")),
        ("MAC", Value::text("")),
        ("MTU", Value::Int(1500)),
        ("other_config", none()),
        ("qos_algorithm_type", Value::text(algorithm)),
        ("qos_algorithm_params", none()),
    ])
}

/// Returns the only NIC of the switch.
async fn port(sim_host: &SimulatedHost) -> NicStats {
    let stats = sim_host.test_app.app.drivers.switch.stats().await.unwrap().unwrap();
    stats.nics.into_iter().next().unwrap()
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let sim_host = SimulatedHost::new().await;
    let (machine, net, vif) = machine(&sim_host).await;
    let refused = sim_host.refused("VIF.create", [device(&machine, &net, "magic")]).await;
    assert_eq!(&refused[..3], ["VALUE_NOT_SUPPORTED", "qos_algorithm_type", "magic"]);
    let kbps = |value: &str| [vif.value(), Value::text("kbps"), Value::text(value)];
    sim_host.done("VIF.set_qos_algorithm_type", [vif.value(), Value::text("ratelimit")]).await;
    for wrong in ["many", "0", "-1"] {
        let refused = sim_host.refused("VIF.add_to_qos_algorithm_params", kbps(wrong)).await;
        assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "qos_algorithm_params"], "{wrong}");
    }
    assert_eq!(sim_host.get(&vif, vif::Field::qos_algorithm_params), none());
    for (method, field, address) in [
        ("VIF.add_ipv4_allowed", "ipv4_allowed", "10.0.0.256"),
        ("VIF.add_ipv6_allowed", "ipv6_allowed", "10.0.0.1"),
    ] {
        let refused = sim_host.refused(method, [vif.value(), Value::text(address)]).await;
        assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", field]);
    }
    let many = (0..300).map(|n| Value::text(format!("10.0.{}.{}", n / 250, n % 250))).collect();
    let refused = sim_host.refused("VIF.set_ipv4_allowed", [vif.value(), Value::Set(many)]).await;
    assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "ipv4_allowed"]);
    assert_eq!(sim_host.get(&vif, vif::Field::ipv4_allowed), Value::Set(Vec::new()));
}

#[tokio::test]
async fn the_switch_is_told_what_is_set() {
    let sim_host = SimulatedHost::new().await;
    let (machine, net, vif) = machine(&sim_host).await;
    let mode = |mode: &str| [vif.value(), Value::text(mode)];
    sim_host.done("VIF.set_locking_mode", mode("locked")).await;
    sim_host.start(&machine).await;
    let stats = port(&sim_host).await;
    assert!(stats.locked && !stats.disabled && stats.rate.is_none(), "{stats:?}");
    sim_host.done("VIF.set_locking_mode", mode("disabled")).await;
    assert!(port(&sim_host).await.disabled);
    sim_host.done("VIF.set_locking_mode", mode("network_default")).await;
    let stats = port(&sim_host).await;
    assert!(!stats.disabled && !stats.locked, "{stats:?}");
    sim_host.done("VIF.set_qos_algorithm_type", mode("ratelimit")).await;
    let kbps = [vif.value(), Value::text("kbps"), Value::text("100")];
    sim_host.done("VIF.add_to_qos_algorithm_params", kbps).await;
    let bytes = |stats: &NicStats| stats.rate.map(|rate| rate.bytes_per_second);
    assert_eq!(bytes(&port(&sim_host).await), Some(102_400));
    let flood = |text: &str| [vif.value(), Value::text("flood-limit"), Value::text(text)];
    let refused = sim_host.refused("VIF.add_to_other_config", flood("many")).await;
    assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "other_config"]);
    sim_host.done("VIF.add_to_other_config", flood("500")).await;
    assert_eq!(port(&sim_host).await.flood, Some(500));
    assert_eq!(sim_host.get(&vif, vif::Field::status_code), Value::Int(0));
    // A network's default mode does not change while one of its VIFs is in use.
    let closed = [net.value(), Value::text("disabled")];
    let refused = sim_host.refused("network.set_default_locking_mode", closed.clone()).await;
    assert_eq!(refused, ["VIF_IN_USE", net.as_str(), vif.as_str()]);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.done("network.set_default_locking_mode", closed).await;
    let default = sim_host.get(&net, network::Field::default_locking_mode);
    assert_eq!(default, Value::text("disabled"));
    sim_host.start(&machine).await;
    let stats = port(&sim_host).await;
    assert!(stats.disabled && bytes(&stats) == Some(102_400), "{stats:?}");
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

/// Duration of the first call. Later calls take no time.
const SLOW: Duration = Duration::from_millis(300);

/// An older change must not overwrite a newer one.
#[tokio::test]
async fn what_is_in_force_when_a_call_is_answered_stays_so() {
    let sim_host = SimulatedHost::new().await;
    let (machine, _, vif) = machine(&sim_host).await;
    sim_host.start(&machine).await;
    let (begun, limited) = (Arc::new(Notify::new()), AtomicBool::new(false));
    let begins = Arc::clone(&begun);
    sim_host.sim.rule(move |call| match call.call_kind {
        CallKind::LimitNic if !limited.swap(true, Ordering::Relaxed) => {
            begins.notify_one();
            SimBehaviour::takes(SLOW)
        }
        _ => SimBehaviour::default(),
    });
    let with = |value: &str| [vif.value(), Value::text(value)];
    let locked = async {
        begun.notified().await;
        sim_host.done("VIF.set_locking_mode", with("locked")).await;
        for _ in 0..20 {
            assert!(port(&sim_host).await.locked, "it was let out again");
            tokio::time::sleep(SLOW / 15).await;
        }
    };
    tokio::join!(sim_host.done("VIF.add_ipv4_allowed", with("10.0.0.1")), locked);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

#[tokio::test]
async fn what_the_switch_refuses_is_told_to_who_asked() {
    let sim_host = SimulatedHost::new().await;
    let (machine, _, vif) = machine(&sim_host).await;
    sim_host.start(&machine).await;
    let lock = [vif.value(), Value::text("locked")];
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::LimitNic => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let refused = sim_host.refused("VIF.set_locking_mode", lock.clone()).await;
    assert_eq!(refused[..3], ["DEVICE_ATTACH_REJECTED", "VIF", vif.as_str()]);
    assert!(refused[3].contains("setting not in force"), "{refused:?}");
    assert_eq!(sim_host.get(&vif, vif::Field::locking_mode), Value::text("locked"));
    assert_eq!(sim_host.get(&vif, vif::Field::status_code), Value::Int(1));
    sim_host.sim.rule(|_| SimBehaviour::default());
    sim_host.done("VIF.set_locking_mode", lock).await;
    assert!(port(&sim_host).await.locked);
    assert_eq!(sim_host.get(&vif, vif::Field::status_code), Value::Int(0));
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

/// Hangs the first call to the switch until `are_there` is true. Returns the number of calls.
async fn hung(
    sim_host: &SimulatedHost,
    first: impl Future<Output = ()>,
    others: impl Future<Output = ()>,
    are_there: impl Fn() -> bool,
) -> usize {
    let (begun, limit_calls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (begins, count) = (Arc::clone(&begun), Arc::clone(&limit_calls));
    let hangs = AtomicBool::new(true);
    sim_host.sim.rule(move |call| {
        if call.call_kind != CallKind::LimitNic {
            return SimBehaviour::default();
        }
        count.fetch_add(1, Ordering::Relaxed);
        begins.notify_one();
        let hangs = hangs.swap(false, Ordering::Relaxed);
        if hangs { SimBehaviour::ends(SimResult::HangsDone) } else { SimBehaviour::default() }
    });
    let others = async {
        begun.notified().await;
        let release = async {
            while !are_there() {
                tokio::task::yield_now().await;
            }
            let count = Arc::clone(&limit_calls);
            sim_host.sim.rule(move |call| {
                count.fetch_add(
                    usize::from(call.call_kind == CallKind::LimitNic),
                    Ordering::Relaxed,
                );
                SimBehaviour::default()
            });
        };
        tokio::join!(others, release);
    };
    tokio::join!(first, others);
    limit_calls.load(Ordering::Relaxed)
}

/// Of several waiting changes, one call applies all.
#[tokio::test]
async fn who_waits_while_somebody_tells_is_told_for() {
    let sim_host = SimulatedHost::new().await;
    let (machine, _, vif) = machine(&sim_host).await;
    sim_host.start(&machine).await;
    let add = |address: &'static str| {
        sim_host.done("VIF.add_ipv4_allowed", [vif.value(), Value::text(address)])
    };
    let others = async {
        tokio::join!(add("10.0.0.2"), add("10.0.0.3"), add("10.0.0.4"));
    };
    let Value::Str(id) = sim_host.get(&vif, vif::Field::uuid) else { panic!("no uuid") };
    let wait = || sim_host.test_app.app.machines.settings_waiters(&id) == 4;
    assert_eq!(hung(&sim_host, add("10.0.0.1"), others, wait).await, 2);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

/// A VIF that is not served needs no call and no wait.
#[tokio::test]
async fn an_interface_that_is_not_plugged_waits_for_no_switch() {
    let sim_host = SimulatedHost::new().await;
    let (machine, net, vif) = machine(&sim_host).await;
    sim_host.start(&machine).await;
    let other = sim_host.machine().await;
    let idle = sim_host.made("VIF.create", [device(&other, &net, "")]).await;
    let mode = |vif: &Ref| [vif.value(), Value::text("locked")];
    let lock = sim_host.done("VIF.set_locking_mode", mode(&vif));
    let is_set = AtomicBool::new(false);
    let meanwhile = async {
        sim_host.done("VIF.set_locking_mode", mode(&idle)).await;
        is_set.store(true, Ordering::Relaxed);
    };
    assert_eq!(hung(&sim_host, lock, meanwhile, || is_set.load(Ordering::Relaxed)).await, 1);
    assert_eq!(sim_host.get(&idle, vif::Field::status_code), Value::Int(0));
    sim_host.start(&other).await;
    let all = sim_host.test_app.app.drivers.switch.stats().await.unwrap().unwrap().nics;
    assert!(all.len() == 2 && all.iter().all(|nic| nic.locked), "{all:?}");
    for machine in [machine, other] {
        sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    }
    sim_host.assert_clean();
}

/// A plug that fails on the new network leaves the guest its interface on the former one.
#[tokio::test]
async fn a_move_that_fails_goes_back() {
    let sim_host = SimulatedHost::new().await;
    let (machine, net, vif) = machine(&sim_host).await;
    sim_host.start(&machine).await;
    let other = record([
        ("name_label", Value::text("other")),
        ("bridge", Value::text("br9")),
        ("other_config", none()),
    ]);
    let other = sim_host.made("network.create", [other]).await;
    let bridges = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&bridges);
    // The first bridge that is created from now on is that of the new network.
    sim_host.sim.rule(move |call| match call.call_kind {
        CallKind::CreateBridge if counted.fetch_add(1, Ordering::SeqCst) == 0 => {
            SimBehaviour::ends(SimResult::Fails)
        }
        _ => SimBehaviour::default(),
    });
    let moved = sim_host.test_app.call("VIF.move", [vif.value(), other.value()]).await;
    let error = moved.unwrap_err();
    assert_eq!(error.code, "DEVICE_ATTACH_REJECTED", "{error:?}");
    assert_eq!(sim_host.get(&vif, vif::Field::network), net.value());
    assert_eq!(sim_host.get(&vif, vif::Field::currently_attached), yes());
}
