use model::refusal::states;
use model::vm::{PowerState, VmOp, power_states};
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{class, console, host, vbd, vdi, vm, vm_metrics};
use xenapi::{Date, NULL_REF, Value};

use super::app::URL;
use super::simulated_host::*;
use crate::calls::vm_lifecycle;
use crate::records::fields::reference;

#[tokio::test]
async fn a_machine_is_installed_started_and_shut_down() {
    let sim_host = SimulatedHost::new().await;
    let template = sim_host.template("Other install media").await;
    let machine = sim_host.made("VM.clone", [template.value(), Value::text("t")]).await;
    let refused = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["VM_IS_TEMPLATE", machine.as_str()]);
    sim_host.done("VM.provision", [machine.value()]).await;
    assert_eq!(sim_host.get(&machine, vm::Field::is_a_template), no());
    let slots = sim_host.slots(&machine);
    let is_drive = |slot: &&Ref| sim_host.get(slot, vbd::Field::r#type) == Value::text("CD");
    let (drives, disks): (Vec<&Ref>, Vec<&Ref>) = slots.iter().partition(is_drive);
    let ([slot], [drive]) = (&disks[..], &drives[..]) else { panic!("{slots:?}") };
    assert_eq!(sim_host.get(drive, vbd::Field::userdevice), Value::text("3"));
    assert_eq!(sim_host.get(drive, vbd::Field::empty), yes());
    let disk = Ref::from(text(&sim_host.get(slot, vbd::Field::VDI)));
    assert_eq!(sim_host.get(&disk, vdi::Field::virtual_size), Value::Int(8 << 30));
    sim_host.test_app.hands.set(1_000);
    sim_host.start(&machine).await;
    assert_eq!(sim_host.power(&machine), "Running");
    assert_eq!(sim_host.get(slot, vbd::Field::device), Value::text("vda"));
    assert!(sim_host.attached(slot));
    let metrics = Ref::from(text(&sim_host.get(&machine, vm::Field::metrics)));
    assert_eq!(sim_host.get(&metrics, vm_metrics::Field::start_time), Value::Date(Date(1_000)));
    let home = Ref::from(text(&sim_host.get(&machine, vm::Field::resident_on)));
    assert!(sim_host.test_app.app.db.read(|view| view.object(&host::CLASS, &home).is_ok()));
    let Value::Set(consoles) = sim_host.get(&machine, vm::Field::consoles) else { panic!() };
    let [line] = consoles.as_slice() else { panic!("{consoles:?}") };
    let line = Ref::from(text(line));
    assert_eq!(sim_host.get(&line, console::Field::protocol), Value::text("vt100"));
    let place = sim_host.get(&line, console::Field::location);
    assert!(text(&place).starts_with(&format!("{URL}/console?uuid=")), "{place:?}");
    let again = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(again, ["VM_BAD_POWER_STATE", machine.as_str(), "halted", "running"]);
    sim_host.done("VM.clean_shutdown", [machine.value()]).await;
    assert_eq!(sim_host.power(&machine), "Halted");
    assert_eq!(sim_host.get(&machine, vm::Field::domid), Value::Int(-1));
    assert_eq!(sim_host.get(&machine, vm::Field::consoles), Value::Set(Vec::new()));
    assert_eq!(sim_host.get(&machine, vm::Field::resident_on), Value::text(NULL_REF));
    assert_eq!(sim_host.get(&machine, vm::Field::current_operations), none());
    assert_eq!(sim_host.get(slot, vbd::Field::device), Value::text(""));
    assert!(!sim_host.attached(slot));
    assert_eq!(sim_host.messages(), Vec::<String>::new(), "what was asked for is no news");
    sim_host.assert_clean();
}

#[tokio::test]
async fn each_operation_ends_in_its_power_state() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    sim_host.done("VM.start", [machine.value(), yes(), no()]).await;
    assert_eq!(sim_host.power(&machine), "Paused");
    for (method, power) in [
        ("VM.unpause", "Running"),
        ("VM.pause", "Paused"),
        ("VM.hard_reboot", "Running"),
        ("VM.clean_reboot", "Running"),
        ("VM.shutdown", "Halted"),
    ] {
        let before = sim_host.get(&machine, vm::Field::domid);
        sim_host.done(method, [machine.value()]).await;
        assert_eq!(sim_host.power(&machine), power, "{method}");
        let same = sim_host.get(&machine, vm::Field::domid) == before;
        assert_eq!(same, !method.ends_with("reboot") && power != "Halted", "{method}");
    }
    sim_host.start(&machine).await;
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

/// A guest numbers its disks when it starts to run or is paused before that.
#[tokio::test]
async fn disks_are_named_when_a_guest_begins() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (first, _) = sim_host.device(&machine).await;
    let (second, _) = sim_host.device(&machine).await;
    let named = |expected: [&str; 2]| {
        let names = [&first, &second].map(|slot| sim_host.get(slot, vbd::Field::device));
        assert_eq!(names, expected.map(Value::text));
    };
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::PlugDisk => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    assert!(sim_host.test_app.call("VM.start", [machine.value(), no(), no()]).await.is_err());
    named(["", ""]);
    sim_host.sim.rule(|_| SimBehaviour::default());
    sim_host.done("VM.start", [machine.value(), yes(), no()]).await;
    named(["vda", "vdb"]);
    sim_host.done("VM.unpause", [machine.value()]).await;
    sim_host.done("VBD.unplug", [first.value()]).await;
    named(["", "vdb"]);
    sim_host.done("VM.hard_reboot", [machine.value()]).await;
    named(["vda", "vdb"]);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    named(["", ""]);
    sim_host.assert_clean();
}

/// Returns the parameters of a message that takes only a VM.
fn about(method: &str, machine: &Ref) -> Vec<Value> {
    let message = class("VM").unwrap().message(method).unwrap();
    let rest = message.params.iter().skip(1).map(|param| param.ty.zero());
    std::iter::once(machine.value()).chain(rest).collect()
}

#[tokio::test]
async fn every_operation_is_refused_in_every_wrong_power_state() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let mut count = 0;
    for power in [PowerState::Halted, PowerState::Running, PowerState::Paused] {
        match power {
            PowerState::Halted => {}
            PowerState::Running => sim_host.start(&machine).await,
            _ => sim_host.done("VM.pause", [machine.value()]).await,
        }
        for (name, _) in vm_lifecycle::CALLS {
            let method = name.strip_prefix("VM.").unwrap();
            let expected = power_states(VmOp::parse(method).unwrap(), false);
            if expected.contains(&power) {
                continue;
            }
            let error = sim_host.refused(name, about(method, &machine)).await;
            let wanted = words([
                "VM_BAD_POWER_STATE",
                machine.as_str(),
                &states(expected),
                power.error_name(),
            ]);
            assert_eq!(error, wanted, "{name}");
            count += 1;
        }
        assert_eq!(sim_host.power(&machine), power.name());
    }
    assert!(count > 30, "{count}");
    let checkpoint = sim_host.refused("VM.checkpoint", about("checkpoint", &machine)).await;
    assert_eq!(checkpoint, ["NOT_IMPLEMENTED", "VM.checkpoint"]);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    let _ = sim_host.test_app.call("VM.power_state_reset", [machine.value()]).await;
}

#[tokio::test]
async fn what_is_blocked_is_refused() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let block = [machine.value(), Value::text("start"), Value::text("not today")];
    sim_host.done("VM.add_to_blocked_operations", block).await;
    let refused = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["OPERATION_BLOCKED", machine.as_str(), "not today"]);
}

#[tokio::test]
async fn a_machine_that_cannot_boot_is_not_started() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    sim_host.done("VM.set_HVM_boot_policy", [machine.value(), Value::text("")]).await;
    sim_host.done("VM.set_PV_kernel", [machine.value(), Value::text("/etc/passwd")]).await;
    let refused = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(&refused[..2], ["BOOTLOADER_FAILED", machine.as_str()]);
    assert!(refused[2].contains("/etc/passwd"), "{refused:?}");
    assert_eq!(sim_host.power(&machine), "Halted");
    let home = sim_host
        .test_app
        .app
        .db
        .read(|view| view.all(&host::CLASS).next().unwrap().reference().clone());
    sim_host.done("host.disable", [home.value()]).await;
    let refused = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["HOST_DISABLED", home.as_str()]);
}

/// The second call waits for the first and is then refused. `current_operations` shows the
/// operation.
#[tokio::test]
async fn two_starts_at_once_are_one() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Create => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    let start = || sim_host.test_app.call("VM.start", [machine.value(), no(), no()]);
    let (released, first, second) = tokio::join!(
        async {
            sim_host
                .until(|sim_host| sim_host.get(&machine, vm::Field::current_operations) != none())
                .await;
            let current = sim_host.get(&machine, vm::Field::current_operations);
            sim_host.sim.rule(|_| SimBehaviour::default());
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
    assert_eq!(sim_host.get(&machine, vm::Field::current_operations), none());
}

/// An operation continues after its client disconnects. Afterwards no operation is under way.
#[tokio::test]
async fn an_operation_goes_on_without_its_caller() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Create => SimBehaviour::ends(SimResult::Hangs),
        _ => SimBehaviour::default(),
    });
    {
        let begun = sim_host.until(|it| it.get(&machine, vm::Field::current_operations) != none());
        let start = sim_host.test_app.call("VM.start", [machine.value(), no(), no()]);
        tokio::select! {
            _ = start => panic!("it hangs"),
            () = begun => {}
        }
    }
    sim_host.sim.rule(|_| SimBehaviour::default());
    sim_host.until(|sim_host| sim_host.power(&machine) == "Running").await;
    sim_host
        .until(|sim_host| sim_host.get(&machine, vm::Field::current_operations) == none())
        .await;
}

/// A failed start leaves no resources, and the next start works.
#[tokio::test]
async fn a_start_that_fails_leaves_nothing() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Activate => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let refused = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused.first().map(String::as_str), Some("SR_BACKEND_FAILURE"), "{refused:?}");
    sim_host.sim.rule(|_| SimBehaviour::default());
    assert_eq!(sim_host.power(&machine), "Halted");
    assert!(!sim_host.attached(&slot));
    sim_host.start(&machine).await;
    assert!(sim_host.attached(&slot));
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
    let home =
        sim_host.test_app.app.db.read(|view| reference(view, &machine, vm::Field::resident_on));
    assert_eq!(home, Ok(Ref::from(NULL_REF)));
}
