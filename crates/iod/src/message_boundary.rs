//! Front-ends that stop in the middle of a message must not delay other devices.
//!
//! Before an upgrade quiesces any device, it waits until no front-end is in the middle of a
//! message. It disconnects front-ends that take too long. All devices are served meanwhile. A
//! front-end that begins another message after this wait gets only a short grace period.

use std::time::{Duration, Instant};

use vhost_user::{SessionHandle, StopSignal, Woken};

/// Time that front-ends have to finish a message while all devices are served.
pub(crate) const GRACE: Duration = Duration::from_millis(500);
/// Time that a front-end has to finish a message while other devices are quiesced, and after
/// [`GRACE`] is over.
const LATE_GRACE: Duration = Duration::from_millis(50);
/// Longest time to process a received message and reply to it. This work is ours, not the
/// front-end's.
const WORK_GRACE: Duration = Duration::from_millis(500);
/// Interval of checks whether a front-end is in the middle of a message.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until a front-end is not in the middle of a message. All devices are served meanwhile. The
/// wait lasts until `until`, but at least [`LATE_GRACE`]. Returns false if the message is still
/// incomplete.
pub(crate) fn wait_message_boundary(session: &SessionHandle, until: Instant) -> bool {
    session.await_message(until.max(Instant::now() + LATE_GRACE))
}

/// Waits until a control thread signals `done`. Its session was told at `asked` to quiesce. Returns
/// true if the thread does not end, and its front-end must be disconnected.
pub(crate) fn missed_deadline(
    done: &StopSignal,
    asked: Instant,
    session: impl Fn() -> Option<SessionHandle>,
) -> bool {
    let mut next = asked + LATE_GRACE;
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if let Ok(Woken::Stopped) = done.wait(None, Some(left)) {
            return false;
        }
        let now = Instant::now();
        let is_within = session().is_some_and(|session| !session.await_message(now + LOOK));
        if is_within || now > asked + WORK_GRACE {
            return true;
        }
        next = Instant::now() + LOOK;
    }
}
