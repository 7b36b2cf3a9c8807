//! QEMU's trace of its run states, for a daemon that missed the events.
//!
//! A guest's power-off and a guest's reset leave QEMU in the same state. Only a connected daemon
//! receives the event that distinguishes them. QEMU traces a request to power off
//! (`qemu_system_shutdown_request` in `softmmu/runstate.c`), but no reset that ends a guest. It
//! traces the state that follows both.

/// Trace events to enable. QEMU has them since 2.9.
pub(super) const EVENTS: [&str; 2] = [REQUEST, STATE];

const REQUEST: &str = "qemu_system_shutdown_request";
const STATE: &str = "runstate_set";
/// End of the trace line for the state after a guest's end.
const ENDED: &str = "(shutdown)";

/// Returns whether the guest ended by a reset.
///
/// A QEMU built with another trace backend writes neither line. Its guest then counts as powered
/// off, so that it is not started against the user's will.
pub(super) fn is_reset(output: &str) -> bool {
    let ended = |line: &&str| line.contains(STATE) && line.trim_end().ends_with(ENDED);
    let before = |line: &&str| !ended(line);
    output.lines().any(|line| ended(&line))
        && !output.lines().take_while(before).any(|line| line.contains(REQUEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: &str = "runstate_set current_run_state 6 (prelaunch) new_state 9 (running)\n";
    const ENDS: &str = "runstate_set current_run_state 9 (running) new_state 11 (shutdown)\n";

    #[test]
    fn a_reset_is_an_end_that_nobody_ordered() {
        let says = |lines: &[&str]| is_reset(&lines.concat());
        let order = |reason| format!("qemu_system_shutdown_request reason={reason}\n");
        assert!(says(&[RUNS, ENDS]));
        assert!(!says(&[RUNS, &order(6), ENDS]));
        assert!(says(&["warning: what has nothing to do with it\n", RUNS, ENDS, &order(2)]));
        assert!(says(&["12@1700000000.5:", ENDS]), "with the process and the time");
        // The guest has not ended, or QEMU does not trace.
        assert!(!says(&[RUNS]) && !says(&[]) && !says(&[&order(6)]));
    }
}
