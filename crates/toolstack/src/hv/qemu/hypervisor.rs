//! Implementation of [`Hypervisor`] for QEMU.

use std::path::PathBuf;

use model::domain::DomainSpec;
use model::id::{Domid, VbdId, VifId, VmId};
use model::plan::GuestRequest;
use model::vm::exits::DomainExit;
use tokio::sync::mpsc;

use super::device_ids::Device;
use super::rundir::RunDir;
use super::{
    QemuHypervisor, agent, create, devices, discovery, drives, freeze, guest_mounts, kill, lock,
};
use crate::boxed_future::BoxFuture;
use crate::hv::{
    CdMedium, DiskPlug, DomainEvent, DomainInfo, GuestInfo, HvError, Hypervisor, NicPlug,
};

impl Hypervisor for QemuHypervisor {
    fn create<'a>(
        &'a self,
        vm: VmId,
        domid: Domid,
        spec: &'a DomainSpec,
    ) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(create::create(self, vm, domid, spec))
    }

    fn plug_disk<'a>(&'a self, vm: VmId, disk: &'a DiskPlug) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(async move { devices::plug_disk(&self.live(vm).await?.domain, disk).await })
    }

    fn unplug_disk(&self, vm: VmId, vbd: VbdId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(
            async move { devices::unplug(&self.live(vm).await?.domain, Device::Disk(vbd)).await },
        )
    }

    fn plug_nic<'a>(&'a self, vm: VmId, nic: &'a NicPlug) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(async move { devices::plug_nic(&self.live(vm).await?.domain, nic).await })
    }

    fn unplug_nic(&self, vm: VmId, vif: VifId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(
            async move { devices::unplug(&self.live(vm).await?.domain, Device::Nic(vif)).await },
        )
    }

    fn set_medium<'a>(
        &'a self,
        vm: VmId,
        drive: VbdId,
        cd_medium: Option<&'a CdMedium>,
    ) -> BoxFuture<'a, Result<(), HvError>> {
        Box::pin(async move { drives::disc(&self.live(vm).await?.domain, drive, cd_medium).await })
    }

    /// The datapath notifies the guest itself: QEMU passes on its configuration change.
    fn resized(&self, vm: VmId, _vbd: VbdId, _bytes: u64) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(async move { self.live(vm).await.map(drop) })
    }

    fn run(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.run_now(vm))
    }

    fn pause(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.pause_now(vm))
    }

    fn request_guest(&self, vm: VmId, what: GuestRequest) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(self.ask_now(vm, what))
    }

    fn wait_exit(&self, vm: VmId) -> BoxFuture<'_, Result<DomainExit, HvError>> {
        Box::pin(async move {
            let watched_domain = self.held(vm).await?.ok_or(HvError::Absent)?;
            // A silent QEMU would not answer.
            if !watched_domain.domain.has_ended()
                && let Err(error) = watched_domain.domain.qmp().await
                && !watched_domain.domain.wait_process_exit().await
            {
                return Err(error);
            }
            Ok(watched_domain.domain.wait_end().await)
        })
    }

    fn kill(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(async move {
            match self.live(vm).await {
                Ok(watched_domain) => kill::kill(&watched_domain.domain).await,
                Err(HvError::Absent) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn forget(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(async move { self.forget_now(vm) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<DomainInfo>, HvError>> {
        Box::pin(discovery::all(self))
    }

    fn find(&self, vm: VmId) -> BoxFuture<'_, Result<Option<DomainInfo>, HvError>> {
        Box::pin(async move {
            if let Some(watched_domain) = self.domains.known(vm) {
                watched_domain.stop_asking();
            }
            discovery::one(self, vm).await
        })
    }

    fn guest(&self, vm: VmId) -> BoxFuture<'_, Result<Option<GuestInfo>, HvError>> {
        Box::pin(async move {
            let Some(watched_domain) = self.held(vm).await? else { return Ok(None) };
            let domain = &watched_domain.domain;
            if domain.process.is_gone() || domain.has_ended() || !domain.agent_listens().await? {
                return Ok(None);
            }
            agent::seen(domain).await.map(Some)
        })
    }

    fn mounts(&self, vm: VmId, vbd: VbdId) -> BoxFuture<'_, Result<Vec<String>, HvError>> {
        Box::pin(async move {
            let Some(watched_domain) = self.held(vm).await? else { return Ok(Vec::new()) };
            guest_mounts::mounts(&watched_domain.domain, vbd).await
        })
    }

    fn freeze(&self, vm: VmId) -> BoxFuture<'_, Result<bool, HvError>> {
        Box::pin(async move {
            let watched_domain = self.held(vm).await?.ok_or(HvError::Absent)?;
            freeze::freeze(&watched_domain.domain).await
        })
    }

    fn thaw(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>> {
        Box::pin(async move {
            let Some(watched_domain) = self.held(vm).await? else { return Ok(()) };
            freeze::thaw(&watched_domain.domain).await
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
