//! Runs fio as a client and parses its report.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use testkit::process::{PROCESS_DEADLINE, Process, find_tool};

use crate::cpu;
use crate::experiment::Sample;

/// Load that fio generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    /// Value of fio's `rw` option.
    pub(crate) mode: &'static str,
    /// Size of one request in bytes.
    pub(crate) bytes: usize,
    /// Requests in flight.
    pub(crate) depth: u16,
}

impl Load {
    /// Returns the same load with one request in flight.
    pub(crate) const fn alone(self) -> Self {
        Self { depth: 1, ..self }
    }

    pub(crate) fn writes(self) -> bool {
        self.mode.contains("write")
    }
}

/// Target of fio's requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum To<'a> {
    /// Unix socket of an NBD server, for fio's nbd engine.
    Nbd(&'a Path),
    /// File with direct I/O, for fio's io_uring engine.
    Direct(&'a Path),
}

/// Result of a fio run.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Figures of the run.
    pub(crate) sample: Sample,
    /// CPU time of the whole process in seconds, which includes more than the requests.
    pub(crate) cpu_s: f64,
    /// Time in seconds during which fio sent requests.
    pub(crate) seconds: f64,
}

/// Runs fio on `client_cpu` on the first `size` bytes of the target. fio writes its report to
/// `dir`.
pub(crate) fn run(
    to: To<'_>,
    size: u64,
    dir: &Path,
    load: Load,
    window: Duration,
    client_cpu: usize,
) -> Result<Ran> {
    let report = dir.join("fio.json");
    let mut command = Command::new(find_tool("fio", "fio")?);
    command.args(arguments(to, size, load, window)).arg(format!("--output={}", report.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(dir);
    let mut fio = cpu::started_on(client_cpu, || Ok(Process::start(&mut command)?))?;
    let pid = fio.id();
    // The process has ended but is not reaped yet, so its CPU times are still readable.
    let deadline = window + PROCESS_DEADLINE;
    if testkit::raw::guest::wait_readable(&[fio.ended().as_fd()], deadline)?.is_none() {
        bail!(fio.error("does not end; does the server still answer?"));
    }
    let cpu_s = cpu::process_time_s(pid)?;
    let status = fio.wait(PROCESS_DEADLINE)?;
    if !status.success() {
        bail!(fio.error(format!("ended with {status}")));
    }
    let text = std::fs::read_to_string(&report).context("fio wrote no report")?;
    let (sample, seconds) = figures(&text, load)?;
    Ok(Ran { sample, cpu_s, seconds })
}

/// Returns fio's arguments, without a file for its report.
pub(crate) fn arguments(to: To<'_>, size: u64, load: Load, window: Duration) -> Vec<String> {
    let Load { mode, bytes, depth } = load;
    let to = match to {
        To::Nbd(socket) => {
            let uri = format!("--uri=nbd+unix:///d?socket={}", socket.display());
            vec!["--ioengine=nbd".into(), uri]
        }
        To::Direct(file) => {
            // fio separates file names with colons.
            let file = file.display().to_string().replace(':', "\\:");
            vec!["--ioengine=io_uring".into(), "--direct=1".into(), format!("--filename={file}")]
        }
    };
    let mut all = vec![
        "--name=lab".into(),
        format!("--rw={mode}"),
        format!("--bs={bytes}"),
        format!("--iodepth={depth}"),
        format!("--size={size}"),
        "--time_based".into(),
        format!("--runtime={}ms", window.as_millis()),
        "--thread".into(),
        // These options disable fio's own bookkeeping and leave the work of the engine.
        "--norandommap".into(),
        "--disable_slat=1".into(),
        "--disable_lat=1".into(),
        "--output-format=json".into(),
    ];
    all.extend(to);
    all
}

/// Parses fio's report. Returns the figures and the run time in seconds.
pub(crate) fn figures(report: &str, load: Load) -> Result<(Sample, f64)> {
    // Warnings may precede the JSON.
    let json = report.find('{').map_or("", |at| &report[at..]);
    let report: Value = serde_json::from_str(json).context("fio's report is no JSON")?;
    let job = &report["jobs"][0];
    let side = &job[if load.writes() { "write" } else { "read" }];
    let number = |value: &Value, name: &str| {
        value.as_f64().with_context(|| format!("fio's report has no {name}"))
    };
    let errors = number(&job["error"], "error")?;
    let requests = number(&side["total_ios"], "total_ios")?;
    let seconds = number(&side["runtime"], "runtime")? / 1e3;
    if errors > 0.0 || requests == 0.0 || seconds == 0.0 {
        bail!("fio ended with error {errors}, after {requests} requests in {seconds} s");
    }
    let iops = number(&side["iops"], "iops")?;
    let percentile = |percent: &str| {
        let value = &side["clat_ns"]["percentile"][percent];
        number(value, "percentiles").map(|ns| ns / 1e3)
    };
    let cpu = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    let metrics = [
        ("requests", requests),
        ("errors", errors),
        ("iops", iops),
        ("mib_per_s", iops * load.bytes as f64 / f64::from(1 << 20)),
        ("p50_us", percentile("50.000000")?),
        ("p99_us", percentile("99.000000")?),
        ("client_cpus", cpu / 100.0),
    ];
    Ok((metrics.map(|(name, value)| (name.to_owned(), value)).into(), seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { mode: "randread", bytes: 4096, depth: 32 };

    fn report(error: u32, ios: u32) -> String {
        let side = serde_json::json!({
            "total_ios": ios, "runtime": 500, "iops": 2.0 * f64::from(ios),
            "clat_ns": {"percentile": {"50.000000": 1500, "99.000000": 9000}},
        });
        let job = serde_json::json!({
            "error": error, "read": side, "usr_cpu": 40.0, "sys_cpu": 59.0,
        });
        format!("note: something\n{}", serde_json::json!({"jobs": [job]}))
    }

    #[test]
    fn a_report_is_read() {
        let (sample, seconds) = figures(&report(0, 1000), LOAD).unwrap();
        assert_eq!((seconds, sample["iops"], sample["p50_us"]), (0.5, 2000.0, 1.5));
        assert_eq!((sample["mib_per_s"], sample["client_cpus"]), (7.8125, 0.99));
    }

    #[test]
    fn failures_and_nonsense_are_no_figures() {
        for bad in [report(5, 1000), report(0, 0), "fio: no".into(), "{}".into()] {
            assert!(figures(&bad, LOAD).is_err(), "{bad}");
        }
        assert!(figures(&report(0, 1), Load { mode: "randwrite", ..LOAD }).is_err());
    }
}
