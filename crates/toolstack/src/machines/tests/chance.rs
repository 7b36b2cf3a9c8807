//! Random histories: parallel operations, faults, ends of guests, and kills of the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::plan::{DomainState, MachineOp, RunState};
use model::vm::exits::DomainExit;
use proptest::prelude::*;
use tokio::time::sleep;

use super::super::*;
use super::host::*;
use super::ops::full;
use crate::sim::{SimBehaviour, SimResult};

const MACHINES: u16 = 3;

/// Action of a history.
#[derive(Clone, Debug)]
struct Act {
    of: u16,
    op: MachineOp,
    /// Milliseconds until the next action.
    pause: u16,
    /// Event during the operation.
    twist: Twist,
}

#[derive(Clone, Copy, Debug)]
enum Twist {
    None,
    Cancel,
    Forget,
    GuestEnds(DomainExit),
    /// The daemon is killed during the operation, and starts again.
    Dies,
}

fn op(of: u16) -> impl Strategy<Value = MachineOp> {
    let machine = full(of);
    let (disk, drive, vif) = (machine.disks[1].vbd, machine.disks[2].vbd, machine.vifs[1].vif);
    prop_oneof![
        4 => any::<bool>().prop_map(|paused| MachineOp::Start { paused }),
        2 => Just(MachineOp::CleanShutdown),
        2 => Just(MachineOp::HardShutdown),
        1 => Just(MachineOp::CleanReboot),
        1 => Just(MachineOp::HardReboot),
        1 => Just(MachineOp::Pause),
        1 => Just(MachineOp::Unpause),
        1 => Just(MachineOp::VbdPlug(disk)),
        1 => Just(MachineOp::VbdUnplug { vbd: disk, force: false }),
        1 => Just(MachineOp::Insert(drive)),
        1 => Just(MachineOp::Eject(drive)),
        1 => Just(MachineOp::VifPlug(vif)),
        1 => Just(MachineOp::VifUnplug(vif)),
        1 => Just(MachineOp::AfterExit(DomainExit::PoweredOff)),
        1 => Just(MachineOp::Reset),
        1 => Just(MachineOp::Reconcile),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let exit = prop_oneof![
        Just(DomainExit::PoweredOff),
        Just(DomainExit::Rebooted),
        Just(DomainExit::Panicked),
        Just(DomainExit::Killed),
    ];
    let twist = prop_oneof![
        6 => Just(Twist::None),
        1 => Just(Twist::Cancel),
        1 => Just(Twist::Forget),
        1 => exit.prop_map(Twist::GuestEnds),
        1 => Just(Twist::Dies),
    ];
    (0..MACHINES).prop_flat_map(op_of).prop_flat_map(move |(of, op)| {
        (Just(of), Just(op), 0..2000_u16, twist.clone()).prop_map(|(of, op, pause, twist)| Act {
            of,
            op,
            pause,
            twist,
        })
    })
}

fn op_of(of: u16) -> impl Strategy<Value = (u16, MachineOp)> {
    (Just(of), op(of))
}

/// Sets the results of calls. Most succeed after a while, and some fail. A few hang until the next
/// life or the end of the history.
fn fates(host: &Host, chances: Vec<u8>) {
    let turn = Arc::new(AtomicUsize::new(0));
    host.sim.rule(move |_| {
        let chance = chances[turn.fetch_add(1, Ordering::Relaxed) % chances.len()];
        match chance {
            0..4 => SimBehaviour::ends(SimResult::Hangs),
            4..8 => SimBehaviour::ends(SimResult::HangsDone),
            8..16 => SimBehaviour::ends(SimResult::Fails),
            16..24 => {
                SimBehaviour { after: ms(u64::from(chance)), sim_result: SimResult::FailsDone }
            }
            _ => SimBehaviour::takes(ms(u64::from(chance))),
        }
    });
}

/// Plays actions until the daemon dies. Returns the number played.
async fn play(host: &Host, acts: &[Act]) -> usize {
    for (number, act) in acts.iter().enumerate() {
        let op_hooks = OpHooks::plain();
        let cancel = op_hooks.cancel.clone();
        let run = host.machines.run(vm(act.of), act.op, op_hooks);
        let pause = ms(u64::from(act.pause));
        match act.twist {
            Twist::None => drop(tokio::spawn(run)),
            Twist::Forget => drop(run),
            Twist::Cancel => {
                drop(tokio::spawn(run));
                sleep(pause / 2).await;
                cancel.cancel();
            }
            Twist::GuestEnds(exit) => {
                drop(tokio::spawn(run));
                match exit {
                    DomainExit::Killed => host.sim.kill_process(vm(act.of)),
                    _ => host.sim.end_guest(vm(act.of), exit),
                }
            }
            Twist::Dies => {
                drop(tokio::spawn(run));
                sleep(pause / 4).await;
                return number + 1;
            }
        }
        sleep(pause).await;
    }
    acts.len()
}

/// Waits for abandoned calls, then checks that every machine matches its record.
async fn at_the_end(host: &Host) {
    host.sim.rule(|_| SimBehaviour::default());
    sleep(std::time::Duration::from_secs(3600)).await;
    for of in 0..MACHINES {
        // The medium to insert may have been recorded as ejected.
        let full = full(of);
        host.works(vm(of), MachineOp::Reconcile).await;
        host.assert_true(vm(of));
        host.change(vm(of), |machine| machine.disks[2].source = full.disks[2].source.clone());
        if host.recorded(vm(of)).power != model::vm::PowerState::Halted {
            host.works(vm(of), MachineOp::HardShutdown).await;
        }
        host.works(vm(of), START).await;
        assert!(host.is_whole(vm(of)));
        host.assert_true(vm(of));
        let domain = host.machines.domain(vm(of));
        assert!(matches!(domain, DomainState::Present { run: RunState::Running, .. }));
        host.works(vm(of), MachineOp::HardShutdown).await;
    }
    assert_eq!(host.sim.leftovers(), Vec::<String>::new());
    let slot_usage = host.machines.marks();
    assert!(slot_usage.lanes.is_empty() && slot_usage.host == 0, "{slot_usage:?}");
}

/// Plays a history from its first action to its end.
fn settles(acts: &[Act], chances: &[u8]) {
    let host = Host::new((0..MACHINES).map(|of| (vm(of), full(of))));
    let (sim, paper) = (host.sim, host.paper);
    let mut rest = acts;
    loop {
        sim.rule(|_| SimBehaviour::default());
        let played = life(async {
            let host = Host::again(Arc::clone(&sim), Arc::clone(&paper)).await;
            fates(&host, chances.to_vec());
            for of in 0..MACHINES {
                drop(host.machines.run(vm(of), MachineOp::Reconcile, OpHooks::plain()));
            }
            let played = play(&host, rest).await;
            if played == rest.len() {
                at_the_end(&host).await;
            }
            played
        });
        rest = &rest[played..];
        if rest.is_empty() {
            break;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_settles(
        acts in prop::collection::vec(act(), 1..24),
        chances in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        settles(&acts, &chances);
    }
}

/// A create of machine 2 fails after it took effect. The hypervisor answers neither the
/// reconciliation nor the next start.
#[test]
fn a_start_after_one_that_nobody_knows_the_end_of() {
    let act = |of, op, pause| Act { of, op, pause, twist: Twist::None };
    let forgotten = |of, op, pause| Act { of, op, pause, twist: Twist::Forget };
    let acts = [
        act(0, START, 0),
        act(0, MachineOp::Start { paused: true }, 967),
        forgotten(0, START, 686),
        act(2, START, 1141),
        forgotten(1, MachineOp::CleanShutdown, 575),
        act(1, MachineOp::HardReboot, 950),
        act(0, MachineOp::Unpause, 1261),
        act(2, MachineOp::Start { paused: true }, 236),
    ];
    settles(&acts, &[21, 224]);
}
