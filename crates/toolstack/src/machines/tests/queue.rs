//! Order of a machine's operations: one after the other, but a forced shutdown first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::id::Domid;
use model::plan::{DomainState, MachineOp, RunState};
use model::refusal::Refusal;
use model::vm::exits::DomainExit;
use model::vm::{PowerState, VmOp};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::super::*;
use super::host::*;
use super::ops::full;
use crate::hv::DomainEvent;
use crate::sim::{CallKind, SimBehaviour, SimMemory, SimResult};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Makes guests ignore requests.
fn deaf(host: &Host) {
    host.sim.rule(|call| match call.call_kind {
        CallKind::Guest => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
}

async fn started() -> Host {
    let host = Host::new([(vm(0), full(0))]);
    host.works(vm(0), START).await;
    host
}

#[tokio::test(start_paused = true)]
async fn operations_wait_for_those_before_them_and_are_asked_again() {
    let host = Host::new([(vm(0), full(0))]);
    host.sim.rule(|_| SimBehaviour::takes(ms(100)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let job = |number: usize| {
        let (asked, paper) = (Arc::clone(&asked), Arc::clone(&host.paper));
        let gate = move || {
            asked.lock().unwrap().push((number, paper.machine(vm(0))?.power));
            Ok(())
        };
        OpHooks { gate: Box::new(gate), ..OpHooks::plain() }
    };
    let ops = [START, MachineOp::Pause, MachineOp::Unpause, MachineOp::HardReboot];
    let runs: Vec<_> =
        ops.into_iter().enumerate().map(|(n, op)| host.machines.run(vm(0), op, job(n))).collect();
    for run in runs {
        run.await.unwrap();
    }
    let expected = [
        (0, PowerState::Halted),
        (1, PowerState::Running),
        (2, PowerState::Paused),
        (3, PowerState::Running),
    ];
    assert_eq!(*asked.lock().unwrap(), expected);
    host.assert_true(vm(0));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_does_not_come_is_told_in_time() {
    let host = started().await;
    deaf(&host);
    let shutdown = host.machines.run(vm(0), MachineOp::CleanShutdown, OpHooks::plain());
    let began = Instant::now();
    let error = host.run(vm(0), MachineOp::Pause).await.unwrap_err();
    assert!(matches!(error, OpError::Busy), "{error:?}");
    assert_eq!(began.elapsed(), QUEUE_DEADLINE);
    // A cancelled operation that waits returns at once.
    let op_hooks = OpHooks::plain();
    let cancel = op_hooks.cancel.clone();
    let waits = host.machines.run(vm(0), MachineOp::Pause, op_hooks);
    sleep(secs(1)).await;
    cancel.cancel();
    assert!(matches!(waits.await, Err(OpError::Cancelled)));
    assert_eq!(began.elapsed(), QUEUE_DEADLINE + secs(1));
    let error = shutdown.await.unwrap_err();
    assert!(matches!(error, OpError::Failed { error: StepError::Late(_), .. }), "{error:?}");
    assert_eq!(host.recorded(vm(0)).power, PowerState::Running);
    host.assert_true(vm(0));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_by_force_overtakes() {
    let host = started().await;
    deaf(&host);
    let clean = host.machines.run(vm(0), MachineOp::CleanShutdown, OpHooks::plain());
    let waits = host.machines.run(vm(0), MachineOp::HardReboot, OpHooks::plain());
    sleep(secs(10)).await;
    let began = Instant::now();
    host.works(vm(0), MachineOp::HardShutdown).await;
    assert!(began.elapsed() < ms(10), "{:?}", began.elapsed());
    assert!(matches!(clean.await, Err(OpError::Cancelled)));
    let refused = waits.await.unwrap_err();
    assert!(matches!(refused, OpError::Refused(Refusal::BadPowerState { .. })), "{refused:?}");
    host.assert_true(vm(0));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_hangs_is_left_behind_by_a_shutdown_by_force() {
    for call_kind in
        [CallKind::AttachVolume, CallKind::PlugDisk, CallKind::Pause, CallKind::DetachVolume]
    {
        let host = started().await;
        let spare = host.recorded(vm(0)).disks[1].vbd;
        let out = MachineOp::VbdUnplug { vbd: spare, force: false };
        let op = match call_kind {
            CallKind::Pause => MachineOp::Pause,
            CallKind::DetachVolume => out,
            _ => {
                host.works(vm(0), out).await;
                MachineOp::VbdPlug(spare)
            }
        };
        host.sim.rule(move |call| match call.call_kind {
            one if one == call_kind && call.device != Some(spare.0) => {
                SimBehaviour::ends(SimResult::Hangs)
            }
            CallKind::PlugDisk if call_kind == CallKind::PlugDisk => {
                SimBehaviour::ends(SimResult::Hangs)
            }
            _ => SimBehaviour::default(),
        });
        let hangs = host.machines.run(vm(0), op, OpHooks::plain());
        sleep(secs(1)).await;
        let began = Instant::now();
        let down = host.machines.run(vm(0), MachineOp::HardShutdown, OpHooks::plain());
        assert!(matches!(hangs.await, Err(OpError::Cancelled)), "{call_kind:?}");
        assert!(began.elapsed() <= secs(2), "{call_kind:?}: {:?}", began.elapsed());
        // By now only the abandoned storage call is left.
        sleep(ms(1)).await;
        assert_eq!(host.machines.domain(vm(0)), DomainState::Absent, "{call_kind:?}");
        host.sim.rule(|_| SimBehaviour::default());
        down.await.unwrap();
        host.assert_true(vm(0));
        assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_goes_on_when_nobody_waits_for_it() {
    let host = Host::new([(vm(0), full(0))]);
    host.sim.rule(|_| SimBehaviour::takes(ms(100)));
    drop(host.machines.run(vm(0), START, OpHooks::plain()));
    sleep(secs(5)).await;
    assert!(host.is_whole(vm(0)));
    host.assert_true(vm(0));
}

#[tokio::test(start_paused = true)]
async fn a_reset_waits_for_its_turn_and_ends_whatever_is_there() {
    let host = started().await;
    host.sim.rule(|_| SimBehaviour::takes(ms(100)));
    let reboot = host.machines.run(vm(0), MachineOp::HardReboot, OpHooks::plain());
    let reset = host.machines.run(vm(0), MachineOp::Reset, OpHooks::plain());
    reboot.await.unwrap();
    assert_eq!(host.recorded(vm(0)).power, PowerState::Running, "it was not overtaken");
    reset.await.unwrap();
    host.assert_true(vm(0));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    host.works(vm(0), START).await;
    host.change(vm(0), |machine| machine.power = PowerState::Halted);
    host.works(vm(0), MachineOp::Reset).await;
    host.assert_true(vm(0));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_before_what_was_noted_is_stored() {
    let host = Host::new([(vm(0), full(0))]);
    let stored = Arc::new(Notify::new());
    let waits = Arc::clone(&stored);
    let noted = Box::new(move || -> BoxFuture<'static, ()> {
        let waits = Arc::clone(&waits);
        Box::pin(async move { waits.notified().await })
    });
    let start = host.machines.run(vm(0), START, OpHooks { noted, ..OpHooks::plain() });
    sleep(secs(5)).await;
    assert_eq!(host.sim.marks().calls, 0);
    stored.notify_one();
    start.await.unwrap();
    host.assert_true(vm(0));
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_refuses_leaves_everything_as_it_is() {
    let host = Host::new([(vm(0), full(0))]);
    let gate = Box::new(|| Err(Refusal::IsTemplate));
    let refused = host.machines.run(vm(0), START, OpHooks { gate, ..OpHooks::plain() }).await;
    assert!(matches!(refused, Err(OpError::Refused(Refusal::IsTemplate))));
    assert_eq!(host.sim.marks().calls, 0);
}

#[tokio::test(start_paused = true)]
async fn progress_rises_to_the_end() {
    let host = Host::new([(vm(0), full(0))]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&seen);
    let progress: ProgressFn = Arc::new(move |now| reported.lock().unwrap().push(now));
    host.machines.run(vm(0), START, OpHooks { progress, ..OpHooks::plain() }).await.unwrap();
    let seen = seen.lock().unwrap();
    let parts: Vec<f64> = seen
        .iter()
        .filter_map(|now| if let Progress::Part(part) = now { Some(*part) } else { None })
        .collect();
    assert!(parts.len() > 3 && parts.is_sorted(), "{parts:?}");
    assert_eq!(parts.last(), Some(&1.0));
}

#[tokio::test(start_paused = true)]
async fn a_guests_own_end_is_followed_once() {
    let host = started().await;
    let mut events = host.machines.drivers.hv.events().unwrap();
    assert!(host.machines.drivers.hv.events().is_none());
    host.sim.end_guest(vm(0), DomainExit::Rebooted);
    let Some(DomainEvent::Ended { exit, domid, .. }) = events.recv().await else { panic!() };
    assert_eq!(exit, DomainExit::Rebooted);
    host.works(vm(0), MachineOp::AfterExit(exit)).await;
    host.assert_true(vm(0));
    let there = host.machines.domain(vm(0));
    let DomainState::Present { domid: next, run: RunState::Running } = there else {
        panic!("{there:?}")
    };
    assert!(next > domid);
    // A repeated event, or one of a replaced domain, has no effect.
    for exit in [DomainExit::Rebooted, DomainExit::PoweredOff, DomainExit::Killed] {
        host.works(vm(0), MachineOp::AfterExit(exit)).await;
        assert_eq!(host.machines.domain(vm(0)), there);
    }
    assert_eq!(host.recorded(vm(0)).power, PowerState::Running);
}

#[tokio::test(start_paused = true)]
async fn the_end_that_an_operation_waits_for_is_that_operations() {
    let forced = DomainExit::Asked(VmOp::HardShutdown);
    for (op, halts) in [(MachineOp::CleanReboot, false), (MachineOp::CleanShutdown, true)] {
        for exit in [DomainExit::PoweredOff, DomainExit::Rebooted, forced] {
            let host = started().await;
            let mut events = host.machines.drivers.hv.events().unwrap();
            host.sim.rule(|_| SimBehaviour::takes(ms(100)));
            let run = host.machines.run(vm(0), op, OpHooks::plain());
            events.recv().await.unwrap();
            // The follower of guests' ends requests this while the operation runs.
            host.works(vm(0), MachineOp::AfterExit(exit)).await;
            run.await.unwrap();
            host.assert_true(vm(0));
            let expected = if halts { PowerState::Halted } else { PowerState::Running };
            assert_eq!(host.recorded(vm(0)).power, expected, "{op:?} {exit:?}");
        }
    }
    // Without another operation, this exit halts the machine, whatever its settings are.
    let host = started().await;
    host.sim.end_guest(vm(0), DomainExit::Rebooted);
    host.works(vm(0), MachineOp::AfterExit(forced)).await;
    assert_eq!(host.recorded(vm(0)).power, PowerState::Halted);
    host.assert_true(vm(0));
}

#[tokio::test(start_paused = true)]
async fn memory_is_refused_before_anything_is_begun() {
    let all = (0..20).map(|n| (vm(n), machine(vec![disk(n, 0, 1)], vec![])));
    let mut host = Host::new(all);
    let each = host.recorded(vm(0)).spec.host_bytes(1);
    let total = HOST_RESERVE_BYTES + 12 * each + each / 2;
    let mut drivers = crate::sim::drivers(&host.sim);
    drivers.memory = Arc::new(SimMemory(HostBytes { total, available: total }));
    let records: Arc<dyn Records> = host.paper.clone();
    host.machines = Machines::new(drivers, records, MachinesConfig::new("/run/rw".into()));
    host.sim.rule(|_| SimBehaviour::takes(ms(10)));
    let runs: Vec<_> = (0..20).map(|n| host.machines.run(vm(n), START, OpHooks::plain())).collect();
    let mut fits = 0;
    for (n, run) in (0..).zip(runs) {
        match run.await {
            Ok(()) => fits += 1,
            Err(OpError::Refused(Refusal::NotEnoughMemory { needed_bytes, available_bytes })) => {
                assert_eq!((needed_bytes, available_bytes), (each, each / 2));
                assert_eq!(host.machines.domain(vm(n)), DomainState::Absent);
            }
            Err(other) => panic!("{other:?}"),
        }
        host.assert_true(vm(n));
    }
    assert_eq!(fits, 12);
    // A reboot can use the memory that its own domain releases.
    host.works(vm(0), MachineOp::HardReboot).await;
    host.works(vm(0), MachineOp::HardShutdown).await;
    host.works(vm(19), START).await;
}

#[tokio::test(start_paused = true)]
async fn numbers_of_domains_are_not_used_again() {
    let host = started().await;
    let mut last = Domid(0);
    for op in [MachineOp::HardReboot, MachineOp::CleanReboot, MachineOp::HardReboot] {
        host.works(vm(0), op).await;
        let DomainState::Present { domid, .. } = host.machines.domain(vm(0)) else { panic!() };
        assert!(domid > last);
        last = domid;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_two_machines_is_let_go_of_by_the_last() {
    let shared = |of: u16| DiskRecord { source: disk(0, 0, 1).source, ..disk(of, 0, 1) };
    let host = Host::new([0, 1].map(|n| (vm(n), machine(vec![shared(n)], vec![]))));
    let vdi = shared(0).source.unwrap().vdi;
    host.works(vm(0), START).await;
    host.works(vm(1), START).await;
    host.works(vm(0), MachineOp::HardShutdown).await;
    assert!(host.machines.volume_users(vdi));
    assert_eq!(host.sim.broken(), Vec::<String>::new());
    host.works(vm(1), MachineOp::HardShutdown).await;
    assert!(!host.machines.volume_users(vdi));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    assert_eq!(host.sim.broken(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_recorded_any_more_is_let_go() {
    let host = started().await;
    host.sim.rule(|call| match call.call_kind {
        CallKind::DetachVolume => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    host.run(vm(0), MachineOp::HardShutdown).await.unwrap_err();
    host.sim.rule(|_| SimBehaviour::default());
    assert!(!host.sim.leftovers().is_empty());
    // The first slot is now recorded with another disk, and the second slot is removed.
    host.change(vm(0), |machine| {
        machine.disks[0].source = disk(7, 0, 1).source;
        machine.disks.remove(1);
    });
    host.assert_works(vm(0)).await;
}
