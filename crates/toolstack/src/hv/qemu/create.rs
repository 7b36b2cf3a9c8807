//! Creation of domains.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use model::domain::{Boot, BootFile, DomainSpec};
use model::id::{Domid, VmId};
use model::machine::{Accel, AccelChoice};
use tokio::process::Child;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::timeout;

use super::boot;
use super::command::command;
use super::domain::Domain;
use super::rundir::{DomainRecord, RunDir};
use super::{QemuHypervisor, Settings, WatchedDomain, group, os};
use crate::accel::{Prober, openable};
use crate::detached_process::DetachedProcess;
use crate::hv::HvError;
use crate::qemu::Engine;

/// Longest wait for the first answer of QEMU. It opens its devices before that.
const ANSWER_DEADLINE: Duration = Duration::from_secs(40);
/// Longest wait for the exit of a QEMU that has closed its control connection.
const END_DEADLINE: Duration = Duration::from_secs(1);

/// Accelerator and engine of this host's machines, once they are known.
#[derive(Debug, Default)]
pub(super) struct EngineCache {
    accel: AsyncMutex<Option<Accel>>,
    /// Engine under TCG, queried once. It is separate from the accelerator's lock because many
    /// machines may start together. Another QEMU binary is noticed at the daemon's next start.
    tcg: OnceCell<Engine>,
}

impl EngineCache {
    /// Returns the engine of a machine that boots like this.
    async fn of(&self, settings: &Settings, boot: &Boot) -> Result<Engine, HvError> {
        let accel = self.accel(settings, boot).await?;
        Ok(Engine::of_once(accel, &settings.qemu, &self.tcg).await)
    }

    /// Returns the accelerator. A failure is not stored: the next machine asks again, because an
    /// administrator may have repaired KVM.
    async fn accel(&self, settings: &Settings, boot: &Boot) -> Result<Accel, HvError> {
        let mut known = self.accel.lock().await;
        if let Some(accel) = *known {
            return Ok(accel);
        }
        if settings.accel == AccelChoice::Auto && openable(&settings.kvm).is_err() {
            return Ok(Accel::Tcg);
        }
        let kernel = trial_kernel(settings, boot);
        let prober = Prober {
            qemu: &settings.qemu,
            launcher: &[],
            kernel,
            device: settings.kvm.clone(),
            probe_cache: &settings.probe_cache,
        };
        let decision = prober.decide(settings.accel, &mut None).await?;
        tracing::info!(accel = decision.accel.name(), why = decision.why, "accelerator");
        if decision.accel == Accel::Kvm || settings.accel != AccelChoice::Auto {
            *known = Some(decision.accel);
        }
        Ok(decision.accel)
    }
}

/// Returns the kernel of the trial boot, whose result then applies to all machines. Images of
/// volumes do not qualify: a guest may write them, and their storage may hang.
fn trial_kernel<'a>(settings: &'a Settings, boot: &'a Boot) -> &'a Path {
    match boot {
        Boot::Kernel { kernel: BootFile::File(kernel), .. } => kernel,
        Boot::Kernel { .. } | Boot::Firmware(_) => &settings.trial_kernel,
    }
}

/// Creates a domain with stopped CPUs.
pub(super) async fn create(
    qemu: &QemuHypervisor,
    vm: VmId,
    domid: Domid,
    spec: &DomainSpec,
) -> Result<(), HvError> {
    let what = || "a new domain".to_owned();
    spec.validate().map_err(|why| HvError::Refused { what: what(), why: why.to_string() })?;
    if let Some(watched_domain) = qemu.held(vm).await? {
        let domain = &watched_domain.domain;
        if !domain.process.is_gone() {
            if domain.record.domid() != domid {
                let why = format!("the machine still has domain {}", domain.record.domid().0);
                return Err(HvError::Refused { what: what(), why });
            }
            return answers(&watched_domain).await;
        }
        qemu.forget_now(vm)?;
    }
    let boot = boot::checked(&spec.boot, &qemu.settings.boot_directories)?;
    let spec = DomainSpec { boot, ..spec.clone() };
    let engine = qemu.engine.of(&qemu.settings, &spec.boot).await?;
    // Messages of a process that ends at once would be lost with its pipe.
    let (watched_domain, _pipe) = start(qemu, vm, domid, &spec, engine)?;
    answers(&watched_domain).await?;
    // The process has joined by itself. If that failed, it reported the reason only on its standard
    // error.
    group::place(qemu.settings.tree.as_ref(), &watched_domain.domain);
    Ok(())
}

/// Starts the process. Discovery finds it from its first moment on. Returns its pipe for messages as
/// well, whose contents are lost when all have closed it.
fn start(
    qemu: &QemuHypervisor,
    vm: VmId,
    domid: Domid,
    spec: &DomainSpec,
    engine: Engine,
) -> Result<(Arc<WatchedDomain>, File), HvError> {
    let dir = RunDir::of(&qemu.settings.run, vm);
    let failed = |source| os("making", dir.path(), source);
    dir.make().map_err(failed)?;
    let record = DomainRecord::new(domid, spec.vcpus);
    dir.register(&record).map_err(failed)?;
    let command = command(&qemu.settings.qemu, vm, spec, engine, &dir.agent(), &dir.trace());
    let detached_process =
        DetachedProcess { group: qemu.entrance(vm), pid_file: Some(dir.pid_file()), command };
    let (child, pipe) = spawned(&qemu.settings, &dir, &detached_process)?;
    let pid = child.id().unwrap_or_default();
    let held = Domain::from_pid(vm, record, dir.clone(), pid);
    // The daemon must wait for its child. After the daemon's end, init does.
    tokio::spawn(reap(child));
    let held = held.map_err(|source| os("opening the process of", dir.path(), source))?;
    Ok((qemu.domains.register(held), pipe))
}

/// Spawns the process. The parent keeps no copy of the inherited descriptors, so it opens the pipe
/// for messages anew.
fn spawned(
    settings: &Settings,
    dir: &RunDir,
    detached_process: &DetachedProcess,
) -> Result<(Child, File), HvError> {
    let failed = |source| os("preparing", dir.path(), source);
    let stderr = dir.lock().map_err(failed)?;
    let pipe = dir.output().open().map_err(failed)?;
    let listen = |listener: UnixListener| Stdio::from(OwnedFd::from(listener));
    let qmp = dir.listen(&dir.qmp()).map(listen).map_err(failed)?;
    let console = dir.listen(&dir.console()).map(listen).map_err(failed)?;
    let mut command = settings.helper.command();
    command.args(detached_process.words()).stdin(qmp).stdout(console).stderr(stderr);
    let child = command.spawn();
    let child = child.map_err(|source| os("starting", &settings.helper.program, source))?;
    Ok((child, pipe))
}

async fn reap(mut child: Child) {
    if let Err(error) = child.wait().await {
        tracing::warn!(%error, "cannot wait for QEMU to exit");
    }
}

/// Waits until QEMU answers. If it exits instead, the error contains its last output.
async fn answers(watched_domain: &WatchedDomain) -> Result<(), HvError> {
    let domain = &watched_domain.domain;
    let Err(error) = domain.qmp_within(ANSWER_DEADLINE).await else { return Ok(()) };
    match timeout(END_DEADLINE, domain.process.gone()).await {
        Ok(()) => {
            let output = domain.dir.last_output();
            let why =
                if output.trim().is_empty() { "it printed nothing".to_owned() } else { output };
            Err(HvError::Start { why })
        }
        Err(_) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_can_write_decides_nothing_for_others() {
        let settings = Settings::usual("/qemu".into(), "/run/r".into());
        let boot = |kernel| Boot::Kernel { kernel, ramdisk: None, args: String::new() };
        let file = boot(BootFile::File("/boot/k".into()));
        assert_eq!(trial_kernel(&settings, &file), Path::new("/boot/k"));
        let (sr, vdi) = (
            (model::id::SrId(model::id::Uuid::default()), "dir".to_owned()),
            model::id::VdiId(model::id::Uuid::default()),
        );
        let image = model::domain::BootImage { path: "/sr/d.raw".into(), sr, vdi };
        for other in [boot(BootFile::Image(image)), Boot::Firmware(Vec::new())] {
            assert_eq!(trial_kernel(&settings, &other), settings.trial_kernel);
        }
    }
}
