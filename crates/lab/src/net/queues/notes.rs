//! Notes for the reader of the matrix, and the placement of its guests.

use anyhow::{Context, Result};

use super::{Runs, SLICE_MS};
use crate::cpu::{self, Placement};
use crate::slices::{SLICES, STARTS};
use crate::wakeup_cost::wake_us;

/// Returns the CPUs of two guests with one CPU each. These are the last ones, which differ from the
/// backend's CPU if there are three.
pub(super) fn places() -> Result<[usize; 2]> {
    let allowed = cpu::allowed()?;
    let last = allowed.last().copied().context("this thread has no CPU")?;
    Ok([allowed.iter().rev().nth(1).copied().unwrap_or(last), last])
}

pub(super) fn notes(placement: Placement, runs: Runs) -> Result<Vec<String>> {
    let (Placement { backend, client }, own) = (placement, places()?);
    let (same, other) = (wake_us(client, client)?, wake_us(client, backend)?);
    let notes = vec![
        format!(
            "Guests are User-Mode Linux with one CPU each or, where a title says so, QEMU without \
             KVM, whose CPUs take turns. They run iperf3 {}. Each turn boots them; the columns are \
             mean and standard deviation of {} runs in each boot. Two guests with a CPU \
             each are pinned to CPU {} (which listens) and {}, others are not pinned. `testpmd` \
             and Open vSwitch are on CPU {backend}; Ringway is not pinned. With two CPUs, two \
             guests and a switch take each other's time. User-Mode Linux guests notice interrupts \
             that arrive while they go to sleep (`guest/uml-idle.c`); Linux 6.1 does not.",
            "-w 256k -l 256k", runs.usual, own[0], own[1]
        ),
        format!(
            "Waking a thread on another CPU takes {other:.1} us here, on the same one {same:.1}. \
             Guests and a sleeping switch wake each other for every few segments. A spinning \
             switch needs no wake-up and leaves one CPU to both guests, which then wake each other \
             there, unless they have a CPU each. Bars over such peers are judged with a CPU each, \
             where no switch moves a guest."
        ),
        "Only Ringway serves a control queue, so peers have one pair. Guests reach `testpmd` and \
         Open vSwitch by a relay that does not offer the control queue; no frame passes through \
         the relay. The kernel's bridge, and its TAP device with the host behind it, work in the \
         CPU time of the guests or of their QEMU: no process has that time alone. TAP devices have \
         a queue for each pair of a QEMU guest."
            .to_owned(),
        format!(
            "NICs without guests are the lab's own, one thread on CPU {}, with 32 frames in \
             flight. All pairs are started, and the flow uses one. They send in slices of \
             {SLICE_MS} ms; before and after each the lab measures the CPUs, as `net-pps` does. Of \
             each start, the {SLICES} slices with the best CPUs count; the column \"pace\" has the \
             lowest value of those, 1 at best. A sample is the mean of {STARTS} starts.",
            placement.client
        ),
        format!(
            "The cost of pairs for one stream is judged between these. Guests with a CPU each use \
             all their pairs in one run and one pair in the next, {} runs in each boot (\"by \
             turns\"). For other guests, a loss smaller than the spread is allowed: two boots \
             differ by more.",
            runs.by_turns
        ),
    ];
    Ok(notes)
}
