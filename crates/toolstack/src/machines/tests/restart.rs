//! Kills of the daemon at every call of every operation, before and after its effect.

use std::path::Path;
use std::sync::Arc;

use model::id::VmId;
use model::nic::NicSpec;
use model::plan::MachineOp;
use tokio::sync::Notify;

use super::super::*;
use super::host::*;
use super::ops::{Case, cases, full};
use crate::sim::{CallKind, Sim, SimBehaviour, SimResult, drivers};

/// Returns the host after a life that ends at this call; `None` if the operation ends before.
fn killed_at(
    case: &Case,
    number: u64,
    sim_result: SimResult,
) -> Option<(Arc<Sim>, Arc<Paper>, VmId)> {
    life(async {
        let (host, vm) = case.host().await;
        let killed = Arc::new(Notify::new());
        let kill = Arc::clone(&killed);
        let number = host.sim.marks().calls + number;
        host.sim.rule(move |call| {
            if call.number != number {
                return SimBehaviour::default();
            }
            kill.notify_one();
            SimBehaviour::ends(sim_result)
        });
        let cut = tokio::select! {
            biased;
            () = killed.notified() => true,
            outcome = host.run(vm, case.op) => { outcome.unwrap(); false }
        };
        cut.then_some((host.sim, host.paper, vm))
    })
}

#[test]
fn whatever_is_cut_off_settles() {
    for case in cases() {
        for sim_result in [SimResult::Hangs, SimResult::HangsDone] {
            let mut number = 0;
            while let Some((sim, paper, vm)) = killed_at(&case, number, sim_result) {
                sim.rule(|_| SimBehaviour::default());
                life(async {
                    let host = Host::again(sim, paper).await;
                    host.works(vm, MachineOp::Reconcile).await;
                    if host.recorded(vm).power == model::vm::PowerState::Halted {
                        let left = host.sim.leftovers();
                        assert!(left.is_empty(), "{case:?} {number} {sim_result:?}: {left:?}");
                    }
                    case.refill(&host, vm);
                    host.assert_works(vm).await;
                });
                number += 1;
            }
            assert!(number > 0, "{case:?} made no call");
        }
    }
}

#[test]
fn a_guest_runs_through_a_restart() {
    let (sim, paper) = life(async {
        let host = Host::new([(vm(0), super::ops::full(0)), (vm(1), super::ops::full(1))]);
        host.works(vm(0), START).await;
        (host.sim, host.paper)
    });
    life(async {
        let before = sim.marks().calls;
        let host = Host::again(sim, paper).await;
        host.assert_true(vm(0));
        host.works(vm(0), MachineOp::Reconcile).await;
        assert_eq!(host.sim.marks().calls, before, "there is nothing to settle");
        // Domain ids continue.
        let first = host.paper.0.lock().unwrap()[&vm(0)].1.unwrap();
        host.works(vm(1), START).await;
        assert!(host.paper.0.lock().unwrap()[&vm(1)].1.unwrap() > first);
        host.works(vm(0), MachineOp::CleanShutdown).await;
        host.works(vm(1), MachineOp::HardShutdown).await;
        assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    });
}

/// Volumes that only the SR knows are detached, but none in use.
#[test]
fn volumes_that_a_daemon_left_attached_are_detached() {
    for call_kind in [CallKind::Attach, CallKind::DetachVolume] {
        let (sim, paper) = life(async {
            let both = [(vm(0), super::ops::full(0)), (vm(1), super::ops::full(1))];
            let host = Host::new(both);
            host.works(vm(1), START).await;
            let cut = Arc::new(Notify::new());
            let kill = Arc::clone(&cut);
            host.sim.rule(move |call| {
                if call.call_kind != call_kind {
                    return SimBehaviour::default();
                }
                kill.notify_one();
                SimBehaviour::ends(SimResult::Hangs)
            });
            let (of, op) = match call_kind {
                CallKind::Attach => (vm(0), START),
                _ => (vm(1), MachineOp::HardShutdown),
            };
            tokio::select! {
                _ = host.run(of, op) => panic!("it hangs"),
                () = cut.notified() => {}
            }
            (host.sim, host.paper)
        });
        sim.rule(|_| SimBehaviour::default());
        life(async {
            let host = Host::again(sim, paper).await;
            for of in [vm(0), vm(1)] {
                host.works(of, MachineOp::Reconcile).await;
                host.assert_true(of);
            }
            let runs = call_kind == CallKind::Attach;
            assert_eq!(host.sim.leftovers().is_empty(), !runs, "{:?}", host.sim.leftovers());
            assert_eq!(
                host.machines.detach_leftovers(sr(1), "sim").await.unwrap(),
                0,
                "nothing is left"
            );
            if runs {
                host.works(vm(1), MachineOp::HardShutdown).await;
            }
            assert_eq!(host.sim.leftovers(), Vec::<String>::new());
        });
    }
}

#[test]
fn nics_of_nobody_and_uplinks_of_no_network_go() {
    life(async {
        let host = Host::new([(vm(0), full(0))]);
        host.works(vm(0), START).await;
        let drivers = drivers(&host.sim);
        let mac = "02:00:00:00:00:01".parse().unwrap();
        let nic = NicSpec::new(uuid(7, 0, 0).to_string(), "/n.sock", "b", mac);
        drivers.net.create_bridge("b", 1500).await.unwrap();
        let tap = uplink(Path::new("/run/rw"), "b");
        for tap in [&tap, "rwu1", "others"] {
            drivers.net.create_tap(tap, "b", 1500).await.unwrap();
        }
        drivers.switch.attach(&nic, &tap).await.unwrap();
        // A NIC that cannot be detached now keeps its uplink.
        host.sim.rule(|call| match call.call_kind {
            CallKind::DetachNic => SimBehaviour::ends(SimResult::Fails),
            _ => SimBehaviour::default(),
        });
        let host = Host::again(host.sim, host.paper).await;
        let left = |host: &Host, what: &str| {
            host.sim.leftovers().iter().any(|line| line.split(' ').nth(1) == Some(what))
        };
        let there = [&tap, "rwu1", "others", &nic.id].map(|what| left(&host, what));
        assert_eq!(there, [true, false, true, true]);
        host.sim.rule(|_| SimBehaviour::default());
        let host = Host::again(host.sim, host.paper).await;
        let there = [&tap, "others", &nic.id].map(|what| left(&host, what));
        assert_eq!(there, [false, true, false]);
        drivers.net.remove_tap("others").await.unwrap();
        host.assert_true(vm(0));
        host.assert_works(vm(0)).await;
    });
}
