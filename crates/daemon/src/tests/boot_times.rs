//! Records of boots: what a VM that starts waits for, and where the time of its last boot went.

use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::vm_metrics;

use super::simulated_host::*;
use crate::records::fields::pairs;

/// Keys of the parts that every boot has.
const PARTS: [&str; 3] = ["boot-place-ms", "boot-devices-ms", "boot-guest-ms"];

/// Returns what is recorded about a VM's boot.
fn boot(sim_host: &SimulatedHost, machine: &Ref) -> BTreeMap<String, String> {
    let metrics = Ref::from(text(&sim_host.get(machine, vm::Field::metrics)));
    let db = &sim_host.test_app.app.db;
    let mut all = db.read(|view| pairs(view, &metrics, vm_metrics::Field::other_config)).unwrap();
    all.retain(|key, _| key.starts_with("boot-"));
    all
}

/// Waits until a VM waits for this part of its boot, or for none, and returns the parts that are over.
async fn until(sim_host: &SimulatedHost, machine: &Ref, stage: Option<&str>) -> Vec<String> {
    let recorded = |sim_host: &SimulatedHost| boot(sim_host, machine);
    sim_host
        .until(|sim_host| recorded(sim_host).get("boot-stage").map(String::as_str) == stage)
        .await;
    let mut all = recorded(sim_host);
    assert_eq!(all.remove("boot-stage-since").is_some(), all.remove("boot-stage").is_some());
    all.into_keys().collect()
}

/// Begins to start a VM. Returns the task of the call.
async fn begin(sim_host: &SimulatedHost, machine: &Ref) -> Value {
    sim_host.call("Async.VM.start", [machine.value(), no(), no()]).await
}

fn parts(count: usize) -> Vec<String> {
    let mut all: Vec<_> = PARTS.iter().take(count).map(|key| (*key).to_owned()).collect();
    all.sort();
    all
}

#[tokio::test]
async fn what_a_start_waits_for_is_recorded_while_it_waits() {
    let sim_host = SimulatedHost::busy().await;
    let (first, second) = (sim_host.machine().await, sim_host.machine().await);
    sim_host.test_app.hands.set(86_400);
    sim_host.start(&first).await;
    assert_eq!(until(&sim_host, &first, Some("guest")).await, parts(2));
    begin(&sim_host, &second).await;
    assert_eq!(until(&sim_host, &second, Some("place")).await, parts(0));
    let since = boot(&sim_host, &second)["boot-stage-since"].clone();
    assert!(since.starts_with("19700102T") || since.starts_with("19700101T23:59"), "{since}");
    assert_eq!(sim_host.power(&second), "Halted");
    sim_host.sim.guest_ready(sim_host.id(&first));
    assert_eq!(until(&sim_host, &second, Some("guest")).await, parts(2));
    assert_eq!(until(&sim_host, &first, None).await, parts(3));
    sim_host.sim.guest_ready(sim_host.id(&second));
    assert_eq!(until(&sim_host, &second, None).await, parts(3));

    // The next boot of the first one forgets the last one. It ends with its domain.
    sim_host.done("VM.hard_shutdown", [first.value()]).await;
    assert_eq!(until(&sim_host, &first, None).await, parts(3));
    sim_host.start(&first).await;
    assert_eq!(until(&sim_host, &first, Some("guest")).await, parts(2));
    sim_host.sim.kill_process(sim_host.id(&first));
    sim_host.until(|sim_host| sim_host.power(&first) == "Halted").await;
    assert_eq!(until(&sim_host, &first, None).await, parts(2));
}

#[tokio::test]
async fn a_start_that_is_cancelled_or_fails_leaves_no_stage() {
    let sim_host = SimulatedHost::busy().await;
    let (first, second) = (sim_host.machine().await, sim_host.machine().await);
    sim_host.start(&first).await;
    let task = begin(&sim_host, &second).await;
    until(&sim_host, &second, Some("place")).await;
    sim_host.done("task.cancel", [task]).await;
    assert_eq!(until(&sim_host, &second, None).await, parts(0));

    begin(&sim_host, &second).await;
    until(&sim_host, &second, Some("place")).await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Create => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    sim_host.sim.guest_ready(sim_host.id(&first));
    assert_eq!(until(&sim_host, &second, None).await, parts(1));
}

/// A restarted daemon knows neither when the guests that run began to boot, nor of starts that waited.
#[test]
fn a_stage_ends_with_the_daemon() {
    let (sim_host, first, second) = life(async {
        let sim_host = SimulatedHost::busy().await;
        let (first, second) = (sim_host.machine().await, sim_host.machine().await);
        sim_host.start(&first).await;
        begin(&sim_host, &second).await;
        until(&sim_host, &first, Some("guest")).await;
        until(&sim_host, &second, Some("place")).await;
        sim_host.stored().await;
        sim_host.killed();
        (sim_host, first, second)
    });
    life(async {
        let sim_host = sim_host.again(BOOT).await;
        assert_eq!(sim_host.power(&first), "Running");
        assert_eq!(boot(&sim_host, &first).into_keys().collect::<Vec<_>>(), parts(2));
        assert_eq!(boot(&sim_host, &second), BTreeMap::new());
    });
}
