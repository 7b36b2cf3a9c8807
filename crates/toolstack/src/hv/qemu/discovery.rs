//! Discovery of existing domains.

use std::collections::BTreeSet;
use std::path::Path;

use model::id::{Domid, VmId};
use model::plan::RunState;

use super::device_ids::Device;
use super::domain::{Domain, connect};
use super::drives::drives;
use super::rundir::{DomainRecord, RunDir};
use super::{QemuHypervisor, WatchedDomain, freeze, os};
use crate::hv::{DomainInfo, HvError};
use crate::qemu::qmp::Qmp;

/// Adopts a machine's process, if it exists.
pub(super) async fn adopt(run: &Path, vm: VmId) -> Result<Option<Domain>, HvError> {
    let dir = RunDir::of(run, vm);
    let failed = |source| os("looking at", dir.path(), source);
    if !dir.in_use().map_err(failed)? {
        return Ok(None);
    }
    if dir.pid().is_none() {
        // The process has just started. It has written its id by the time QEMU greets. If it exits
        // instead, the check below finds that.
        let greeted = async { Ok::<_, HvError>(Qmp::handshake(connect(dir.qmp()).await?).await?) };
        if let Err(error) = greeted.await {
            tracing::debug!(%vm, %error, "QEMU is not ready");
        }
    }
    let held = dir.pid().map(|pid| Domain::from_pid(vm, kept(&dir, vm), dir.clone(), pid));
    // A directory that is still in use proves that this process had the id when it was opened.
    if !dir.in_use().map_err(failed)? {
        return Ok(None);
    }
    match held {
        Some(held) => held.map(Some).map_err(failed),
        None => {
            let why = "an unknown process holds its directory".into();
            Err(HvError::Refused { what: "finding a domain".into(), why })
        }
    }
}

fn kept(dir: &RunDir, vm: VmId) -> DomainRecord {
    dir.kept().unwrap_or_else(|| {
        tracing::warn!(%vm, "a domain's record is damaged; the domain can be ended");
        DomainRecord::new(Domid(0), 1)
    })
}

/// Returns every machine with a process or remains. Queries all in parallel.
pub(super) async fn all(qemu: &QemuHypervisor) -> Result<Vec<DomainInfo>, HvError> {
    let run = &qemu.settings.run;
    let mut domain_info = Vec::new();
    let mut queries = tokio::task::JoinSet::new();
    for vm in RunDir::list(run).map_err(|source| os("reading", run, source))? {
        match qemu.held(vm).await {
            Ok(Some(watched_domain)) => drop(queries.spawn(async move {
                let domain_info = observe(&watched_domain).await;
                freeze::thaw_left(&watched_domain.domain).await;
                domain_info
            })),
            Ok(None) => domain_info.push(remains(&RunDir::of(run, vm), vm)),
            // A machine that cannot be queried counts as existing, and does not hide the others.
            Err(error) => {
                tracing::warn!(%vm, %error, "cannot query a machine");
                domain_info.push(DomainInfo {
                    run: Some(RunState::Unresponsive),
                    ..remains(&RunDir::of(run, vm), vm)
                });
            }
        }
    }
    domain_info.extend(queries.join_all().await);
    domain_info.sort_by_key(|one| one.vm);
    Ok(domain_info)
}

/// Returns one machine.
pub(super) async fn one(qemu: &QemuHypervisor, vm: VmId) -> Result<Option<DomainInfo>, HvError> {
    if let Some(watched_domain) = qemu.held(vm).await? {
        return Ok(Some(observe(&watched_domain).await));
    }
    let dir = RunDir::of(&qemu.settings.run, vm);
    Ok(dir.is_there().then(|| remains(&dir, vm)))
}

/// Describes a machine whose directory exists but whose process is not known.
fn remains(dir: &RunDir, vm: VmId) -> DomainInfo {
    let domid = dir.kept().map_or(Domid(0), |record| record.domid());
    DomainInfo { vm, domid, run: None, disks: BTreeSet::new(), nics: BTreeSet::new() }
}

async fn observe(watched_domain: &WatchedDomain) -> DomainInfo {
    let domain = &watched_domain.domain;
    let mut domain_info = remains(&domain.dir, domain.vm);
    domain_info.domid = domain.record.domid();
    if domain.process.is_gone() {
        return domain_info;
    }
    let queried = inside(domain, &mut domain_info).await;
    if domain.process.is_gone() {
        domain_info.run = None;
    } else if let Err(error) = queried {
        tracing::warn!(vm = %domain.vm, %error, "the QEMU of a machine does not answer");
        domain_info.run = Some(RunState::Unresponsive);
    }
    domain_info
}

async fn inside(domain: &Domain, domain_info: &mut DomainInfo) -> Result<(), HvError> {
    domain_info.run = Some(domain.state().await?);
    for device in domain.devices().await? {
        match device {
            Device::Disk(vbd) => drop(domain_info.disks.insert(vbd)),
            Device::Nic(vif) => drop(domain_info.nics.insert(vif)),
            Device::Drive(_) => {}
        }
    }
    let full = drives(domain).await?.into_iter().filter(|drive| drive.medium.is_some());
    domain_info.disks.extend(full.map(|drive| drive.vbd));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hv::qemu::Settings;
    use model::id::Uuid;

    #[tokio::test]
    async fn one_that_cannot_be_looked_at_hides_no_other() {
        let run = tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp").unwrap();
        let [dark, gone] = [1, 2].map(|number| VmId(Uuid::from_random([number; 16])));
        let dirs = [dark, gone].map(|vm| RunDir::of(run.path(), vm));
        dirs.iter().for_each(|dir| dir.make().unwrap());
        // A process locks the directory, but has not written its id.
        let _lock = dirs[0].lock().unwrap();
        let qemu = QemuHypervisor::new(Settings::usual("/nonexistent".into(), run.path().into()));
        let domain_info = all(&qemu).await.unwrap();
        let shown: Vec<_> = domain_info.iter().map(|one| (one.vm, one.run)).collect();
        assert_eq!(shown, [(dark, Some(RunState::Unresponsive)), (gone, None)]);
        assert!(one(&qemu, dark).await.is_err(), "a call for it alone says what is wrong");
    }
}
