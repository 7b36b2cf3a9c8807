//! Closed loop of a switch and its client, measured in slices with undisturbed CPUs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testkit::process::PROCESS_DEADLINE;
use testkit::testpmd::{Counts, Memory, Nics, Testpmd};

use crate::cpu::{self, Placement};
use crate::cpu_speed::{CpuPairSpeed, SETTLES};
use crate::experiment::Sample;
use crate::host::HostTime;
use crate::net::systems::Running;
use crate::slices::{Slice, least_disturbed};

/// Queue size in descriptors, and the number of times that each NIC first sends 32 frames.
pub(super) const QUEUE_SIZE: u16 = 1024;
const FIRST: u16 = 30;
/// Time for the first frames to arrive.
const PROBE: Duration = Duration::from_millis(50);
/// Memory of the client in MiB.
const CLIENT_MIB: u32 = 512;
/// Metrics: frames per CPU second of the switch, and frames per second.
pub(super) const PER_CPU: &str = "frames_per_cpu_s";
pub(super) const RATE: &str = "frames_per_s";

/// Switch, and a client that sends back what it receives.
pub(super) struct ClosedLoop {
    switch: Running,
    client: Testpmd,
    /// Size of a frame in bytes.
    bytes: u16,
}

/// CPU times up to a point in time, in seconds.
struct Times {
    at: Instant,
    switch_s: f64,
    client_s: f64,
    busy_s: f64,
}

impl ClosedLoop {
    /// Starts the client with frames of this size.
    pub(super) fn start(switch: Running, bytes: u16, at: Placement) -> Result<Self> {
        let sockets: Vec<PathBuf> = (0..2).map(|port| switch.socket(port)).collect();
        let nics = Nics {
            sockets,
            queue_size: QUEUE_SIZE,
            memory: Memory::Huge,
            memory_mib: CLIENT_MIB,
            buffers: 32_768,
            frame_bytes: bytes,
            cpu: Some(at.client),
            ..Nics::default()
        };
        let mut client = nics.start()?;
        wait_for_ports(&mut client)?;
        client.command(&format!("start tx_first {FIRST}"))?;
        Ok(Self { switch, client, bytes })
    }

    /// Returns the mean of the least disturbed slices, each of length `window`. Waits at most
    /// `patience` for undisturbed slices.
    pub(super) fn measure(
        mut self,
        window: Duration,
        patience: Duration,
        cpu_pair_speed: &mut CpuPairSpeed,
    ) -> Result<Sample> {
        let sample = least_disturbed(patience, |until| {
            let (before, start) = self.stopped(|| {
                let before = cpu_pair_speed.undisturbed(until, || {
                    self.signal(Signal::CONT)?;
                    std::thread::sleep(SETTLES);
                    self.signal(Signal::STOP)
                })?;
                Ok((before, self.times()?))
            })?;
            let mut sample = self.slice(window)?;
            let (end, after) = self.stopped(|| Ok((self.times()?, cpu_pair_speed.now()?)))?;
            end.since(&start, &mut sample);
            Ok(Slice { pace: before.min(after), sample })
        })?;
        self.client.quit()?;
        Ok(sample)
    }

    /// Stops switch and client while `look` samples their CPUs, then continues both in any case.
    fn stopped<T>(&self, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let seen = self.signal(Signal::STOP).and_then(|()| look());
        self.signal(Signal::CONT)?;
        seen
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        for id in [self.client.id(), self.switch.id()] {
            let pid = Pid::from_raw(id.try_into()?).context("a process has a number")?;
            kill_process(pid, signal).context("cannot stop or continue a switch")?;
        }
        Ok(())
    }

    /// Reads the CPU times. Both processes must be stopped, because the kernel reports the time of
    /// a running thread only in ticks.
    fn times(&self) -> Result<Times> {
        Ok(Times {
            at: Instant::now(),
            switch_s: self.switch.time_s()?,
            client_s: cpu::process_time_s(self.client.id())?,
            busy_s: HostTime::now()?.busy_s,
        })
    }

    /// Measures the frames that arrive at both NICs of the client.
    fn slice(&mut self, window: Duration) -> Result<Sample> {
        std::thread::sleep(window / 4);
        let client = &mut self.client;
        let (before, start) = (counts(client)?, Instant::now());
        let sum = |counts: &[Counts; 2], of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
        let after = loop {
            std::thread::sleep(window);
            let after = counts(client)?;
            // On a busy host, the client may have had no CPU time meanwhile.
            let some = sum(&after, |c| c.received) > sum(&before, |c| c.received);
            if some || start.elapsed() > PROCESS_DEADLINE {
                break after;
            }
        };
        // This rate uses the client's own clock, because the client answers with a delay.
        let rate = after.iter().map(|counts| counts.received_per_s).sum::<u64>() as f64;
        let frames = sum(&after, |c| c.received) - sum(&before, |c| c.received);
        ensure!(frames > 0 && rate > 0.0, "no frame arrives");
        let failed = sum(&after, |c| c.failed) - sum(&before, |c| c.failed);
        let metrics = [
            ("requests", frames as f64),
            ("lost_frames", failed as f64),
            // The value is the same in all slices, unless the loop has lost frames.
            ("under_way", sum(&after, |c| c.sent) as f64 - sum(&after, |c| c.received) as f64),
            (RATE, rate),
            ("gbit_per_s", rate * f64::from(self.bytes) * 8.0 / 1e9),
        ];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

impl Times {
    /// Adds the CPUs used since `start` to a sample of that time.
    fn since(&self, start: &Self, sample: &mut Sample) {
        let seconds = (self.at - start.at).as_secs_f64();
        let [switch, client, busy] =
            [|t: &Self| t.switch_s, |t: &Self| t.client_s, |t: &Self| t.busy_s]
                .map(|of| (of(self) - of(start)) / seconds);
        let rate = sample.get(RATE).copied().unwrap_or(0.0);
        let metrics = [
            (PER_CPU, rate / switch),
            ("backend_cpus", switch),
            ("client_cpus", client),
            ("other_cpus", (busy - switch - client).max(0.0)),
        ];
        sample.extend(metrics.map(|(name, value)| (name.to_owned(), value)));
    }
}

/// Sends frames until some have arrived at both ends. A switch may need time to notice a front-end
/// and loses frames that arrive earlier.
fn wait_for_ports(client: &mut Testpmd) -> Result<()> {
    let until = Instant::now() + PROCESS_DEADLINE;
    loop {
        client.command("start tx_first 1")?;
        std::thread::sleep(PROBE);
        client.command("stop")?;
        if counts(client)?.iter().all(|counts| counts.received > 0) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "no frame arrives");
    }
}

fn counts(client: &mut Testpmd) -> Result<[Counts; 2]> {
    Ok([client.counts(0)?, client.counts(1)?])
}
