//! How two CPUs do at the moment.
//!
//! A CPU of a virtual machine is a thread of some core of its host, and another one whenever the host
//! likes. The core's other thread may be somebody else's, or our own other CPU: code has about half its
//! speed then. The two may have a cache in common, or be so far apart that a line takes five times as
//! long from one to the other. All of that changes within tenths of a second, and no counter tells: it is
//! not steal. What is measured meanwhile is the placement. So whoever measures asks before and
//! after, while nothing else of his runs on those CPUs.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cpu;

/// With less they are not what they can be: see [`CpuPairSpeed::now`].
pub const UNDISTURBED: f64 = 0.9;
/// One reading is the median of so many, each so long: an interrupt spoils one of them.
const READINGS: usize = 5;
const READING: Duration = Duration::from_micros(200);
/// Times that a line goes to the other CPU and back.
const HOPS: u32 = 2000;
/// A line that takes so many times as long as at best has further to go, and is no noise.
const FAR: f64 = 2.0;
/// How long the best pace is looked for at first, and how often.
const SEARCH: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(5);
/// How long looks take that nobody minds.
const FEW: Duration = Duration::from_millis(20);
/// For so long after many looks a switch of ours may know of them: they take the CPUs that it measures before it
/// spins, by four measures that are 100 ms apart, and while they leave too little it does not.
pub const SETTLES: Duration = Duration::from_millis(450);

/// What one look at both shows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SpeedSample {
    /// Steps in a microsecond of each while the other one works too.
    speed: [f64; 2],
    /// Nanoseconds for a line to the other one and back.
    hop_ns: f64,
}

/// Two CPUs, and the best that was seen of them.
#[derive(Debug)]
pub struct CpuPairSpeed {
    cpus: [usize; 2],
    best: SpeedSample,
}

impl CpuPairSpeed {
    /// Watches two CPUs for some seconds, on which nothing else should run.
    ///
    /// # Errors
    /// If this process may not run on one of them.
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

    /// How fast the slower one of them works while both do, over the best that was seen so far; less if they
    /// are far from each other, where they were near before. At most 1. Takes a few milliseconds.
    ///
    /// # Errors
    /// If this process may not run on one of them.
    pub fn now(&mut self) -> Result<f64> {
        Ok(self.judge(look(self.cpus)?))
    }

    /// Waits until nobody is in their way, at most so long. Returns the pace then, see [`CpuPairSpeed::now`]. Where that
    /// took many looks, has `settle` run what is measured for [`SETTLES`] before the last of them.
    ///
    /// # Errors
    /// If this process may not run on one of them; those of `settle`.
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
            // Nobody tells when the host has placed them anew.
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
            // A line within one core is faster still, but then they are one.
            self.best.hop_ns = self.best.hop_ns.min(speed_sample.hop_ns);
        }
        let apart = speed_sample.hop_ns / self.best.hop_ns;
        if apart > FAR { pace.min(FAR / apart * UNDISTURBED) } else { pace }
    }
}

/// Both work at once, then send a line to and fro. One CPU that stands for both works alone.
fn look([here, there]: [usize; 2]) -> Result<SpeedSample> {
    if here == there {
        let speed = cpu::started_on(here, || Ok(reading()))?;
        return Ok(SpeedSample { speed: [speed; 2], hop_ns: 1.0 });
    }
    // The two threads must not be on one CPU: each waits for the other.
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

/// A cache line of its own, that two threads write in turn: one after even numbers, one after odd ones.
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

    /// Sends it there and back; nanoseconds for each time, without the first tenth.
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

/// Steps in a microsecond on the CPU on which this runs.
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

/// Some steps that keep all units of a core busy, since none waits for another.
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
        assert_eq!(judge([100.0, 100.0], 50.0), 0.5, "somebody is on their cores");
        assert_eq!(judge([100.0, 100.0], 20.0), 0.5, "they are one core");
        assert_eq!(judge([200.0, 200.0], 50.0), 1.0, "which is no measure for two");
        let far = judge([200.0, 200.0], 300.0);
        assert!(far > 0.0 && far < UNDISTURBED, "{far}");
    }

    #[test]
    fn cpus_are_looked_at_and_given_back() {
        let _alone = crate::alone();
        let cpus = cpu::allowed().unwrap();
        let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
        for both in [[first, last], [first, first]] {
            let seen = look(both).unwrap();
            assert!(seen.hop_ns > 0.0 && seen.speed.iter().all(|speed| *speed > 0.0), "{seen:?}");
        }
        assert_eq!(cpu::allowed().unwrap(), cpus);
        assert!(look([first, 1 << 20]).is_err() && look([1 << 20, first]).is_err());
    }
}
