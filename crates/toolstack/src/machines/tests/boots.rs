//! Starts that wait for their place among the machines that boot.

use std::time::Duration;

use model::admission::StepLimits;
use model::plan::MachineOp;

use super::super::boots::{CpuTime, HostCpus};
use super::super::*;
use super::host::*;
use crate::exec::CancelToken;
use crate::sim::{self, CallKind, SimBehaviour, SimResult};

/// Host whose CPUs are never idle.
#[derive(Debug)]
struct BusyCpus;

impl HostCpus for BusyCpus {
    fn read(&self) -> CpuTime {
        CpuTime::default()
    }
}

/// Returns machines on a busy host where one boots at a time.
fn busy_host(machines: u16) -> Host {
    let host = Host::new((0..machines).map(|n| (vm(n), machine(vec![disk(n, 0, 0)], Vec::new()))));
    let drivers = Drivers { cpus: Some(Arc::new(BusyCpus)), ..sim::drivers(&host.sim) };
    let records: Arc<dyn Records> = host.paper.clone();
    let limits = StepLimits { boots: 1, ..StepLimits::default() };
    let settings = MachinesConfig { limits, ..MachinesConfig::new("/run/rw".into()) };
    Host { machines: Machines::new(drivers, records, settings), ..host }
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_until_an_earlier_guest_is_ready() {
    let host = busy_host(4);
    host.works(vm(0), START).await;
    let start = |n| {
        let (machines, token) = (Arc::clone(&host.machines), CancelToken::new());
        let hooks = OpHooks { cancel: token.clone(), ..OpHooks::plain() };
        (tokio::spawn(machines.run(vm(n), START, hooks)), token)
    };
    let [(second, _), (third, cancel), (fourth, _)] = [1, 2, 3].map(start);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(![&second, &third, &fourth].iter().any(|start| start.is_finished()));
    let waits = host.machines.boot_times(vm(1)).unwrap();
    assert_eq!(waits.waits, Some((BootStage::Place, Duration::from_secs(1))));
    assert_eq!(waits.place, None);

    // A wait can be cancelled, and a forced shutdown ends it.
    cancel.cancel();
    assert!(matches!(third.await.unwrap(), Err(OpError::Cancelled)));
    assert_eq!(host.machines.boot_times(vm(2)), None);
    // The machine is recorded as halted, so the shutdown itself is refused.
    assert!(host.run(vm(3), MachineOp::HardShutdown).await.is_err());
    assert!(fourth.await.unwrap().is_err());

    host.machines.guest_ready(vm(0));
    second.await.unwrap().unwrap();
    let times = host.machines.boot_times(vm(1)).unwrap();
    assert!(times.place >= Some(Duration::from_secs(1)), "{times:?}");
    assert!(times.devices.is_some(), "{times:?}");
    assert_eq!(times.guest, None);

    // A reboot does not wait, and a guest that ends gives its place back.
    host.works(vm(0), MachineOp::HardReboot).await;
    let (again, _) = start(2);
    host.works(vm(1), MachineOp::HardShutdown).await;
    again.await.unwrap().unwrap();
}

/// Returns the part of a machine's boot that has not ended.
fn stage(host: &Host, n: u16) -> Option<BootStage> {
    Some(host.machines.boot_times(vm(n))?.waits?.0)
}

#[tokio::test(start_paused = true)]
async fn each_boot_begins_anew_and_ends_with_its_domain() {
    let host = busy_host(1);
    host.works(vm(0), START).await;
    assert_eq!(stage(&host, 0), Some(BootStage::Guest));
    host.machines.guest_ready(vm(0));
    assert_eq!(stage(&host, 0), None);
    // A reboot waits for no place, and its guest boots again.
    for op in [MachineOp::HardReboot, MachineOp::CleanReboot] {
        host.works(vm(0), op).await;
        assert_eq!(stage(&host, 0), Some(BootStage::Guest));
        assert_eq!(host.machines.boot_times(vm(0)).unwrap().place, Some(Duration::ZERO));
    }
    host.works(vm(0), MachineOp::HardShutdown).await;
    assert_eq!(host.machines.boot_times(vm(0)), None);
    // The user decides when the CPUs run.
    host.works(vm(0), MachineOp::Start { paused: true }).await;
    assert_eq!(host.machines.boot_times(vm(0)), None);
    host.works(vm(0), MachineOp::Unpause).await;
    assert_eq!(host.machines.boot_times(vm(0)), None);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_ends_its_boot() {
    for kind in [CallKind::Create, CallKind::PlugDisk, CallKind::Run] {
        let host = busy_host(1);
        host.sim.rule(move |call| match call.call_kind {
            failing if failing == kind => SimBehaviour::ends(SimResult::Fails),
            _ => SimBehaviour::default(),
        });
        assert!(host.run(vm(0), START).await.is_err(), "{kind:?}");
        assert_eq!(host.machines.boot_times(vm(0)), None, "{kind:?}");
    }
}
