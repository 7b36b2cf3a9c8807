//! Idle NICs with started rings.

use std::time::{Duration, Instant};

use anyhow::Result;
use testkit::raw::wire::protocol;
use testkit::raw::{Guest, Setup};

use super::systems::System;
use crate::blk::systems::Poll;
use crate::cpu::{self, Placement};
use crate::experiment::{Comparison, Figure, Sample, Side};
use crate::host::HostTime;

/// Most CPU time of an idle process, in percent of one core.
const CPU_PERCENT: f64 = 0.0;
/// Most sleeps of an idle process in ten seconds.
const SWITCHES: f64 = 0.0;
/// Pause before a measurement. A process that was just used becomes idle, and the other one notices
/// that the CPU is free. Free CPUs are averages over 400 ms.
const REST: Duration = Duration::from_millis(500);
/// Receive buffers of each NIC.
const BUFFERS: u16 = 64;
/// Features of any guest: modern devices, event indices, mergeable buffers.
const FEATURES: u64 = 1 << 15 | 1 << 29 | 1 << 32;

/// Number of NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Idle(usize);

pub(super) const CASES: [Idle; 2] = [Idle(2), Idle(100)];

impl Idle {
    pub(super) fn id(self) -> String {
        format!("idle-{}-nics", self.0)
    }

    pub(super) fn title(self) -> String {
        format!("{} idle NICs, nothing else", self.0)
    }

    /// Returns the systems. Peers only have two NICs, because their cost does not depend on the
    /// number.
    pub(super) fn systems(self) -> Vec<System> {
        let ours = System::Ringway(Poll::Auto);
        if self.0 > 2 {
            return vec![ours];
        }
        let [busy, sleeps] = [false, true].map(|sleeps| System::Ovs { sleeps });
        vec![ours, System::Testpmd, busy, sleeps]
    }

    /// Measures a switch with these NICs for the length of the window.
    pub(super) fn measure(
        self,
        system: System,
        window: Duration,
        placement: Placement,
    ) -> Result<Sample> {
        let running = system.start(self.0, 1, placement)?;
        let setup = Setup {
            queues: 2,
            features: FEATURES,
            protocol: protocol::MQ | protocol::REPLY_ACK,
            memory_bytes: 1 << 20,
            ..Setup::default()
        };
        let mut guests = Vec::new();
        for port in 0..self.0 {
            let mut guest = Guest::start(&running.socket(port), &setup)?;
            guest.post_buffers(0, BUFFERS, 2048)?;
            guest.kick(0)?;
            guests.push(guest);
        }
        std::thread::sleep(REST);
        let pid = running.id();
        let (cpu, switches) = (running.time_s()?, cpu::voluntary_switches(pid)?);
        let (host, start) = (HostTime::now()?, Instant::now());
        std::thread::sleep(window);
        let (cpu, seconds) = (running.time_s()? - cpu, start.elapsed().as_secs_f64());
        let switches = cpu::voluntary_switches(pid)?.saturating_sub(switches);
        let busy = HostTime::now()?.busy_s - host.busy_s;
        let metrics = [
            ("seconds", seconds),
            ("cpu_percent", cpu / seconds * 100.0),
            ("voluntary_switches", switches as f64),
            ("other_cpus", (busy - cpu).max(0.0) / seconds),
        ];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

/// Shows every system by itself. Ours has bars.
pub(super) fn comparisons(
    cell: &str,
    systems: &[(String, System)],
    promised: bool,
) -> Vec<Comparison> {
    let alone = |name: &str, metric: &str, bar: Option<f64>| Comparison {
        cell: cell.to_owned(),
        ours: name.to_owned(),
        metric: Some(metric.to_owned()),
        // A single round with a wakeup misses the bar.
        figure: if bar.is_some() { Figure::Worst } else { Figure::Alone },
        side: Side::AtMost,
        bar,
        ..Comparison::default()
    };
    let of = |(name, system): &(String, System)| {
        let bar = |bar: f64| (promised && system.is_ours()).then_some(bar);
        let cpu = alone(name, "cpu_percent", bar(CPU_PERCENT));
        [cpu, alone(name, "voluntary_switches", bar(SWITCHES))]
    };
    systems.iter().flat_map(of).collect()
}
