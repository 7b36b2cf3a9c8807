//! Ends, medium and queue pairs of a stream.

use crate::blk::systems::Poll;
use crate::net::systems::System;

pub(super) const OURS: System = System::Ringway(Poll::Auto);

/// Path of a stream: its ends, the medium, and the queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamPath {
    /// Two guests at a switch.
    Switch(System, u16),
    /// Two guests at ours. Their NICs have this number of pairs and use the first.
    OneOf(u16),
    /// Two guests at ours that alternate between all pairs and the first.
    Turns(u16),
    /// Two QEMU guests at ours, with as many CPUs each as there are pairs at most.
    Emulated(u16),
    /// Two NICs of the raw client at ours, with frames of this size in bytes.
    Nics(u16, usize),
    /// Two guests at a bridge of the kernel.
    Bridge,
    /// Two QEMU guests at a bridge of the kernel, through TAP devices with this number of queues.
    EmulatedBridge(u16),
    /// A guest and the host at ours. True if the host sends.
    Host(u16, bool),
    /// A guest at a TAP device of the host. True if the host sends.
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
