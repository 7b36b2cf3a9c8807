use xenapi::table::{message, vm};

use super::simulated_host::*;
use crate::ops::message::MESSAGES_MAX;

#[tokio::test]
async fn bounds_of_memory_and_cpus_do_not_cross() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let limits = |all: [i64; 4]| {
        std::iter::once(machine.value()).chain(all.map(|mib| Value::Int(mib << 20)))
    };
    let rule = "0 <= static_min <= dynamic_min <= dynamic_max <= static_max";
    for crossed in [[512, 256, 256, 256], [128, 512, 600, 512], [-1, 512, 256, 256]] {
        let refused = sim_host.refused("VM.set_memory_limits", limits(crossed)).await;
        assert_eq!(refused, ["MEMORY_CONSTRAINT_VIOLATION", rule]);
    }
    sim_host.done("VM.set_memory_limits", limits([128, 512, 256, 512])).await;
    assert_eq!(sim_host.get(&machine, vm::Field::memory_target), Value::Int(512 << 20));
    let set = |value: i64| [machine.value(), Value::Int(value)];
    let refused = sim_host.refused("VM.set_VCPUs_at_startup", set(2)).await;
    let rule = "VCPU values must satisfy: 1 <= VCPUs_at_startup <= VCPUs_max <= 255";
    assert_eq!(refused, ["INVALID_VALUE", rule, "2"]);
    sim_host.done("VM.set_VCPUs_max", set(4)).await;
    sim_host.done("VM.set_VCPUs_at_startup", set(2)).await;
    sim_host.start(&machine).await;
    for method in ["VM.set_memory", "VM.set_memory_static_max", "VM.set_VCPUs_max"] {
        let refused = sim_host.refused(method, set(1 << 30)).await;
        assert_eq!(refused, ["VM_BAD_POWER_STATE", machine.as_str(), "halted", "running"]);
    }
}

#[tokio::test]
async fn a_copy_has_its_own_past_and_its_own_addresses() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    sim_host.made("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
    let copy = sim_host.made("VM.clone", [machine.value(), Value::text("copy")]).await;
    for field in [vm::Field::uuid, vm::Field::metrics, vm::Field::other_config] {
        assert_ne!(sim_host.get(&copy, field), sim_host.get(&machine, field), "{field:?}");
    }
    assert_eq!(sim_host.get(&copy, vm::Field::name_label), Value::text("copy"));
    assert_eq!(sim_host.slots(&copy).len(), 1);
    let (_, disk) = sim_host.device(&machine).await;
    sim_host.done("VM.destroy", [machine.value()]).await;
    assert_eq!(sim_host.call("VDI.get_VBDs", [disk.value()]).await, Value::Set(Vec::new()));
}

#[tokio::test]
async fn a_template_that_asks_for_nonsense_is_told_so() {
    let sim_host = SimulatedHost::new().await;
    let template = sim_host.template("Other install media").await;
    let refused = sim_host.refused("VM.destroy", [template.value()]).await;
    assert_eq!(refused, ["VM_IS_TEMPLATE", template.as_str()]);
    let machine = sim_host.made("VM.clone", [template.value(), Value::text("t")]).await;
    let set = |disks: &str| [machine.value(), Value::text("disks"), Value::text(disks)];
    for bad in ["<disk", "<provision><disk device=\"0\" size=\"x\"/></provision>"] {
        let key = [machine.value(), Value::text("disks")];
        sim_host.done("VM.remove_from_other_config", key).await;
        sim_host.done("VM.add_to_other_config", set(bad)).await;
        let refused = sim_host.refused("VM.provision", [machine.value()]).await;
        assert_eq!(&refused[..3], ["VALUE_NOT_SUPPORTED", "other_config:disks", bad]);
        assert_eq!(sim_host.get(&machine, vm::Field::is_a_template), yes());
    }
    let twice = machine.clone();
    let key = [machine.value(), Value::text("disks")];
    sim_host.done("VM.remove_from_other_config", key).await;
    sim_host.done("VM.provision", [twice.value()]).await;
    let refused = sim_host.refused("VM.provision", [twice.value()]).await;
    assert_eq!(refused[0], "PROVISION_ONLY_ALLOWED_ON_TEMPLATE");
    sim_host.done("VM.set_is_a_template", [machine.value(), yes()]).await;
    let refused = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["VM_IS_TEMPLATE", machine.as_str()]);
}

#[tokio::test]
async fn messages_are_noted_and_told() {
    let sim_host = SimulatedHost::new().await;
    let note = |at: i64| {
        sim_host.test_app.hands.set(at);
        let texts = ["HELLO", "VM", "no uuid", "words"].map(Value::text);
        let [name, cls, uuid, body] = texts;
        [name, Value::Int(3), cls, uuid, body]
    };
    sim_host.made("message.create", note(100)).await;
    let later = sim_host.made("message.create", note(200)).await;
    let since = |at: i64| [Value::Date(xenapi::Date(at))];
    let Value::Map(messages) = sim_host.call("message.get_since", since(150)).await else {
        panic!()
    };
    assert_eq!(messages.keys().collect::<Vec<_>>(), [later.as_str()]);
    let Value::Map(all) = sim_host.call("message.get_since", since(0)).await else { panic!() };
    assert_eq!(all.len(), 2);
    sim_host.done("message.destroy", [later.value()]).await;
    assert_eq!(sim_host.messages(), ["HELLO"]);
    let db = &sim_host.test_app.app.db;
    db.change(|tx| {
        for _ in 0..MESSAGES_MAX {
            let message_draft = crate::ops::message::MessageDraft {
                name: "N",
                priority: 5,
                cls: "VM",
                uuid: "",
                body: "",
            };
            crate::ops::message::write(tx, &message_draft, xenapi::Date(0))?;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(db.read(|view| view.count(&message::CLASS)), MESSAGES_MAX);
    assert_eq!(sim_host.messages().first().map(String::as_str), Some("N"), "the oldest goes");
}
