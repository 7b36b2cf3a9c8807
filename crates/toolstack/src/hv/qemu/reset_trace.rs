//! What QEMU writes about its states beside its messages, for whoever was not there.
//!
//! A guest that switches itself off and one that resets itself leave a QEMU in the same state, and the
//! event that tells them apart reaches only a daemon that listens then. An order to switch off is traced
//! (`qemu_system_shutdown_request` of QEMU's `softmmu/runstate.c`), a reset that ends a guest is not;
//! the state that follows from both is.

/// What is to be traced: events of QEMU since 2.9.
pub(super) const EVENTS: [&str; 2] = [REQUEST, STATE];

const REQUEST: &str = "qemu_system_shutdown_request";
const STATE: &str = "runstate_set";
/// How the trace of a state ends that a guest's end leaves.
const ENDED: &str = "(shutdown)";

/// The guest ended because it reset itself. A QEMU that was built to trace elsewhere says nothing of
/// either: then it is taken for one that was switched off, and nobody starts it against its will.
pub(super) fn is_reset(said: &str) -> bool {
    let ended = |line: &&str| line.contains(STATE) && line.trim_end().ends_with(ENDED);
    let before = |line: &&str| !ended(line);
    said.lines().any(|line| ended(&line))
        && !said.lines().take_while(before).any(|line| line.contains(REQUEST))
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
        // It has not ended, or does not trace.
        assert!(!says(&[RUNS]) && !says(&[]) && !says(&[&order(6)]));
    }
}
