//! Operations interrupted by a kill of the daemon at important driver calls. The next daemon
//! finishes them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::id::{VbdId, VifId};
use model::poll::EffectivePolling;
use model::report::DiskStats;
use model::vm::exits::DomainExit;
use tokio::sync::Notify;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{vbd, vif, vm};

use super::disk_settings::{polling_us, served, until_served};
use super::interfaces::device as interface;
use super::simulated_host::*;
use crate::ops::pending_op::{OWED, TRIES};

/// Longer than any wait here.
const SOON: Duration = Duration::from_secs(60);

/// Gives the calls of this kind this result. Notifies of each, so that the test kills the daemon at
/// the first.
fn last_call(sim_host: &SimulatedHost, call_kind: CallKind, sim_result: SimResult) -> Arc<Notify> {
    let event = Arc::new(Notify::new());
    let comes = event.clone();
    sim_host.sim.rule(move |call| {
        if call.call_kind != call_kind {
            return SimBehaviour::default();
        }
        comes.notify_one();
        SimBehaviour::ends(sim_result)
    });
    event
}

fn dies(sim_host: &SimulatedHost) {
    sim_host.killed();
    sim_host.sim.rule(|_| SimBehaviour::default());
}

/// Kills the daemon during `method` on a running VM with a disk. Returns the VM and its former
/// domain number.
fn cut(method: &str, call_kind: CallKind, sim_result: SimResult) -> (SimulatedHost, Ref, Value) {
    life(async {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.machine().await;
        sim_host.device(&machine).await;
        sim_host.start(&machine).await;
        // These actions must not apply, because a call requests the end of the guest.
        for (after, set) in [("shutdown", "restart"), ("reboot", "destroy")] {
            let set = [machine.value(), Value::text(set)];
            sim_host.done(&format!("VM.set_actions_after_{after}"), set).await;
        }
        let before = sim_host.get(&machine, vm::Field::domid);
        let last = last_call(&sim_host, call_kind, sim_result);
        tokio::select! {
            biased;
            () = last.notified() => {}
            ended = sim_host.test_app.call(method, [machine.value()]) => panic!("{ended:?}"),
        }
        dies(&sim_host);
        (sim_host, machine, before)
    })
}

/// Waits until a VM has no operation under way and no pending op.
async fn quiet(sim_host: &SimulatedHost, machine: &Ref) {
    let busy = |it: &SimulatedHost| it.get(machine, vm::Field::current_operations) != none();
    sim_host.until(|it| !busy(it) && it.owed(machine).is_none()).await;
}

#[test]
fn an_end_that_somebody_wanted_is_no_crash() {
    for method in ["VM.clean_shutdown", "VM.hard_shutdown", "VM.power_state_reset"] {
        for call_kind in
            [CallKind::Kill, CallKind::Forget, CallKind::Deactivate, CallKind::DetachVolume]
        {
            for sim_result in [SimResult::Hangs, SimResult::HangsDone] {
                let (sim_host, machine, _) = cut(method, call_kind, sim_result);
                life(async {
                    let sim_host = sim_host.again(BOOT).await;
                    quiet(&sim_host, &machine).await;
                    assert_eq!(
                        sim_host.power(&machine),
                        "Halted",
                        "{method} {call_kind:?} {sim_result:?}"
                    );
                    assert_eq!(sim_host.messages(), Vec::<String>::new(), "{method} {call_kind:?}");
                    sim_host.assert_clean();
                });
            }
        }
    }
}

#[test]
fn a_reboot_is_brought_to_its_end() {
    for method in ["VM.clean_reboot", "VM.hard_reboot"] {
        for call_kind in
            [CallKind::Kill, CallKind::Forget, CallKind::Create, CallKind::PlugDisk, CallKind::Run]
        {
            for sim_result in [SimResult::Hangs, SimResult::HangsDone] {
                let (sim_host, machine, before) = cut(method, call_kind, sim_result);
                life(async {
                    let sim_host = sim_host.again(BOOT).await;
                    quiet(&sim_host, &machine).await;
                    let of = format!("{method} {call_kind:?} {sim_result:?}");
                    assert_eq!(sim_host.power(&machine), "Running", "{of}");
                    assert_ne!(sim_host.get(&machine, vm::Field::domid), before, "{of}");
                    assert!(sim_host.attached(&sim_host.slots(&machine)[0]), "{of}");
                    assert_eq!(sim_host.messages(), Vec::<String>::new(), "{of}");
                    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
                    sim_host.assert_clean();
                });
            }
        }
    }
}

/// The daemon that requested the unplug has died meanwhile.
#[test]
fn what_a_guest_lets_go_of_late_is_free() {
    for (method, call_kind) in
        [("VBD.unplug", CallKind::UnplugDisk), ("VIF.unplug", CallKind::UnplugNic)]
    {
        let (sim_host, machine, slot, card) = life(async {
            let sim_host = SimulatedHost::new().await;
            let machine = sim_host.machine().await;
            let (slot, _) = sim_host.device(&machine).await;
            let net = record([("name_label", Value::text("n")), ("other_config", none())]);
            let net = sim_host.made("network.create", [net]).await;
            let card = sim_host.made("VIF.create", [interface(&machine, &net, "")]).await;
            sim_host.start(&machine).await;
            let of = if call_kind == CallKind::UnplugDisk { &slot } else { &card };
            let last = last_call(&sim_host, call_kind, SimResult::Hangs);
            tokio::select! {
                biased;
                () = last.notified() => {}
                ended = sim_host.test_app.call(method, [of.value()]) => panic!("{ended:?}"),
            }
            dies(&sim_host);
            (sim_host, machine, slot, card)
        });
        life(async {
            let sim_host = sim_host.again(BOOT).await;
            quiet(&sim_host, &machine).await;
            let in_it = |it: &SimulatedHost| {
                (it.attached(&slot), it.get(&card, vif::Field::currently_attached) == yes())
            };
            assert_eq!(in_it(&sim_host), (true, true), "the guest has both");
            let id = |of: &Ref, field: FieldIx| text(&sim_host.get(of, field)).to_owned();
            let ids = [id(&slot, vbd::Field::uuid.into()), id(&card, vif::Field::uuid.into())];
            let (vbd, vif) = (ids[0].parse().unwrap(), ids[1].parse().unwrap());
            sim_host.sim.release_devices(sim_host.id(&machine), &[VbdId(vbd)], &[VifId(vif)]);
            sim_host.until(|it| in_it(it) == (false, false)).await;
            // This operation queues behind the reconcile.
            sim_host.done("VM.pause", [machine.value()]).await;
            let left = sim_host.sim.leftovers();
            assert!(!left.iter().any(|line| ids.iter().any(|id| line.contains(id))), "{left:?}");
            sim_host.done("VM.hard_shutdown", [machine.value()]).await;
            sim_host.assert_clean();
        });
    }
}

/// While QEMU does not answer, the guest's devices are unknown, so the reconcile is repeated.
#[tokio::test]
async fn what_is_let_go_of_is_seen_when_the_emulator_answers_again() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    let vbd = VbdId(text(&sim_host.get(&slot, vbd::Field::uuid)).parse().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    sim_host.sim.rule(move |call| match call.call_kind {
        CallKind::Find if count.fetch_add(1, Ordering::Relaxed) == 0 => {
            SimBehaviour::ends(SimResult::Fails)
        }
        _ => SimBehaviour::default(),
    });
    sim_host.sim.release_devices(sim_host.id(&machine), &[vbd], &[]);
    let detached = tokio::time::timeout(SOON, sim_host.until(|it| !it.attached(&slot))).await;
    assert!(detached.is_ok(), "asked {} times", asked.load(Ordering::Relaxed));
    assert_eq!(sim_host.power(&machine), "Running");
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

/// The guest received the request and shuts down while no daemon runs, or later.
#[test]
fn a_guest_that_was_asked_ends_as_it_was_asked() {
    for later in [false, true] {
        let (sim_host, machine, _) = cut("VM.clean_shutdown", CallKind::Guest, SimResult::Hangs);
        if !later {
            sim_host.sim.end_guest(sim_host.id(&machine), DomainExit::PoweredOff);
        }
        life(async {
            let sim_host = sim_host.again(BOOT).await;
            quiet(&sim_host, &machine).await;
            assert_eq!(sim_host.power(&machine), "Halted");
            assert_eq!(sim_host.messages(), Vec::<String>::new());
            sim_host.assert_clean();
        });
    }
}

/// A slow host is no reason to force a guest that should be asked.
#[test]
fn one_whose_emulator_is_slow_is_asked_again() {
    let (sim_host, machine, _) = cut("VM.clean_shutdown", CallKind::Guest, SimResult::Hangs);
    life(async {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        // Longer than any deadline for it.
        sim_host.sim.rule(move |call| {
            seen.lock().unwrap().push(call.call_kind);
            if call.call_kind == CallKind::Find {
                SimBehaviour::ends(SimResult::Hangs)
            } else {
                SimBehaviour::default()
            }
        });
        let sim_host = sim_host.again(BOOT).await;
        quiet(&sim_host, &machine).await;
        assert_eq!(sim_host.power(&machine), "Halted");
        assert_eq!(sim_host.messages(), Vec::<String>::new());
        let calls = calls.lock().unwrap();
        let first = |call_kind| calls.iter().position(|call| *call == call_kind);
        assert!(first(CallKind::Guest) < first(CallKind::Kill), "{calls:?}");
        assert!(first(CallKind::Guest).is_some(), "{calls:?}");
        drop(calls);
        sim_host.assert_clean();
    });
}

/// The guest exit is reported once, and its action is carried out.
#[test]
fn what_follows_a_guests_own_end_goes_on() {
    for (exit, word, power) in [
        (DomainExit::PoweredOff, "VM_SHUTDOWN", "Halted"),
        (DomainExit::Rebooted, "VM_REBOOTED", "Running"),
        (DomainExit::Panicked, "VM_CRASHED", "Running"),
        (DomainExit::Killed, "VM_CRASHED", "Running"),
    ] {
        for sim_result in [SimResult::Hangs, SimResult::HangsDone] {
            let (sim_host, machine) = life(async {
                let sim_host = SimulatedHost::new().await;
                let machine = sim_host.machine().await;
                sim_host.device(&machine).await;
                sim_host.start(&machine).await;
                let set = [machine.value(), Value::text("restart")];
                sim_host.done("VM.set_actions_after_crash", set).await;
                let last = last_call(&sim_host, CallKind::Forget, sim_result);
                match exit {
                    DomainExit::Killed => sim_host.sim.kill_process(sim_host.id(&machine)),
                    _ => sim_host.sim.end_guest(sim_host.id(&machine), exit),
                }
                last.notified().await;
                dies(&sim_host);
                (sim_host, machine)
            });
            life(async {
                let sim_host = sim_host.again(BOOT).await;
                quiet(&sim_host, &machine).await;
                assert_eq!(sim_host.power(&machine), power, "{exit:?} {sim_result:?}");
                assert_eq!(sim_host.messages(), [word], "{exit:?} {sim_result:?}");
                assert_eq!(sim_host.sim.broken(), Vec::<String>::new());
            });
        }
    }
}

/// Starts with the host stay pending until they succeed.
#[test]
fn a_machine_that_starts_with_its_host_starts_though_the_daemon_dies() {
    for call_kind in [CallKind::Create, CallKind::PlugDisk, CallKind::Run] {
        let (sim_host, machine) = life(async {
            let sim_host = SimulatedHost::new().await;
            let machine = sim_host.machine().await;
            sim_host.device(&machine).await;
            sim_host.start(&machine).await;
            let set = |of: &Ref| [of.value(), Value::text("auto_poweron"), Value::text("true")];
            let Value::Set(pool) = sim_host.call("pool.get_all", []).await else { panic!() };
            sim_host.done("pool.add_to_other_config", set(&Ref::from(text(&pool[0])))).await;
            sim_host.done("VM.add_to_other_config", set(&machine)).await;
            dies(&sim_host);
            (sim_host, machine)
        });
        sim_host.sim.kill_process(sim_host.id(&machine));
        let sim_host = life(async {
            let last = last_call(&sim_host, call_kind, SimResult::HangsDone);
            let sim_host = sim_host.again("second").await;
            last.notified().await;
            sim_host.stored().await;
            dies(&sim_host);
            sim_host
        });
        life(async {
            let sim_host = sim_host.again("second").await;
            sim_host.until(|sim_host| sim_host.power(&machine) == "Running").await;
            quiet(&sim_host, &machine).await;
            assert!(sim_host.attached(&sim_host.slots(&machine)[0]));
            assert_eq!(sim_host.messages(), Vec::<String>::new(), "{call_kind:?}");
            assert_eq!(sim_host.sim.broken(), Vec::<String>::new());
        });
    }
}

#[test]
fn what_ends_the_daemon_each_time_is_not_tried_for_ever() {
    let (mut sim_host, machine, _) = cut("VM.hard_reboot", CallKind::Create, SimResult::HangsDone);
    for _ in 0..TRIES {
        sim_host = life(async {
            let sim_host = sim_host.opened().await;
            let last = last_call(&sim_host, CallKind::Create, SimResult::HangsDone);
            tokio::select! {
                biased;
                () = last.notified() => {}
                () = sim_host.begin(BOOT) => panic!("it was not tried"),
            }
            dies(&sim_host);
            sim_host
        });
    }
    life(async {
        let sim_host = sim_host.again(BOOT).await;
        quiet(&sim_host, &machine).await;
        assert_eq!(sim_host.power(&machine), "Halted");
        assert_eq!(sim_host.messages(), ["VM_RESTART_FAILED"]);
        sim_host.start(&machine).await;
        sim_host.done("VM.hard_shutdown", [machine.value()]).await;
        sim_host.assert_clean();
    });
}

/// Test time is paused and advances while the runtime is idle.
#[tokio::test(start_paused = true)]
async fn a_start_that_is_owed_can_be_called_off() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    sim_host.done("VM.set_actions_after_crash", [machine.value(), Value::text("restart")]).await;
    sim_host.sim.kill_process(sim_host.id(&machine));
    sim_host.until(|sim_host| sim_host.power(&machine) == "Halted").await;
    assert!(sim_host.owed(&machine).is_some());
    let key = [machine.value(), Value::text(OWED)];
    sim_host.done("VM.remove_from_other_config", key).await;
    tokio::time::sleep(10 * model::vm::exits::RESTART_INTERVAL).await;
    assert_eq!(sim_host.power(&machine), "Halted");
    assert_eq!(sim_host.messages(), ["VM_CRASHED"]);
}

#[tokio::test]
async fn nothing_is_owed_when_all_is_done_or_has_failed() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    for method in ["VM.clean_reboot", "VM.hard_reboot", "VM.clean_shutdown"] {
        sim_host.done(method, [machine.value()]).await;
        assert_eq!(sim_host.owed(&machine), None, "{method}");
    }
    for call_kind in [CallKind::Create, CallKind::PlugDisk] {
        sim_host.start(&machine).await;
        sim_host.sim.rule(move |call| match call.call_kind == call_kind {
            true => SimBehaviour::ends(SimResult::Fails),
            false => SimBehaviour::default(),
        });
        sim_host.refused("VM.hard_reboot", [machine.value()]).await;
        // A domain that never ran does not count as a paused VM.
        assert_eq!(sim_host.power(&machine), "Halted", "{call_kind:?}");
        assert_eq!(sim_host.owed(&machine), None, "{call_kind:?}");
        sim_host.sim.rule(|_| SimBehaviour::default());
        sim_host.assert_clean();
    }
    sim_host.refused("VM.hard_reboot", [machine.value()]).await;
    assert_eq!(sim_host.owed(&machine), None, "what was refused was not begun");
}

/// The reset does not run between steps of another operation, and it leaves nothing of the domain.
#[tokio::test]
async fn a_reset_of_the_power_state_waits_for_its_turn_and_ends_what_is_there() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::PlugDisk => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    let released = async {
        sim_host.until(|it| it.get(&machine, vm::Field::domid) != Value::Int(-1)).await;
        tokio::task::yield_now().await;
        assert_ne!(sim_host.sim.leftovers(), Vec::<String>::new(), "a start is under way");
        sim_host.sim.rule(|_| SimBehaviour::default());
    };
    let (started, reset, ()) = tokio::join!(
        sim_host.test_app.call("VM.start", [machine.value(), no(), no()]),
        sim_host.test_app.call("VM.power_state_reset", [machine.value()]),
        released,
    );
    started.unwrap();
    reset.unwrap();
    assert_eq!(sim_host.power(&machine), "Halted");
    assert!(!sim_host.attached(&slot));
    sim_host.assert_clean();
    // A reset of a halted VM leaves it halted.
    sim_host.done("VM.power_state_reset", [machine.value()]).await;
    assert_eq!(sim_host.power(&machine), "Halted");
}

/// Settings were stored, including removed ones, but not applied to the datapath.
#[test]
fn settings_that_were_stored_are_told_by_the_next_daemon() {
    let (sim_host, slot) = life(async {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.machine().await;
        let (slot, _) = sim_host.device(&machine).await;
        let [key, value] = ["polling-duration", "50"].map(Value::text);
        sim_host.done("VBD.add_to_other_config", [slot.value(), key, value]).await;
        sim_host.start(&machine).await;
        assert_eq!(polling_us(&served(&sim_host, &slot).await), Some(50));
        // Calls store the settings before they apply them.
        let set = sim_host.test_app.app.db.change(|tx| {
            tx.set(&slot, vbd::Field::other_config, record([]))?;
            tx.set(&slot, vbd::Field::qos_algorithm_type, Value::text("ringway"))?;
            let params = record([("iops", Value::text("7")), ("weight", Value::text("300"))]);
            tx.set(&slot, vbd::Field::qos_algorithm_params, params)
        });
        set.unwrap();
        sim_host.stored().await;
        dies(&sim_host);
        (sim_host, slot)
    });
    life(async {
        let sim_host = sim_host.again(BOOT).await;
        let usual = u64::from(EffectivePolling::default().max_us);
        let set = |disk: DiskStats| {
            let iops = disk.caps.and_then(|caps| caps.iops);
            let weight = disk.share.as_ref().unwrap().share.weight;
            (iops, polling_us(&disk), weight) == (Some(7), Some(usual), 300)
        };
        until_served(&sim_host, &slot, set).await;
    });
}
