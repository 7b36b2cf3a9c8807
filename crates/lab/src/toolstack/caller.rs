//! Shell that calls `xe`.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use testkit::process::{Process, find_tool};
use testkit::raw::guest::wait_readable;
use testkit::ringwayd::{Ringwayd, Slices};

/// Pause between two calls. Without it, the calls alone would use most of a CPU, and guests would
/// not saturate the host.
pub(super) const GAP: Duration = Duration::from_millis(20);
/// Longest wait for a call, hundreds of times the expected result.
const DEADLINE: Duration = Duration::from_secs(60);
/// Least number of calls in a sample, however short. Fewer calls are not meaningful.
const LEAST: usize = 5;
/// Cgroup of users who log in through sshd.
const INSIDE: &str = "control/clients";
/// Script that runs a call for each input line and prints its start and end in seconds.
const LOOP: &str = "while read -r; do
    from=$EPOCHREALTIME
    \"$@\" </dev/null >/dev/null || exit 1
    echo \"$from $EPOCHREALTIME\"
done";

/// Running shell, which ends on drop.
pub(super) struct Caller {
    shell: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Caller {
    /// Starts a shell in the control slice of these slices. `None` means no slice.
    pub(super) fn start(daemon: &Ringwayd, slices: Option<&Slices>) -> Result<Self> {
        let xe = daemon.xe(&["vm-list"])?;
        let mut command = Command::new(find_tool("bash", "bash")?);
        command.args(["-c", LOOP, "caller"]).arg(xe.get_program()).args(xe.get_args());
        for (name, value) in xe.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // The locale determines the decimal separator of its numbers.
        command.env("LC_ALL", "C").stdout(Stdio::piped());
        let mut shell = Process::start_typed(&mut command)?;
        if let Some(slices) = slices {
            slices.put(INSIDE, shell.id())?;
        }
        let orders = shell.child().stdin.take().context("a shell has an input")?;
        let answers = shell.child().stdout.take().context("a shell has an output")?;
        Ok(Self { shell, orders, answers: BufReader::new(answers) })
    }

    /// Calls `most` times, or until the window is over. Returns each duration in milliseconds.
    pub(super) fn calls(&mut self, most: usize, window: Option<Duration>) -> Result<Vec<f64>> {
        // The first call also reads files into memory, so it does not count.
        self.call()?;
        let (mut took, from) = (Vec::with_capacity(most), Instant::now());
        while took.len() < most {
            let over = window.is_some_and(|window| from.elapsed() >= window);
            if over && took.len() >= LEAST {
                break;
            }
            sleep(GAP);
            took.push(self.call()?);
        }
        Ok(took)
    }

    /// Calls until `over`. Returns each duration in milliseconds.
    pub(super) fn calls_until(&mut self, over: &AtomicBool) -> Result<Vec<f64>> {
        let mut took = vec![self.call()?];
        while !over.load(Ordering::Relaxed) {
            sleep(GAP);
            took.push(self.call()?);
        }
        Ok(took)
    }

    fn call(&mut self) -> Result<f64> {
        let ordered = self.orders.write_all(b"\n");
        if wait_readable(&[self.answers.get_ref().as_fd()], DEADLINE)?.is_none() {
            bail!("`xe vm-list` in a shell did not end within {} s", DEADLINE.as_secs());
        }
        let mut answer = String::new();
        let answered = ordered.and_then(|()| self.answers.read_line(&mut answer));
        if answered.is_ok()
            && let Some(took) = took_ms(&answer)
        {
            return Ok(took);
        }
        Err(self.shell.error("xe vm-list failed").into())
    }
}

fn took_ms(answer: &str) -> Option<f64> {
    let (from, to) = answer.trim_end().split_once(' ')?;
    let took_ms = (to.parse::<f64>().ok()? - from.parse::<f64>().ok()?) * 1e3;
    // The difference is negative if the clock was set meanwhile.
    (took_ms >= 0.0).then_some(took_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_seconds() {
        let took = took_ms("1732300000.250000 1732300000.253500\n").unwrap();
        assert!((took - 3.5).abs() < 0.001, "{took}");
        assert!(["", "1", "1 x", "2 1"].iter().all(|answer| took_ms(answer).is_none()));
    }
}
