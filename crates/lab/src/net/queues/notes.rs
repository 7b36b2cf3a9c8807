//! Notes for the reader of the matrix, and the placement of its guests.

use anyhow::{Context, Result};

use super::{REPEATS, SLICE_MS};
use crate::cpu::{self, Placement};
use crate::net::guests::turns;
use crate::slices::{SLICES, STARTS};
use crate::wakeup_cost::wake_us;

/// Returns the CPUs of two guests with one CPU each. These are the last ones, which differ from the
/// backend's CPU if there are three.
pub(super) fn places() -> Result<[usize; 2]> {
    let allowed = cpu::allowed()?;
    let last = allowed.last().copied().context("this thread has no CPU")?;
    Ok([allowed.iter().rev().nth(1).copied().unwrap_or(last), last])
}

pub(super) fn notes(placement: Placement) -> Result<Vec<String>> {
    let (Placement { backend, client }, own) = (placement, places()?);
    let (same, other) = (wake_us(client, client)?, wake_us(client, backend)?);
    let notes = vec![
        format!(
            "Guests are User-Mode Linux with one CPU each, or where a title says so QEMU without KVM, whose CPUs \
             take turns, and iperf3 {}: booted for each turn, {REPEATS} runs in each boot, of which the columns \
             are the mean and the standard deviation. Two that have a CPU each keep to CPU {} (which listens) and {}, others \
             are where the host puts them. `testpmd` and Open vSwitch are on CPU {backend}; ours is where the \
             host puts it. With two CPUs for two guests and a switch they take each other's time. Guests of User-Mode \
             Linux hear interrupts that come while they go to sleep (`guest/uml-idle.c`), which Linux 6.1 does not.",
            "-w 256k -l 256k", own[0], own[1]
        ),
        format!(
            "To wake somebody on another CPU takes {other:.1} us here, on the same one {same:.1}. Guests and a \
             switch that sleeps wake each other for each handful of segments; a switch that spins is not woken, and \
             leaves one CPU to both guests, which then wake each other there: unless they have a CPU each. What is \
             promised over such peers is judged there, where a switch changes nobody's place."
        ),
        "A control queue is served by ours only, so peers have one pair, and to `testpmd` and Open vSwitch \
         guests go by a relay that leaves it out of the offer; no frame goes through that. The kernel's bridge, and its \
         TAP device with the host behind it, work in the guests' own time, or in that of their QEMU: they have no \
         process whose CPU time could be told. TAP devices have a queue for each pair of a guest of QEMU."
            .to_owned(),
        format!(
            "NICs without guests are the lab's own, one thread on CPU {}, with 32 frames on their way. All \
             pairs are started, and the flow uses one. They send for {SLICE_MS} ms at a time, and before and \
             after it is looked how the CPUs do, as `net-pps` does: the {SLICES} slices of a start count in \
             which that was best; the column \"pace\" has the lowest of those, 1 at best. A sample is the mean \
             of {STARTS} starts.",
            placement.client
        ),
        format!(
            "What pairs cost one stream is judged between these. Guests that have a CPU each use all their pairs in \
             one run and one pair in the next, {} runs in each boot (\"by turns\"). Where other guests stream, a spread \
             that is larger than what is lost excuses that: two boots differ by more.",
            turns::RUNS
        ),
    ];
    Ok(notes)
}
