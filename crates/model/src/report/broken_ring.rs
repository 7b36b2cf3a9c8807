//! Report of a broken ring.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Purpose of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingKind {
    /// Requests of a disk.
    Request,
    /// Frames that the guest receives.
    Receive,
    /// Frames that the guest sends.
    Transmit,
    /// Commands to a NIC.
    Control,
}

/// A ring whose driver has broken the rules of virtqueues, or which needs memory that is not
/// shared. It is not served until its front-end starts it again, and its requests wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BrokenRing {
    /// Index of the virtqueue in its device.
    pub queue: u16,
    /// Purpose.
    pub kind: RingKind,
    /// First rule that the driver broke, or the range outside memory.
    pub cause: String,
    /// Time at which the ring broke, in seconds since 1970.
    pub unix_seconds: f64,
    /// Seconds since then.
    pub since_seconds: f64,
}

impl fmt::Display for BrokenRing {
    /// Formats its name for a sentence: `request ring 0`, `receive ring 1`, `control ring`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RingKind::Request => write!(f, "request ring {}", self.queue),
            RingKind::Receive => write!(f, "receive ring {}", self.queue / 2),
            RingKind::Transmit => write!(f, "transmit ring {}", self.queue / 2),
            RingKind::Control => f.write_str("control ring"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_nics_are_named_by_their_pair() {
        let name = |queue, kind| {
            let (cause, unix_seconds, since_seconds) = (String::new(), 0.0, 0.0);
            BrokenRing { queue, kind, cause, unix_seconds, since_seconds }.to_string()
        };
        assert_eq!(name(3, RingKind::Request), "request ring 3");
        assert_eq!(name(2, RingKind::Receive), "receive ring 1");
        assert_eq!(name(3, RingKind::Transmit), "transmit ring 1");
        assert_eq!(name(4, RingKind::Control), "control ring");
    }
}
