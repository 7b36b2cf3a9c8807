//! Failure or cancellation at every call of every operation.

use model::plan::MachineOp;

use super::super::*;
use super::host::*;
use super::ops::{Case, cases};
use crate::sim::{CallKind, SimBehaviour, SimResult};

/// Returns the numbers of the calls that an operation makes.
async fn calls(case: &Case) -> std::ops::Range<u64> {
    let (host, vm) = case.host().await;
    let before = host.sim.marks().calls;
    host.works(vm, case.op).await;
    before..host.sim.marks().calls
}

/// Checks that a machine reconciles, that a second reconciliation changes nothing, and that the
/// machine works.
async fn assert_settled(case: &Case, host: &Host, vm: VmId) {
    host.works(vm, MachineOp::Reconcile).await;
    host.assert_true(vm);
    let (before, calls) = (host.recorded(vm), host.sim.marks().calls);
    host.works(vm, MachineOp::Reconcile).await;
    assert_eq!((host.recorded(vm), host.sim.marks().calls), (before, calls));
    case.refill(host, vm);
    host.assert_works(vm).await;
}

#[test]
fn whatever_fails_settles() {
    for case in cases() {
        for number in life(calls(&case)) {
            for sim_result in [SimResult::Fails, SimResult::FailsDone] {
                life(async {
                    let (host, vm) = case.host().await;
                    host.sim.rule(move |call| match call.number == number {
                        true => SimBehaviour::ends(sim_result),
                        false => SimBehaviour::default(),
                    });
                    let outcome = host.run(vm, case.op).await;
                    let failed = matches!(outcome, Err(OpError::Failed { .. }));
                    assert!(failed, "{case:?}, call {number} {sim_result:?}: {outcome:?}");
                    // The operation loop has reconciled the machine before it answered.
                    host.assert_true(vm);
                    assert_settled(&case, &host, vm).await;
                });
            }
        }
    }
}

#[test]
fn a_settle_that_fails_is_made_good_by_the_next() {
    for case in cases() {
        for number in life(calls(&case)) {
            life(async {
                let (host, vm) = case.host().await;
                // From this call on everything fails, including the reconciliation.
                host.sim.rule(move |call| match (number..u64::MAX).contains(&call.number) {
                    true => SimBehaviour::ends(SimResult::Fails),
                    false => SimBehaviour::default(),
                });
                let outcome = host.run(vm, case.op).await;
                assert!(outcome.is_err(), "{case:?}, from call {number}: {outcome:?}");
                host.sim.rule(|_| SimBehaviour::default());
                assert_settled(&case, &host, vm).await;
            });
        }
    }
}

#[test]
fn whatever_is_cancelled_settles() {
    for case in cases() {
        for number in life(calls(&case)) {
            life(async {
                let (host, vm) = case.host().await;
                let op_hooks = OpHooks::plain();
                let cancel = op_hooks.cancel.clone();
                host.sim.rule(move |call| {
                    if call.number == number {
                        cancel.cancel();
                    }
                    SimBehaviour::takes(ms(10))
                });
                let outcome = host.machines.run(vm, case.op, op_hooks).await;
                let fine = matches!(outcome, Ok(()) | Err(OpError::Cancelled));
                assert!(fine, "{case:?}, call {number}: {outcome:?}");
                host.sim.rule(|_| SimBehaviour::default());
                assert_settled(&case, &host, vm).await;
            });
        }
    }
}

#[test]
fn a_cancel_stops_a_start_before_it_has_done_all() {
    life(async {
        let host = Host::new([(vm(0), machine((0..50).map(|n| disk(0, n, 1)).collect(), vec![]))]);
        host.sim.rule(|_| SimBehaviour::takes(ms(50)));
        let op_hooks = OpHooks::plain();
        let cancel = op_hooks.cancel.clone();
        let start = host.machines.run(vm(0), START, op_hooks);
        tokio::time::sleep(ms(120)).await;
        cancel.cancel();
        assert!(matches!(start.await, Err(OpError::Cancelled)));
        let before = host.sim.marks().calls;
        assert!(before < 100, "{before} calls, and all disks take 200 on the way up alone");
        host.works(vm(0), MachineOp::Reconcile).await;
        host.assert_true(vm(0));
        assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    });
}

/// A failed create may have made a domain, which no query can tell. It must be ended before the
/// next create.
#[test]
fn a_domain_that_may_have_been_made_makes_way_for_the_next() {
    let made =
        |op| matches!(op, MachineOp::Start { .. } | MachineOp::HardReboot | MachineOp::CleanReboot);
    for case in cases().into_iter().filter(|case| made(case.op)) {
        for sim_result in
            [SimResult::Fails, SimResult::FailsDone, SimResult::Hangs, SimResult::HangsDone]
        {
            life(async {
                let (host, vm) = case.host().await;
                host.sim.rule(move |call| match call.call_kind {
                    CallKind::Create => SimBehaviour::ends(sim_result),
                    CallKind::Find => SimBehaviour::ends(SimResult::Fails),
                    _ => SimBehaviour::default(),
                });
                let outcome = host.run(vm, case.op).await;
                assert!(matches!(outcome, Err(OpError::Failed { .. })), "{case:?}: {outcome:?}");
                host.sim.rule(|call| match call.call_kind {
                    CallKind::Find => SimBehaviour::ends(SimResult::Fails),
                    _ => SimBehaviour::default(),
                });
                // A guest that may never have begun to run gets no request.
                let next =
                    if case.op == MachineOp::CleanReboot { MachineOp::HardReboot } else { case.op };
                host.works(vm, next).await;
                host.assert_true(vm);
                host.sim.rule(|_| SimBehaviour::default());
                assert_settled(&case, &host, vm).await;
            });
        }
    }
}
