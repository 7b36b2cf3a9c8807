//! Share of a poller's waiting time that is for its device.

/// Waits after which all counts are halved.
const HALF_LIFE: u32 = 64;
/// Longest time that a wait counts, in nanoseconds: a pause says little about later waits.
const LONGEST_NS: u64 = 1_000_000;

/// Time of recent waits: for the device, and all.
#[derive(Debug, Default)]
pub(super) struct WaitShare {
    device: u64,
    all: u64,
    waits: u32,
}

impl WaitShare {
    /// Adds a wait that took `took_ns` nanoseconds.
    pub(super) fn add(&mut self, took_ns: u64, for_device: bool) {
        let took = took_ns.min(LONGEST_NS);
        self.all += took;
        self.device += if for_device { took } else { 0 };
        self.waits += 1;
        if self.waits >= HALF_LIFE {
            self.waits = 0;
            self.all /= 2;
            self.device /= 2;
        }
    }

    /// Returns whether at least half of the waiting time is for the device, as far as is known. A
    /// poller without requests in flight most of the time would use a CPU for little gain.
    pub(super) fn is_mostly_device(&self) -> bool {
        2 * self.device >= self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_time_is_enough() {
        let mut share = WaitShare::default();
        assert!(share.is_mostly_device(), "nothing is known");
        let mut of = |device, driver| {
            for _ in 0..10 * HALF_LIFE {
                share.add(device, true);
                share.add(driver, false);
            }
            share.is_mostly_device()
        };
        assert!(of(60, 50) && !of(70, 120) && of(70, 10));
        assert!(!of(70, u64::MAX), "a pause is no overflow");
        assert!(of(u64::MAX, LONGEST_NS / 2));
    }
}
