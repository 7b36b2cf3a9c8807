//! Duration of operations, and number of parallel steps.

use std::time::Duration;

use model::admission::StepLimits;
use model::id::VmId;
use model::plan::{Deadlines, MachineOp};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::*;
use super::host::*;
use crate::sim::{Call, CallKind, SimBehaviour};

/// Returns the SR's time for an attach or a detach: every tenth disk is slow.
fn storage(n: u8) -> Duration {
    ms(if n.is_multiple_of(10) { 500 } else { 50 })
}

/// Returns the delays of a healthy host. The datapath takes 5 ms of each storage step.
fn usual(call: &Call, storage: impl Fn(u8) -> Duration) -> SimBehaviour {
    SimBehaviour::takes(match call.call_kind {
        CallKind::AttachVolume | CallKind::DetachVolume => {
            call.device.map(number).map_or(Duration::ZERO, storage)
        }
        CallKind::Attach | CallKind::Activate | CallKind::Deactivate | CallKind::Detach => ms(5),
        CallKind::Create => ms(300),
        CallKind::Kill => ms(100),
        CallKind::PlugDisk | CallKind::PlugNic | CallKind::Disc | CallKind::Run => ms(5),
        _ => Duration::ZERO,
    })
}

fn host(disks: u8, storage: fn(u8) -> Duration) -> Host {
    let host = Host::new([(vm(0), machine((0..disks).map(|n| disk(0, n, 1)).collect(), vec![]))]);
    host.sim.rule(move |call| usual(call, storage));
    host
}

async fn takes(host: &Host, vm: VmId, op: MachineOp) -> Duration {
    let began = Instant::now();
    host.works(vm, op).await;
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn many_disks_take_a_tenth_of_their_sum() {
    let sum: Duration = (0..255).map(storage).sum();
    let bound = (sum / 10).max(ms(500)).mul_f64(1.3);
    let host = host(255, storage);
    for op in [START, MachineOp::HardShutdown] {
        let took = takes(&host, vm(0), op).await;
        assert!(took <= bound, "{op:?} took {took:?}, {bound:?} are allowed");
    }
    host.assert_true(vm(0));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    // The machine's window is the cause.
    host.machines.set_limits(StepLimits { machine: 1, ..StepLimits::default() });
    assert!(takes(&host, vm(0), START).await > 8 * bound);
}

#[tokio::test(start_paused = true)]
async fn ten_slow_disks_take_as_long_as_one() {
    let slow = |_| ms(500);
    for op in [START, MachineOp::HardShutdown] {
        let mut took = [1, 10].map(|disks| (host(disks, slow), Duration::ZERO));
        for (host, took) in &mut took {
            if op == MachineOp::HardShutdown {
                host.works(vm(0), START).await;
            }
            *took = takes(host, vm(0), op).await;
        }
        let [one, ten] = took.map(|(_, took)| took.as_secs_f64());
        assert!(ten <= 1.3 * one, "{op:?}: {one} s, {ten} s");
    }
}

#[tokio::test(start_paused = true)]
async fn twenty_starts_at_once_keep_the_limits_and_use_them() {
    let of = |n: u16| {
        let on = u8::try_from(n % 3).unwrap();
        machine((0..30).map(|d| disk(n, d, on)).collect(), vec![vif(n, 0)])
    };
    let host = Host::new((0..20).map(|n| (vm(n), of(n))));
    host.sim.rule(|call| usual(call, storage));
    let mut starts = JoinSet::new();
    for n in 0..20 {
        starts.spawn(host.machines.run(vm(n), START, OpHooks::plain()));
    }
    assert!(starts.join_all().await.iter().all(Result::is_ok));
    (0..20).for_each(|n| host.assert_true(vm(n)));
    let (slot_usage, seen) = (host.machines.marks(), host.sim.marks());
    assert_eq!((slot_usage.host_high, slot_usage.host), (16, 0));
    assert!(slot_usage.machine_high <= 10 && slot_usage.lane_high <= 12, "{slot_usage:?}");
    // The drivers saw no more parallel calls than the limits permit.
    assert!(seen.storage_high <= 16, "{seen:?}");
    assert!(seen.sr_high.values().all(|high| *high <= 12), "{seen:?}");
    assert!(slot_usage.lanes.is_empty(), "{slot_usage:?}");
}

#[tokio::test(start_paused = true)]
async fn storage_that_is_only_busy_lets_everybody_have_a_turn() {
    let of = |n: u16| machine((0..255).map(|d| disk(n, d, 1)).collect(), vec![]);
    let host = Host::new((0..8).map(|n| (vm(n), of(n))));
    host.sim.rule(|call| usual(call, |_| ms(500)));
    let (began, mut starts) = (Instant::now(), JoinSet::new());
    for n in 0..8 {
        starts.spawn(host.machines.run(vm(n), START, OpHooks::plain()));
    }
    let ended = starts.join_all().await;
    let deadline = Deadlines::default().storage;
    assert!(began.elapsed() > deadline + ms(20_000), "{:?} shows nothing", began.elapsed());
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    (0..8).for_each(|n| host.assert_true(vm(n)));
}

#[tokio::test(start_paused = true)]
async fn limits_change_while_steps_run() {
    let host = host(255, storage);
    let start = host.machines.run(vm(0), START, OpHooks::plain());
    tokio::time::sleep(ms(200)).await;
    assert_eq!(host.machines.marks().machine_high, 10);
    host.machines.set_limits(StepLimits { machine: 12, sr: 16, ..StepLimits::default() });
    start.await.unwrap();
    assert_eq!(host.machines.marks().machine_high, 12);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_machines_start_and_stop() {
    let of = |n: u16| machine(vec![disk(n, 0, u8::try_from(n % 5).unwrap())], vec![vif(n, 0)]);
    let host = Host::new((0..1000).map(|n| (vm(n), of(n))));
    for op in [START, MachineOp::CleanShutdown] {
        let mut all = JoinSet::new();
        for n in 0..1000 {
            all.spawn(host.machines.run(vm(n), op, OpHooks::plain()));
        }
        assert!(all.join_all().await.iter().all(Result::is_ok));
        (0..1000).for_each(|n| host.assert_true(vm(n)));
    }
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn twenty_clean_shutdowns_take_as_long_as_one() {
    let of = |n: u16| machine(vec![disk(n, 0, 1), disk(n, 1, 2)], vec![]);
    let host = Host::new((0..21).map(|n| (vm(n), of(n))));
    for n in 0..21 {
        host.works(vm(n), START).await;
    }
    host.sim.rule(|call| match call.call_kind {
        CallKind::Guest => SimBehaviour::takes(Duration::from_secs(3)),
        _ => usual(call, |_| ms(50)),
    });
    let one = takes(&host, vm(20), MachineOp::CleanShutdown).await;
    let (began, mut all) = (Instant::now(), JoinSet::new());
    for n in 0..20 {
        all.spawn(host.machines.run(vm(n), MachineOp::CleanShutdown, OpHooks::plain()));
    }
    assert!(all.join_all().await.iter().all(Result::is_ok));
    assert!(began.elapsed() < 2 * one, "{:?}, one takes {one:?}", began.elapsed());
}

/// Disks of a hundred machines on one SR are attached beside each other, also those of one machine, and
/// in the order of the starts.
#[tokio::test(start_paused = true)]
async fn a_storm_of_machines_of_eight_disks_is_parallel() {
    let of = |n: u16| machine((0..8).map(|d| disk(n, d, 0)).collect(), Vec::new());
    let one = StepLimits { host: 1, machine: 1, sr: 1, reserve: 0, ..StepLimits::default() };
    let mut took = Vec::new();
    for limits in [StepLimits::default(), one] {
        let host = Host::new((0..125).map(|n| (vm(n), of(n))));
        host.machines.set_limits(limits);
        host.sim.rule(|call| usual(call, |_| ms(50)));
        let (mut starts, from) = (JoinSet::new(), Instant::now());
        for n in 0..125 {
            let start = host.machines.run(vm(n), START, OpHooks::plain());
            starts.spawn(async move { start.await.map(|_| n) });
        }
        let ended: Vec<u16> = starts.join_all().await.into_iter().map(Result::unwrap).collect();
        took.push(from.elapsed());
        let most: Vec<_> = host.sim.marks().sr_high.into_values().collect();
        assert_eq!(most, [usize::from(limits.sr)]);
        // No start is overtaken by far: a machine of the first fifth is done before one of the last.
        let last = |range: std::ops::Range<u16>| ended.iter().rposition(|n| range.contains(n));
        assert!(last(0..25) < last(100..125), "{ended:?}");
    }
    // The time is the simulator's.
    assert!(took[1] >= 4 * took[0], "{took:?}");
}
