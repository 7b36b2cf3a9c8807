//! Number of reactors of a process.

use std::fmt;
use std::num::NonZeroUsize;

use model::sizing::{Host, sizing};

/// Number of reactors, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    reactors: NonZeroUsize,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Asked,
    /// Derived from this host.
    Host(Host),
    /// Half of this number of CPUs, because guests use them, too.
    Half(usize),
    /// Limited by the number of queues.
    Queues,
}

impl PoolSize {
    /// Uses the requested number, at least one.
    pub fn asked(reactors: usize) -> Self {
        Self { reactors: NonZeroUsize::new(reactors).unwrap_or(NonZeroUsize::MIN), why: Why::Asked }
    }

    /// Derives the number from the host's memory and from the CPUs that this process may use.
    /// Affinity, cpusets and CPU quotas of control groups count.
    pub fn of_host() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let memory = rustix::system::sysinfo();
        Self::of(Host {
            cpus: cpus.try_into().unwrap_or(u16::MAX),
            memory_bytes: memory.totalram.saturating_mul(memory.mem_unit.into()),
        })
    }

    /// Limits the number to half of the host's CPUs. The senders and receivers of a switch's frames
    /// need CPUs, too. Frames between two reactors are copied once more and wake one more thread.
    #[must_use]
    pub fn beside_guests(self) -> Self {
        let Why::Host(Host { cpus, .. }) = self.why else { return self };
        let half = usize::from(cpus.div_ceil(2));
        if self.reactors() <= half {
            return self;
        }
        Self { why: Why::Half(cpus.into()), ..Self::asked(half) }
    }

    pub(super) fn of(host: Host) -> Self {
        Self { why: Why::Host(host), ..Self::asked(sizing(host).reactors.value.into()) }
    }

    /// Limits the number to the number of queues.
    #[must_use]
    pub fn at_most(self, queues: u16) -> Self {
        if self.reactors() <= queues.into() {
            return self;
        }
        Self { why: Why::Queues, ..Self::asked(queues.into()) }
    }

    /// Returns the number.
    pub fn reactors(&self) -> usize {
        self.reactors.get()
    }
}

impl fmt::Display for PoolSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.reactors)?;
        match self.why {
            Why::Asked => write!(f, "as --reactors says"),
            Why::Host(host) => f.write_str(&sizing(host).reactors.why),
            Why::Half(cpus) => write!(f, "half of {cpus} CPUs: guests use them, too"),
            Why::Queues => write!(f, "one for each queue"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_told() {
        let of = |cpus| PoolSize::of(Host { cpus, memory_bytes: 256 << 30 });
        assert_eq!(of(2).to_string(), "2, one for each of 2 CPUs");
        assert_eq!(of(64).to_string(), "16, of 64 CPUs at most 16 are used");
        let small = PoolSize::of(Host { cpus: 64, memory_bytes: 4 << 30 });
        assert!(small.to_string().starts_with("4, Ringway's share of memory is"), "{small}");
        assert_eq!(of(8).at_most(4).to_string(), "4, one for each queue");
        assert_eq!(of(2).beside_guests().to_string(), "1, half of 2 CPUs: guests use them, too");
        assert_eq!(of(7).beside_guests().reactors(), 4);
        assert_eq!((of(1).beside_guests(), of(64).beside_guests()), (of(1), of(64)));
        assert_eq!(PoolSize::asked(2).beside_guests(), PoolSize::asked(2));
        assert_eq!(of(4).at_most(4), of(4));
        assert_eq!(PoolSize::asked(0).reactors(), 1);
        assert_eq!(PoolSize::asked(256).to_string(), "256, as --reactors says");
        assert!((1..=16).contains(&PoolSize::of_host().reactors()));
    }
}
