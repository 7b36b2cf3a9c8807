//! Hung storage affects only its own machines.

use std::time::Duration;

use model::plan::{MachineOp, StepAction};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::*;
use super::host::*;
use crate::sim::{Call, CallKind, SimBehaviour, SimResult};

const STORAGE_DEADLINE: Duration = Duration::from_secs(60);

/// SRs 1 and 2 hang. Calls of others take 50 ms.
fn two_hang(call: &Call) -> SimBehaviour {
    match call.call_kind {
        _ if call.sr.is_some_and(|on| on == sr(1) || on == sr(2)) => {
            SimBehaviour::ends(SimResult::Hangs)
        }
        CallKind::AttachVolume | CallKind::DetachVolume => SimBehaviour::takes(ms(50)),
        CallKind::Attach | CallKind::Activate => SimBehaviour::takes(ms(5)),
        CallKind::Create => SimBehaviour::takes(ms(300)),
        _ => SimBehaviour::default(),
    }
}

/// Creates forty machines alternately on SRs 1 and 2, and one with `disks` disks on a third SR.
fn host(disks: u8) -> Host {
    let of = |n: u16| {
        let on = u8::try_from(1 + n % 2).unwrap();
        machine((0..4).map(|d| disk(n, d, on)).collect(), vec![])
    };
    let third = machine((0..disks).map(|d| disk(99, d, 3)).collect(), vec![]);
    let host = Host::new((0..40).map(|n| (vm(n), of(n))).chain([(vm(99), third)]));
    host.sim.rule(two_hang);
    host
}

fn start_hung(host: &Host) -> JoinSet<Result<(), OpError>> {
    let mut hung = JoinSet::new();
    for n in 0..40 {
        hung.spawn(host.machines.run(vm(n), START, OpHooks::plain()));
    }
    hung
}

async fn third(host: &Host) -> Duration {
    let began = Instant::now();
    host.works(vm(99), START).await;
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn two_srs_that_hang_do_not_slow_a_third() {
    for disks in [1, 8, 50] {
        let alone = third(&host(disks)).await;
        for later in [ms(0), ms(2000), ms(2001), ms(7000)] {
            let host = host(disks);
            let hung = start_hung(&host);
            sleep(later).await;
            let took = third(&host).await;
            // In the first two seconds the SR has a window of four instead of ten. A machine with
            // few disks is not slower, because the start of its domain takes longer.
            let at_once = later.is_zero() && disks > 8;
            let allowed = if at_once { alone.mul_f64(2.8) } else { alone };
            assert!(took <= allowed, "{disks} disks, {later:?}: {took:?}, alone {alone:?}");
            drop(hung);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hung_starts_end_at_their_deadline_and_settle_when_the_storage_is_back() {
    let host = host(1);
    let (began, mut hung) = (Instant::now(), start_hung(&host));
    while let Some(ended) = hung.join_next().await {
        let error = ended.unwrap().unwrap_err();
        let OpError::Failed {
            verb: StepAction::VbdAttach(..),
            error: StepError::Late(StepTimeout { after }),
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(after, STORAGE_DEADLINE);
        let over = began.elapsed() - STORAGE_DEADLINE;
        assert!(over < Duration::from_secs(1), "{over:?} past the deadline");
    }
    // The SRs' hung calls stay, and no further calls are made.
    sleep(Duration::from_secs(600)).await;
    let slot_usage = host.machines.marks();
    for on in [sr(1), sr(2)] {
        let lane = slot_usage.lanes[&model::admission::FaultDomain::Sr(on)];
        assert_eq!((lane.running, lane.stuck, lane.waiting), (12, 12, 0));
        assert_eq!(host.sim.marks().sr_high[&on], 12);
    }
    assert_eq!(slot_usage.host, 0);
    for n in 0..40 {
        let MachineRecord { power, .. } = host.recorded(vm(n));
        assert_eq!(power, model::vm::PowerState::Halted);
        assert_eq!(host.machines.domain(vm(n)), model::plan::DomainState::Absent);
    }
    let used = |n: u16| host.machines.volume_users(disk(n, 0, 1).source.unwrap().vdi);
    assert!((0..40).any(used), "a volume that is asked for is not free");
    host.sim.rule(|_| SimBehaviour::default());
    sleep(Duration::from_secs(1)).await;
    (0..40).for_each(|n| host.assert_true(vm(n)));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    host.assert_works(vm(0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_on_hung_storage_can_be_shut_down_and_is_recorded_so() {
    let host = Host::new([(vm(0), machine(vec![disk(0, 0, 1), disk(0, 1, 3)], vec![]))]);
    host.works(vm(0), START).await;
    host.sim.rule(two_hang);
    let began = Instant::now();
    let error = host.run(vm(0), MachineOp::HardShutdown).await.unwrap_err();
    assert!(matches!(error, OpError::Failed { error: StepError::Late(_), .. }), "{error:?}");
    assert!(began.elapsed() < STORAGE_DEADLINE + Duration::from_secs(1));
    let machine_record = host.recorded(vm(0));
    assert_eq!(machine_record.power, model::vm::PowerState::Halted, "its domain is gone");
    let vdi = |n: u8| machine_record.disks[usize::from(n)].source.as_ref().unwrap().vdi;
    let users = [0, 1].map(|n| host.machines.volume_users(vdi(n)));
    assert_eq!(users, [true, false], "the one that hangs is not free");
    host.sim.rule(|_| SimBehaviour::default());
    sleep(ms(1)).await;
    host.assert_true(vm(0));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_left_is_waited_for_by_the_next_for_its_volume() {
    let host = Host::new([(vm(0), machine(vec![disk(0, 0, 1)], vec![]))]);
    host.sim.rule(two_hang);
    host.run(vm(0), START).await.unwrap_err();
    let start = host.machines.run(vm(0), START, OpHooks::plain());
    sleep(Duration::from_secs(30)).await;
    assert_eq!(host.sim.marks().sr_high[&sr(1)], 1, "it is not asked twice at once");
    host.sim.rule(|_| SimBehaviour::default());
    start.await.unwrap();
    host.assert_true(vm(0));
    assert!(host.is_whole(vm(0)));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_is_overtaken_by_nothing_but_its_own_end() {
    // A halted machine refuses a forced shutdown, so a cancel ends its start.
    let host = Host::new([(vm(0), machine(vec![disk(0, 0, 1)], vec![]))]);
    host.sim.rule(two_hang);
    let op_hooks = OpHooks::plain();
    let cancel = op_hooks.cancel.clone();
    let start = host.machines.run(vm(0), START, op_hooks);
    sleep(Duration::from_secs(5)).await;
    cancel.cancel();
    let began = Instant::now();
    let error = start.await.unwrap_err();
    assert!(matches!(error, OpError::Cancelled), "{error:?}");
    assert!(began.elapsed() <= STORAGE_DEADLINE, "what runs goes on to its end");
    host.sim.rule(|_| SimBehaviour::default());
    sleep(ms(1)).await;
    host.assert_true(vm(0));
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
}
