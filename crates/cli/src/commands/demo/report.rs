//! Output at the end of the demo.

use std::io::Write;
use std::path::Path;

use model::report::DiskStats;

use super::host::Host;
use super::machine::NAME;
use super::{Report, sampler};
use crate::table;

/// Prints the result. Returns whether all checks passed.
pub(super) fn print_result(report: &Report, took: f64) -> anyhow::Result<bool> {
    let mut output = std::io::stdout().lock();
    if let Some(mut stats) = report.stats.clone() {
        stats.disks.sort_by_key(|disk| report.ids.get(&disk.id).copied());
        let title = |disk: &DiskStats| {
            report.ids.get(&disk.id).map_or_else(|| disk.id.clone(), |disk| disk.title())
        };
        writeln!(output, "{}", table::disks(&stats, &report.busy_tracker, title))?;
        writeln!(output, "IOPS count the time in which a disk was busy.\n")?;
    }
    let mut failures = 0;
    for check in &report.checks {
        match &check.problem {
            None => writeln!(output, "ok    {}", check.what)?,
            Some(problem) => {
                failures += 1;
                writeln!(output, "FAIL  {}: {problem}", check.what)?;
            }
        }
    }
    if failures > 0 {
        writeln!(output, "\n{failures} of {} checks failed.", report.checks.len())?;
        return Ok(false);
    }
    writeln!(output, "\nThe guest found no error, and the host found every byte in its place.")?;
    writeln!(output, "It took {took:.0} s.")?;
    Ok(true)
}

/// Prints what was left running, and how to stop it.
pub(super) fn remains(host: &Host, dir: &Path) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    let ringway = std::env::args().next().unwrap_or_else(|| "ringway".into());
    let xe = format!("{} -s {}", beside(&ringway, "xe"), host.socket().display());
    writeln!(
        output,
        "\nringwayd and the machine keep running, in {}. To try next:\n",
        dir.display()
    )?;
    writeln!(output, "  {xe} vm-list\n      lists the machines")?;
    writeln!(output, "  {xe} console vm={NAME}\n      its shell; Ctrl-] leaves it")?;
    if let Some(control) = sampler::control(host.run()) {
        let control = control.display();
        writeln!(output, "  {ringway} top --control {control}\n      live activity of its disks")?;
    }
    writeln!(output, "\nTo stop it and to remove everything:\n")?;
    writeln!(output, "  {ringway} demo --stop {}", dir.display())
}

/// Returns the path of the program `name` in the directory of the `called` program.
fn beside(called: &str, name: &str) -> String {
    match called.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{name}"),
        None => name.to_owned(),
    }
}
