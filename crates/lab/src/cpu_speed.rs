//! Current speed of two CPUs.
//!
//! A virtual machine's CPU is a thread of its host, which may move it to another core at any time.
//! If the core's other hardware thread is busy, code runs at about half speed. That thread may
//! belong to another VM, or be our own other CPU.
//!
//! The two CPUs may share a cache, or a cache line may take five times as long between them. All of
//! that changes within tenths of a second. No counter shows it, because it is not steal time.
//! Without a check, an experiment would measure the placement.
//!
//! An experiment therefore measures the speed before and after its sample, while nothing else of it
//! runs on those CPUs.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cpu;

/// Least relative speed of undisturbed CPUs: see [`CpuPairSpeed::now`].
pub const UNDISTURBED: f64 = 0.9;
/// Readings per sample. A sample is their median, because an interrupt spoils one of them.
const READINGS: usize = 5;
const READING: Duration = Duration::from_micros(200);
/// Round trips of a cache line between the CPUs.
const HOPS: u32 = 2000;
/// Ratio of the round trip over the shortest one above which the CPUs count as far apart. Smaller
/// ratios are noise.
const FAR: f64 = 2.0;
/// Duration of the initial search for the highest speed, and the pause between its samples.
const SEARCH: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(5);
/// Longest wait after which `settle` need not run.
const FEW: Duration = Duration::from_millis(20);
/// Duration of a settling run after a longer wait. A switch under test measures the CPU share of
/// other work before it polls: four times, 100 ms apart. It does not poll while these CPUs leave
/// too little. The settling run lets it notice that the waiting has ended.
pub const SETTLES: Duration = Duration::from_millis(450);

/// Speed sample of both CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SpeedSample {
    /// Steps per microsecond of each CPU while both work.
    speed: [f64; 2],
    /// Round trip of a cache line in nanoseconds.
    hop_ns: f64,
}

/// Speed of two CPUs relative to the highest speed so far.
#[derive(Debug)]
pub struct CpuPairSpeed {
    cpus: [usize; 2],
    best: SpeedSample,
}

impl CpuPairSpeed {
    /// Samples two CPUs for some seconds. Nothing else should run on them.
    ///
    /// # Errors
    /// This process may not run on one of the CPUs.
    pub fn of(cpus: [usize; 2]) -> Result<Self> {
        let best = SpeedSample { speed: [0.0; 2], hop_ns: f64::INFINITY };
        let mut cpu_pair_speed = Self { cpus, best };
        let start = Instant::now();
        while start.elapsed() < SEARCH {
            cpu_pair_speed.now()?;
            std::thread::sleep(EVERY);
        }
        Ok(cpu_pair_speed)
    }

    /// Returns the speed in `found`. The first use samples the two CPUs: plans alone need none.
    ///
    /// # Errors
    /// This process may not run on one of the CPUs.
    pub fn found_or_of(found: &mut Option<Self>, cpus: [usize; 2]) -> Result<&mut Self> {
        match found {
            Some(cpu_pair_speed) => Ok(cpu_pair_speed),
            empty => Ok(empty.insert(Self::of(cpus)?)),
        }
    }

    /// Returns the speed of the slower CPU while both work, relative to its highest speed so far.
    /// The value is at most 1. It is lower if the CPUs are far apart now and were near before.
    /// Takes a few milliseconds.
    ///
    /// # Errors
    /// This process may not run on one of the CPUs.
    pub fn now(&mut self) -> Result<f64> {
        Ok(self.judge(measure_pair(self.cpus)?))
    }

    /// Waits until the CPUs are undisturbed, at most until `deadline`. Returns the speed, see
    /// [`CpuPairSpeed::now`]. After a longer wait, calls `settle` before the last sample. `settle`
    /// must run the measured systems for [`SETTLES`].
    ///
    /// # Errors
    /// This process may not run on one of the CPUs, or `settle` fails.
    pub fn undisturbed(
        &mut self,
        deadline: Instant,
        settle: impl FnOnce() -> Result<()>,
    ) -> Result<f64> {
        let begin = Instant::now();
        loop {
            let now = self.now()?;
            if now >= UNDISTURBED || Instant::now() > deadline {
                if begin.elapsed() < FEW {
                    return Ok(now);
                }
                break;
            }
            // The host sends no event when it moves the CPUs.
            std::thread::sleep(EVERY);
        }
        settle()?;
        self.now()
    }

    fn judge(&mut self, speed_sample: SpeedSample) -> f64 {
        let mut pace: f64 = 1.0;
        for (best, now) in self.best.speed.iter_mut().zip(speed_sample.speed) {
            *best = best.max(now);
            pace = pace.min(now / *best);
        }
        if pace >= UNDISTURBED {
            // The round trip is shorter within one core, but then the two CPUs share it.
            self.best.hop_ns = self.best.hop_ns.min(speed_sample.hop_ns);
        }
        let apart = speed_sample.hop_ns / self.best.hop_ns;
        if apart > FAR { pace.min(FAR / apart * UNDISTURBED) } else { pace }
    }
}

/// Measures both CPUs at the same time, then the round trip of a cache line. If both are the same
/// CPU, only measures its speed.
fn measure_pair([here, there]: [usize; 2]) -> Result<SpeedSample> {
    if here == there {
        let speed = cpu::started_on(here, || Ok(reading()))?;
        return Ok(SpeedSample { speed: [speed; 2], hop_ns: 1.0 });
    }
    // The two threads spin for each other, so they must not share a CPU.
    cpu::started_on(there, || Ok(()))?;
    let line = Line::default();
    let other = || {
        cpu::pin(there)?;
        line.pass(0);
        let speed = reading();
        line.answer();
        Ok(speed)
    };
    let ((mine, hop_ns), theirs) = cpu::started_on(here, || {
        std::thread::scope(|scope| {
            let other = scope.spawn(other);
            line.await_turn(1);
            let mine = (reading(), line.ask());
            let theirs: Result<f64> = other.join().ok().context("a thread has panicked")?;
            Ok((mine, theirs?))
        })
    })?;
    Ok(SpeedSample { speed: [mine, theirs], hop_ns })
}

/// Cache line that two threads write in turn: one after even numbers, one after odd ones.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU32);

impl Line {
    fn pass(&self, turn: u32) {
        self.0.store(turn + 1, Ordering::Release);
    }

    fn await_turn(&self, turn: u32) {
        while self.0.load(Ordering::Acquire) != turn {
            spin_loop();
        }
    }

    /// Sends the line back and forth. Returns the mean round trip in nanoseconds, without the first
    /// tenth.
    fn ask(&self) -> f64 {
        let mut start = Instant::now();
        for hop in 0..HOPS {
            if hop == HOPS / 10 {
                start = Instant::now();
            }
            self.pass(2 * hop + 1);
            self.await_turn(2 * hop + 3);
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(HOPS - HOPS / 10)
    }

    fn answer(&self) {
        for hop in 0..HOPS {
            self.await_turn(2 * hop + 2);
            self.pass(2 * hop + 2);
        }
    }
}

/// Returns the steps per microsecond on the current CPU.
fn reading() -> f64 {
    let mut all = [0.0; READINGS];
    for one in &mut all {
        let (start, mut steps) = (Instant::now(), 0);
        while start.elapsed() < READING {
            steps += work();
        }
        *one = f64::from(steps) / start.elapsed().as_secs_f64() / 1e6;
    }
    all.sort_by(f64::total_cmp);
    all[READINGS / 2]
}

/// Runs independent steps, which keep all units of a core busy. Returns their number.
fn work() -> u32 {
    const STEPS: u32 = 1000;
    let table = black_box([3u64; 64]);
    let (mut a, mut b, mut c, mut d) = (0u64, 0u64, 0u64, 0u64);
    for step in 0..STEPS as usize {
        a = a.wrapping_add(table[step % 64]);
        b ^= table[(step + 7) % 64];
        c = c.wrapping_add(table[(step * 5) % 64]);
        d ^= table[(step * 3) % 64];
    }
    black_box((a, b, c, d));
    STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_a_share_of_the_best() {
        let best = SpeedSample { speed: [0.0; 2], hop_ns: f64::INFINITY };
        let mut cpu_pair_speed = CpuPairSpeed { cpus: [0, 1], best };
        let mut judge = |speed, hop_ns| cpu_pair_speed.judge(SpeedSample { speed, hop_ns });
        assert_eq!(judge([100.0, 200.0], 60.0), 1.0, "nothing better was seen");
        assert_eq!(judge([200.0, 200.0], 50.0), 1.0);
        assert_eq!(judge([190.0, 200.0], 90.0), 0.95, "a line that takes a little longer");
        assert_eq!(judge([100.0, 100.0], 50.0), 0.5, "other work runs on their cores");
        assert_eq!(judge([100.0, 100.0], 20.0), 0.5, "they are one core");
        assert_eq!(judge([200.0, 200.0], 50.0), 1.0, "the speed of one core does not judge two");
        let far = judge([200.0, 200.0], 300.0);
        assert!(far > 0.0 && far < UNDISTURBED, "{far}");
    }

    #[test]
    fn cpus_are_looked_at_and_given_back() {
        let _alone = crate::alone();
        let cpus = cpu::allowed().unwrap();
        let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
        for both in [[first, last], [first, first]] {
            let seen = measure_pair(both).unwrap();
            assert!(seen.hop_ns > 0.0 && seen.speed.iter().all(|speed| *speed > 0.0), "{seen:?}");
        }
        assert_eq!(cpu::allowed().unwrap(), cpus);
        assert!(measure_pair([first, 1 << 20]).is_err() && measure_pair([1 << 20, first]).is_err());
    }
}
