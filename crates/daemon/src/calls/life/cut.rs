//! Operations that are cut off by the daemon's death, at calls that matter: the next daemon brings
//! them to their end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::id::{VbdId, VifId};
use model::poll::EffectivePolling;
use model::vm::exits::DomainExit;
use tokio::sync::Notify;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{vbd, vif, vm};

use super::interfaces::device as interface;
use super::live::served;
use super::*;
use crate::records::owed::{OWED, TRIES};

/// More than anything here takes.
const SOON: Duration = Duration::from_secs(60);

/// From here on the first call of this kind is the daemon's last: whoever waits for this kills it.
fn last_call(world: &SimulatedHost, what: CallKind, end: SimResult) -> Arc<Notify> {
    let came = Arc::new(Notify::new());
    let comes = came.clone();
    world.sim.rule(move |call| {
        if call.what != what {
            return SimBehaviour::default();
        }
        comes.notify_one();
        SimBehaviour::ends(end)
    });
    came
}

fn dies(world: &SimulatedHost) {
    world.killed();
    world.sim.rule(|_| SimBehaviour::default());
}

/// A machine that runs, with a disk, in a life that ends while `method` is carried out; its number
/// before that.
fn cut(method: &str, what: CallKind, end: SimResult) -> (SimulatedHost, Ref, Value) {
    life(async {
        let world = SimulatedHost::new().await;
        let machine = world.machine().await;
        world.device(&machine).await;
        world.start(&machine).await;
        // What nobody wants who asks for the guest's end.
        for (after, set) in [("shutdown", "restart"), ("reboot", "destroy")] {
            let set = [machine.value(), Value::text(set)];
            world.done(&format!("VM.set_actions_after_{after}"), set).await;
        }
        let before = world.get(&machine, vm::Field::domid);
        let last = last_call(&world, what, end);
        tokio::select! {
            biased;
            () = last.notified() => {}
            ended = world.trial.call(method, [machine.value()]) => panic!("{ended:?}"),
        }
        dies(&world);
        (world, machine, before)
    })
}

/// Ends when nothing is under way on a machine, and nothing is owed.
async fn quiet(world: &SimulatedHost, machine: &Ref) {
    let busy = |it: &SimulatedHost| it.get(machine, vm::Field::current_operations) != none();
    world.until(|it| !busy(it) && it.owed(machine).is_none()).await;
}

#[test]
fn an_end_that_somebody_wanted_is_no_crash() {
    for method in ["VM.clean_shutdown", "VM.hard_shutdown", "VM.power_state_reset"] {
        for what in [CallKind::Kill, CallKind::Forget, CallKind::Deactivate, CallKind::DetachVolume]
        {
            for end in [SimResult::Hangs, SimResult::HangsDone] {
                let (world, machine, _) = cut(method, what, end);
                life(async {
                    let world = world.again(BOOT).await;
                    quiet(&world, &machine).await;
                    assert_eq!(world.power(&machine), "Halted", "{method} {what:?} {end:?}");
                    assert_eq!(world.messages(), Vec::<String>::new(), "{method} {what:?}");
                    world.assert_clean();
                });
            }
        }
    }
}

#[test]
fn a_reboot_is_brought_to_its_end() {
    for method in ["VM.clean_reboot", "VM.hard_reboot"] {
        for what in
            [CallKind::Kill, CallKind::Forget, CallKind::Create, CallKind::PlugDisk, CallKind::Run]
        {
            for end in [SimResult::Hangs, SimResult::HangsDone] {
                let (world, machine, before) = cut(method, what, end);
                life(async {
                    let world = world.again(BOOT).await;
                    quiet(&world, &machine).await;
                    let of = format!("{method} {what:?} {end:?}");
                    assert_eq!(world.power(&machine), "Running", "{of}");
                    assert_ne!(world.get(&machine, vm::Field::domid), before, "{of}");
                    assert!(world.attached(&world.slots(&machine)[0]), "{of}");
                    assert_eq!(world.messages(), Vec::<String>::new(), "{of}");
                    world.done("VM.hard_shutdown", [machine.value()]).await;
                    world.assert_clean();
                });
            }
        }
    }
}

/// Whoever asked it to has died meanwhile.
#[test]
fn what_a_guest_lets_go_of_late_is_free() {
    for (method, what) in
        [("VBD.unplug", CallKind::UnplugDisk), ("VIF.unplug", CallKind::UnplugNic)]
    {
        let (world, machine, slot, card) = life(async {
            let world = SimulatedHost::new().await;
            let machine = world.machine().await;
            let (slot, _) = world.device(&machine).await;
            let net = record([("name_label", Value::text("n")), ("other_config", none())]);
            let net = world.made("network.create", [net]).await;
            let card = world.made("VIF.create", [interface(&machine, &net, "")]).await;
            world.start(&machine).await;
            let of = if what == CallKind::UnplugDisk { &slot } else { &card };
            let last = last_call(&world, what, SimResult::Hangs);
            tokio::select! {
                biased;
                () = last.notified() => {}
                ended = world.trial.call(method, [of.value()]) => panic!("{ended:?}"),
            }
            dies(&world);
            (world, machine, slot, card)
        });
        life(async {
            let world = world.again(BOOT).await;
            quiet(&world, &machine).await;
            let in_it = |it: &SimulatedHost| {
                (it.attached(&slot), it.get(&card, vif::Field::currently_attached) == yes())
            };
            assert_eq!(in_it(&world), (true, true), "the guest has both");
            let id = |of: &Ref, field: FieldIx| text(&world.get(of, field)).to_owned();
            let ids = [id(&slot, vbd::Field::uuid.into()), id(&card, vif::Field::uuid.into())];
            let (vbd, vif) = (ids[0].parse().unwrap(), ids[1].parse().unwrap());
            world.sim.release_devices(world.id(&machine), &[VbdId(vbd)], &[VifId(vif)]);
            world.until(|it| in_it(it) == (false, false)).await;
            // What comes after it in its turn.
            world.done("VM.pause", [machine.value()]).await;
            let left = world.sim.leftovers();
            assert!(!left.iter().any(|line| ids.iter().any(|id| line.contains(id))), "{left:?}");
            world.done("VM.hard_shutdown", [machine.value()]).await;
            world.assert_clean();
        });
    }
}

/// Nobody knows what a guest has whose emulator does not answer: it is asked again.
#[tokio::test]
async fn what_is_let_go_of_is_seen_when_the_emulator_answers_again() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, _) = world.device(&machine).await;
    world.start(&machine).await;
    let vbd = VbdId(text(&world.get(&slot, vbd::Field::uuid)).parse().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    world.sim.rule(move |call| match call.what {
        CallKind::Find if count.fetch_add(1, Ordering::Relaxed) == 0 => {
            SimBehaviour::ends(SimResult::Fails)
        }
        _ => SimBehaviour::default(),
    });
    world.sim.release_devices(world.id(&machine), &[vbd], &[]);
    let told = tokio::time::timeout(SOON, world.until(|it| !it.attached(&slot))).await;
    assert!(told.is_ok(), "asked {} times", asked.load(Ordering::Relaxed));
    assert_eq!(world.power(&machine), "Running");
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.assert_clean();
}

/// One whose guest had been asked, and does it while no daemon is there, or later.
#[test]
fn a_guest_that_was_asked_ends_as_it_was_asked() {
    for later in [false, true] {
        let (world, machine, _) = cut("VM.clean_shutdown", CallKind::Guest, SimResult::Hangs);
        if !later {
            world.sim.end_guest(world.id(&machine), DomainExit::PoweredOff);
        }
        life(async {
            let world = world.again(BOOT).await;
            quiet(&world, &machine).await;
            assert_eq!(world.power(&machine), "Halted");
            assert_eq!(world.messages(), Vec::<String>::new());
            world.assert_clean();
        });
    }
}

/// A host that is busy is no reason to kill a guest that was to be asked.
#[test]
fn one_whose_emulator_is_slow_is_asked_again() {
    let (world, machine, _) = cut("VM.clean_shutdown", CallKind::Guest, SimResult::Hangs);
    life(async {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        // Longer than anybody waits for that.
        world.sim.rule(move |call| {
            seen.lock().unwrap().push(call.what);
            if call.what == CallKind::Find {
                SimBehaviour::ends(SimResult::Hangs)
            } else {
                SimBehaviour::default()
            }
        });
        let world = world.again(BOOT).await;
        quiet(&world, &machine).await;
        assert_eq!(world.power(&machine), "Halted");
        assert_eq!(world.messages(), Vec::<String>::new());
        let calls = calls.lock().unwrap();
        let first = |what| calls.iter().position(|call| *call == what);
        assert!(first(CallKind::Guest) < first(CallKind::Kill), "{calls:?}");
        assert!(first(CallKind::Guest).is_some(), "{calls:?}");
        drop(calls);
        world.assert_clean();
    });
}

/// The end is told once, and what follows it is done.
#[test]
fn what_follows_a_guests_own_end_goes_on() {
    for (exit, word, power) in [
        (DomainExit::PoweredOff, "VM_SHUTDOWN", "Halted"),
        (DomainExit::Rebooted, "VM_REBOOTED", "Running"),
        (DomainExit::Panicked, "VM_CRASHED", "Running"),
        (DomainExit::Killed, "VM_CRASHED", "Running"),
    ] {
        for end in [SimResult::Hangs, SimResult::HangsDone] {
            let (world, machine) = life(async {
                let world = SimulatedHost::new().await;
                let machine = world.machine().await;
                world.device(&machine).await;
                world.start(&machine).await;
                let set = [machine.value(), Value::text("restart")];
                world.done("VM.set_actions_after_crash", set).await;
                let last = last_call(&world, CallKind::Forget, end);
                match exit {
                    DomainExit::Killed => world.sim.kill_process(world.id(&machine)),
                    _ => world.sim.end_guest(world.id(&machine), exit),
                }
                last.notified().await;
                dies(&world);
                (world, machine)
            });
            life(async {
                let world = world.again(BOOT).await;
                quiet(&world, &machine).await;
                assert_eq!(world.power(&machine), power, "{exit:?} {end:?}");
                assert_eq!(world.messages(), [word], "{exit:?} {end:?}");
                assert_eq!(world.sim.broken(), Vec::<String>::new());
            });
        }
    }
}

/// Starts that go with the host's own are owed until they have come about.
#[test]
fn a_machine_that_starts_with_its_host_starts_though_the_daemon_dies() {
    for what in [CallKind::Create, CallKind::PlugDisk, CallKind::Run] {
        let (world, machine) = life(async {
            let world = SimulatedHost::new().await;
            let machine = world.machine().await;
            world.device(&machine).await;
            world.start(&machine).await;
            let set = |of: &Ref| [of.value(), Value::text("auto_poweron"), Value::text("true")];
            let Value::Set(pool) = world.call("pool.get_all", []).await else { panic!() };
            world.done("pool.add_to_other_config", set(&Ref::from(text(&pool[0])))).await;
            world.done("VM.add_to_other_config", set(&machine)).await;
            dies(&world);
            (world, machine)
        });
        world.sim.kill_process(world.id(&machine));
        let world = life(async {
            let last = last_call(&world, what, SimResult::HangsDone);
            let world = world.again("second").await;
            last.notified().await;
            world.stored().await;
            dies(&world);
            world
        });
        life(async {
            let world = world.again("second").await;
            world.until(|world| world.power(&machine) == "Running").await;
            quiet(&world, &machine).await;
            assert!(world.attached(&world.slots(&machine)[0]));
            assert_eq!(world.messages(), Vec::<String>::new(), "{what:?}");
            assert_eq!(world.sim.broken(), Vec::<String>::new());
        });
    }
}

#[test]
fn what_ends_the_daemon_each_time_is_not_tried_for_ever() {
    let (mut world, machine, _) = cut("VM.hard_reboot", CallKind::Create, SimResult::HangsDone);
    for _ in 0..TRIES {
        world = life(async {
            let world = world.opened().await;
            let last = last_call(&world, CallKind::Create, SimResult::HangsDone);
            tokio::select! {
                biased;
                () = last.notified() => {}
                () = world.begin(BOOT) => panic!("it was not tried"),
            }
            dies(&world);
            world
        });
    }
    life(async {
        let world = world.again(BOOT).await;
        quiet(&world, &machine).await;
        assert_eq!(world.power(&machine), "Halted");
        assert_eq!(world.messages(), ["VM_RESTART_FAILED"]);
        world.start(&machine).await;
        world.done("VM.hard_shutdown", [machine.value()]).await;
        world.assert_clean();
    });
}

/// Time here is that of the runtime.
#[tokio::test(start_paused = true)]
async fn a_start_that_is_owed_can_be_called_off() {
    let world = SimulatedHost::new().await;
    let machine = world.running().await;
    world.done("VM.set_actions_after_crash", [machine.value(), Value::text("restart")]).await;
    world.sim.kill_process(world.id(&machine));
    world.until(|world| world.power(&machine) == "Halted").await;
    assert!(world.owed(&machine).is_some());
    let key = [machine.value(), Value::text(OWED)];
    world.done("VM.remove_from_other_config", key).await;
    tokio::time::sleep(10 * model::vm::exits::RESTART_INTERVAL).await;
    assert_eq!(world.power(&machine), "Halted");
    assert_eq!(world.messages(), ["VM_CRASHED"]);
}

#[tokio::test]
async fn nothing_is_owed_when_all_is_done_or_has_failed() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    world.device(&machine).await;
    world.start(&machine).await;
    for method in ["VM.clean_reboot", "VM.hard_reboot", "VM.clean_shutdown"] {
        world.done(method, [machine.value()]).await;
        assert_eq!(world.owed(&machine), None, "{method}");
    }
    for what in [CallKind::Create, CallKind::PlugDisk] {
        world.start(&machine).await;
        world.sim.rule(move |call| match call.what == what {
            true => SimBehaviour::ends(SimResult::Fails),
            false => SimBehaviour::default(),
        });
        world.refused("VM.hard_reboot", [machine.value()]).await;
        // A domain that has not come to run is no machine that is paused.
        assert_eq!(world.power(&machine), "Halted", "{what:?}");
        assert_eq!(world.owed(&machine), None, "{what:?}");
        world.sim.rule(|_| SimBehaviour::default());
        world.assert_clean();
    }
    world.refused("VM.hard_reboot", [machine.value()]).await;
    assert_eq!(world.owed(&machine), None, "what was refused was not begun");
}

/// It does not come between the steps of another operation, and nothing is left of the domain.
#[tokio::test]
async fn a_reset_of_the_power_state_waits_for_its_turn_and_ends_what_is_there() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, _) = world.device(&machine).await;
    world.sim.rule(|call| match call.what {
        CallKind::PlugDisk => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    let released = async {
        world.until(|it| it.get(&machine, vm::Field::domid) != Value::Int(-1)).await;
        tokio::task::yield_now().await;
        assert_ne!(world.sim.leftovers(), Vec::<String>::new(), "a start is under way");
        world.sim.rule(|_| SimBehaviour::default());
    };
    let (started, reset, ()) = tokio::join!(
        world.trial.call("VM.start", [machine.value(), no(), no()]),
        world.trial.call("VM.power_state_reset", [machine.value()]),
        released,
    );
    started.unwrap();
    reset.unwrap();
    assert_eq!(world.power(&machine), "Halted");
    assert!(!world.attached(&slot));
    world.assert_clean();
    // Of one that is halted nothing is there, and it stays so.
    world.done("VM.power_state_reset", [machine.value()]).await;
    assert_eq!(world.power(&machine), "Halted");
}

/// Stored, and nobody has told the datapath; also what is set no more.
#[test]
fn settings_that_were_stored_are_told_by_the_next_daemon() {
    let (world, slot) = life(async {
        let world = SimulatedHost::new().await;
        let machine = world.machine().await;
        let (slot, _) = world.device(&machine).await;
        let [key, value] = ["polling-duration", "50"].map(Value::text);
        world.done("VBD.add_to_other_config", [slot.value(), key, value]).await;
        world.start(&machine).await;
        assert_eq!(served(&world, &slot).await.1, Some(50));
        // As calls do, before they tell who serves the disk.
        let set = world.trial.house.db.change(|tx| {
            tx.set(&slot, vbd::Field::other_config, record([]))?;
            tx.set(&slot, vbd::Field::qos_algorithm_type, Value::text("ringway"))?;
            let params = record([("iops", Value::text("7"))]);
            tx.set(&slot, vbd::Field::qos_algorithm_params, params)
        });
        set.unwrap();
        world.stored().await;
        dies(&world);
        (world, slot)
    });
    life(async {
        let world = world.again(BOOT).await;
        let usual = u64::from(EffectivePolling::default().max_us);
        let told = async {
            while served(&world, &slot).await != (Some(7), Some(usual)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, told).await.unwrap();
    });
}
