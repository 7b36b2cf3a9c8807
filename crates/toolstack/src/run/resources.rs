//! Processes and files of a run, and their removal.

use std::convert::Infallible;
use std::path::Path;

use model::machine::{AccelChoice, MachineSpec};
use model::report::Stats;
use model::spec::SpecError;
use model::topology::disk_address;
use tokio::net::UnixStream;
use tokio::time::MissedTickBehavior;

use super::activity::{BusyTracker, SAMPLE_EVERY};
use super::{Host, RunError, RunEvent};
use crate::accel::{Decision, Prober};
use crate::qemu::{Engine, Machine, QemuDisk, QemuError, QemuExit, QemuSpec};
use crate::ringway_io::{DatapathError, IoProcess, RpcConnection};

/// All parts that must not remain. The start fills it. [`RunResources::take_down`] empties it,
/// however far the start came.
#[derive(Debug, Default)]
pub(super) struct RunResources {
    decision: Option<Decision>,
    io: Option<IoProcess>,
    client: Option<RpcConnection>,
    disks: Vec<QemuDisk>,
    machine: Option<Machine>,
    pub(super) busy_tracker: BusyTracker,
}

impl RunResources {
    /// Chooses the accelerator.
    pub(super) async fn decide(
        &mut self,
        spec: &MachineSpec,
        host: &Host,
        note: &mut (dyn FnMut(RunEvent) + Send),
    ) -> Result<(), RunError> {
        if spec.accel == AccelChoice::Auto && crate::accel::openable(&host.kvm).is_ok() {
            note(RunEvent::TryingKvm);
        }
        let prober = Prober {
            qemu: &host.qemu,
            launcher: &host.launcher,
            kernel: &spec.kernel,
            device: host.kvm.clone(),
            probe_cache: &host.probe_cache,
        };
        let decision = prober.decide(spec.accel, &mut self.machine).await?;
        note(RunEvent::Accel(decision.clone()));
        self.decision = Some(decision);
        Ok(())
    }

    /// Starts the datapath and attaches every disk.
    pub(super) async fn serve(
        &mut self,
        spec: &MachineSpec,
        host: &Host,
        dir: &Path,
    ) -> Result<(), RunError> {
        let control = dir.join("io.sock");
        let io = self.io.insert(IoProcess::spawn(&host.ringway_io, &control, host.echo)?);
        let client = self.client.insert(io.ready().await?);
        for (position, disk) in spec.disks.iter().enumerate() {
            let id = format!("disk{position}");
            let socket = dir.join(format!("{id}.sock"));
            let mut placed = disk.place(&id, &socket)?;
            placed.backend.change_paths(|path| {
                *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
            });
            if let Err(error) = client.attach(&placed).await {
                return Err(RunError::Disk {
                    position: position + 1,
                    what: placed.backend.to_string(),
                    source: io.explain(error).await,
                });
            }
            let address = disk_address(position).ok_or_else(|| SpecError {
                field: "disk",
                problem: format!("no place for disk {position}"),
            })?;
            self.disks.push(QemuDisk { id, socket, queues: placed.queues, address });
        }
        Ok(())
    }

    /// Starts the machine on the disks. Returns its console.
    pub(super) async fn start(
        &mut self,
        spec: &MachineSpec,
        host: &Host,
    ) -> Result<UnixStream, RunError> {
        let decision = self.decision.as_ref().ok_or(QemuError::Closed)?;
        let qemu = QemuSpec {
            engine: Engine::of(decision.accel, &host.qemu).await,
            memory_bytes: spec.memory_bytes,
            vcpus: spec.vcpus,
            kernel: spec.kernel.clone(),
            initrd: spec.initrd.clone(),
            append: spec.append.clone(),
            disks: self.disks.clone(),
        };
        let machine = Machine::spawn(&host.launcher, &host.qemu, &qemu, host.echo)?;
        let machine = self.machine.insert(machine);
        let console = machine.take_console().ok_or(QemuError::Closed)?;
        let io = self.io.as_mut().ok_or(QemuError::Closed)?;
        tokio::select! {
            ready = machine.ready() => ready?,
            died = io.died() => return Err(died.into()),
        }
        Ok(console)
    }

    /// Waits for the end of the machine or the death of the datapath. Samples the counters
    /// meanwhile, if the host's settings say so.
    pub(super) async fn wait(&mut self, host: &Host) -> Result<QemuExit, RunError> {
        let (Some(machine), Some(io)) = (self.machine.as_mut(), self.io.as_mut()) else {
            return Err(QemuError::Closed.into());
        };
        let client = self.client.as_mut().filter(|_| host.sample);
        tokio::select! {
            biased;
            died = io.died() => Err(died.into()),
            qemu_exit = machine.wait() => Ok(qemu_exit?),
            never = follow(client, &mut self.busy_tracker) => match never {},
        }
    }

    /// Ends the machine, reads the datapath's counters, then ends the datapath.
    pub(super) async fn take_down(
        &mut self,
        note: &mut (dyn FnMut(RunEvent) + Send),
    ) -> Option<Stats> {
        if let Some(mut machine) = self.machine.take()
            && let Err(error) = machine.quit().await
        {
            note(RunEvent::Trouble(format!("QEMU did not end as asked: {error}")));
        }
        let mut io = self.io.take()?;
        let Some(client) = self.client.as_mut() else {
            // The datapath never became ready, so there is nothing to flush.
            io.kill().await;
            return None;
        };
        let stats = counts(client).await.ok();
        stats.iter().for_each(|stats| self.busy_tracker.sample(stats));
        let stats = stats.map(|stats| self.busy_tracker.whole(stats));
        if let Err(error) = io.stop(client).await {
            note(RunEvent::Trouble(format!("ringway-io did not end as asked: {error}")));
        }
        stats
    }
}

/// Samples the counters until dropped. A failed call ends only the sampling: the wait for the
/// processes notices a death.
async fn follow(client: Option<&mut RpcConnection>, busy_tracker: &mut BusyTracker) -> Infallible {
    if let Some(client) = client {
        let mut ticks = tokio::time::interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Ok(stats) = counts(client).await else { break };
            busy_tracker.sample(&stats);
        }
    }
    std::future::pending().await
}

/// Reads the counters. Repeats the call if the worker was just replaced, because reading has no
/// effect.
async fn counts(client: &mut RpcConnection) -> Result<Stats, DatapathError> {
    match client.stats().await {
        Err(DatapathError::Broken { .. }) => client.stats().await,
        other => other,
    }
}
