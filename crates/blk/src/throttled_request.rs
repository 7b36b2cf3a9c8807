//! The request of one queue that waits under the disk's caps.

use std::time::Duration;

use disk::Request;
use reactor::{CompletionPort, Context, IoOp, OpCompletion};

use crate::device::Shared;
use crate::throttle::{QueueThrottle, TokenGrant};

/// Longest timer for a waiting request, in nanoseconds. A timer cannot be cancelled, so a timer of
/// an old cap may outlive it. This limit bounds how many such timers exist.
const NAP_MAX: u64 = 1_000_000_000;

/// The request of one queue that waits for its tokens, and the timer that wakes the queue.
#[derive(Debug)]
pub(crate) struct ThrottledRequest {
    queue_throttle: QueueThrottle,
    waiting: Option<(Request, TokenGrant)>,
    port: CompletionPort,
    /// Expiry of the earliest pending timer, in nanoseconds; 0 if there is none.
    alarm: u64,
    fired: Vec<OpCompletion>,
}

impl ThrottledRequest {
    pub(crate) fn new(context: &mut Context<'_>) -> Self {
        let (queue_throttle, port) = (QueueThrottle::default(), context.open_port());
        Self { queue_throttle, waiting: None, port, alarm: 0, fired: Vec::new() }
    }

    /// Returns whether no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// Takes tokens for a request. Returns the request if its tokens are available now; otherwise
    /// stores it and sets a timer. Call it only while no request waits.
    pub(crate) fn admit(
        &mut self,
        context: &mut Context<'_>,
        shared: &Shared,
        request: Request,
    ) -> Option<Request> {
        if !self.queue_throttle.is_on() {
            return Some(request);
        }
        let now = context.now_ns();
        let Request { kind, len, .. } = request;
        let Some(token_grant) = self.queue_throttle.ticket(&shared.throttle, kind, len, now) else {
            return Some(request);
        };
        let due = self.queue_throttle.due(&token_grant);
        if due <= now {
            return Some(request);
        }
        self.waiting = Some((request, token_grant));
        self.sleep(context, now, due);
        None
    }

    /// Applies changed caps and returns the waiting request if its tokens are available, or in any
    /// case if `at_once` is true.
    pub(crate) fn release(
        &mut self,
        context: &mut Context<'_>,
        shared: &Shared,
        at_once: bool,
    ) -> Option<Request> {
        self.queue_throttle.refresh(&shared.throttle);
        if self.alarm != 0 {
            context.reap(&self.port, &mut self.fired);
            if self.fired.drain(..).any(|op_completion| op_completion.tag == self.alarm) {
                self.alarm = 0;
            }
        }
        let (_, token_grant) = self.waiting.as_ref()?;
        let (now, due) = (context.now_ns(), self.queue_throttle.due(token_grant));
        if due <= now || at_once {
            return self.take();
        }
        self.sleep(context, now, due);
        None
    }

    /// Returns the waiting request, even if its tokens are not available yet.
    pub(crate) fn take(&mut self) -> Option<Request> {
        self.waiting.take().map(|(request, _)| request)
    }

    fn sleep(&mut self, context: &mut Context<'_>, now: u64, due: u64) {
        let nap = due.saturating_sub(now).min(NAP_MAX);
        let alarm = now.saturating_add(nap);
        if self.alarm == 0 || alarm < self.alarm {
            self.alarm = alarm;
            context.submit(&self.port, IoOp::Timer { after: Duration::from_nanos(nap) }, alarm);
        }
    }
}
