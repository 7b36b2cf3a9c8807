//! `ringway why WHAT`: explains why a disk, a NIC or a virtual machine is slow.

mod boot;
mod disk;
mod machine;
mod nic;
mod processes;
mod report;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::sockets::SocketOptions;
use boot::Boot;
use machine::{Device, Machine, Query};
use processes::Processes;
use report::Report;

/// Options of `ringway why`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway why d1
  ringway why vm=web                             (the boot, all disks and NICs of a VM of ringwayd)
  ringway why vbd=UUID                           (one disk of a VM; vif=UUID: one NIC)
  ringway why d1 --control /run/x/io.sock --seconds 10
  ringway why d1 --format json | jq -r .verdict.cause
  ringway why n1                                 (a NIC)
  ringway why a --control /tmp/net.sock          (a NIC of a ringway-net)

Without --control, the control sockets are /run/ringway/io.sock, and those of ringwayd: one for each
storage repository and one for all networks.

The verdict compares two samples, so it describes the present. Earlier slow requests come from the
flight recorder, which stores requests that took over 10 ms and ten medians, and the slowest of
each minute. Works while the storage hangs.

For a VM, the first line tells where the time of its last boot went, or, while it starts, what it
waits for. A VM that waits for its start has that line alone.

Exit code 1 if the disk, NIC or VM does not exist, or is not served.")]
pub(crate) struct Why {
    /// Id of the disk or NIC, as in `ringway io stats` and `ringway top`; or vm=NAME, vm=UUID,
    /// vbd=UUID, vif=UUID
    #[arg(value_name = "WHAT")]
    what: String,
    #[command(flatten)]
    sockets: SocketOptions,
    /// Observation time in seconds
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A sentence and tables
    Text,
    /// One JSON object: the verdict, and the statistics
    Json,
}

/// Parses seconds, from a tenth of a second to an hour.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.1..=3600.0).contains(value));
    value.ok_or_else(|| format!("{text:?} is not a number of seconds from 0.1 to 3600"))
}

impl Why {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let host = self.sockets.host();
        match Query::parse(&self.what) {
            Query::Id(id) => {
                let mut processes = Processes::sample(&self.sockets).await?;
                processes.require(id).await?;
                self.explain(processes, id).await
            }
            Query::Vm(name) => {
                let machine = Machine::look_up(host, name).await?;
                self.explain_machine(&machine).await
            }
            Query::Vbd(uuid) | Query::Vif(uuid) => {
                let processes = Processes::sample(&self.sockets).await?;
                if !processes.have(uuid) {
                    // The daemon knows whether the device exists, and whether it is plugged.
                    let device = Device::look_up(host, Query::parse(&self.what)).await?;
                    anyhow::bail!(device.not_served());
                }
                self.explain(processes, uuid).await
            }
        }
    }

    /// Prints the verdict on a disk or NIC, and its evidence.
    async fn explain(&self, mut processes: Processes, id: &str) -> anyhow::Result<ExitCode> {
        let report = processes.observe(&[id], self.seconds).await?.pop().flatten();
        let report = report.with_context(|| format!("{id} was detached meanwhile"))?;
        let mut output = std::io::stdout().lock();
        match self.format {
            Format::Json => writeln!(output, "{}", report.json())?,
            Format::Text => write!(output, "{}", report.text())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints a line on the boot of a VM, and the verdict on each of its devices, all for the same time.
    async fn explain_machine(&self, machine: &Machine) -> anyhow::Result<ExitCode> {
        let ids: Vec<_> = machine.devices.iter().map(|device| device.uuid.as_str()).collect();
        let reports = if machine.waits {
            // Nothing serves its devices yet, and perhaps no process runs.
            Vec::new()
        } else {
            Processes::sample(&self.sockets).await?.observe(&ids, self.seconds).await?
        };
        let all: Vec<_> = machine.devices.iter().zip(&reports).collect();
        let mut output = std::io::stdout().lock();
        match self.format {
            Format::Json => {
                let devices: Vec<Value> =
                    all.iter().map(|(device, report)| value(device, report.as_ref())).collect();
                let vm = json!({ "uuid": machine.uuid, "name": machine.name });
                let boot = machine.boot.as_ref().map(Boot::json);
                writeln!(output, "{}", json!({ "vm": vm, "boot": boot, "devices": devices }))?;
            }
            Format::Text => {
                if let Some(boot) = &machine.boot {
                    writeln!(output, "{}", boot.text(&machine.name))?;
                }
                for (device, report) in &all {
                    let text = report
                        .as_ref()
                        .map_or_else(|| device.not_served() + "\n", Report::verdict_text);
                    writeln!(output, "{}:\n{text}", device.name)?;
                }
                if !machine.waits {
                    writeln!(output, "The evidence: ringway why vbd=UUID, ringway why vif=UUID")?;
                }
            }
        }
        let is_whole = all.iter().all(|(device, report)| report.is_some() || !device.attached);
        Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Returns the report on a device of a VM as JSON.
fn value(device: &Device, report: Option<&Report>) -> Value {
    let mut value = report.map_or_else(|| json!({ "problem": device.not_served() }), Report::json);
    value["device"] = device.name.as_str().into();
    value["uuid"] = device.uuid.as_str().into();
    value
}
