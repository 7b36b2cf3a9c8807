//! How many reactors a process has.

use std::fmt;
use std::num::NonZeroUsize;

/// Most reactors of a process, unless more are asked for: the documents' rule.
pub const DEFAULT_MAX_REACTORS: usize = 16;

/// How many reactors, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    reactors: NonZeroUsize,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Asked,
    /// CPUs that this process may use.
    Cpus(usize),
    /// The disk has no more queues.
    Queues,
}

impl Size {
    /// As many as were asked for, at least one.
    pub fn asked(reactors: usize) -> Self {
        Self { reactors: NonZeroUsize::new(reactors).unwrap_or(NonZeroUsize::MIN), why: Why::Asked }
    }

    /// One for each CPU that this process may use now, up to [`DEFAULT_MAX_REACTORS`]. Affinity,
    /// cpusets and CPU quotas of control groups count.
    pub fn of_host() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self { why: Why::Cpus(cpus), ..Self::asked(cpus.min(DEFAULT_MAX_REACTORS)) }
    }

    /// No more than a disk has queues.
    #[must_use]
    pub fn at_most(self, queues: u16) -> Self {
        if self.reactors() <= queues.into() {
            return self;
        }
        Self { why: Why::Queues, ..Self::asked(queues.into()) }
    }

    /// How many.
    pub fn reactors(&self) -> usize {
        self.reactors.get()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.reactors)?;
        match self.why {
            Why::Asked => write!(f, "as --reactors says"),
            Why::Cpus(cpus) if cpus > self.reactors() => {
                write!(f, "the most by default; {cpus} CPUs are usable")
            }
            Why::Cpus(_) => write!(f, "one for each CPU that is usable"),
            Why::Queues => write!(f, "one for each queue of the disk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_told() {
        let of = |cpus: usize| Size { why: Why::Cpus(cpus), ..Size::asked(cpus.min(16)) };
        assert_eq!(of(2).to_string(), "2, one for each CPU that is usable");
        assert_eq!(of(64).to_string(), "16, the most by default; 64 CPUs are usable");
        assert_eq!(of(8).at_most(4).to_string(), "4, one for each queue of the disk");
        assert_eq!(of(4).at_most(4), of(4));
        assert_eq!(Size::asked(0).reactors(), 1);
        assert_eq!(Size::asked(256).to_string(), "256, as --reactors says");
        let here = Size::of_host().reactors();
        assert!((1..=DEFAULT_MAX_REACTORS).contains(&here));
    }
}
