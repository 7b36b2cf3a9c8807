//! Tests of plan durations: the slowest device or a tenth of the sum, even if other storage hangs.

use super::sim::{COMMAND, Sim};
use super::*;
use crate::admission::StepLimits;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const START: MachineOp = MachineOp::Start { paused: false };
/// Duration of the datapath's part of a step.
const DATAPATH: Duration = Duration::from_millis(5);
const CREATE: Duration = Duration::from_millis(300);

/// Returns the storage's duration of an attach or detach: every tenth disk is slow.
fn storage(n: u8) -> Duration {
    if n.is_multiple_of(10) { ms(500) } else { ms(50) }
}

/// Returns the duration of a step on a healthy host.
fn takes(step: &Step, storage: impl Fn(u8) -> Duration) -> Duration {
    match step.verb {
        StepAction::VbdAttach(vbd, _) | StepAction::VbdDetach(vbd) => storage(vbd.0.bytes()[15]),
        StepAction::VbdActivate(_) | StepAction::VbdDeactivate(_) => DATAPATH,
        StepAction::DomainCreate(_) => CREATE,
        StepAction::DomainKill => ms(100),
        StepAction::Record => Duration::ZERO,
        _ => COMMAND,
    }
}

/// Returns the duration of one plan on an idle host.
fn alone(
    op: MachineOp,
    state: &MachineState,
    limits: StepLimits,
    storage: fn(u8) -> Duration,
) -> Duration {
    let mut sim = Sim::new(limits, |step| Some(takes(step, storage)));
    let number = sim.ask(Duration::ZERO, plan(&op, state).unwrap());
    sim.run().0[&number]
}

#[test]
fn two_hundred_and_fifty_five_disks_take_a_tenth_of_the_sum() {
    let halted = machine((0..255).map(|n| disk(n, 1)).collect(), 1);
    let sum: Duration = (0..255).map(storage).sum();
    let bound = (sum / 10).max(ms(500)).mul_f64(1.3);
    assert_eq!(sum, ms(26 * 500 + 229 * 50));
    for (op, state) in [(START, halted.clone()), (MachineOp::HardShutdown, running(halted.clone()))]
    {
        let took = alone(op, &state, StepLimits::default(), storage);
        assert!(took <= bound, "{op:?} took {took:?}, {bound:?} are allowed");
        // Concurrency makes the difference: sequential steps take ten times as long.
        let one = StepLimits { machine: 1, ..StepLimits::default() };
        assert!(alone(op, &state, one, storage) > 8 * took);
    }
    // A reboot takes no longer than a stop and a start.
    let reboot = alone(MachineOp::HardReboot, &running(halted), StepLimits::default(), storage);
    assert!(reboot <= 2 * bound, "{reboot:?}");
}

#[test]
fn storage_that_is_known_to_be_slow_begins_first() {
    let disks = (0..255).map(|n| disk(n, 1)).collect();
    let unknown = machine(disks, 1);
    let sum: Duration = (0..255).map(storage).sum();
    let mut known = unknown.clone();
    for disk in &mut known.disks {
        // Small variations change nothing.
        disk.took = storage(disk.userdevice) + ms(u64::from(disk.userdevice % 3));
    }
    for (op, as_is) in [(START, (|one| one) as fn(_) -> _), (MachineOp::HardShutdown, running)] {
        let time =
            |state: &MachineState| alone(op, &as_is(state.clone()), StepLimits::default(), storage);
        let took = time(&known);
        assert!(took < time(&unknown), "{op:?}");
        // Slots are idle only at the first and last steps; activates take slots, too.
        let slots = (sum + 255 * DATAPATH) / 10;
        assert!(took < slots.mul_f64(1.1), "{op:?}: {took:?}, {slots:?} are filled");
        let verbs = plan(&op, &as_is(known.clone())).unwrap();
        let first = verbs.steps().iter().find_map(|step| match step.verb {
            StepAction::VbdAttach(vbd, _) | StepAction::VbdDeactivate(vbd) => Some(vbd),
            _ => None,
        });
        assert_eq!(first, Some(vbd(0)), "{op:?}: equals are in the order of their positions");
    }
}

#[test]
fn ten_slow_disks_take_as_long_as_one() {
    let slow = |_| ms(500);
    let with = |disks: u8| machine((0..disks).map(|n| disk(n, 1)).collect(), 0);
    for (op, as_is) in [(START, (|one| one) as fn(_) -> _), (MachineOp::HardShutdown, running)] {
        let one = alone(op, &as_is(with(1)), StepLimits::default(), slow);
        let ten = alone(op, &as_is(with(10)), StepLimits::default(), slow);
        assert!(ten.as_secs_f64() <= 1.3 * one.as_secs_f64(), "{op:?}: {one:?}, {ten:?}");
    }
}

#[test]
fn activates_do_not_stand_behind_attaches() {
    let halted = machine((0..100).map(|n| disk(n, 1)).collect(), 0);
    let start = plan(&START, &halted).unwrap();
    let order = std::cell::RefCell::new(Vec::new());
    let mut sim = Sim::new(StepLimits::default(), |step| {
        order.borrow_mut().push(short(&step.verb));
        Some(takes(step, |_| ms(50)))
    });
    sim.ask(Duration::ZERO, start);
    sim.run();
    let order = order.borrow();
    let at = |verb, n| order.iter().position(|one| *one == (verb, n)).unwrap();
    for n in 0..80 {
        assert!(at("activate", n) < at("attach", n + 15), "{n}");
    }
}

/// Returns whether this step is on one of the hung SRs.
fn hangs(step: &Step) -> bool {
    [1, 2].map(sr).into_iter().any(|hung| step.slots == Slots::Device { sr: hung })
}

/// Starts twenty machines on each of two SRs that hang forever, then a machine with `disks` disks
/// on a third SR at time `at`. Returns the duration of the last start.
fn beside_hung(mixed: bool, disks: u8, at: Duration) -> Duration {
    let mut sim =
        Sim::new(StepLimits::default(), |step| (!hangs(step)).then(|| takes(step, |_| ms(50))));
    for number in 0..40_u8 {
        let hung = if mixed { number % 2 } else { number / 20 };
        let state = machine((0..4).map(|n| disk(n, 1 + hung)).collect(), 0);
        sim.ask(Duration::ZERO, plan(&START, &state).unwrap());
    }
    let third = machine((0..disks).map(|n| disk(n, 3)).collect(), 0);
    let third = sim.ask(at, plan(&START, &third).unwrap());
    let (ends, slot_usage) = sim.run();
    assert_eq!(ends.len(), 1, "those that hang do not end");
    assert!(
        slot_usage.host_high <= 16 && slot_usage.machine_high <= 10 && slot_usage.lane_high <= 12
    );
    ends[&third].checked_sub(at).unwrap()
}

#[test]
fn two_srs_that_hang_do_not_slow_a_third() {
    for mixed in [true, false] {
        for disks in [1, 2, 8, 50] {
            let third = machine((0..disks).map(|n| disk(n, 3)).collect(), 0);
            let limits = StepLimits::default();
            let alone = alone(START, &third, limits, |_| ms(50));
            // The machine has two slots at once, and all free slots as soon as its SR has answered.
            // For a machine with a few disks, the start of its domain takes longer.
            let at_once = beside_hung(mixed, disks, Duration::ZERO);
            let allowed = if disks <= 8 { alone } else { alone.mul_f64(1.3) + ms(20) };
            assert!(at_once <= allowed, "{disks}: {alone:?} alone, {at_once:?} beside");
            for later in [2000, 2001, 7000] {
                assert_eq!(beside_hung(mixed, disks, ms(later)), alone, "{disks} at {later}");
            }
        }
    }
}

#[test]
fn twenty_starts_at_once_keep_all_limits_and_use_them() {
    let mut sim = Sim::new(StepLimits::default(), |step| Some(takes(step, storage)));
    for number in 0..20 {
        let state = machine((0..30).map(|n| disk(n, number % 3)).collect(), 2);
        sim.ask(ms(u64::from(number)), plan(&START, &state).unwrap());
    }
    let (ends, slot_usage) = sim.run();
    assert_eq!(ends.len(), 20);
    assert_eq!((slot_usage.host_high, slot_usage.host), (16, 0));
    assert!(slot_usage.machine_high <= 10 && slot_usage.lane_high <= 12, "{slot_usage:?}");
    // Sixteen at a time: no slot is idle while there is work.
    let sum: Duration = (0..30).map(|n| storage(n) + DATAPATH).sum();
    let most = (sum * 20 / 16).mul_f64(1.1) + CREATE;
    assert!(ends.values().all(|end| *end <= most), "{ends:?}, {most:?}");
}
