//! Starts that wait for their place among the machines that boot.

use std::time::Duration;

use model::admission::StepLimits;
use model::plan::MachineOp;

use super::super::boots::{CpuTime, HostCpus};
use super::super::*;
use super::host::*;
use crate::exec::CancelToken;
use crate::sim::{self, Sim};

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
    let drivers = Drivers { cpus: Some(Arc::new(BusyCpus)), ..sim::drivers(&Sim::new()) };
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
    assert_eq!(host.machines.boot_times(vm(1)), None);

    // A wait can be cancelled, and a forced shutdown ends it.
    cancel.cancel();
    assert!(matches!(third.await.unwrap(), Err(OpError::Cancelled)));
    // The machine is recorded as halted, so the shutdown itself is refused.
    assert!(host.run(vm(3), MachineOp::HardShutdown).await.is_err());
    assert!(fourth.await.unwrap().is_err());

    host.machines.guest_ready(vm(0));
    second.await.unwrap().unwrap();
    let times = host.machines.boot_times(vm(1)).unwrap();
    assert!(times.place >= Duration::from_secs(1) && times.devices.is_some(), "{times:?}");
    assert_eq!(times.guest, None);

    // A reboot does not wait, and a guest that ends gives its place back.
    host.works(vm(0), MachineOp::HardReboot).await;
    let (again, _) = start(2);
    host.works(vm(1), MachineOp::HardShutdown).await;
    again.await.unwrap().unwrap();
}
