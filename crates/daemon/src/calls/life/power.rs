use model::refusal::states;
use model::vm::{PowerState, VmOp, power_states};
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{class, console, host, vbd, vdi, vm, vm_metrics};
use xenapi::{Date, NULL_REF, Value};

use super::*;
use crate::calls::vm_lifecycle;
use crate::records::fields::reference;

#[tokio::test]
async fn a_machine_is_installed_started_and_shut_down() {
    let world = SimulatedHost::new().await;
    let template = world.template("Other install media").await;
    let machine = world.made("VM.clone", [template.value(), Value::text("t")]).await;
    let refused = world.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["VM_IS_TEMPLATE", machine.as_str()]);
    world.done("VM.provision", [machine.value()]).await;
    assert_eq!(world.get(&machine, vm::Field::is_a_template), no());
    let slots = world.slots(&machine);
    let [slot] = slots.as_slice() else { panic!("{slots:?}") };
    let disk = Ref::from(text(&world.get(slot, vbd::Field::VDI)));
    assert_eq!(world.get(&disk, vdi::Field::virtual_size), Value::Int(8 << 30));
    world.trial.hands.set(1_000);
    world.start(&machine).await;
    assert_eq!(world.power(&machine), "Running");
    assert_eq!(world.get(slot, vbd::Field::device), Value::text("vda"));
    assert!(world.attached(slot));
    let metrics = Ref::from(text(&world.get(&machine, vm::Field::metrics)));
    assert_eq!(world.get(&metrics, vm_metrics::Field::start_time), Value::Date(Date(1_000)));
    let home = Ref::from(text(&world.get(&machine, vm::Field::resident_on)));
    assert!(world.trial.house.db.read(|view| view.object(&host::CLASS, &home).is_ok()));
    let Value::Set(consoles) = world.get(&machine, vm::Field::consoles) else { panic!() };
    let [line] = consoles.as_slice() else { panic!("{consoles:?}") };
    let line = Ref::from(text(line));
    assert_eq!(world.get(&line, console::Field::protocol), Value::text("vt100"));
    let again = world.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(again, ["VM_BAD_POWER_STATE", machine.as_str(), "halted", "running"]);
    world.done("VM.clean_shutdown", [machine.value()]).await;
    assert_eq!(world.power(&machine), "Halted");
    assert_eq!(world.get(&machine, vm::Field::domid), Value::Int(-1));
    assert_eq!(world.get(&machine, vm::Field::consoles), Value::Set(Vec::new()));
    assert_eq!(world.get(&machine, vm::Field::resident_on), Value::text(NULL_REF));
    assert_eq!(world.get(&machine, vm::Field::current_operations), none());
    assert_eq!(world.get(slot, vbd::Field::device), Value::text(""));
    assert!(!world.attached(slot));
    assert_eq!(world.messages(), Vec::<String>::new(), "what was asked for is no news");
    world.assert_clean();
}

#[tokio::test]
async fn each_operation_ends_in_its_power_state() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    world.done("VM.start", [machine.value(), yes(), no()]).await;
    assert_eq!(world.power(&machine), "Paused");
    for (method, power) in [
        ("VM.unpause", "Running"),
        ("VM.pause", "Paused"),
        ("VM.hard_reboot", "Running"),
        ("VM.clean_reboot", "Running"),
        ("VM.shutdown", "Halted"),
    ] {
        let before = world.get(&machine, vm::Field::domid);
        world.done(method, [machine.value()]).await;
        assert_eq!(world.power(&machine), power, "{method}");
        let same = world.get(&machine, vm::Field::domid) == before;
        assert_eq!(same, !method.ends_with("reboot") && power != "Halted", "{method}");
    }
    world.start(&machine).await;
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.assert_clean();
}

/// A guest counts its disks as it begins to run, or stands before that.
#[tokio::test]
async fn disks_are_named_when_a_guest_begins() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (first, _) = world.device(&machine).await;
    let (second, _) = world.device(&machine).await;
    let named = |expected: [&str; 2]| {
        let names = [&first, &second].map(|slot| world.get(slot, vbd::Field::device));
        assert_eq!(names, expected.map(Value::text));
    };
    world.sim.rule(|call| match call.what {
        CallKind::PlugDisk => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    assert!(world.trial.call("VM.start", [machine.value(), no(), no()]).await.is_err());
    named(["", ""]);
    world.sim.rule(|_| SimBehaviour::default());
    world.done("VM.start", [machine.value(), yes(), no()]).await;
    named(["vda", "vdb"]);
    world.done("VM.unpause", [machine.value()]).await;
    world.done("VBD.unplug", [first.value()]).await;
    named(["", "vdb"]);
    world.done("VM.hard_reboot", [machine.value()]).await;
    named(["vda", "vdb"]);
    world.done("VM.hard_shutdown", [machine.value()]).await;
    named(["", ""]);
    world.assert_clean();
}

/// Parameters of a message about a machine: nothing but the machine.
fn about(method: &str, machine: &Ref) -> Vec<Value> {
    let message = class("VM").unwrap().message(method).unwrap();
    let rest = message.params.iter().skip(1).map(|param| param.ty.zero());
    std::iter::once(machine.value()).chain(rest).collect()
}

#[tokio::test]
async fn every_operation_is_refused_in_every_wrong_power_state() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let mut count = 0;
    for power in [PowerState::Halted, PowerState::Running, PowerState::Paused] {
        match power {
            PowerState::Halted => {}
            PowerState::Running => world.start(&machine).await,
            _ => world.done("VM.pause", [machine.value()]).await,
        }
        for (name, _) in vm_lifecycle::CALLS {
            let method = name.strip_prefix("VM.").unwrap();
            let expected = power_states(VmOp::parse(method).unwrap(), false);
            if expected.contains(&power) {
                continue;
            }
            let said = world.refused(name, about(method, &machine)).await;
            let wanted = words([
                "VM_BAD_POWER_STATE",
                machine.as_str(),
                &states(expected),
                power.error_name(),
            ]);
            assert_eq!(said, wanted, "{name}");
            count += 1;
        }
        assert_eq!(world.power(&machine), power.name());
    }
    assert!(count > 30, "{count}");
    world.done("VM.hard_shutdown", [machine.value()]).await;
    for method in ["snapshot", "power_state_reset"] {
        let _ = world.trial.call(&format!("VM.{method}"), about(method, &machine)).await;
    }
    let snapshot = world.refused("VM.snapshot", about("snapshot", &machine)).await;
    assert_eq!(snapshot, ["NOT_IMPLEMENTED", "VM.snapshot"]);
}

#[tokio::test]
async fn what_is_blocked_is_refused() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let block = [machine.value(), Value::text("start"), Value::text("not today")];
    world.done("VM.add_to_blocked_operations", block).await;
    let refused = world.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["OPERATION_BLOCKED", machine.as_str(), "not today"]);
}

#[tokio::test]
async fn a_machine_that_cannot_boot_is_not_started() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    world.done("VM.set_HVM_boot_policy", [machine.value(), Value::text("")]).await;
    world.done("VM.set_PV_kernel", [machine.value(), Value::text("/etc/passwd")]).await;
    let refused = world.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(&refused[..2], ["BOOTLOADER_FAILED", machine.as_str()]);
    assert!(refused[2].contains("/etc/passwd"), "{refused:?}");
    assert_eq!(world.power(&machine), "Halted");
    let home = world
        .trial
        .house
        .db
        .read(|view| view.all(&host::CLASS).next().unwrap().reference().clone());
    world.done("host.disable", [home.value()]).await;
    let refused = world.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["HOST_DISABLED", home.as_str()]);
}

/// The second call waits for the first one and is refused then; what is under way is told.
#[tokio::test]
async fn two_starts_at_once_are_one() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    world.sim.rule(|call| match call.what {
        CallKind::Create => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    let start = || world.trial.call("VM.start", [machine.value(), no(), no()]);
    let (released, first, second) = tokio::join!(
        async {
            world.until(|world| world.get(&machine, vm::Field::current_operations) != none()).await;
            let current = world.get(&machine, vm::Field::current_operations);
            world.sim.rule(|_| SimBehaviour::default());
            current
        },
        start(),
        start(),
    );
    let Value::Map(current) = released else { panic!() };
    assert_eq!(current.values().collect::<Vec<_>>(), [&Value::text("start")]);
    let (refused, done) = if first.is_ok() { (second, first) } else { (first, second) };
    assert!(done.is_ok());
    let expected = ["VM_BAD_POWER_STATE", machine.as_str(), "halted", "running"];
    assert_eq!(refused.unwrap_err().details(), expected);
    assert_eq!(world.get(&machine, vm::Field::current_operations), none());
}

/// Whoever asked goes away: it is done all the same, and no longer under way then.
#[tokio::test]
async fn an_operation_goes_on_without_its_caller() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    world.sim.rule(|call| match call.what {
        CallKind::Create => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    {
        let begun = world.until(|it| it.get(&machine, vm::Field::current_operations) != none());
        let start = world.trial.call("VM.start", [machine.value(), no(), no()]);
        tokio::select! {
            _ = start => panic!("it hangs"),
            () = begun => {}
        }
    }
    world.sim.rule(|_| SimBehaviour::default());
    world.until(|world| world.power(&machine) == "Running").await;
    world.until(|world| world.get(&machine, vm::Field::current_operations) == none()).await;
}

/// A failed start leaves nothing, and the next one works.
#[tokio::test]
async fn a_start_that_fails_leaves_nothing() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, _) = world.device(&machine).await;
    world.sim.rule(|call| match call.what {
        CallKind::Activate => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let refused = world.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused.first().map(String::as_str), Some("SR_BACKEND_FAILURE"), "{refused:?}");
    world.sim.rule(|_| SimBehaviour::default());
    assert_eq!(world.power(&machine), "Halted");
    assert!(!world.attached(&slot));
    world.start(&machine).await;
    assert!(world.attached(&slot));
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.assert_clean();
    let home = world.trial.house.db.read(|view| reference(view, &machine, vm::Field::resident_on));
    assert_eq!(home, Ok(Ref::from(NULL_REF)));
}
