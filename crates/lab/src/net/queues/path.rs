//! Who meets by what, over how many pairs.

use crate::blk::systems::Poll;
use crate::net::systems::System;

pub(super) const OURS: System = System::Ringway(Poll::Auto);

/// Between whom, by what, over how many pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamPath {
    /// Two guests at a switch.
    Switch(System, u16),
    /// Two guests at ours, whose NICs have so many pairs and use the first.
    OneOf(u16),
    /// The same, which use all and the first by turns.
    Turns(u16),
    /// Two guests of QEMU at ours, with as many CPUs each as there are pairs at most.
    Emulated(u16),
    /// Two NICs of the lab's own client at ours, with frames of so many bytes.
    Nics(u16, usize),
    /// Two guests at a bridge of the kernel.
    Bridge,
    /// Two guests of QEMU at a bridge of the kernel, by TAP devices with so many queues.
    EmulatedBridge(u16),
    /// A guest and the host at ours; from the host, or to it.
    Host(u16, bool),
    /// A guest at a TAP device of the host's; from the host, or to it.
    Tap(bool),
}

impl StreamPath {
    pub(super) fn name(self) -> String {
        let pairs = |n: u16| if n == 1 { "1 pair".to_owned() } else { format!("{n} pairs") };
        match self {
            Self::Switch(OURS, n) | Self::Emulated(n) | Self::Nics(n, _) => {
                format!("ringway-net, {}", pairs(n))
            }
            Self::Switch(system, _) => system.name(),
            Self::OneOf(n) => format!("ringway-net, 1 of {}", pairs(n)),
            Self::Turns(n) => format!("ringway-net, {} and 1 by turns", pairs(n)),
            Self::Bridge => "kernel TAP, bridge, TAP".to_owned(),
            Self::EmulatedBridge(n) => format!("kernel TAP, bridge, TAP, {}", pairs(n)),
            Self::Host(n, false) => format!("guest to host, {}", pairs(n)),
            Self::Host(n, true) => format!("host to guest, {}", pairs(n)),
            Self::Tap(false) => "guest to host, kernel TAP".to_owned(),
            Self::Tap(true) => "host to guest, kernel TAP".to_owned(),
        }
    }
}
