//! Machines that crash shortly after their start. Test time is paused and advances while the runtime
//! is idle.

use std::time::Duration;

use model::vm::exits::{CRASHES_MAX, RESTART_INTERVAL};
use xenapi::table::{host, task};

use super::simulated_host::*;

/// Longer than any restart waits.
const LONG: Duration = Duration::from_secs(600);

/// Returns a machine that crashed at once and waits for its restart, and the restart's task.
async fn crashed(sim_host: &SimulatedHost) -> (Ref, Ref) {
    let machine = sim_host.running().await;
    sim_host.done("VM.set_actions_after_crash", [machine.value(), Value::text("restart")]).await;
    sim_host.sim.kill_process(sim_host.id(&machine));
    sim_host.until(|sim_host| current(sim_host, &machine) == ["start"]).await;
    assert_eq!(sim_host.power(&machine), "Halted");
    let Value::Map(current) = sim_host.get(&machine, vm::Field::current_operations) else {
        panic!("no map")
    };
    let it = Ref::from(current.keys().next().unwrap().as_str());
    (machine, it)
}

fn current(sim_host: &SimulatedHost, machine: &Ref) -> Vec<String> {
    match sim_host.get(machine, vm::Field::current_operations) {
        Value::Map(current) => current.values().map(|op| text(op).to_owned()).collect(),
        other => panic!("{other:?}"),
    }
}

async fn stays_halted(sim_host: &SimulatedHost, machine: &Ref) {
    tokio::time::sleep(LONG).await;
    assert_eq!(sim_host.power(machine), "Halted");
    assert_eq!(current(sim_host, machine), Vec::<String>::new());
    assert_eq!(sim_host.owed(machine), None);
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_waits_is_shown_and_a_shutdown_calls_it_off() {
    for method in ["VM.hard_shutdown", "VM.clean_shutdown", "VM.shutdown"] {
        let sim_host = SimulatedHost::new().await;
        let (machine, it) = crashed(&sim_host).await;
        assert_eq!(sim_host.get(&it, task::Field::status), Value::text("pending"));
        let what = sim_host.get(&it, task::Field::name_description);
        assert!(text(&what).contains("after a crash"), "{what:?}");
        sim_host.done(method, [machine.value()]).await;
        assert_eq!(sim_host.get(&it, task::Field::status), Value::text("cancelled"), "{method}");
        stays_halted(&sim_host, &machine).await;
        assert_eq!(sim_host.messages(), ["VM_CRASHED"]);
        // What is halted and waits for nothing is refused as ever.
        let refused = sim_host.refused(method, [machine.value()]).await;
        assert_eq!(refused[0], "VM_BAD_POWER_STATE", "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_waits_can_be_cancelled() {
    let sim_host = SimulatedHost::new().await;
    let (machine, it) = crashed(&sim_host).await;
    sim_host.done("task.cancel", [it.value()]).await;
    stays_halted(&sim_host, &machine).await;
    assert_eq!(sim_host.get(&it, task::Field::status), Value::text("cancelled"));
}

#[tokio::test(start_paused = true)]
async fn a_start_does_not_wait_for_the_restart_and_a_destruction_ends_it() {
    let sim_host = SimulatedHost::new().await;
    let (machine, it) = crashed(&sim_host).await;
    sim_host.start(&machine).await;
    assert_eq!(sim_host.get(&it, task::Field::status), Value::text("cancelled"));
    let domid = sim_host.get(&machine, vm::Field::domid);
    tokio::time::sleep(LONG).await;
    assert_eq!(sim_host.get(&machine, vm::Field::domid), domid, "once");
    let (other, _) = crashed(&sim_host).await;
    sim_host.done("VM.destroy", [other.value()]).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(sim_host.messages(), ["VM_CRASHED"; 2]);
}

#[tokio::test(start_paused = true)]
async fn what_is_set_during_the_wait_counts() {
    let sim_host = SimulatedHost::new().await;
    let (machine, it) = crashed(&sim_host).await;
    sim_host.done("VM.set_actions_after_crash", [machine.value(), Value::text("destroy")]).await;
    stays_halted(&sim_host, &machine).await;
    assert_eq!(sim_host.get(&it, task::Field::status), Value::text("failure"));
    let (machine, _) = crashed(&sim_host).await;
    let host = sim_host
        .test_app
        .app
        .db
        .read(|view| view.all(&host::CLASS).next().unwrap().reference().value());
    sim_host.done("host.disable", [host]).await;
    stays_halted(&sim_host, &machine).await;
    let expected = ["VM_CRASHED", "VM_RESTART_FAILED", "VM_CRASHED", "VM_RESTART_FAILED"];
    assert_eq!(sim_host.messages(), expected);
}

/// Each restart waits longer than the one before, and the third crash is the last.
#[tokio::test(start_paused = true)]
async fn a_machine_that_crashes_at_each_boot_stays_halted() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    sim_host.done("VM.set_actions_after_crash", [machine.value(), Value::text("restart")]).await;
    let mut waits = Vec::new();
    for _ in 1..CRASHES_MAX {
        sim_host.sim.kill_process(sim_host.id(&machine));
        sim_host.until(|sim_host| sim_host.power(&machine) == "Halted").await;
        let halted = tokio::time::Instant::now();
        sim_host.until(|sim_host| sim_host.power(&machine) == "Running").await;
        waits.push(halted.elapsed());
    }
    assert!(waits[0] >= RESTART_INTERVAL && waits[1] >= 2 * RESTART_INTERVAL, "{waits:?}");
    sim_host.sim.kill_process(sim_host.id(&machine));
    sim_host.until(|sim_host| sim_host.power(&machine) == "Halted").await;
    stays_halted(&sim_host, &machine).await;
    let mut messages = sim_host.messages();
    messages.sort();
    assert_eq!(messages, ["VM_CRASHED", "VM_CRASHED", "VM_CRASHED", "VM_RESTART_FAILED"]);
    // A user's start begins anew.
    sim_host.start(&machine).await;
    sim_host.sim.kill_process(sim_host.id(&machine));
    sim_host.until(|sim_host| sim_host.power(&machine) == "Halted").await;
    sim_host.until(|sim_host| sim_host.power(&machine) == "Running").await;
}
