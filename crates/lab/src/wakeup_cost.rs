//! Cost of waking a thread. On a virtual machine whose idle CPUs halt, a wakeup of another CPU
//! costs dozens of times one on the same CPU.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use rustix::event::{EventfdFlags, eventfd};

use crate::cpu;

/// Round trips of the measurement.
const TURNS: u32 = 2000;

/// Returns the mean time in microseconds from a wakeup on one CPU until the woken thread runs on
/// the other. Both threads sleep in between.
///
/// # Errors
/// Threads cannot run on these CPUs.
pub fn wake_us(from: usize, to: usize) -> Result<f64> {
    // Checks the CPU first, because otherwise the other thread would wait forever.
    cpu::started_on(from, || Ok(()))?;
    let bell = || eventfd(0, EventfdFlags::empty()).context("cannot make an eventfd");
    let (there, back) = (bell()?, bell()?);
    thread::scope(|scope| {
        // The thread keeps the CPU affinity with which it starts.
        let echo = cpu::started_on(to, || {
            Ok(scope
                .spawn(|| (0..TURNS).try_for_each(|_| wait_for(&there).and_then(|()| ring(&back)))))
        })?;
        let took_s = cpu::started_on(from, || {
            let begin = Instant::now();
            (0..TURNS).try_for_each(|_| ring(&there).and_then(|()| wait_for(&back)))?;
            Ok(begin.elapsed().as_secs_f64())
        })?;
        let echoed = echo.join().map_err(|_| anyhow!("the thread that was woken panicked"))?;
        echoed.map(|()| took_s * 1e6 / f64::from(2 * TURNS))
    })
}

fn ring(bell: &OwnedFd) -> Result<()> {
    rustix::io::write(bell, &1u64.to_ne_bytes()).map(drop).context("cannot wake a thread")
}

fn wait_for(bell: &OwnedFd) -> Result<()> {
    rustix::io::read(bell, &mut [0; 8]).map(drop).context("cannot wait for a thread")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_wake_each_other_on_one_cpu_and_on_two() {
        let allowed = cpu::allowed().unwrap();
        for to in [allowed.first(), allowed.last()].into_iter().flatten() {
            assert!(wake_us(allowed[0], *to).unwrap() > 0.0);
        }
        assert!(wake_us(allowed[0], 1 << 20).is_err() && wake_us(1 << 20, allowed[0]).is_err());
    }
}
