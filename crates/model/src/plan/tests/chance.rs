//! Tests that run plans in random order, with failures and crashes in between.

use proptest::prelude::*;

use super::world::{Fate, Picks, World};
use super::*;

fn picks() -> impl Strategy<Value = Picks> {
    prop::collection::vec(any::<u16>(), 7..120).prop_map(|numbers| Picks(numbers, 0))
}

/// Generates a halted machine with disks and drives on three SRs, some of one VDI, some read-only.
fn halted() -> impl Strategy<Value = MachineState> {
    let slot = (0..6_u8, 0..4_u8, any::<bool>());
    (prop::collection::vec(slot, 0..7), 0..3_u8).prop_map(|(slots, vifs)| {
        let disks = (0..).zip(slots).map(|(n, (which, kind, reads))| {
            let access = if reads || kind == 0 { Access::Ro } else { Access::Rw };
            let medium = Medium { vdi: vdi(which), sr: sr(which % 3) };
            let kind = if kind == 0 { VbdKind::Cd } else { VbdKind::Disk };
            DiskState { kind, access, medium: Some(medium), ..disk(n, 0) }
        });
        let mut disks: Vec<_> = disks.collect();
        if let Some(cd) = disks.iter_mut().rfind(|disk| disk.kind == VbdKind::Cd) {
            cd.medium = None;
        }
        machine(disks, vifs)
    })
}

fn op() -> impl Strategy<Value = MachineOp> {
    prop_oneof![
        4 => any::<bool>().prop_map(|paused| MachineOp::Start { paused }),
        1 => Just(MachineOp::CleanShutdown),
        1 => Just(MachineOp::HardShutdown),
        1 => Just(MachineOp::CleanReboot),
        1 => Just(MachineOp::HardReboot),
        1 => Just(MachineOp::Pause),
        1 => Just(MachineOp::Unpause),
        1 => Just(MachineOp::Reset),
        2 => (0..7_u8).prop_map(|n| MachineOp::VbdPlug(vbd(n))),
        2 => (0..7_u8).prop_map(|n| MachineOp::VbdUnplug { vbd: vbd(n), force: false }),
        1 => (0..7_u8).prop_map(|n| MachineOp::Insert(vbd(n))),
        1 => (0..7_u8).prop_map(|n| MachineOp::Eject(vbd(n))),
        1 => (0..3_u8).prop_map(|n| MachineOp::VifPlug(vif(n))),
        1 => (0..3_u8).prop_map(|n| MachineOp::VifUnplug(vif(n))),
        2 => prop_oneof![
            Just(DomainExit::PoweredOff),
            Just(DomainExit::Rebooted),
            Just(DomainExit::Panicked),
            Just(DomainExit::Killed),
        ].prop_map(MachineOp::AfterExit),
    ]
}

proptest! {
    /// Steps may end in any order: nothing forbidden happens, and the machine reaches its goal.
    #[test]
    fn plans_do_what_was_asked(start in halted(), mut picks in picks()) {
        let mut world = World::new(start);
        world.works(MachineOp::Start { paused: true }, &mut picks);
        prop_assert_eq!(world.seen.power, PowerState::Paused);
        world.works(MachineOp::Unpause, &mut picks);
        world.assert_true();
        prop_assert!(world.is_whole());
        let first = world.recorded_domid;
        world.works(MachineOp::CleanReboot, &mut picks);
        world.assert_true();
        prop_assert!(world.is_whole() && world.recorded_domid > first);
        world.works(MachineOp::HardShutdown, &mut picks);
        world.assert_true();
        prop_assert_eq!(world.seen.power, PowerState::Halted);
        world.works(MachineOp::Start { paused: false }, &mut picks);
        world.works(MachineOp::CleanShutdown, &mut picks);
        world.assert_true();
    }

    /// Operations fail, or a crash of the daemon or the hypervisor interrupts them. Then a
    /// reconcile makes record and observed state agree, and a second one changes nothing. The
    /// machine can be stopped and started.
    #[test]
    fn whatever_happens_settles(
        start in halted(), ops in prop::collection::vec((op(), any::<u8>(), 0..40_u8), 1..12),
        mut picks in picks(),
    ) {
        let mut world = World::new(start);
        for (op, chance, last) in ops {
            if let MachineOp::AfterExit(exit) = op && world.has_domain() {
                if exit == DomainExit::Killed { world.kill() } else { world.set_run(RunState::Ended(exit)) }
            }
            let Ok(plan) = plan(&op, &world.state()) else { continue };
            let mut left = i32::from(last);
            let well = world.run(&plan, &mut picks.clone(), &mut || {
                left -= 1;
                match left {
                    0 if chance < 100 => Fate::Crash,
                    // Some fail once, some repeatedly.
                    0 => Fate::Fails,
                    ..0 if chance > 180 && left % 3 == 0 => Fate::Fails,
                    _ => Fate::Works,
                }
            });
            if world.has_domain() && chance % 16 == 0 {
                world.kill();
            } else if well {
                world.assert_true();
                continue;
            }
            // A reconcile may fail as well; the next one continues from there.
            let settle = super::plan(&MachineOp::Reconcile, &world.state()).unwrap();
            let mut left = chance % 8;
            world.run(&settle, &mut picks, &mut || {
                left = left.wrapping_sub(1);
                if left == 0 { Fate::Fails } else { Fate::Works }
            });
            world.works(MachineOp::Reconcile, &mut picks);
            world.assert_true();
            let again = super::plan(&MachineOp::Reconcile, &world.state()).unwrap();
            prop_assert!(again.steps().iter().all(|step| step.verb == StepAction::Record), "{again:?}");
        }
        if world.seen.power != PowerState::Halted {
            world.works(MachineOp::HardShutdown, &mut picks);
        }
        world.works(MachineOp::Start { paused: false }, &mut picks);
        world.assert_true();
        prop_assert!(world.is_whole());
    }
}
