//! What wakes a queue that waits for a time.

use std::time::Duration;

use reactor::{CompletionPort, Context, IoOp, OpCompletion};

/// Longest sleep, in nanoseconds. A timer cannot be taken back, so that one set under an old cap
/// outlives it: this bounds how many of those there are.
const NAP_MAX: u64 = 1_000_000_000;

/// A timer of the poller that is being made.
pub(crate) struct Timer {
    port: CompletionPort,
    /// When the one that counts goes off, which is its tag as well; 0: none runs.
    alarm: u64,
    op_completion: Vec<OpCompletion>,
}

impl Timer {
    pub(crate) fn new(context: &mut Context<'_>) -> Self {
        Self { port: context.open_port(), alarm: 0, op_completion: Vec::with_capacity(1) }
    }

    /// It is to go off.
    pub(crate) fn runs(&self) -> bool {
        self.alarm != 0
    }

    /// Goes off at `at_ns`, or earlier.
    pub(crate) fn set(&mut self, at_ns: u64, now_ns: u64, context: &mut Context<'_>) {
        let nap = at_ns.saturating_sub(now_ns).min(NAP_MAX);
        let alarm = now_ns.saturating_add(nap).max(1);
        if self.alarm == 0 || alarm < self.alarm {
            self.alarm = alarm;
            context.submit(&self.port, IoOp::Timer { after: Duration::from_nanos(nap) }, alarm);
        }
    }

    /// Notices that it went off.
    pub(crate) fn look(&mut self, context: &mut Context<'_>) {
        if self.alarm != 0 {
            context.reap(&self.port, &mut self.op_completion);
            if self.op_completion.drain(..).any(|op_completion| op_completion.tag == self.alarm) {
                self.alarm = 0;
            }
        }
    }
}
