//! Simulated hypervisor without guests.

use std::path::PathBuf;
use std::sync::Arc;

use model::domain::DomainSpec;
use model::id::{Domid, VbdId, VifId, VmId};
use model::plan::{GuestRequest, RunState};
use model::vm::exits::DomainExit;
use tokio::sync::mpsc;

use super::{
    CdMedium, DiskPlug, DomainEvent, DomainInfo, GuestInfo, HvError, Hypervisor, NicPlug, not_begun,
};
use crate::boxed_future::BoxFuture;
use crate::sim::{Call, CallKind, Domain, Port, Sim, State};

/// Hypervisor of a simulated host.
#[derive(Clone, Debug)]
pub struct SimHv(pub(crate) Arc<Sim>);

impl SimHv {
    /// Sends one command to an existing domain.
    async fn command(
        &self,
        (call_kind, vm): (CallKind, VmId),
        device: Option<model::id::Uuid>,
        work: impl FnOnce(&mut State) -> Result<(), HvError>,
    ) -> Result<(), HvError> {
        let in_turn = matches!(
            call_kind,
            CallKind::PlugDisk
                | CallKind::PlugNic
                | CallKind::Disc
                | CallKind::Run
                | CallKind::Pause
        );
        let _turn = if in_turn { Some(self.0.monitor(vm).await) } else { None };
        let call = Call { device, ..Call::new(call_kind).vm(vm) };
        self.0.call(call, work, |why| refused(call_kind, why)).await?;
        self.0.has_changed();
        Ok(())
    }
}

fn refused(call_kind: CallKind, why: String) -> HvError {
    HvError::Refused { what: format!("{call_kind:?}"), why }
}

/// Returns a domain that has a process.
fn alive(state: &mut State, vm: VmId) -> Result<&mut Domain, HvError> {
    let domain = state.domains.get_mut(&vm).filter(|domain| domain.run.is_some());
    domain.ok_or(HvError::Absent)
}

impl Hypervisor for SimHv {
    fn create<'a>(
        &'a self,
        vm: VmId,
        domid: Domid,
        spec: &'a DomainSpec,
    ) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(self.command((CallKind::Create, vm), None, move |state| {
            match state.domains.get(&vm) {
                Some(domain) if domain.domid == domid && domain.run.is_some() => return Ok(()),
                Some(_) => {
                    let why = state.broke(format!("{vm} has a domain, or remains of one"));
                    return Err(refused(CallKind::Create, why));
                }
                None => {}
            }
            state.domains.insert(vm, Domain::new(domid, spec.vcpus));
            Ok(())
        }))
    }

    fn plug_disk<'a>(&'a self, vm: VmId, disk: &'a DiskPlug) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(self.command((CallKind::PlugDisk, vm), Some(disk.vbd.0), move |state| {
            alive(state, vm)?;
            if state.disk_at(disk.vbd, &disk.socket).is_none() {
                let why = state.broke(format!("nothing listens at {}", disk.socket.display()));
                return Err(refused(CallKind::PlugDisk, why));
            }
            alive(state, vm)?.disks.insert(disk.vbd, disk.socket.clone());
            Ok(())
        }))
    }

    fn unplug_disk(&self, vm: VmId, vbd: VbdId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.command((CallKind::UnplugDisk, vm), Some(vbd.0), move |state| {
            alive(state, vm)?.disks.remove(&vbd);
            Ok(())
        }))
    }

    fn plug_nic<'a>(&'a self, vm: VmId, nic: &'a NicPlug) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(self.command((CallKind::PlugNic, vm), Some(nic.vif.0), move |state| {
            let port = state.ports.get(&nic.vif.to_string());
            let listens =
                |port: &Port| (&port.nic.socket, port.nic.queues) == (&nic.socket, nic.queues);
            if !port.is_some_and(listens) {
                let why = state.broke(format!("nothing listens at {}", nic.socket.display()));
                return Err(refused(CallKind::PlugNic, why));
            }
            alive(state, vm)?.nics.insert(nic.vif, nic.socket.clone());
            Ok(())
        }))
    }

    fn unplug_nic(&self, vm: VmId, vif: VifId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.command((CallKind::UnplugNic, vm), Some(vif.0), move |state| {
            alive(state, vm)?.nics.remove(&vif);
            Ok(())
        }))
    }

    fn set_medium<'a>(
        &'a self,
        vm: VmId,
        drive: VbdId,
        cd_medium: Option<&'a CdMedium>,
    ) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(self.command((CallKind::Disc, vm), Some(drive.0), move |state| {
            let domain = alive(state, vm)?;
            match cd_medium {
                Some(_) => domain.discs.insert(drive),
                None => domain.discs.remove(&drive),
            };
            Ok(())
        }))
    }

    fn resized(&self, vm: VmId, _vbd: VbdId, _bytes: u64) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(async move { alive(&mut self.0.state(), vm).map(|_| ()) })
    }

    fn run(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.command((CallKind::Run, vm), None, move |state| {
            let domain = alive(state, vm)?;
            let begins = domain.run == Some(RunState::Created);
            let disks = domain.disks.clone();
            for (vbd, socket) in disks.iter().filter(|_| begins) {
                if state.disk_at(*vbd, socket).is_none_or(|disk| !disk.active) {
                    state.broke(format!("{vm} runs and {} is not served", socket.display()));
                }
            }
            runs(alive(state, vm)?, RunState::Running)
        }))
    }

    fn pause(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.command((CallKind::Pause, vm), None, move |state| match alive(state, vm)? {
            Domain { run: Some(RunState::Created), .. } => Ok(()),
            domain => runs(domain, RunState::Paused),
        }))
    }

    fn request_guest(&self, vm: VmId, what: GuestRequest) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(async move {
            let mut domid = None;
            let asked = |state: &mut State| {
                let domain = alive(state, vm)?;
                domid = Some(domain.domid);
                if domain.run == Some(RunState::Created) { Err(not_begun()) } else { Ok(()) }
            };
            self.command((CallKind::Ask, vm), None, asked).await?;
            let sim = Arc::clone(&self.0);
            tokio::spawn(async move {
                let guest = Call::new(CallKind::Guest).vm(vm);
                let obeys = sim.call(guest, |_| Ok(()), |_| ()).await.is_ok();
                let same = sim.state().domains.get(&vm).map(|domain| domain.domid) == domid;
                let exit = match what {
                    GuestRequest::Shutdown => DomainExit::PoweredOff,
                    GuestRequest::Reboot => DomainExit::Rebooted,
                };
                if obeys && same {
                    sim.end_guest(vm, exit);
                }
            });
            Ok(())
        })
    }

    fn wait_exit(&self, vm: VmId) -> BoxFuture<'_, Result<DomainExit, HvError>> {
        Box::pin(async move {
            let mut changes = self.0.watch();
            loop {
                let run = self.0.state().domains.get(&vm).and_then(|domain| domain.run);
                match run {
                    Some(RunState::Ended(exit)) => return Ok(exit),
                    None => return Ok(DomainExit::Killed),
                    Some(_) => drop(changes.changed().await),
                }
            }
        })
    }

    fn kill(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.command((CallKind::Kill, vm), None, move |state| {
            state.domains.get_mut(&vm).and_then(Domain::kill);
            Ok(())
        }))
    }

    fn forget(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.command((CallKind::Forget, vm), None, move |state| {
            if alive(state, vm).is_ok() {
                let why = state.broke(format!("{vm} is forgotten and has a process"));
                return Err(refused(CallKind::Forget, why));
            }
            state.domains.remove(&vm);
            Ok(())
        }))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<DomainInfo>, HvError>> {
        let domain_info =
            self.0.state().domains.iter().map(|(vm, domain)| domain.found(*vm)).collect();
        Box::pin(async move { Ok(domain_info) })
    }

    fn find(&self, vm: VmId) -> BoxFuture<'_, Result<Option<DomainInfo>, HvError>> {
        let find = move |state: &mut State| Ok(state.domains.get(&vm).map(|one| one.found(vm)));
        let call = Call::new(CallKind::Find).vm(vm);
        Box::pin(self.0.call(call, find, |why| refused(CallKind::Find, why)))
    }

    fn guest(&self, vm: VmId) -> BoxFuture<'_, Result<Option<GuestInfo>, HvError>> {
        let query = move |state: &mut State| {
            alive(state, vm)?;
            Ok(state.agents.get(&vm).cloned())
        };
        let call = Call::new(CallKind::Agent).vm(vm);
        Box::pin(self.0.call(call, query, |why| refused(CallKind::Agent, why)))
    }

    fn mounts(&self, vm: VmId, vbd: VbdId) -> BoxFuture<'_, Result<Vec<String>, HvError>> {
        let query = move |state: &mut State| {
            alive(state, vm)?;
            Ok(state.mounts.get(&vbd).cloned().unwrap_or_default())
        };
        let call = Call { device: Some(vbd.0), ..Call::new(CallKind::Agent).vm(vm) };
        Box::pin(self.0.call(call, query, |why| refused(CallKind::Agent, why)))
    }

    fn freeze(&self, vm: VmId) -> BoxFuture<'_, Result<bool, HvError>> {
        let freeze = move |state: &mut State| {
            alive(state, vm)?;
            Ok(state.agents.contains_key(&vm))
        };
        let call = Call::new(CallKind::Freeze).vm(vm);
        Box::pin(self.0.call(call, freeze, |why| refused(CallKind::Freeze, why)))
    }

    fn thaw(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        let call = Call::new(CallKind::Thaw).vm(vm);
        let thaw = move |state: &mut State| alive(state, vm).map(drop);
        Box::pin(self.0.call(call, thaw, |why| refused(CallKind::Thaw, why)))
    }

    fn console(&self, _vm: VmId) -> Option<PathBuf> {
        None
    }

    fn events(&self) -> Option<mpsc::Receiver<DomainEvent>> {
        self.0.take_events()
    }
}

/// Starts or stops the CPUs. An ended guest stays ended.
fn runs(domain: &mut Domain, to: RunState) -> Result<(), HvError> {
    if let Some(RunState::Ended(exit)) = domain.run {
        return Err(refused(CallKind::Run, format!("the guest has ended: {exit:?}")));
    }
    domain.run = Some(to);
    Ok(())
}
