//! What follows the end of a domain.

use std::time::Duration;

use super::VmOp;
use crate::wire_names::named;

/// Least time from one start to the next of a machine that crashes: a guest that panics while it
/// boots would otherwise cost a CPU for as long as nobody looks.
pub const RESTART_INTERVAL: Duration = Duration::from_secs(10);

/// How a domain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainExit {
    /// The guest switched itself off.
    PoweredOff,
    /// The guest reset itself.
    Rebooted,
    /// The guest's kernel gave up.
    Panicked,
    /// Its process ended, and nobody here had asked for that.
    Killed,
    /// This operation asked for it, however the guest then went.
    Asked(VmOp),
}

named! {
    /// What is done when a guest ends as it should.
    OnExit {
        /// The machine is halted.
        Destroy = "destroy",
        /// The machine is started again.
        Restart = "restart",
    }
}

named! {
    /// What is done when a guest crashes. No dumps are taken: what asks for one is done without.
    OnCrash {
        /// The machine is halted.
        Destroy = "destroy",
        /// Halted after a dump.
        CoredumpAndDestroy = "coredump_and_destroy",
        /// The machine is started again.
        Restart = "restart",
        /// Started again after a dump.
        CoredumpAndRestart = "coredump_and_restart",
        /// The domain stays as it is, to be looked at.
        Preserve = "preserve",
        /// Started again, with the domain kept under another name: it is not kept.
        RenameRestart = "rename_restart",
    }
}

/// What a machine's owner wants done when its guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitPolicy {
    /// After it has switched itself off.
    pub shutdown: OnExit,
    /// After it has reset itself.
    pub reboot: OnExit,
    /// After a crash.
    pub crash: OnCrash,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// Clean up; the machine is halted.
    Halt,
    /// Clean up and start a new domain.
    Restart,
    /// Leave the domain as it is; the machine is paused.
    Keep,
}

/// What follows `exit`. An operation that asked for the end has its way, whatever the settings:
/// the power button is the same for a shutdown and for a reboot, so how the guest went says
/// nothing then.
pub fn next(exit: DomainExit, after: &ExitPolicy) -> ExitAction {
    match exit {
        DomainExit::Asked(VmOp::CleanReboot | VmOp::HardReboot) => ExitAction::Restart,
        DomainExit::Asked(_) => ExitAction::Halt,
        DomainExit::PoweredOff => on_exit(after.shutdown),
        DomainExit::Rebooted => on_exit(after.reboot),
        // Of a process that is gone nothing can be kept.
        DomainExit::Killed if after.crash == OnCrash::Preserve => ExitAction::Halt,
        DomainExit::Panicked | DomainExit::Killed => on_crash(after.crash),
    }
}

/// How long to wait before the restart that follows `exit`, of a machine that has run for `ran`.
pub fn restart_delay(exit: DomainExit, ran: Duration) -> Duration {
    match exit {
        DomainExit::Panicked | DomainExit::Killed => RESTART_INTERVAL.saturating_sub(ran),
        DomainExit::PoweredOff | DomainExit::Rebooted | DomainExit::Asked(_) => Duration::ZERO,
    }
}

fn on_exit(what: OnExit) -> ExitAction {
    match what {
        OnExit::Destroy => ExitAction::Halt,
        OnExit::Restart => ExitAction::Restart,
    }
}

fn on_crash(what: OnCrash) -> ExitAction {
    match what {
        OnCrash::Destroy | OnCrash::CoredumpAndDestroy => ExitAction::Halt,
        OnCrash::Restart | OnCrash::CoredumpAndRestart | OnCrash::RenameRestart => {
            ExitAction::Restart
        }
        OnCrash::Preserve => ExitAction::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_settings() -> Vec<ExitPolicy> {
        let mut all = Vec::new();
        for &shutdown in OnExit::ALL {
            for &reboot in OnExit::ALL {
                for &crash in OnCrash::ALL {
                    all.push(ExitPolicy { shutdown, reboot, crash });
                }
            }
        }
        all
    }

    /// The setting's own words decide, read by another rule than the code's.
    fn by_name(setting: &str) -> ExitAction {
        match setting {
            "preserve" => ExitAction::Keep,
            _ if setting.ends_with("restart") => ExitAction::Restart,
            _ => ExitAction::Halt,
        }
    }

    #[test]
    fn a_guest_that_ends_gets_what_is_set() {
        let all = all_settings();
        assert_eq!(all.len(), 2 * 2 * 6);
        for after in all {
            assert_eq!(next(DomainExit::PoweredOff, &after), by_name(after.shutdown.name()));
            assert_eq!(next(DomainExit::Rebooted, &after), by_name(after.reboot.name()));
            assert_eq!(next(DomainExit::Panicked, &after), by_name(after.crash.name()));
            let gone = match by_name(after.crash.name()) {
                ExitAction::Keep => ExitAction::Halt,
                other => other,
            };
            assert_eq!(next(DomainExit::Killed, &after), gone);
        }
    }

    #[test]
    fn who_asked_has_their_way() {
        for after in all_settings() {
            for &op in VmOp::ALL {
                let reboots = op.name().ends_with("_reboot");
                let expected = if reboots { ExitAction::Restart } else { ExitAction::Halt };
                assert_eq!(next(DomainExit::Asked(op), &after), expected, "{op:?}");
            }
        }
    }

    #[test]
    fn only_a_crash_in_a_loop_waits() {
        let second = Duration::from_secs(1);
        for exit in [DomainExit::Panicked, DomainExit::Killed] {
            assert_eq!(restart_delay(exit, second), Duration::from_secs(9));
            assert_eq!(restart_delay(exit, Duration::from_secs(3600)), Duration::ZERO);
        }
        for exit in
            [DomainExit::PoweredOff, DomainExit::Rebooted, DomainExit::Asked(VmOp::HardReboot)]
        {
            assert_eq!(restart_delay(exit, second), Duration::ZERO);
        }
    }
}
