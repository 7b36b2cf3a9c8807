//! TCP with iperf3 between two guests of User-Mode Linux or QEMU, or between a guest and the host.

mod end;
pub(super) mod turns;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::tso::PER_CPU;
use crate::cpu::others_time_s;
use crate::experiment::Sample;
use crate::host::HostTime;
pub(super) use end::{End, host_listens};

/// Metric: Gb per CPU second of the whole host.
pub(super) const PER_BUSY: &str = "gbit_per_busy_s";
/// Deadline far beyond the time of any boot.
const DEADLINE: Duration = Duration::from_secs(180);
/// iperf3 options: size of the socket buffers and length of a write.
const BUFFERS: &str = "-w 256k -l 256k";
/// Port of the first server, which only shows that the path works. Each run has its own server on a
/// following port. A server that has just finished a run resets new connections until it listens
/// again.
const PORT: usize = 5201;
/// TCP congestion control on both sides, because the defaults of hosts and guests differ. Every
/// kernel has this one.
const CONGESTION: &str = "reno";
/// Addresses of the listening and of the connecting end.
pub(super) const ADDRESSES: [&str; 2] = ["10.199.77.1", "10.199.77.2"];

/// TCP streams of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streams {
    /// Concurrent streams.
    pub(super) count: u16,
    /// True if the listening end sends to the connecting end.
    pub(super) back: bool,
    /// Number of runs.
    pub(super) repeats: usize,
    /// Duration of each run.
    pub(super) window: Duration,
    /// Queue pairs that alternate with one pair, from run to run. `None` for no alternation.
    pub(super) turns: Option<u16>,
}

impl Streams {
    /// Boots the connecting end and runs the streams. `backend_s` returns the CPU seconds of the
    /// switch, if it is a process.
    pub(super) fn measure(
        self,
        end: &End,
        backend_s: Option<&dyn Fn() -> Result<f64>>,
    ) -> Result<Sample> {
        let mut guest = end.start(ADDRESSES[1], &self.script())?;
        let (mut cpu, mut wall_s, mut busy_s, mut others_s) = (0.0, 0.0, 0.0, 0.0);
        let time = || backend_s.map_or(Ok(0.0), |time| time());
        for repeat in 0..self.repeats {
            guest.wait_for(&format!("lab-begin-{repeat}\n"), DEADLINE)?;
            let (before, others, host) = (time()?, others_time_s()?, HostTime::now()?);
            let start = Instant::now();
            guest.wait_for(&format!("lab-end-{repeat}\n"), DEADLINE + self.window)?;
            cpu += time()? - before;
            wall_s += start.elapsed().as_secs_f64();
            busy_s += HostTime::now()?.busy_s - host.busy_s;
            // The sum falls if a process ends and no parent waits for it.
            others_s += (others_time_s()? - others).max(0.0);
        }
        let outcome = guest.finish_script(DEADLINE)?;
        let (code, output) = (outcome.code, outcome.output);
        ensure!(code == 0, "the guest's script ended with {code}: {output}");
        let runs = (0..self.repeats).map(|n| run_of(&output, n)).collect::<Result<Vec<_>>>()?;
        let mut sample = summary(&runs);
        if backend_s.is_some() {
            sample.insert("backend_cpus".to_owned(), cpu / wall_s);
            sample.insert(PER_CPU.to_owned(), gbit(&runs) / cpu);
        }
        sample.insert(PER_BUSY.to_owned(), gbit(&runs) / busy_s);
        if let Some(ratio) = self.turns.and_then(|_| turns::all_over_one(&runs)) {
            sample.insert(turns::ALL_OVER_ONE.to_owned(), ratio);
        }
        // The kernel's time counts as the guests', because the kernel moves their data.
        sample.insert("guests_cpus".to_owned(), (busy_s - cpu - others_s).max(0.0) / wall_s);
        sample.insert("other_cpus".to_owned(), others_s / wall_s);
        Ok(sample)
    }

    fn script(self) -> String {
        let Self { count, back, repeats, window, turns } = self;
        let before = turns.map_or_else(String::new, turns::before_run);
        // iperf3 counts whole seconds. In a shorter run it sends what 1 Gb/s carries meanwhile.
        let length = match window.as_secs() {
            0 => format!("-n {}K", window.as_millis() * 125),
            seconds => format!("-t {seconds}"),
        };
        let (server, back) = (ADDRESSES[0], if back { "-R" } else { "" });
        format!(
            "until busybox ping -c 1 -W 1 {server} >/dev/null; do :; done
             until iperf3 -c {server} -p {PORT} -n 1M >/dev/null; do sleep 0.2; done
             repeat=0
             while [ $repeat -lt {repeats} ]; do
                 {before}
                 echo lab-begin-$repeat
                 iperf3 -c {server} -p $(({PORT} + 1 + repeat)) {length} -P {count} {BUFFERS} \
                     -C {CONGESTION} {back} -i 0 -J || exit 5
                 echo lab-end-$repeat
                 repeat=$((repeat + 1))
             done"
        )
    }
}

/// Result of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    gbit_per_s: f64,
    bytes: f64,
    /// Segments that TCP retransmitted.
    resent: f64,
}

/// Parses the result of a run from the guest's output.
fn run_of(output: &str, number: usize) -> Result<Run> {
    let between = || {
        let (_, rest) = output.split_once(&format!("lab-begin-{number}\n"))?;
        rest.split_once(&format!("lab-end-{number}\n")).map(|(report, _)| report)
    };
    let report = between().with_context(|| format!("run {number} is not in: {output}"))?;
    let report: Value = serde_json::from_str(report)
        .with_context(|| format!("iperf3's report cannot be read: {report}"))?;
    let field = |sum: &str, name: &str| {
        let number = report["end"][sum][name].as_f64();
        number.with_context(|| format!("iperf3's report has no {name}: {report}"))
    };
    Ok(Run {
        gbit_per_s: field("sum_received", "bits_per_second")? / 1e9,
        bytes: field("sum_received", "bytes")?,
        resent: field("sum_sent", "retransmits")?,
    })
}

/// Returns the data of all runs in Gb.
fn gbit(runs: &[Run]) -> f64 {
    runs.iter().map(|run| run.bytes * 8.0 / 1e9).sum()
}

/// Returns mean and standard deviation.
fn summary(runs: &[Run]) -> Sample {
    let count = runs.len().max(1) as f64;
    let mean = runs.iter().map(|run| run.gbit_per_s).sum::<f64>() / count;
    let squares = runs.iter().map(|run| (run.gbit_per_s - mean).powi(2)).sum::<f64>();
    let deviation = (squares / (count - 1.0).max(1.0)).sqrt();
    let resent: f64 = runs.iter().map(|run| run.resent).sum();
    Sample::from([
        ("requests".to_owned(), count),
        ("gbit_per_s".to_owned(), mean),
        ("gbit_sd".to_owned(), deviation),
        ("resent_per_gbit".to_owned(), resent / gbit(runs)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_and_summed() {
        let report = |gbit: f64| {
            let got = serde_json::json!({"bits_per_second": gbit * 1e9, "bytes": 1e9 / 8.0});
            let sent = serde_json::json!({"retransmits": 3});
            serde_json::json!({"end": {"sum_received": got, "sum_sent": sent}}).to_string()
        };
        let part = |n: usize, gbit| format!("lab-begin-{n}\n{}\nlab-end-{n}\n", report(gbit));
        let output = ["noise\n".to_owned(), part(0, 1.0), part(1, 3.0)].concat();
        let runs = [0, 1].map(|n| run_of(&output, n).unwrap());
        assert_eq!((runs[1].gbit_per_s, runs[1].bytes), (3.0, 1e9 / 8.0));
        let sample = summary(&runs);
        assert_eq!((sample["gbit_per_s"], sample["gbit_sd"]), (2.0, 2f64.sqrt()));
        assert_eq!(sample["resent_per_gbit"], 3.0);
        assert!(run_of(&output, 2).is_err() && run_of("lab-begin-0\nno\nlab-end-0\n", 0).is_err());
        assert_eq!(summary(&runs[..1])["gbit_sd"], 0.0);
    }
}
