use std::time::Duration;

use model::vm::exits::DomainExit;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::vm;

use super::*;

#[tokio::test]
async fn what_a_guest_does_itself_is_followed() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, _) = world.device(&machine).await;
    world.start(&machine).await;
    let first = world.get(&machine, vm::Field::domid);
    world.sim.end_guest(world.id(&machine), DomainExit::Rebooted);
    world
        .until(|world| {
            world.power(&machine) == "Running"
                && world.get(&machine, vm::Field::domid) != first
                && world.get(&machine, vm::Field::domid) != Value::Int(-1)
        })
        .await;
    world.until(|world| world.attached(&slot)).await;
    world.until(|world| world.get(&machine, vm::Field::current_operations) == none()).await;
    world.sim.end_guest(world.id(&machine), DomainExit::PoweredOff);
    world.until(|world| world.power(&machine) == "Halted").await;
    assert!(!world.attached(&slot));
    assert_eq!(world.messages(), ["VM_REBOOTED", "VM_SHUTDOWN"]);
    world.assert_clean();
}

#[tokio::test]
async fn the_end_that_a_reboot_waits_for_is_the_reboots() {
    let world = SimulatedHost::new().await;
    let machine = world.running().await;
    let first = world.get(&machine, vm::Field::domid);
    // What is set for its own reboots would halt it.
    let destroy = [machine.value(), Value::text("destroy")];
    world.done("VM.set_actions_after_reboot", destroy).await;
    // Slow enough that the end is followed while the reboot goes on.
    world.sim.rule(|_| SimBehaviour::takes(Duration::from_millis(20)));
    world.done("VM.clean_reboot", [machine.value()]).await;
    assert_eq!(world.power(&machine), "Running");
    assert_ne!(world.get(&machine, vm::Field::domid), first);
    assert_eq!(world.messages(), Vec::<String>::new());
    assert_eq!(world.sim.broken(), Vec::<String>::new());
}

/// What fails because the guest has ended leaves that end to what is set for it.
#[tokio::test]
async fn an_end_in_the_middle_of_something_else_is_followed() {
    let exits = [(DomainExit::Rebooted, "VM_REBOOTED"), (DomainExit::Killed, "VM_CRASHED")];
    for (exit, told) in exits {
        let world = SimulatedHost::new().await;
        let machine = world.running().await;
        let (slot, _) = world.device(&machine).await;
        let first = world.get(&machine, vm::Field::domid);
        // It has run for so long that nobody need wait before it is started again.
        world.trial.hands.pass(60);
        world.sim.rule(|call| match call.what {
            CallKind::PlugDisk => SimBehaviour {
                end: SimResult::Fails,
                ..SimBehaviour::takes(Duration::from_millis(50))
            },
            _ => SimBehaviour::default(),
        });
        let ends = async {
            let plugs =
                |world: &SimulatedHost| world.get(&slot, vbd::Field::current_operations) != none();
            world.until(plugs).await;
            match exit {
                DomainExit::Killed => world.sim.kill_process(world.id(&machine)),
                _ => world.sim.end_guest(world.id(&machine), exit),
            }
            world.sim.rule(|_| SimBehaviour::default());
        };
        let (plugged, ()) = tokio::join!(world.trial.call("VBD.plug", [slot.value()]), ends);
        assert!(plugged.is_err(), "{plugged:?}");
        world
            .until(|world| {
                let domid = world.get(&machine, vm::Field::domid);
                world.power(&machine) == "Running"
                    && ![first.clone(), Value::Int(-1)].contains(&domid)
            })
            .await;
        assert_eq!(world.messages(), [told]);
        assert_eq!(world.sim.broken(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_crash_gets_what_is_set_for_it() {
    let world = SimulatedHost::new().await;
    let machine = world.running().await;
    let set = |what: &str| [machine.value(), Value::text(what)];
    world.done("VM.set_actions_after_crash", set("preserve")).await;
    world.sim.end_guest(world.id(&machine), DomainExit::Panicked);
    world.until(|world| world.power(&machine) == "Paused").await;
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.done("VM.set_actions_after_crash", set("destroy")).await;
    world.start(&machine).await;
    world.sim.kill_process(world.id(&machine));
    world.until(|world| world.power(&machine) == "Halted").await;
    world.done("VM.set_actions_after_crash", set("restart")).await;
    world.start(&machine).await;
    let first = world.get(&machine, vm::Field::domid);
    // It has run for so long that nobody need wait before it is started again.
    world.trial.hands.pass(60);
    world.sim.kill_process(world.id(&machine));
    world
        .until(|world| {
            let domid = world.get(&machine, vm::Field::domid);
            world.power(&machine) == "Running" && domid != first && domid != Value::Int(-1)
        })
        .await;
    assert_eq!(world.messages(), ["VM_CRASHED"; 3]);
    assert_eq!(world.sim.broken(), Vec::<String>::new());
}

/// A crash in a loop waits between two starts; time here is that of the runtime.
#[tokio::test(start_paused = true)]
async fn a_crash_at_once_is_started_again_after_a_while() {
    let world = SimulatedHost::new().await;
    let machine = world.running().await;
    world.done("VM.set_actions_after_crash", [machine.value(), Value::text("restart")]).await;
    world.sim.kill_process(world.id(&machine));
    world.until(|world| world.power(&machine) == "Halted").await;
    let halted = tokio::time::Instant::now();
    world.until(|world| world.power(&machine) == "Running").await;
    let waited = halted.elapsed();
    assert!(waited >= model::vm::exits::RESTART_INTERVAL, "{waited:?}");
}

/// What ended while no daemon was there, what runs on, and what was only begun.
#[test]
fn after_a_restart_records_are_true() {
    let (world, [stays, ended, killed, begun], slot) = life(async {
        let world = SimulatedHost::new().await;
        let running = [world.running().await, world.running().await, world.running().await];
        let begun = world.machine().await;
        let (slot, _) = world.device(&begun).await;
        let set = [running[2].value(), Value::text("destroy")];
        world.done("VM.set_actions_after_crash", set).await;
        world.sim.rule(|call| match call.what {
            CallKind::PlugDisk => SimBehaviour::ends(SimResult::HangsDone),
            _ => SimBehaviour::default(),
        });
        {
            let made = world.until(|it| it.get(&begun, vm::Field::domid) != Value::Int(-1));
            let start = world.trial.call("VM.start", [begun.value(), no(), no()]);
            tokio::select! {
                _ = start => panic!("it hangs"),
                () = made => {}
            }
        }
        world.stored().await;
        let [stays, ended, killed] = running;
        (world, [stays, ended, killed, begun], slot)
    });
    let of_record = [vm::Field::domid, vm::Field::resident_on, vm::Field::consoles];
    let before = of_record.map(|field| world.get(&stays, field));
    world.sim.rule(|_| SimBehaviour::default());
    world.sim.end_guest(world.id(&ended), DomainExit::PoweredOff);
    world.sim.kill_process(world.id(&killed));
    life(async {
        let world = world.again(BOOT).await;
        assert_eq!(world.power(&stays), "Running");
        assert_eq!(of_record.map(|field| world.get(&stays, field)), before);
        for machine in [&ended, &killed, &begun] {
            world.until(|world| world.power(machine) == "Halted").await;
        }
        assert!(!world.attached(&slot));
        assert_eq!(world.messages(), ["VM_SHUTDOWN", "VM_CRASHED"]);
        world.done("VM.hard_shutdown", [stays.value()]).await;
        world.start(&begun).await;
        assert!(world.attached(&slot));
        world.done("VM.hard_shutdown", [begun.value()]).await;
        world.assert_clean();
    });
}

/// Machines that ran when their host stopped are halted when it is back; chosen ones are started.
#[test]
fn a_host_that_boots_starts_those_that_are_chosen() {
    let (world, chosen, other) = life(async {
        let world = SimulatedHost::new().await;
        let (chosen, other) = (world.running().await, world.running().await);
        let set = |of: &Ref| [of.value(), Value::text("auto_poweron"), Value::text("true")];
        let Value::Set(pool) = world.call("pool.get_all", []).await else { panic!() };
        world.done("pool.add_to_other_config", set(&Ref::from(text(&pool[0])))).await;
        world.done("VM.add_to_other_config", set(&chosen)).await;
        world.stored().await;
        (world, chosen, other)
    });
    let before = world.get(&chosen, vm::Field::domid);
    let world = SimulatedHost { sim: Sim::new(), ..world };
    life(async {
        let world = world.again("second").await;
        world.until(|world| world.power(&chosen) == "Running").await;
        assert_ne!(world.get(&chosen, vm::Field::domid), before, "another domain");
        assert_eq!(world.power(&other), "Halted");
        assert_eq!(world.messages(), Vec::<String>::new(), "nobody has crashed");
    });
}

/// What may be asked of everything, by reference.
fn may_be_asked(world: &SimulatedHost) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for class in ["VM", "VBD", "VDI", "SR", "VIF"] {
        let class = xenapi::table::class(class).unwrap();
        let (field, _) = class.field("allowed_operations").unwrap();
        world.trial.house.db.read(|view| {
            let objects = view.all(class).map(|one| {
                let name = format!("{} {}", class.name, one.reference());
                (name, one.get(field).unwrap().clone())
            });
            all.extend(objects);
        });
    }
    all
}

/// None of that is stored: a daemon that starts works it out anew.
#[test]
fn after_a_restart_the_same_may_be_asked() {
    let (world, before, slots) = life(async {
        let world = SimulatedHost::new().await;
        let machine = world.machine().await;
        let (slot, _) = world.device(&machine).await;
        let drive = world.made("VBD.create", [world.slot(&machine, None, "CD")]).await;
        world.start(&machine).await;
        let (late, _) = world.device(&machine).await;
        // Its guest says that it takes disks.
        let class = &xenapi::table::vm_guest_metrics::CLASS;
        let told = world.trial.house.db.write_observed(|tx| {
            use xenapi::table::vm_guest_metrics::Field;
            let told = tx.create(class, Vec::new())?;
            tx.set(&machine, vm::Field::guest_metrics, told.value())?;
            for field in [Field::can_use_hotplug_vbd, Field::can_use_hotplug_vif] {
                tx.set(&told, field, Value::text("yes"))?;
            }
            tx.set(&told, Field::PV_drivers_detected, yes())
        });
        told.unwrap();
        world.stored().await;
        let before = may_be_asked(&world);
        (world, before, [slot, drive, late])
    });
    let of = |all: &BTreeMap<String, Value>, slot: &Ref| all[&format!("VBD {slot}")].clone();
    let words = |text: &str| Value::Set(text.split(' ').map(Value::text).collect());
    let [slot, drive, late] = &slots;
    // XenServer, too, names `attach` of what is attached.
    assert_eq!(of(&before, slot), words("attach unplug unplug_force"));
    assert_eq!(of(&before, drive), words("attach insert"));
    assert_eq!(of(&before, late), words("attach plug"));
    life(async {
        let world = world.again(BOOT).await;
        assert!(world.attached(slot));
        assert_eq!(may_be_asked(&world), before);
    });
}
