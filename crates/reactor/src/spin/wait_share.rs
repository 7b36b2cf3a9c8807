//! How much of its time a poller waits for its device.

/// Half of what was counted is forgotten after so many waits.
const HALF_LIFE: u32 = 64;
/// A longer wait counts as one of these nanoseconds: a pause says little about what follows it.
const LONGEST_NS: u64 = 1_000_000;

/// The time of recent waits, by whom they were for.
#[derive(Debug, Default)]
pub(super) struct WaitShare {
    device: u64,
    all: u64,
    waits: u32,
}

impl WaitShare {
    /// A wait has ended that took so many nanoseconds.
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

    /// At least half of the time that it waits it waits for the device, as far as is known. Whoever
    /// has nothing under way for most of the time would burn a CPU for little.
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
