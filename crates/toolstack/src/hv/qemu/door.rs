//! What others may ask of this driver.

use std::path::PathBuf;

use model::domain::DomainSpec;
use model::id::{Domid, VbdId, VifId, VmId};
use model::plan::GuestRequest;
use model::vm::exits::DomainExit;
use tokio::sync::mpsc;

use super::names::Device;
use super::rundir::RunDir;
use super::{Qemu, agent, create, devices, drives, find, kill, lock};
use crate::fut::Fut;
use crate::hv::{Disc, DiskPlug, DomainEvent, Found, GuestSeen, HvError, Hypervisor, NicPlug};

impl Hypervisor for Qemu {
    fn create<'a>(
        &'a self,
        vm: VmId,
        domid: Domid,
        spec: &'a DomainSpec,
    ) -> Fut<'a, Result<(), HvError>> {
        Box::pin(create::create(self, vm, domid, spec))
    }

    fn plug_disk<'a>(&'a self, vm: VmId, disk: &'a DiskPlug) -> Fut<'a, Result<(), HvError>> {
        Box::pin(async move { devices::plug_disk(&self.live(vm).await?.domain, disk).await })
    }

    fn unplug_disk(&self, vm: VmId, vbd: VbdId) -> Fut<'_, Result<(), HvError>> {
        Box::pin(
            async move { devices::unplug(&self.live(vm).await?.domain, Device::Disk(vbd)).await },
        )
    }

    fn plug_nic<'a>(&'a self, vm: VmId, nic: &'a NicPlug) -> Fut<'a, Result<(), HvError>> {
        Box::pin(async move { devices::plug_nic(&self.live(vm).await?.domain, nic).await })
    }

    fn unplug_nic(&self, vm: VmId, vif: VifId) -> Fut<'_, Result<(), HvError>> {
        Box::pin(
            async move { devices::unplug(&self.live(vm).await?.domain, Device::Nic(vif)).await },
        )
    }

    fn disc<'a>(
        &'a self,
        vm: VmId,
        drive: VbdId,
        disc: Option<&'a Disc>,
    ) -> Fut<'a, Result<(), HvError>> {
        Box::pin(async move { drives::disc(&self.live(vm).await?.domain, drive, disc).await })
    }

    /// The datapath tells the guest by itself: QEMU hands on what it says of a disk.
    fn resized(&self, vm: VmId, _vbd: VbdId, _bytes: u64) -> Fut<'_, Result<(), HvError>> {
        Box::pin(async move { self.live(vm).await.map(drop) })
    }

    fn run(&self, vm: VmId) -> Fut<'_, Result<(), HvError>> {
        Box::pin(self.run_now(vm))
    }

    fn pause(&self, vm: VmId) -> Fut<'_, Result<(), HvError>> {
        Box::pin(self.pause_now(vm))
    }

    fn ask(&self, vm: VmId, what: GuestRequest) -> Fut<'_, Result<(), HvError>> {
        Box::pin(self.ask_now(vm, what))
    }

    fn ended(&self, vm: VmId) -> Fut<'_, Result<DomainExit, HvError>> {
        Box::pin(async move {
            let held = self.held(vm).await?.ok_or(HvError::Absent)?;
            // Of a silent one nothing would be heard.
            if !held.domain.has_ended()
                && let Err(error) = held.domain.qmp().await
                && !held.domain.ends().await
            {
                return Err(error);
            }
            Ok(held.domain.wait_end().await)
        })
    }

    fn kill(&self, vm: VmId) -> Fut<'_, Result<(), HvError>> {
        Box::pin(async move {
            match self.live(vm).await {
                Ok(held) => kill::kill(&held.domain).await,
                Err(HvError::Absent) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn forget(&self, vm: VmId) -> Fut<'_, Result<(), HvError>> {
        Box::pin(async move { self.forget_now(vm) })
    }

    fn found(&self) -> Fut<'_, Result<Vec<Found>, HvError>> {
        Box::pin(find::all(self))
    }

    fn find(&self, vm: VmId) -> Fut<'_, Result<Option<Found>, HvError>> {
        Box::pin(async move {
            if let Some(held) = self.domains.known(vm) {
                held.stop_asking();
            }
            find::one(self, vm).await
        })
    }

    fn guest(&self, vm: VmId) -> Fut<'_, Result<Option<GuestSeen>, HvError>> {
        Box::pin(async move {
            let Some(held) = self.held(vm).await? else { return Ok(None) };
            let domain = &held.domain;
            if domain.process.is_gone() || domain.has_ended() || !domain.agent_listens().await? {
                return Ok(None);
            }
            agent::seen(domain).await.map(Some)
        })
    }

    fn console(&self, vm: VmId) -> Option<PathBuf> {
        let dir = RunDir::of(&self.settings.run, vm);
        dir.in_use().unwrap_or_default().then(|| dir.console())
    }

    fn events(&self) -> Option<mpsc::Receiver<DomainEvent>> {
        lock(&self.events).take()
    }
}
