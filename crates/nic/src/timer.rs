//! Timer that wakes a queue.

use std::time::Duration;

use reactor::{CompletionPort, Context, IoOp, OpCompletion};

/// Longest sleep, in nanoseconds. A timer cannot be cancelled, so one set under an old rate limit
/// outlives the limit. This bounds the number of such timers.
const NAP_MAX: u64 = 1_000_000_000;

/// Timer of the poller that is being made.
pub(crate) struct Timer {
    port: CompletionPort,
    /// Time at which the current timer expires, which is also its tag; 0 if none runs.
    alarm: u64,
    op_completion: Vec<OpCompletion>,
}

impl Timer {
    pub(crate) fn new(context: &mut Context<'_>) -> Self {
        Self { port: context.open_port(), alarm: 0, op_completion: Vec::with_capacity(1) }
    }

    /// Returns whether a timer runs.
    pub(crate) fn runs(&self) -> bool {
        self.alarm != 0
    }

    /// Sets the timer to expire at `at_ns` or earlier.
    pub(crate) fn set(&mut self, at_ns: u64, now_ns: u64, context: &mut Context<'_>) {
        let nap = at_ns.saturating_sub(now_ns).min(NAP_MAX);
        let alarm = now_ns.saturating_add(nap).max(1);
        if self.alarm == 0 || alarm < self.alarm {
            self.alarm = alarm;
            context.submit(&self.port, IoOp::Timer { after: Duration::from_nanos(nap) }, alarm);
        }
    }

    /// Checks whether the timer has expired.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        if self.alarm != 0 {
            context.reap(&self.port, &mut self.op_completion);
            if self.op_completion.drain(..).any(|op_completion| op_completion.tag == self.alarm) {
                self.alarm = 0;
            }
        }
    }
}
