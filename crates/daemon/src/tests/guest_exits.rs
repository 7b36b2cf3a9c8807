use std::time::Duration;

use model::vm::exits::DomainExit;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::vm;

use super::simulated_host::*;

#[tokio::test]
async fn what_a_guest_does_itself_is_followed() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    let first = sim_host.get(&machine, vm::Field::domid);
    sim_host.sim.end_guest(sim_host.id(&machine), DomainExit::Rebooted);
    sim_host
        .until(|sim_host| {
            sim_host.power(&machine) == "Running"
                && sim_host.get(&machine, vm::Field::domid) != first
                && sim_host.get(&machine, vm::Field::domid) != Value::Int(-1)
        })
        .await;
    sim_host.until(|sim_host| sim_host.attached(&slot)).await;
    sim_host
        .until(|sim_host| sim_host.get(&machine, vm::Field::current_operations) == none())
        .await;
    sim_host.sim.end_guest(sim_host.id(&machine), DomainExit::PoweredOff);
    sim_host.until(|sim_host| sim_host.power(&machine) == "Halted").await;
    assert!(!sim_host.attached(&slot));
    assert_eq!(sim_host.messages(), ["VM_REBOOTED", "VM_SHUTDOWN"]);
    sim_host.assert_clean();
}

#[tokio::test]
async fn the_end_that_a_reboot_waits_for_is_the_reboots() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    let first = sim_host.get(&machine, vm::Field::domid);
    // This action for its own reboots would halt the VM.
    let destroy = [machine.value(), Value::text("destroy")];
    sim_host.done("VM.set_actions_after_reboot", destroy).await;
    // Slow calls let the guest exit arrive during the reboot.
    sim_host.sim.rule(|_| SimBehaviour::takes(Duration::from_millis(20)));
    sim_host.done("VM.clean_reboot", [machine.value()]).await;
    assert_eq!(sim_host.power(&machine), "Running");
    assert_ne!(sim_host.get(&machine, vm::Field::domid), first);
    assert_eq!(sim_host.messages(), Vec::<String>::new());
    assert_eq!(sim_host.sim.broken(), Vec::<String>::new());
}

/// An operation fails because the guest has exited. The exit is handled as configured.
#[tokio::test]
async fn an_end_in_the_middle_of_something_else_is_followed() {
    let exits = [(DomainExit::Rebooted, "VM_REBOOTED"), (DomainExit::Killed, "VM_CRASHED")];
    for (exit, expected) in exits {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.running().await;
        let (slot, _) = sim_host.device(&machine).await;
        let first = sim_host.get(&machine, vm::Field::domid);
        // After this run time, a restart has no delay.
        sim_host.test_app.hands.pass(60);
        sim_host.sim.rule(|call| match call.call_kind {
            CallKind::PlugDisk => SimBehaviour {
                sim_result: SimResult::Fails,
                ..SimBehaviour::takes(Duration::from_millis(50))
            },
            _ => SimBehaviour::default(),
        });
        let ends = async {
            let plugs = |sim_host: &SimulatedHost| {
                sim_host.get(&slot, vbd::Field::current_operations) != none()
            };
            sim_host.until(plugs).await;
            match exit {
                DomainExit::Killed => sim_host.sim.kill_process(sim_host.id(&machine)),
                _ => sim_host.sim.end_guest(sim_host.id(&machine), exit),
            }
            sim_host.sim.rule(|_| SimBehaviour::default());
        };
        let (plugged, ()) = tokio::join!(sim_host.test_app.call("VBD.plug", [slot.value()]), ends);
        assert!(plugged.is_err(), "{plugged:?}");
        sim_host
            .until(|sim_host| {
                let domid = sim_host.get(&machine, vm::Field::domid);
                sim_host.power(&machine) == "Running"
                    && ![first.clone(), Value::Int(-1)].contains(&domid)
            })
            .await;
        assert_eq!(sim_host.messages(), [expected]);
        assert_eq!(sim_host.sim.broken(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_crash_gets_what_is_set_for_it() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    let set = |what: &str| [machine.value(), Value::text(what)];
    sim_host.done("VM.set_actions_after_crash", set("preserve")).await;
    sim_host.sim.end_guest(sim_host.id(&machine), DomainExit::Panicked);
    sim_host.until(|sim_host| sim_host.power(&machine) == "Paused").await;
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.done("VM.set_actions_after_crash", set("destroy")).await;
    sim_host.start(&machine).await;
    sim_host.sim.kill_process(sim_host.id(&machine));
    sim_host.until(|sim_host| sim_host.power(&machine) == "Halted").await;
    sim_host.done("VM.set_actions_after_crash", set("restart")).await;
    sim_host.start(&machine).await;
    let first = sim_host.get(&machine, vm::Field::domid);
    // After this run time, a restart has no delay.
    sim_host.test_app.hands.pass(60);
    sim_host.sim.kill_process(sim_host.id(&machine));
    sim_host
        .until(|sim_host| {
            let domid = sim_host.get(&machine, vm::Field::domid);
            sim_host.power(&machine) == "Running" && domid != first && domid != Value::Int(-1)
        })
        .await;
    assert_eq!(sim_host.messages(), ["VM_CRASHED"; 3]);
    assert_eq!(sim_host.sim.broken(), Vec::<String>::new());
}

/// Restarts of a crash loop are delayed. Test time is paused and advances while the runtime is
/// idle.
#[tokio::test(start_paused = true)]
async fn a_crash_at_once_is_started_again_after_a_while() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    sim_host.done("VM.set_actions_after_crash", [machine.value(), Value::text("restart")]).await;
    sim_host.sim.kill_process(sim_host.id(&machine));
    sim_host.until(|sim_host| sim_host.power(&machine) == "Halted").await;
    let halted = tokio::time::Instant::now();
    sim_host.until(|sim_host| sim_host.power(&machine) == "Running").await;
    let waited = halted.elapsed();
    assert!(waited >= model::vm::exits::RESTART_INTERVAL, "{waited:?}");
}

/// Some VMs ended while no daemon ran, some run on, and some had only begun to start.
#[test]
fn after_a_restart_records_are_true() {
    let (sim_host, [stays, ended, killed, begun], slot) = life(async {
        let sim_host = SimulatedHost::new().await;
        let running =
            [sim_host.running().await, sim_host.running().await, sim_host.running().await];
        let begun = sim_host.machine().await;
        let (slot, _) = sim_host.device(&begun).await;
        let set = [running[2].value(), Value::text("destroy")];
        sim_host.done("VM.set_actions_after_crash", set).await;
        sim_host.sim.rule(|call| match call.call_kind {
            CallKind::PlugDisk => SimBehaviour::ends(SimResult::HangsDone),
            _ => SimBehaviour::default(),
        });
        {
            let made = sim_host.until(|it| it.get(&begun, vm::Field::domid) != Value::Int(-1));
            let start = sim_host.test_app.call("VM.start", [begun.value(), no(), no()]);
            tokio::select! {
                _ = start => panic!("it hangs"),
                () = made => {}
            }
        }
        sim_host.stored().await;
        let [stays, ended, killed] = running;
        (sim_host, [stays, ended, killed, begun], slot)
    });
    let of_record = [vm::Field::domid, vm::Field::resident_on, vm::Field::consoles];
    let before = of_record.map(|field| sim_host.get(&stays, field));
    sim_host.sim.rule(|_| SimBehaviour::default());
    sim_host.sim.end_guest(sim_host.id(&ended), DomainExit::PoweredOff);
    sim_host.sim.kill_process(sim_host.id(&killed));
    life(async {
        let sim_host = sim_host.again(BOOT).await;
        assert_eq!(sim_host.power(&stays), "Running");
        assert_eq!(of_record.map(|field| sim_host.get(&stays, field)), before);
        for machine in [&ended, &killed, &begun] {
            sim_host.until(|sim_host| sim_host.power(machine) == "Halted").await;
        }
        assert!(!sim_host.attached(&slot));
        assert_eq!(sim_host.messages(), ["VM_SHUTDOWN", "VM_CRASHED"]);
        sim_host.done("VM.hard_shutdown", [stays.value()]).await;
        sim_host.start(&begun).await;
        assert!(sim_host.attached(&slot));
        sim_host.done("VM.hard_shutdown", [begun.value()]).await;
        sim_host.assert_clean();
    });
}

/// After a boot of the host, VMs that ran are halted, and VMs with automatic power-on start.
#[test]
fn a_host_that_boots_starts_those_that_are_chosen() {
    let (sim_host, chosen, other) = life(async {
        let sim_host = SimulatedHost::new().await;
        let (chosen, other) = (sim_host.running().await, sim_host.running().await);
        let set = |of: &Ref| [of.value(), Value::text("auto_poweron"), Value::text("true")];
        let Value::Set(pool) = sim_host.call("pool.get_all", []).await else { panic!() };
        sim_host.done("pool.add_to_other_config", set(&Ref::from(text(&pool[0])))).await;
        sim_host.done("VM.add_to_other_config", set(&chosen)).await;
        sim_host.stored().await;
        (sim_host, chosen, other)
    });
    let before = sim_host.get(&chosen, vm::Field::domid);
    let sim_host = SimulatedHost { sim: Sim::new(), ..sim_host };
    life(async {
        let sim_host = sim_host.again("second").await;
        sim_host.until(|sim_host| sim_host.power(&chosen) == "Running").await;
        assert_ne!(sim_host.get(&chosen, vm::Field::domid), before, "another domain");
        assert_eq!(sim_host.power(&other), "Halted");
        assert_eq!(sim_host.messages(), Vec::<String>::new(), "nobody has crashed");
    });
}

/// Returns all allowed operations, by reference.
fn may_be_asked(sim_host: &SimulatedHost) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for class in ["VM", "VBD", "VDI", "SR", "VIF"] {
        let class = xenapi::table::class(class).unwrap();
        let (field, _) = class.field("allowed_operations").unwrap();
        sim_host.test_app.app.db.read(|view| {
            let objects = view.all(class).map(|one| {
                let name = format!("{} {}", class.name, one.reference());
                (name, one.get(field).unwrap().clone())
            });
            all.extend(objects);
        });
    }
    all
}

/// Allowed operations are not stored, so the next daemon recomputes them.
#[test]
fn after_a_restart_the_same_may_be_asked() {
    let (sim_host, before, slots) = life(async {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.machine().await;
        let (slot, _) = sim_host.device(&machine).await;
        let drive = sim_host.made("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
        sim_host.start(&machine).await;
        let (late, _) = sim_host.device(&machine).await;
        // The guest reports that it supports disk hotplug.
        let class = &xenapi::table::vm_guest_metrics::CLASS;
        let written = sim_host.test_app.app.db.write_observed(|tx| {
            use xenapi::table::vm_guest_metrics::Field;
            let metrics = tx.create(class, Vec::new())?;
            tx.set(&machine, vm::Field::guest_metrics, metrics.value())?;
            for field in [Field::can_use_hotplug_vbd, Field::can_use_hotplug_vif] {
                tx.set(&metrics, field, Value::text("yes"))?;
            }
            tx.set(&metrics, Field::PV_drivers_detected, yes())
        });
        written.unwrap();
        sim_host.stored().await;
        let before = may_be_asked(&sim_host);
        (sim_host, before, [slot, drive, late])
    });
    let of = |all: &BTreeMap<String, Value>, slot: &Ref| all[&format!("VBD {slot}")].clone();
    let words = |text: &str| Value::Set(text.split(' ').map(Value::text).collect());
    let [slot, drive, late] = &slots;
    // XenServer also allows `attach` for attached VBDs.
    assert_eq!(of(&before, slot), words("attach unplug unplug_force"));
    assert_eq!(of(&before, drive), words("attach insert"));
    assert_eq!(of(&before, late), words("attach plug"));
    life(async {
        let sim_host = sim_host.again(BOOT).await;
        assert!(sim_host.attached(slot));
        assert_eq!(may_be_asked(&sim_host), before);
    });
}
