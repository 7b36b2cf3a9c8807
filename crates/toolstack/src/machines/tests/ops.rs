//! All operations, with the steps that prepare a machine for each.

use model::plan::MachineOp;
use model::vm::exits::DomainExit;

use super::super::*;
use super::host::*;

/// Operation with its preparation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) before: &'static [Step],
    pub(super) op: MachineOp,
}

/// Preparation step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Start,
    StartPaused,
    /// Disk 1 is unplugged.
    Unplugged,
    /// Drive 3 is ejected, and its medium is recorded again.
    Ejected,
    NoNetwork,
    Ends(DomainExit),
}

/// Returns a machine with two disks, a drive and two interfaces, on two SRs.
pub(super) fn full(of: u16) -> MachineRecord {
    let disks = vec![disk(of, 0, 1), disk(of, 1, 2), cd(of, 3, 1)];
    machine(disks, vec![vif(of, 0), vif(of, 1)])
}

pub(super) fn cases() -> Vec<Case> {
    use Step::{Ejected, Ends, NoNetwork, Start, StartPaused, Unplugged};
    let machine = full(0);
    let (disk, drive, vif) = (machine.disks[1].vbd, machine.disks[2].vbd, machine.vifs[1].vif);
    let cases: &[(&'static [Step], MachineOp)] = &[
        (&[], START),
        (&[], MachineOp::Start { paused: true }),
        (&[Start], MachineOp::CleanShutdown),
        (&[Start], MachineOp::HardShutdown),
        (&[StartPaused], MachineOp::HardShutdown),
        (&[Start], MachineOp::CleanReboot),
        (&[Start], MachineOp::HardReboot),
        (&[Start], MachineOp::Pause),
        (&[StartPaused], MachineOp::Unpause),
        (&[Start, Unplugged], MachineOp::VbdPlug(disk)),
        (&[Start], MachineOp::VbdUnplug { vbd: disk, force: false }),
        (&[Start, Ejected], MachineOp::Insert(drive)),
        (&[Start], MachineOp::Eject(drive)),
        (&[Start, NoNetwork], MachineOp::VifPlug(vif)),
        (&[Start], MachineOp::VifUnplug(vif)),
        (&[Start, Ends(DomainExit::PoweredOff)], MachineOp::AfterExit(DomainExit::PoweredOff)),
        (&[Start, Ends(DomainExit::Rebooted)], MachineOp::AfterExit(DomainExit::Rebooted)),
        (&[Start, Ends(DomainExit::Killed)], MachineOp::AfterExit(DomainExit::Killed)),
        (&[Start], MachineOp::Reset),
        (&[StartPaused, Ends(DomainExit::Panicked)], MachineOp::Reset),
        (&[Start, Ends(DomainExit::PoweredOff)], MachineOp::Reconcile),
    ];
    cases.iter().map(|(before, op)| Case { before, op: *op }).collect()
}

impl Case {
    /// Creates a host with one machine that is ready for the operation.
    pub(super) async fn host(&self) -> (Host, VmId) {
        let (host, vm) = (Host::new([(vm(0), full(0))]), vm(0));
        let MachineRecord { disks, vifs, .. } = host.recorded(vm);
        for step in self.before {
            match *step {
                Step::Start => host.works(vm, START).await,
                Step::StartPaused => host.works(vm, MachineOp::Start { paused: true }).await,
                Step::Unplugged => {
                    host.works(vm, MachineOp::VbdUnplug { vbd: disks[1].vbd, force: false }).await;
                }
                Step::Ejected => {
                    host.works(vm, MachineOp::Eject(disks[2].vbd)).await;
                    host.change(vm, |machine| machine.disks[2].source = disks[2].source.clone());
                }
                Step::NoNetwork => host.works(vm, MachineOp::VifUnplug(vifs[1].vif)).await,
                Step::Ends(DomainExit::Killed) => host.sim.kill_process(vm),
                Step::Ends(exit) => host.sim.end_guest(vm, exit),
            }
        }
        (host, vm)
    }

    /// Records the medium to insert again, if a reconciliation found the drive empty.
    pub(super) fn refill(&self, host: &Host, vm: VmId) {
        let medium = full(0).disks[2].source.clone();
        host.change(vm, |machine| machine.disks[2].source = medium);
    }
}

#[test]
fn every_operation_works() {
    for case in cases() {
        life(async {
            let (host, vm) = case.host().await;
            host.works(vm, case.op).await;
            host.assert_true(vm);
            case.refill(&host, vm);
            host.assert_works(vm).await;
        });
    }
}
