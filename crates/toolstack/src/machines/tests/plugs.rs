//! Plugs and unplugs after a failed operation and a failed reconciliation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::plan::{DomainState, MachineOp, RunState};
use model::refusal::Refusal;
use tokio::time::{Instant, sleep};

use super::super::*;
use super::host::*;
use super::ops::full;
use crate::sim::{Call, CallKind, SimBehaviour, SimResult};

async fn started() -> Host {
    let host = Host::new([(vm(0), full(0))]);
    host.works(vm(0), START).await;
    host
}

/// Returns the numbers of the calls that an operation on a started machine makes.
async fn calls(before: Option<MachineOp>, op: MachineOp) -> std::ops::Range<u64> {
    let host = started().await;
    if let Some(before) = before {
        host.works(vm(0), before).await;
    }
    let from = host.sim.marks().calls;
    host.works(vm(0), op).await;
    from..host.sim.marks().calls
}

#[test]
fn a_disk_is_served_when_it_is_plugged_after_whatever_has_failed() {
    let disk = full(0).disks[1].vbd;
    let (plug, unplug) =
        (MachineOp::VbdPlug(disk), MachineOp::VbdUnplug { vbd: disk, force: false });
    for (before, op) in [(None, unplug), (Some(unplug), plug)] {
        for number in life(calls(before, op)) {
            for sim_result in [SimResult::Fails, SimResult::FailsDone] {
                life(async {
                    let host = started().await;
                    if let Some(before) = before {
                        host.works(vm(0), before).await;
                    }
                    // The reconciliation fails too.
                    let fails = move |call: &Call| (number..u64::MAX).contains(&call.number);
                    host.sim.rule(move |call| match fails(call) {
                        true => SimBehaviour::ends(sim_result),
                        false => SimBehaviour::default(),
                    });
                    host.run(vm(0), op).await.unwrap_err();
                    host.sim.rule(|_| SimBehaviour::default());
                    let plugged = host.run(vm(0), plug).await;
                    let had = matches!(plugged, Err(OpError::Refused(Refusal::AlreadyAttached)));
                    assert!(plugged.is_ok() || had, "{op:?} {number} {sim_result:?}: {plugged:?}");
                    host.assert_true(vm(0));
                    assert!(host.is_whole(vm(0)), "{op:?} {number} {sim_result:?}");
                });
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_plugged_is_what_is_recorded_and_not_what_was_left() {
    let host = started().await;
    let slot = full(0).disks[1].vbd;
    host.sim.rule(|call| match call.call_kind {
        CallKind::DetachVolume => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    host.run(vm(0), MachineOp::VbdUnplug { vbd: slot, force: false }).await.unwrap_err();
    host.sim.rule(|_| SimBehaviour::default());
    host.change(vm(0), |machine| machine.disks[1].source = disk(7, 1, 3).source);
    host.works(vm(0), MachineOp::VbdPlug(slot)).await;
    host.assert_true(vm(0));
    assert!(host.is_whole(vm(0)));
    assert!(!host.machines.volume_users(full(0).disks[1].source.as_ref().unwrap().vdi));
}

#[tokio::test(start_paused = true)]
async fn a_step_behind_a_call_that_was_left_is_not_left_itself() {
    let host = Host::new([(vm(0), machine(vec![disk(0, 0, 1)], vec![]))]);
    host.sim.rule(|call| match call.call_kind {
        CallKind::AttachVolume => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    // The second start must first detach the volume of the first. It waits for the hung call, and
    // its step reaches the deadline before the call ends.
    for _ in 0..2 {
        let failed = host.run(vm(0), START).await.unwrap_err();
        assert!(matches!(failed, OpError::Failed { error: StepError::Late(_), .. }));
    }
    let detached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&detached);
    host.sim.rule(move |call| {
        count.fetch_add(usize::from(call.call_kind == CallKind::Detach), Ordering::Relaxed);
        SimBehaviour::default()
    });
    sleep(ms(1)).await;
    assert_eq!(detached.load(Ordering::Relaxed), 1, "the settle, and nobody else");
    host.assert_true(vm(0));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_domain_that_does_not_answer_can_be_ended_and_nothing_else() {
    let host = started().await;
    let before = host.recorded(vm(0));
    host.sim.rule(|call| match call.call_kind {
        CallKind::Find => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    let spare = before.disks[1].vbd;
    let out = MachineOp::VbdUnplug { vbd: spare, force: false };
    let began = Instant::now();
    let refused = host.run(vm(0), out).await.unwrap_err();
    assert!(matches!(refused, OpError::Refused(Refusal::NotAllowed(_))), "{refused:?}");
    assert!(began.elapsed() < ms(10_000), "{:?}", began.elapsed());
    host.works(vm(0), MachineOp::Reconcile).await;
    assert_eq!(host.recorded(vm(0)), before, "nobody knows better");
    let seen = host.machines.domain(vm(0));
    assert!(matches!(seen, DomainState::Present { run: RunState::Unresponsive, .. }), "{seen:?}");
    host.works(vm(0), MachineOp::HardShutdown).await;
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    host.sim.rule(|_| SimBehaviour::default());
    host.assert_true(vm(0));
    host.assert_works(vm(0)).await;
}

#[tokio::test(start_paused = true)]
async fn limits_that_change_before_an_interface_is_attached_hold() {
    let host = Host::new([(vm(0), full(0))]);
    let paper = Arc::clone(&host.paper);
    host.sim.rule(move |call| {
        if call.call_kind == CallKind::CreateTap {
            let mut all = paper.0.lock().unwrap();
            all.get_mut(&vm(0)).unwrap().0.vifs[0].limits.disabled = true;
        }
        SimBehaviour::default()
    });
    host.works(vm(0), START).await;
    let vif = full(0).vifs[0].vif.to_string();
    assert!(host.sim.state().ports[&vif].nic.disabled);
    host.sim.rule(|_| SimBehaviour::default());
    host.assert_works(vm(0)).await;
}
