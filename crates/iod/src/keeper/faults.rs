//! Deaths of workers by their own fault.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

/// Signals that a process raises in itself. No other process sends them in normal operation.
const OWN: [Signal; 8] = [
    Signal::SEGV,
    Signal::BUS,
    Signal::ABORT,
    Signal::ILL,
    Signal::FPE,
    Signal::SYS,
    Signal::TRAP,
    Signal::XFSZ,
];
/// Exit code of a program whose main thread panicked.
const PANICKED: i32 = 101;
/// Life of a worker after which earlier deaths do not count any more.
const STABLE: Duration = Duration::from_secs(300);

/// Number of deaths in a row by the worker's own fault.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    count: u32,
    /// True if the last death was the worker's own fault.
    is_last: bool,
}

impl Faults {
    /// Counts the death of a worker that lived for `lived`.
    pub(super) fn died(&mut self, status: Option<ExitStatus>, lived: Duration) {
        if lived >= STABLE {
            self.count = 0;
        }
        self.is_last = status.is_some_and(is_own);
        self.count = self.count.saturating_add(self.is_last.into());
    }

    /// Returns the number of deaths that a successor has to explain: 0 if the last worker was
    /// killed from outside.
    pub(super) fn unexplained(self) -> u32 {
        if self.is_last { self.count } else { 0 }
    }
}

fn is_own(status: ExitStatus) -> bool {
    let raised = |number| OWN.iter().any(|signal| signal.as_raw() == number);
    status.signal().is_some_and(raised) || status.code() == Some(PANICKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deaths_by_its_own_fault_count() {
        let (code, second) = (|code: i32| code << 8, Duration::from_secs(1));
        let mut faults = Faults::default();
        let mut counts = |raw: Option<i32>, lived| {
            faults.died(raw.map(ExitStatus::from_raw), lived);
            faults.unexplained()
        };
        // SIGSEGV with a core, SIGABRT, a panic.
        let own = [0x80 | 11, 6, code(101)];
        assert_eq!(own.map(|raw| counts(Some(raw), second)), [1, 2, 3]);
        // SIGKILL, SIGTERM, an error, a former keeper's worker.
        let from_outside = [Some(9), Some(15), Some(code(1)), None];
        assert_eq!(from_outside.map(|raw| counts(raw, second)), [0; 4]);
        assert_eq!([7, 31].map(|raw| counts(Some(raw), second)), [4, 5]);
        assert_eq!(counts(Some(11), STABLE), 1);
    }
}
