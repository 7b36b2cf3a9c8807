//! What wakes a queue that waits for a time.

use std::time::Duration;

use reactor::{Context, Done, Op, Port};

/// A timer of the poller that is being made.
pub(crate) struct Timer {
    port: Port,
    runs: bool,
    done: Vec<Done>,
}

impl Timer {
    pub(crate) fn new(context: &mut Context<'_>) -> Self {
        Self { port: context.open_port(), runs: false, done: Vec::with_capacity(1) }
    }

    /// Goes off at `at_ns`, unless it runs already.
    pub(crate) fn set(&mut self, at_ns: u64, now_ns: u64, context: &mut Context<'_>) {
        if !self.runs {
            let after = Duration::from_nanos(at_ns.saturating_sub(now_ns));
            context.submit(&self.port, Op::Timer { after }, 0);
            self.runs = true;
        }
    }

    /// Notices that it went off.
    pub(crate) fn look(&mut self, context: &mut Context<'_>) {
        if self.runs {
            context.reap(&self.port, &mut self.done);
            self.runs = self.done.is_empty();
            self.done.clear();
        }
    }
}
