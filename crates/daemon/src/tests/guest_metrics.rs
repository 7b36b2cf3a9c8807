//! Records about guests: their resources, and reports of their agents.

use toolstack::hv::GuestInfo;
use xenapi::table::{vm_guest_metrics, vm_metrics};

use super::addresses::Slow;
use super::simulated_host::*;

/// An address that the guest uses, so that its agent is polled.
const ADDRESS: &str = "10.0.0.1";
const MIB: i64 = 1 << 20;

fn metrics(sim_host: &SimulatedHost, machine: &Ref) -> [Value; 2] {
    let metrics = Ref::from(text(&sim_host.get(machine, vm::Field::metrics)));
    let fields = [vm_metrics::Field::memory_actual, vm_metrics::Field::VCPUs_number];
    fields.map(|field| sim_host.get(&metrics, field))
}

/// The metrics show the resources of the current run. A halted VM has none, and the next start uses
/// the new settings.
#[tokio::test]
async fn memory_and_cpus_of_a_machine_are_those_of_its_start() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let it = || machine.value();
    assert_eq!(metrics(&sim_host, &machine), [0, 0].map(Value::Int));
    for (cpus, memory) in [(3, 512 * MIB), (1, 256 * MIB)] {
        let bounds = [Value::Int(memory / 4), Value::Int(memory)];
        let [least, most] = &bounds;
        let limits = [it(), least.clone(), most.clone(), most.clone(), most.clone()];
        sim_host.done("VM.set_memory_limits", limits).await;
        if cpus > 1 {
            sim_host.done("VM.set_VCPUs_max", [it(), Value::Int(4)]).await;
        }
        sim_host.done("VM.set_VCPUs_at_startup", [it(), Value::Int(cpus)]).await;
        sim_host.start(&machine).await;
        assert_eq!(metrics(&sim_host, &machine), [memory, cpus].map(Value::Int));
        sim_host.done("VM.hard_shutdown", [it()]).await;
        assert_eq!(metrics(&sim_host, &machine), [0, 0].map(Value::Int));
    }
    sim_host.assert_clean();
}

#[tokio::test]
async fn what_an_agent_tells_is_recorded_until_its_guest_ends() {
    use vm_guest_metrics::Field;
    let slow = Slow::new().await;
    let (sim_host, machine) = (&slow.sim_host, &slow.machine);
    let texts = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let os = texts(&[("name", "Debian GNU/Linux 12"), ("distro", "debian"), ("major", "12")]);
    let networks = texts(&[("0/ip", ADDRESS), ("0/ipv4/0", ADDRESS)]);
    sim_host.start(machine).await;
    slow.claims(ADDRESS);
    slow.until(&[ADDRESS]).await;
    let metrics = Ref::from(text(&sim_host.get(machine, vm::Field::guest_metrics)));
    // Observed addresses say nothing about drivers.
    assert_eq!(sim_host.get(&metrics, Field::PV_drivers_detected), no());
    assert_eq!(sim_host.get(&metrics, Field::can_use_hotplug_vbd), Value::text("unspecified"));
    assert_eq!(sim_host.get(&metrics, Field::os_version), none());
    let agent = GuestInfo { os: os.clone(), networks: networks.clone(), agent: "8.1".to_owned() };
    sim_host.sim.agent(slow.vm, agent);
    slow.claims(ADDRESS);
    sim_host.until(|sim_host| sim_host.get(&metrics, Field::PV_drivers_detected) == yes()).await;
    let map = |all: Vec<(String, String)>| {
        Value::Map(all.into_iter().map(|(name, value)| (name, Value::Str(value))).collect())
    };
    for (field, value) in [
        (Field::os_version, map(os)),
        (Field::networks, map(networks)),
        (
            Field::PV_drivers_version,
            map(texts(&[
                ("agent", "8.1"),
                ("major", "8"),
                ("minor", "1"),
                ("micro", "0"),
                ("build", "0"),
            ])),
        ),
        (Field::PV_drivers_up_to_date, yes()),
        (Field::can_use_hotplug_vbd, Value::text("yes")),
        (Field::can_use_hotplug_vif, Value::text("yes")),
        (Field::live, yes()),
    ] {
        assert_eq!(sim_host.get(&metrics, field), value, "{field:?}");
    }
    assert_eq!(Ref::from(text(&sim_host.get(machine, vm::Field::guest_metrics))), metrics);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    assert_eq!(sim_host.get(machine, vm::Field::guest_metrics), Value::text(NULL_REF));
    let class = &vm_guest_metrics::CLASS;
    assert!(sim_host.test_app.app.db.read(|view| view.object(class, &metrics).is_err()));
    sim_host.assert_clean();
}
