//! Consequences of a domain's exit.

use std::time::Duration;

use super::VmOp;
use crate::wire_names::named;

/// Shortest time between two starts of a machine that crashes. Without it, a guest that panics
/// during boot would use a CPU all the time.
pub const RESTART_INTERVAL: Duration = Duration::from_secs(10);

/// Time after a start within which a crash counts as one of a loop.
pub const CRASH_WINDOW: Duration = Duration::from_secs(120);
/// Crashes of a loop after which the machine is not started again.
pub const CRASHES_MAX: u8 = 3;

/// Way in which a domain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainExit {
    /// The guest powered off.
    PoweredOff,
    /// The guest reset itself.
    Rebooted,
    /// The guest's kernel panicked.
    Panicked,
    /// The process ended without a request from Ringway.
    Killed,
    /// This operation requested the end, whatever the guest did then.
    Asked(VmOp),
}

named! {
    /// Action after a normal exit of the guest.
    OnExit {
        /// Halt the machine.
        Destroy = "destroy",
        /// Start the machine again.
        Restart = "restart",
    }
}

named! {
    /// Action after a crash of the guest. No dumps are taken: the dump of an action is skipped.
    OnCrash {
        /// Halt the machine.
        Destroy = "destroy",
        /// Take a dump, then halt the machine.
        CoredumpAndDestroy = "coredump_and_destroy",
        /// Start the machine again.
        Restart = "restart",
        /// Take a dump, then start the machine again.
        CoredumpAndRestart = "coredump_and_restart",
        /// Preserve the domain for inspection.
        Preserve = "preserve",
        /// Rename the domain and start the machine again. The old domain is not preserved.
        RenameRestart = "rename_restart",
    }
}

/// Configured actions after a guest's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitPolicy {
    /// Action after a power-off.
    pub shutdown: OnExit,
    /// Action after a reset.
    pub reboot: OnExit,
    /// Action after a crash.
    pub crash: OnCrash,
}

/// Action that follows an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// Clean up and halt the machine.
    Halt,
    /// Clean up and start a new domain.
    Restart,
    /// Preserve the domain; the machine is paused.
    Keep,
}

/// Returns the action that follows `exit`. If an operation requested the exit, that operation
/// decides, whatever the policy. Shutdown and reboot use the same power button, so the way in which
/// the guest exits says nothing then.
pub fn next(exit: DomainExit, after: &ExitPolicy) -> ExitAction {
    match exit {
        DomainExit::Asked(VmOp::CleanReboot | VmOp::HardReboot) => ExitAction::Restart,
        DomainExit::Asked(_) => ExitAction::Halt,
        DomainExit::PoweredOff => on_exit(after.shutdown),
        DomainExit::Rebooted => on_exit(after.reboot),
        // The process is gone, so there is nothing to preserve.
        DomainExit::Killed if after.crash == OnCrash::Preserve => ExitAction::Halt,
        DomainExit::Panicked | DomainExit::Killed => on_crash(after.crash),
    }
}

/// Returns whether the exit is a crash.
pub fn is_crash(exit: DomainExit) -> bool {
    matches!(exit, DomainExit::Panicked | DomainExit::Killed)
}

/// Returns the delay before the restart that follows `exit`, if the machine ran for `ran`. It
/// doubles with each of `crashes` consecutive crashes within [`CRASH_WINDOW`] of a start.
pub fn restart_delay(exit: DomainExit, ran: Duration, crashes: u8) -> Duration {
    if !is_crash(exit) {
        return Duration::ZERO;
    }
    let doubled = u32::from(crashes.min(CRASHES_MAX).saturating_sub(1));
    (RESTART_INTERVAL * 2_u32.pow(doubled)).saturating_sub(ran)
}

fn on_exit(what: OnExit) -> ExitAction {
    match what {
        OnExit::Destroy => ExitAction::Halt,
        OnExit::Restart => ExitAction::Restart,
    }
}

/// Returns the action that follows a crash.
pub fn on_crash(what: OnCrash) -> ExitAction {
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

    /// Returns the expected action from the name of the setting, independently of the code.
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
            for (crashes, seconds) in [(0, 9), (1, 9), (2, 19), (3, 39), (u8::MAX, 39)] {
                assert_eq!(restart_delay(exit, second, crashes), Duration::from_secs(seconds));
            }
            assert_eq!(restart_delay(exit, Duration::from_secs(3600), 3), Duration::ZERO);
        }
        for exit in
            [DomainExit::PoweredOff, DomainExit::Rebooted, DomainExit::Asked(VmOp::HardReboot)]
        {
            assert_eq!(restart_delay(exit, second, 2), Duration::ZERO);
        }
    }
}
